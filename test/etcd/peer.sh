#!/bin/sh
# SPDX-License-Identifier: MIT
#
# peer.sh - `etcdctl lock` and holdfast exclude each other and queue together;
# operators, dead leases and compaction.
set -u
. "$(dirname "$0")/lib.sh"

is_held_by_etcdctl() {
    etcdctl get holdfast/k/ --prefix --keys-only | grep -q .
}
waits() {
    [ "$(etcdctl get "holdfast/$1/" --prefix --keys-only | grep -c .)" = "$2" ]
}

# --- etcdctl holds, holdfast waits
etcdctl lock --ttl 5 holdfast/k -- sh -c "touch $work/in; while [ ! -e $work/go ]; do sleep 0.05; done; echo etcdctl >>$work/order" >/dev/null 2>&1 &
peer=$!
ok 'etcdctl takes the lock' until_true test -e "$work/in"
hf run -n k -- true
ok 'a try beside etcdctl is busy' test $? = 75
ok 'a failed try leaves no key' waits k 1
hf run k -- sh -c "echo holdfast >>$work/order" &
ours=$!
ok 'holdfast queues behind etcdctl' until_true waits k 2
touch "$work/go"
wait "$peer"
wait "$ours"
ok 'holdfast follows etcdctl' test $? = 0
ok 'in that order' test "$(tr '\n' ' ' <"$work/order")" = 'etcdctl holdfast '

# --- holdfast holds, etcdctl waits
rm -f "$work"/in "$work"/go "$work"/order
hf run k -- sh -c "touch $work/in; while [ ! -e $work/go ]; do sleep 0.05; done; echo holdfast >>$work/order" &
ours=$!
ok 'holdfast takes the lock' until_true test -e "$work/in"
etcdctl lock --ttl 5 holdfast/k -- sh -c "echo etcdctl >>$work/order" >/dev/null 2>&1 &
peer=$!
ok 'etcdctl queues behind holdfast' until_true waits k 2
hf run k -- sh -c "echo last >>$work/order" &
last=$!
ok 'and another holdfast behind that' until_true waits k 3
touch "$work/go"
wait "$ours" "$peer" "$last"
ok 'all three in the order in which they came' test "$(tr '\n' ' ' <"$work/order")" = 'holdfast etcdctl last '

# --- readers hold together, etcdctl waits for all of them, a reader for it
rm -f "$work"/in* "$work"/go* "$work"/order
for n in 1 2; do
    hf run -s k -- sh -c "touch $work/in$n; while [ ! -e $work/go$n ]; do sleep 0.05; done; echo reader >>$work/order" &
    eval "reader$n=\$!"
    ok "reader $n is in" until_true test -e "$work/in$n"
done
etcdctl lock --ttl 5 holdfast/k -- sh -c "touch $work/in; while [ ! -e $work/go ]; do sleep 0.05; done; echo etcdctl >>$work/order" >/dev/null 2>&1 &
peer=$!
ok 'etcdctl queues behind two readers' until_true waits k 3
hf run -sn k -- true
ok 'a reader is not let in before etcdctl' test $? = 75
hf run -s k -- sh -c "echo last >>$work/order" &
last=$!
ok 'and queues behind it' until_true waits k 4
touch "$work/go1"
wait "$reader1"
ok 'one reader keeps etcdctl out' test ! -e "$work/in"
touch "$work/go2"
wait "$reader2"
ok 'etcdctl follows the last reader' until_true test -e "$work/in"
touch "$work/go"
wait "$peer" "$last"
ok 'readers, etcdctl, a reader' test "$(tr '\n' ' ' <"$work/order")" = 'reader reader etcdctl last '

# etcdctl leaves its leases to lapse.
ok 'no key is left' until_true sh -c 'test -z "$(etcdctl get "" --prefix --keys-only)"'
for lease in $(etcdctl lease list | sed 1d); do etcdctl lease revoke "$lease"; done >/dev/null

# --- an operator removes the key; a lease is revoked
for how in del revoke; do
    rm -f "$work/in"
    hf run --ttl 3s k -- sh -c "touch $work/in; exec sleep 30" 2>"$work/err" &
    ours=$!
    until_true test -e "$work/in"
    if [ $how = del ]; then
        etcdctl del --prefix holdfast/k/ >/dev/null
    else
        for lease in $(etcdctl lease list | sed 1d); do etcdctl lease revoke "$lease"; done >/dev/null
    fi
    wait "$ours"
    ok "the holder is told of $how" test $? = 79
done
ok 'and nothing is left' clean

# --- a waiter whose lease is revoked is not granted on the dead one
rm -f "$work"/in "$work"/go
etcdctl lock --ttl 60 holdfast/k -- sh -c "touch $work/in; while [ ! -e $work/go ]; do sleep 0.05; done" >/dev/null 2>&1 &
peer=$!
until_true test -e "$work/in"
first=$(etcdctl lease list | sed 1d)
hf run --ttl 3s k -- sh -c 'etcdctl get --prefix holdfast/k/ | grep -c "^hf1 $HOLDFAST_OWNER "' >"$work/seen" &
ours=$!
until_true waits k 2
etcdctl compact "$(etcdctl get x -w json | sed 's/.*"revision":\([0-9]*\).*/\1/')" >/dev/null
for lease in $(etcdctl lease list | sed 1d); do
    [ "$lease" = "$first" ] || etcdctl lease revoke "$lease" >/dev/null
done
ok 'the waiter queues again after revocation and compaction' until_true waits k 2
touch "$work/go"
wait "$peer" "$ours"
ok 'and holds a key that exists' test "$(cat "$work/seen")" = 1
for lease in $(etcdctl lease list | sed 1d); do etcdctl lease revoke "$lease"; done >/dev/null

# --- somebody compacts all the time, also between enqueue and watch
rm -f "$work/go"
compacts() {
    while [ ! -e "$work/go" ]; do
        etcdctl compact "$(etcdctl get x -w json | sed 's/.*"revision":\([0-9]*\).*/\1/')"
    done
}
compacts >/dev/null 2>&1 &
compactor=$!
for n in 1 2 3 4 5 6; do
    hf run -w 60s k -- sh -c "echo $n >>$work/turns; sleep 0.1" &
    eval "turn$n=\$!"
done
for n in 1 2 3 4 5 6; do
    eval "wait \$turn$n"
    ok "turn $n under compaction" test $? = 0
done
touch "$work/go"
wait "$compactor"
ok 'nothing is left at the end' clean

# --- keys of other programs below the prefix: long names, large values
long=$(head -c 3400 /dev/zero | tr '\0' a)
etcdctl put "holdfast/far/$long" '' >/dev/null
hf run --ttl 90s -w 25s far -- true &
ours=$!
until_true waits far 2
etcdctl del "holdfast/far/$long" >/dev/null
wait "$ours"
ok 'a waiter behind a long name asks again soon' test $? = 0
hf run --ttl 60s last -- sh -c "touch $work/last; while [ ! -e $work/end ]; do sleep 0.1; done" &
ours=$!
until_true test -e "$work/last"
for n in 1 2 3 4 5 6; do
    {
        echo
        for m in $(seq 100); do echo "put holdfast/!$n-$m/$long x"; done
        echo
        echo
    } | etcdctl txn >/dev/null
done
ok 'a lock behind many long names is listed' sh -c "'$holdfast' ls -u '$url' | grep -q '^last: held'"
for n in $(seq 13); do
    head -c 1400000 /dev/zero | tr '\0' x | etcdctl put "holdfast/last/$n" >/dev/null
done
ok 'a lock beside large values is inspected' sh -c "'$holdfast' status -u '$url' last | grep -q '^last: held'"
ok 'and listed' sh -c "'$holdfast' ls -u '$url' | grep -q '^last: held'"
touch "$work/end"
wait "$ours"
ok 'and released' test $? = 0
etcdctl del holdfast/ --prefix >/dev/null
ok 'and nothing else was left' clean
finish
