#!/bin/sh
# SPDX-License-Identifier: MIT
#
# go.sh - Go's concurrency.Mutex and holdfast on one name, both ways: each adds
# to a number in a file that only the lock protects, and each waits for the
# other.
set -u
. "$(dirname "$0")/lib.sh"
here=$(cd "$(dirname "$0")/../.." && pwd)

GOPATH=/usr/share/gocode GO111MODULE=off GOCACHE=$HOLDFAST_MODULE_DIR/go-cache \
    go build -o "$work/peer" "$here/bench/etcd_peer.go" 2>"$work/log"
ok 'the Go program builds' test -x "$work/peer"

waits() {
    [ "$(etcdctl get "holdfast/$1/" --prefix --keys-only | grep -c .)" = "$2" ]
}

# --- first come, first served, both ways
"$work/peer" hold holdfast/k "$work/in" "$work/go" "$work/order" go &
peer=$!
ok 'Go takes the lock' until_true test -e "$work/in"
hf run k -- sh -c "touch $work/in2; while [ ! -e $work/go2 ]; do sleep 0.05; done; echo holdfast >>$work/order" &
ours=$!
ok 'holdfast queues behind it' until_true waits k 2
"$work/peer" hold holdfast/k "$work/in3" "$work/go" "$work/order" last &
last=$!
ok 'and Go behind that' until_true waits k 3
touch "$work/go"
wait "$peer"
ok 'holdfast follows Go' until_true test -e "$work/in2"
ok 'and Go does not pass by' test ! -e "$work/in3"
touch "$work/go2"
wait "$ours" "$last"
ok 'in the order in which they came' test "$(tr '\n' ' ' <"$work/order")" = 'go holdfast last '

# --- many turns
echo 0 >"$work/n"
"$work/peer" count holdfast/c "$work/n" 4 25 &
peer=$!
for n in 1 2 3; do
    (
        for i in 1 2 3 4 5; do
            hf run c -- sh -c "n=\$(cat $work/n); sleep 0.01; echo \$((n + 1)) >$work/n"
        done
    ) &
    eval "loop$n=\$!"
done
wait "$peer"
ok 'the counters of Go end' test $? = 0
wait "$loop1" "$loop2" "$loop3"
ok 'no turn is lost' test "$(cat "$work/n")" = 115
ok 'no key is left' until_true sh -c 'test -z "$(etcdctl get "" --prefix --keys-only)"'
finish
