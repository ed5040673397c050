#!/bin/sh
# SPDX-License-Identifier: MIT
#
# look.sh - status, ls, check, watch, doctor, completion: what they print.
. "$(dirname "$0")/lib.sh"
hf=$HOLDFAST

exits 'status of a key that never was is free, status 1' 1 "$hf" status k
is 'in one word' 'k: free' "$said"
"$hf" run --note 'the note' k -- sleep 1000 &
holder=$!
until_true held k
n=$(fence k)
exits 'status of a held key has status 0' 0 "$hf" status k
has 'tells note and fence' "k: held by the note*, fence $n" "$said"
exits 'check of the present grant is 0' 0 "$hf" check --fence "$n" k
is 'and silent' '' "$said"
exits 'check of an older grant is 79' 79 "$hf" check --fence $((n - 1)) k
exits 'check --json tells it' 79 "$hf" check --json --fence $((n - 1)) k
has 'as a boolean' '"stands": false' "$said"
exits 'ls lists it' 0 "$hf" ls
has 'with the note' 'k: held by the note' "$said"
exits 'ls of a prefix that nothing has is empty' 0 "$hf" ls zzz
is 'really' '' "$said"
exits 'ls of its prefix lists it' 0 "$hf" ls k
has 'again' 'k: held' "$said"

# JSON.
odd=$(printf 'o"d\\d\n\t\001\377\303\244/..{} \302')
"$hf" run --note "$odd" "$odd" -- sleep 1000 &
second=$!
until_true held "$odd"
for what in 'status k' 'ls' 'doctor' 'check --fence 1 k' 'status never'; do
    "$hf" $what --json >"$tmp/json" 2>"$tmp/err"
    valid_json "$tmp/json"
    ok "$what --json is JSON"
done
"$hf" status --json "$odd" >"$tmp/json"
valid_json "$tmp/json"
ok 'status --json of a key of odd bytes is JSON'
if command -v python3 >/dev/null; then
    python3 -c 'import json, os, re, sys
key = json.load(open(sys.argv[1]))["key"].encode()
key = re.sub(rb"\\\\|\\x[0-9a-f]{2}",
             lambda m: b"\\" if m[0] == b"\\\\" else bytes([int(m[0][2:], 16)]), key)
assert key == os.fsencode(sys.argv[2]), ascii(key)' \
        "$tmp/json" "$odd"
    ok 'and gives every byte back'
fi
[ "$("$hf" ls | wc -l)" -eq 2 ]
ok 'ls prints one line for each lock, also with a newline in its key'
"$hf" ls | LC_ALL=C grep -q "$(printf '[\001-\011\013-\037]')"
[ $? -eq 1 ]
ok 'and no control byte'
kill $second
wait $second
bad=$(printf 'x\302\2332J\342\200\256\377\233y')
"$hf" run --note "$bad" bad -- sleep 1000 &
second=$!
until_true held bad
is 'neither a C1 nor a bidi control' 'x\u009b2J\u202e\xff\x9by' \
    "$("$hf" status bad | sed 's/.*held by //; s/, fence.*//')"
has 'also not where a busy lock is told' 'x\\u009b2J\\u202e\\xff\\x9by' \
    "$("$hf" run -n bad -- true 2>&1)"
kill $second
wait $second

# watch.
: >"$tmp/watch"
"$hf" watch --retry 20ms --json k >"$tmp/watch" &
watcher=$!
lines() { [ "$(wc -l <"$tmp/watch")" -ge "$1" ]; }
until_true lines 1
ok 'watch prints what is'
kill $holder
wait $holder
until_true lines 2
ok 'and a line when the lock is free'
"$hf" run k -- sleep 1000 &
holder=$!
until_true lines 3
ok 'and a line when somebody has it again'
kill $holder $watcher
wait $holder $watcher
tail -n 1 "$tmp/watch" >"$tmp/json"
valid_json "$tmp/json"
ok 'each of them JSON'

# gc.
exits 'gc counts what it removed' 0 "$hf" gc -q --json -u mem:gc
has 'as JSON' '{"looked_at": 0, "removed": 0, "kept": 0, "dry_run": false}' \
    "$said"
exits 'or would remove' 0 "$hf" gc --dry-run --older-than 0 -u mem:gc
has 'in words' 'would remove 0 of 0 entries, kept 0' "$said"
exits 'gc takes no key' 64 "$hf" gc k
exits 'nor an age that is none' 64 "$hf" gc --older-than soon
HOLDFAST_URL=file:$tmp/old
for key in a b c; do
    last=$("$hf" run $key -- sh -c 'echo $HOLDFAST_FENCE')
done
"$hf" run kept -- "$hf" gc --dry-run --older-than 0 >"$tmp/gc"
is 'gc --dry-run tells how many keys are free' \
    'would remove 3 of 4 entries, kept 1' "$(cat "$tmp/gc")"
exits 'and removes nothing' 0 "$hf" gc --older-than 1h
is 'nor does gc of keys that were used just now' \
    'removed 0 of 4 entries, kept 4' "$said"
"$hf" run kept -- "$hf" gc --older-than 0 >"$tmp/gc"
is 'gc removes what free keys left' 'removed 3 of 4 entries, kept 1' \
    "$(cat "$tmp/gc")"
next=$("$hf" run c -- sh -c 'echo $HOLDFAST_FENCE')
[ "$next" -gt "$last" ]
ok 'and fences do not go back by it'
HOLDFAST_URL=file:$tmp/locks

# doctor.
exits 'doctor finds file: well' 0 "$hf" doctor
has 'tells what it promises' '+ excludes between processes' "$said"
has 'and what not' '- does not exclude between machines' "$said"
has 'and tries it' 'probe: took and released' "$said"
"$hf" doctor --all --json >"$tmp/json"
valid_json "$tmp/json"
ok 'doctor --all prints JSON'
titles=$(sed -n '/services: begin/{n;s/ *| */|/g;s/^|//;s/|$//;p;}' "$(dirname "$0")/../../README.md")
heading=$("$hf" doctor --all | head -n 1)
for title in $(echo "$titles" | tr ' |' '_ '); do
    has "doctor --all has the column $title of the README" "$(echo "$title" | tr _ ' ')" "$heading"
done
exits 'doctor --all refuses -u' 64 "$hf" doctor --all -u "file:$tmp/locks"
has 'and says why' "leave out -u, or --all" "$said"
has 'with the services' '"name": "file", "schemes": "file", "module": null' \
    "$(cat "$tmp/json")"
said=$(HOLDFAST_MODULE_DIR=$tmp/none "$hf" doctor --all)
status=$?
case $said in
*holdfast-*)
    is 'a service whose module is missing makes it 78' 78 $status
    has 'and the file is named' "(no file $tmp/none/holdfast-" "$said"
    ;;
*) is 'a build without modules is well' 0 $status ;;
esac
has 'others are shown all the same' 'file      processes yes' "$said"

# Waiting without a terminal.
"$hf" run --note 'in the way' w -- sleep 1000 &
holder=$!
until_true held w
"$hf" run -v w -- true 2>"$tmp/said" &
waiter=$!
until_true grep -q "waiting for 'w': held by in the way" "$tmp/said"
ok 'with -v a wait says who holds it, in a line of its own'
kill $holder
wait $holder
wait $waiter
is 'and then gets it' 0 $?
has 'and says so' "got 'w', fence" "$(cat "$tmp/said")"

# Completion.
for shell in bash zsh fish; do
    "$hf" completion $shell >"$tmp/completion.$shell"
    grep -q on-lost "$tmp/completion.$shell"
    ok "completion $shell knows the options"
    if command -v $shell >/dev/null; then
        $shell -n "$tmp/completion.$shell"
        ok "completion $shell is a script of $shell"
    fi
done
if command -v bash >/dev/null; then
    is 'bash completes a command' 'release' "$(bash -c '. "$0"
        COMP_WORDS=(holdfast rel) COMP_CWORD=1; _holdfast; echo ${COMPREPLY[*]}' \
        "$tmp/completion.bash")"
    is 'bash completes an option of that command' '--max-hold' "$(bash -c '. "$0"
        COMP_WORDS=(holdfast run --max) COMP_CWORD=2; _holdfast
        echo ${COMPREPLY[*]}' "$tmp/completion.bash")"
    for words in '-u' 'run -u' 'run --url' 'run k -w' 'renew --ttl'; do
        is "bash offers no option as the value of $words" '' "$(bash -c '. "$0"
            COMP_WORDS=(holdfast $1 "") COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _holdfast
            echo ${COMPREPLY[*]}' "$tmp/completion.bash" "$words")"
    done
    has 'but after one that has none' '--ttl' "$(bash -c '. "$0"
        COMP_WORDS=(holdfast run -n "") COMP_CWORD=3; _holdfast
        echo ${COMPREPLY[*]}' "$tmp/completion.bash")"
    has 'also where another command has one of that name' '--json' "$(bash -c '. "$0"
        COMP_WORDS=(holdfast leader --wait "") COMP_CWORD=3; _holdfast
        echo ${COMPREPLY[*]}' "$tmp/completion.bash")"
fi
# HOLDFAST_LOG.
exits 'HOLDFAST_LOG=debug tells of grants' 0 \
    env HOLDFAST_LOG=debug "$hf" run logged -- true
has 'by key' "debug: 'logged': granted" "$said"
has 'and of releases' "debug: 'logged': released: ok" "$said"
exits 'HOLDFAST_LOG=error is silent when all is well' 0 \
    env HOLDFAST_LOG=error "$hf" run logged -- true
is 'really' '' "$said"
exits 'a wrong HOLDFAST_LOG is told' 0 env HOLDFAST_LOG=all "$hf" ls zzz
has 'in words' 'HOLDFAST_LOG: expected' "$said"
exits 'a service that only threads can share is warned about' 0 \
    "$hf" run -u mem: k -- true
has 'in words' 'warning: ' "$said"
has 'the fence in JSON is a number without sign' \
    '"fence": 18446744073709551615' \
    "$("$hf" check --json --fence 18446744073709551615 k)"
finish
