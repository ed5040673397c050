#!/bin/sh
# SPDX-License-Identifier: MIT
#
# several.sh - run with several keys, with permits, and with a minimum hold.
. "$(dirname "$0")/lib.sh"
hf=$HOLDFAST

# Several keys: all or none.
cat >"$tmp/show" <<'END'
echo "$HOLDFAST_KEY $HOLDFAST_FENCES"
for key in "$@"; do
    "$HOLDFAST" status "$key"
done
END
exits 'run holds KEY and those of --and' 0 "$hf" run z --and a --and m -- \
    sh "$tmp/show" z a m
for key in z a m; do
    has "$key is held" "$key: held by" "$said"
done
fences=$(printf '%s\n' "$said" | sed -n 's/^z \([0-9]* [0-9]* [0-9]*\)$/\1/p')
told=$(printf '%s\n' "$said" | sed -n 's/.*, fence \([0-9]*\).*/\1/p')
is '$HOLDFAST_FENCES has the fences in the order of the keys' "$fences" \
    "$(echo $told)"
for key in z a m; do
    exits "$key is free afterwards" 1 "$hf" status "$key"
done

"$hf" run a -- sleep 1000 &
holder=$!
until_true held a
exits 'one of them is busy: status 75' 75 "$hf" run -n z --and a -- true
exits 'and the others were not taken' 1 "$hf" status z
kill $holder
wait $holder

"$hf" run -t 1s z --and a -- sleep 1000 2>"$tmp/err" &
holder=$!
until_true held a
until_true held z
exits 'the second key is broken' 0 "$hf" break --fence "$(fence a)" a
wait $holder
is 'that ends the command' 79 $?
has 'and the key is named' "lost 'a' (broken)" "$(cat "$tmp/err")"
exits 'and the first is free' 1 "$hf" status z

exits 'a key named twice is refused' 64 "$hf" run k --and k -- true
has 'and says which' "the key 'k' is named twice" "$said"
exits 'an empty key is refused' 64 "$hf" run k --and '' -- true
exits 'status of --json lists the holders' 0 "$hf" run k -- "$hf" status --json k
printf '%s\n' "$said" >"$tmp/json"
valid_json "$tmp/json"
ok 'as JSON'
has 'in an array' '"held_by": [{"fence"' "$said"

# Readers are shown one by one.
for i in 1 2; do
    "$hf" run -s --note "reader $i" shared -- sleep 1000 &
    eval "reader$i=$!"
done
until_true sh -c '"$HOLDFAST" status --json shared | grep -q "\"holders\": 2"'
has 'status counts those who share' 'held (shared) by reader ? and 1 more' \
    "$("$hf" status shared)"
kill $reader1 $reader2
wait $reader1 $reader2

# Permits.
for i in 0 1; do
    "$hf" run --permits 2 pool -- sh -c 'echo $HOLDFAST_SLOT >"$1"; sleep 1000' \
        sh "$tmp/slot$i" &
    eval "user$i=$!"
    until_true [ -s "$tmp/slot$i" ]
done
is 'each has a slot' '0 1' "$(cat "$tmp/slot0" "$tmp/slot1" | sort | tr '\n' ' ' | sed 's/ $//')"
exits 'and a third waits' 75 "$hf" run -n --permits 2 pool -- true
exits 'another number is refused' 64 "$hf" run -n --permits 3 pool -- true
has 'and says which is in use' 'in use with 2 permits, not 3' "$said"
exits 'and so is a plain lock' 64 "$hf" run -n pool -- true
exits 'status shows the slots' 0 "$hf" status pool
has 'and how many are taken' 'held (2 of 2 permits) by' "$said"
has 'one by one' 'slot 1: ' "$said"
kill $user0
wait $user0
exits 'what is given back can be had' 0 "$hf" run -n --permits 2 pool -- true
kill $user1
wait $user1

# A minimum hold outlives the command and its process.
exits 'run --min-hold ends with the command' 0 "$hf" run --min-hold 10m job -- true
exits 'but the lock stays taken' 75 "$hf" run -n job -- true
has 'and why' 'kept for a minimum time after its release by' "$said"
exits 'status says so' 0 "$hf" status job
has 'and for how long' 'released; kept for another 9m' "$said"
n=$(fence job)
exits 'break --force ends it' 0 "$hf" break --force --fence "$n" job
exits 'and the lock is free' 0 "$hf" run -n job -- true
exits 'a short minimum ends by itself' 0 "$hf" run --min-hold 100ms job -- true
exits 'and is waited for' 0 "$hf" run -w 60 job -- true

exits 'no permits at all are refused' 64 "$hf" run --permits 0 k -- true
exits 'nor more than there are numbers' 64 "$hf" run --permits 2147483648 k -- true
exits 'a lock is shared or has permits' 64 "$hf" run -s --permits 2 k -- true

finish
