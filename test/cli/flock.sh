#!/bin/sh
# SPDX-License-Identifier: MIT
#
# flock.sh - run in place of flock(1): the same words, the same outcome.
#
# Each line is given to both, once while the lock is free and once while somebody
# holds it.  What must be the same is the exit status and what the command wrote.
. "$(dirname "$0")/lib.sh"
hf=$HOLDFAST
file=$tmp/file

# both NAME FLOCK-OPTIONS -- FIRST-WORDS...: with the file or the key between.
both() {
    promise=$1
    shift
    options=
    while [ "$1" != -- ]; do
        options="$options $1"
        shift
    done
    shift
    theirs=$(timeout 60 flock $options "$file" "$@" 2>/dev/null </dev/null)
    theirs="$? $theirs"
    ours=$(timeout 60 "$hf" run -q $options key "$@" 2>/dev/null </dev/null)
    is "$promise: $options $*" "$theirs" "$? $ours"
}

everything() {
    both "$1" -n -E 5 -- echo ran
    both "$1" --nb -E 5 -- echo ran
    both "$1" --nonblocking -E 5 -- echo ran
    both "$1" --nonblock --conflict-exit-code 5 -- echo ran
    both "$1" --nonblock --conflict-exit-code=5 -- echo ran
    both "$1" -nE5 -- echo ran
    both "$1" -w 0.05 -E 5 -- echo ran
    both "$1" -w0.05 -E5 -- echo ran
    both "$1" -w .05 -E 5 -- echo ran
    both "$1" --wait 0.05 -E 0 -- echo ran
    both "$1" --timeout 0.05 -E 5 -- echo ran
    both "$1" --timeout=0.05 -E 5 -- echo ran
    both "$1" -x -n -E 5 -- echo ran
    both "$1" -e -n -E 5 -- echo ran
    both "$1" --exclusive -n -E 5 -- echo ran
    both "$1" -s -n -E 5 -- echo ran
    both "$1" --shared -n -E 5 -- echo ran
    both "$1" -s -x -n -E 5 -- echo ran
    both "$1" -x -s -n -E 5 -- echo ran
    both "$1" -o -n -E 5 -- echo ran
    both "$1" --close -n -E 5 -- echo ran
    both "$1" -F -n -E 5 -- echo ran
    both "$1" --no-fork -n -E 5 -- echo ran
    both "$1" -n -E 5 -- -c 'echo ran; exit 3'
    both "$1" -n -E 5 -- --command 'echo $((1 + 1))'
    both "$1" -n -E 5 -- sh -c 'exit 7'
    both "$1" -n -E 5 -- sh -c 'kill -KILL $$'
}

# both_hold OPTIONS...: until both_let_go.
both_hold() {
    rm -f "$tmp/theirs" "$tmp/ours"
    flock "$@" "$file" sh -c 'echo $$ >"$0"; exec sleep 1000' "$tmp/theirs" &
    "$hf" run "$@" key -- sh -c 'echo $$ >"$0"; exec sleep 1000' "$tmp/ours" &
    until_true [ -s "$tmp/theirs" ]
    until_true [ -s "$tmp/ours" ]
}

both_let_go() {
    kill "$(cat "$tmp/theirs")" "$(cat "$tmp/ours")"
    wait
}

everything free
both_hold -x
everything held
both_let_go
both_hold -s
everything shared
both_let_go

# What means something else here.
exits 'flock -u 9: refused' 64 "$hf" run -u 9
has 'and the message says what -u is here' '-u 9: here -u names the service' \
    "$said"
exits 'flock --unlock 9: refused' 64 "$hf" run --unlock 9
has 'and the message says why' 'has no counterpart' "$said"
exits 'flock -x 9: refused' 64 "$hf" run -x 9
has 'and the message names acquire' "no descriptor as in flock(1)" "$said"
exits 'a status above 255 is refused, as by flock' 64 "$hf" run -E 300 k true
exits 'two commands are refused, as by flock' 64 "$hf" run k -c 'echo hi' x
exits 'a busy lock is 75 where -E does not say otherwise' 75 "$hf" run k -- \
    "$hf" run -q -n k -- true
exits 'the aliases are no new options of others' 64 "$hf" status --nb k

finish
