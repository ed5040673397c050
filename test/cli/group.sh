#!/bin/sh
# SPDX-License-Identifier: MIT
#
# group.sh - a process that /proc does not show as alive is not taken for dead:
# the lock is not passed on while it lives.
#
# $SURVIVOR ignores TERM and keeps a file locked for as long as it lives.
. "$(dirname "$0")/lib.sh"
hf=$HOLDFAST

# The next holder runs this: it prints a line if the survivor still lives.
cat >"$tmp/look" <<'END'
flock -n "$1" true || echo "it lives"
END
cat >"$tmp/family" <<'END'
"$SURVIVOR" "$1" "$2" &
until [ -s "$2" ]; do sleep 0.02; done
[ "$3" != wait ] || exec sleep 1000
END

# start KEY KIND OPTIONS...: $pid holds KEY and the survivor is ready.
start() {
    key=$1 kind=$2
    shift 2
    rm -f "$tmp/$key.lock"
    "$hf" run "$@" "$key" -- sh "$tmp/family" $kind "$tmp/$key.lock" wait \
        2>"$tmp/err" &
    pid=$!
    until_true [ -s "$tmp/$key.lock" ]
}

# next KEY NAME: the next holder finds the survivor dead.
next() {
    is "$2" '' "$("$hf" run -w 60 "$1" -- sh "$tmp/look" "$tmp/$1.lock" 2>&1)"
}

start broken thread --ttl 900ms --grace 200ms
"$hf" break -q --fence "$(fence broken)" broken
next broken 'after a break, a process whose first thread has ended is dead'
wait $pid
is 'and its holder tells the loss' 79 $?

start killed thread --grace 200ms
kill -KILL $pid
next killed 'after SIGKILL of holdfast too'

start maxhold thread --max-hold 200ms --grace 200ms
wait $pid
is '--max-hold ends it' 124 $?
next maxhold 'and it is dead then'

"$hf" run --wait-group group -- sh "$tmp/family" thread "$tmp/group.lock" no &
pid=$!
until_true [ -s "$tmp/group.lock" ]
exits '--wait-group holds the lock for it' 75 "$hf" run -q -w 1 group -- true
kill -KILL "$(cat "$tmp/group.lock")"
wait $pid
is 'and ends with it' 0 $?

# A zombie of the group, whose parent has left the group and does not wait.
if command -v python3 >/dev/null; then
    "$hf" run --wait-group zombie -- python3 -c '
import os, sys, time
if os.fork() == 0:
    if os.fork() == 0:
        os._exit(0)
    os.setsid()
    print(os.getpid(), file=open(sys.argv[1], "w"), flush=True)
    time.sleep(60)
' "$tmp/zombie"
    is '--wait-group does not wait for a zombie' 0 $?
    alive "$(cat "$tmp/zombie")"
    ok 'while its parent, which has left the group, lives'
    kill -KILL "$(cat "$tmp/zombie")"
fi

# Where /proc is of no use: holdfast is killed, the guard ends the family, and
# the next holder looks.
cat >"$tmp/inside" <<'END'
cd /
"$HOLDFAST" run -q --grace 500ms "$3" -- sh "$1/family" "$2" "$1/open/$3" wait &
pid=$!
until [ -s "$1/open/$3" ]; do sleep 0.02; done
kill -KILL $pid
"$HOLDFAST" run -w 60 "$3" -- sh "$1/look" "$1/open/$3" && echo granted
END
cat >"$tmp/hide" <<'END'
mount -t proc -o hidepid=2 proc /proc &&
    exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@"
END
mkdir -m 777 "$tmp/open"
chmod 711 "$tmp"

# inside NAME KEY KIND COMMAND...: COMMAND prepares the place.
inside() {
    name=$1 key=$2 kind=$3
    shift 3
    HOLDFAST_URL=file:$tmp/open/$key.locks
    if "$@" "$hf" --version >"$tmp/said" 2>&1; then
        is "$name" granted \
            "$(timeout 60 "$@" sh "$tmp/inside" "$tmp" "$kind" "$key" 2>/dev/null)"
    else
        skip "$name" 'no such namespace can be made'
    fi
}
inside 'a /proc of another pid namespace proves no death' other plain \
    unshare -pf
inside 'a /proc that hides processes proves no death' hidden hidden \
    unshare -m sh "$tmp/hide"
finish
