#!/bin/sh
# SPDX-License-Identifier: MIT
#
# go.sh - Go's concurrency.Mutex and holdfast on one name, both ways: each keeps
# the other out, each waits its turn behind the other, and each adds to a number
# in a file that only the lock protects.
set -u
. "$(dirname "$0")/lib.sh"

go_peer=$("$(dirname "$0")/go-peer" "$HOLDFAST_MODULE_DIR")
if [ $? = 77 ]; then
    echo '1..0 # SKIP Go and its etcd packages are not here'
    exit 0
fi
ok 'the Go program builds' test -x "$go_peer"

waits() {
    [ "$(etcdctl get "holdfast/$1/" --prefix --keys-only | grep -c .)" = "$2" ]
}
# Hold k until $work/NAME.go is there: made $work/NAME.in, NAME goes into order.
go_holds() {
    "$go_peer" hold holdfast/k "$work/$1.in" "$work/$1.go" "$work/order" "$1"
}
we_hold() {
    hf run k -- sh -c "touch $work/$1.in; while [ ! -e $work/$1.go ]; do sleep 0.05; done; echo $1 >>$work/order"
}

# WHO then OTHER then WHO again, who begin to wait in this order.
in_turn() {
    rm -f "$work"/*.in "$work"/*.go "$work/order"
    "$1" first &
    first=$!
    ok "$1: takes the lock" until_true test -e "$work/first.in"
    ok "$1: keeps holdfast out" status 75 hf run -n k -- true
    ok "$1: keeps Go out" status 75 "$go_peer" try holdfast/k 700
    ok 'and who gave up left nothing' waits k 1
    "$2" second &
    second=$!
    ok "$2: queues behind it" until_true waits k 2
    "$1" third &
    third=$!
    ok "$1: queues behind that" until_true waits k 3
    touch "$work/third.go" "$work/first.go"
    wait "$first"
    ok "$2: follows" until_true test -e "$work/second.in"
    ok "$1: does not pass by" test ! -e "$work/third.in"
    touch "$work/second.go"
    wait "$second" "$third"
    ok 'all in the order in which they came' test "$(tr '\n' ' ' <"$work/order")" = 'first second third '
}
in_turn go_holds we_hold
in_turn we_hold go_holds

# --- readers: Go waits for all of them, and keeps others out
we_read() {
    hf run -s k -- sh -c "touch $work/$1.in; while [ ! -e $work/$1.go ]; do sleep 0.05; done; echo $1 >>$work/order"
}
rm -f "$work"/*.in "$work"/*.go "$work/order"
we_read first &
first=$!
we_read second &
second=$!
ok 'two readers are in' until_true test -e "$work/first.in" -a -e "$work/second.in"
ok 'they keep Go out' status 75 "$go_peer" try holdfast/k 700
go_holds third &
third=$!
ok 'Go queues behind them' until_true waits k 3
ok 'a reader does not pass by Go' status 75 hf run -sn k -- true
touch "$work/first.go"
wait "$first"
ok 'one reader keeps Go out' test ! -e "$work/third.in"
touch "$work/second.go" "$work/third.go"
wait "$second" "$third"
ok 'Go follows the last' test "$(tr '\n' ' ' <"$work/order")" = 'first second third '

# --- many turns
echo 0 >"$work/n"
"$go_peer" count holdfast/c "$work/n" 4 25 &
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
