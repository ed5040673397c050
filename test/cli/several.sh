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

exits 'no permits at all are refused' 64 "$hf" run --permits 0 k -- true
exits 'nor more than there are numbers' 64 "$hf" run --permits 2147483648 k -- true
exits 'a lock is shared or has permits' 64 "$hf" run -s --permits 2 k -- true

finish
