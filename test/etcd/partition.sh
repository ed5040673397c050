#!/bin/sh
# SPDX-License-Identifier: MIT
#
# partition.sh - one member of three is cut off from the other two, which nobody
# is told: nothing is closed, bytes stay on their way.  A holder and a waiter are
# connected to that one; they leave it for the others and go on there, for
# longer than a lease, while it stays as it is.
set -u
. "$(dirname "$0")/lib.sh"

url_of() {
    cat "$cluster/$1/url"
}
# Ask one member, by its number, for something that only a majority knows.
ask() {
    ETCDCTL_ENDPOINTS=$(url_of "$1" | sed 's/^etcd/http/') etcdctl --command-timeout 1s get x
}
is_cut_off() {
    ! ask "$1"
}
# How many listen there for what happens.
watchers() {
    curl -s "$(url_of "$1" | sed 's/^etcd/http/')/metrics" |
        awk '$1 == "etcd_debugging_mvcc_watcher_total" { print $2 }'
}
watch_there() {
    [ "$(watchers "$1")" = "$2" ]
}
cut_off() {
    for other in 1 2 3; do
        [ $other = "$1" ] || printf '%s\n' "$other $1" "$1 $other"
    done >"$cluster/cuts"
}
heal() {
    : >"$cluster/cuts"
}
follower() {
    case $(leader) in
    1) echo 2 ;;
    *) echo 1 ;;
    esac
}

# "follower" or "leader"
apart() {
    until_true is_well
    lone=$("$1")
    rest=
    for n in 1 2 3; do
        [ $n = "$lone" ] || rest="$rest,$(url_of $n | sed 's/.*\///')"
    done
    url=$(url_of "$lone")$rest?order=given
    until_true watch_there "$lone" 0
    scene 9s
    # The waiter's predecessor, and for each of the two word of broken locks.
    ok "$1: both are connected to it" until_true watch_there "$lone" 3
    ok "$1: it serves" until_true ask "$lone"
    cut_off "$lone"
    sleep 10 &
    lease=$!
    ok "$1: it is cut off" until_true is_cut_off "$lone"
    ok 'and the others are not' until_true ask $((lone % 3 + 1))
    ok 'both leave it' until_true watch_there "$lone" 0
    wait "$lease"
    ok 'the lock is held for longer than its lease' kill -0 "$holder"
    ok 'and waited for' test ! -e "$work/next"
    ok 'and handed over' kept
    ok 'while it is still cut off' is_cut_off "$lone"
    heal
    until_true is_well
    ok 'nothing is left' clean
}

apart follower
apart leader
finish
