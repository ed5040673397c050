#!/bin/sh
# SPDX-License-Identifier: MIT
#
# elect.sh - `etcdctl elect` and `holdfast elect` campaign in one queue, and each
# shows the leader that the other elected.
set -u
. "$(dirname "$0")/lib.sh"

waits() {
    [ "$(etcdctl get "holdfast/$1/" --prefix --keys-only | grep -c .)" = "$2" ]
}

# --- holdfast leads
"$holdfast" elect -u "$url" --value ours:80 web -- sh -c "echo \$\$ >$work/ours; exec sleep 1000" &
ours=$!
until_true test -s "$work/ours"
timeout 60 etcdctl elect -l holdfast/web >"$work/list" &
list=$!
ok 'etcdctl elect -l shows our value' until_true grep -q ' ours:80$' "$work/list"
etcdctl elect holdfast/web theirs:81 >"$work/theirs" 2>&1 &
theirs=$!
ok 'etcdctl campaigns behind our leader' until_true waits web 2
hf elect --value last web -- sh -c "'$holdfast' leader -u '$url' web >$work/last" &
last=$!
ok 'and another of ours behind that' until_true waits web 3
ok 'nobody else leads meanwhile' test ! -s "$work/theirs"
kill "$ours"
wait "$ours"
ok 'etcdctl leads when ours has resigned' until_true grep -q theirs:81 "$work/theirs"

# --- etcdctl leads
ok 'holdfast leader shows its value' test "$(hf leader web)" = theirs:81
ok 'and its term' sh -c "'$holdfast' leader -u '$url' --json web | grep -q '\"term\": [1-9]'"
hf elect -q -n web -- true
ok 'ours is not elected beside it' test $? = 75
ok 'etcdctl elect -l has seen the change' until_true grep -q theirs:81 "$work/list"
ok 'our last candidate waits' test ! -s "$work/last"
kill -INT "$theirs"
wait "$theirs"
wait "$last"
ok 'and leads when etcdctl has resigned' test "$(cat "$work/last")" = last
ok 'etcdctl elect -l has seen that, too' until_true grep -q ' last$' "$work/list"
kill "$list"

# --- a value that is no text
etcdctl elect holdfast/odd "$(printf 'a\nb')" >"$work/odd" 2>&1 &
theirs=$!
until_true waits odd 1
hf leader odd >"$work/said"
ok 'a value of several lines is not shown' test "$(cat "$work/said")" = ''
kill -INT "$theirs"
wait "$theirs"
finish
