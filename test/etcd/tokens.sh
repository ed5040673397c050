#!/bin/sh
# SPDX-License-Identifier: MIT
#
# tokens.sh - tokens that lapse while a lock is held and waited for, and that
# are refused because somebody changed the rights.  The server is started with
# -j: no use of a token makes it live longer.
set -u
. "$(dirname "$0")/lib.sh"

waits() {
    [ "$(etcdctl get "holdfast/$1/" --prefix --keys-only | grep -c .)" = "$2" ]
}

hf run --ttl 12s k -- sh -c "touch $work/in; while [ ! -e $work/go ]; do sleep 0.2; done" 2>"$work/holder" &
holder=$!
ok 'a user takes a lock' until_true test -e "$work/in"
hf run --ttl 12s k -- touch "$work/next" 2>"$work/waiter" &
waiter=$!
ok 'and another waits for it' until_true waits k 2

# All tokens that were given out carry the revision of the rights as they were.
etcdctl role add more >/dev/null
etcdctl role grant-permission more readwrite elsewhere/ --prefix >/dev/null
etcdctl user grant-role app more >/dev/null
ok 'one whose token is new is served after a change of rights' hf run -n other -- true
sleep 13
ok 'the holder is still there after the change, and longer than a token lives' kill -0 "$holder"
ok 'and the waiter' waits k 2
touch "$work/go"
wait "$holder"
ok 'nothing is lost' test $? = 0
wait "$waiter"
ok 'and the waiter follows' test $? = 0
[ "$failed" = 0 ] || sed 's/^/# /' "$work/holder" "$work/waiter"
ok 'nothing is left' clean
finish
