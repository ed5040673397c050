#!/bin/sh
# SPDX-License-Identifier: MIT
#
# usage.sh - a wrong value is named together with those that are right.
set -u
torture=$1
number=0
failed=0

# refuses STATUS WORD ARGUMENT...: it ends with this status and says the word.
refuses() {
    status=$1 word=$2
    shift 2
    said=$(timeout 60 "$torture" "$@" 2>&1 </dev/null)
    ended=$?
    number=$((number + 1))
    case $said in
    *"$word"*) [ $ended -eq "$status" ] && echo "ok $number - $*" && return ;;
    esac
    failed=1
    echo "not ok $number - $*"
    echo "# status $ended: $said"
}

refuses 64 "--workload 'nonsense': expected a list of " --workload nonsense
refuses 64 ", elect" --workload nonsense
refuses 64 "--faults 'nonsense': expected 'none' or a list of groups and faults: " --faults nonsense
refuses 64 "client, kill" --faults kill,nonsense
refuses 64 "--promise 'x': expected 'exclusive' or 'fence'" --promise x
refuses 64 "--ttl '5ms': expected a duration of at least 100ms" -t 5ms
refuses 64 "--duration 'soon': expected a duration such as " --duration soon
refuses 64 "--processes '0': expected a number from 1 to " -p 0
refuses 64 "--seed 'x': expected a number greater than 0" --seed x
refuses 78 "faults of the network need a URL that names all hosts" --faults net mem:x
refuses 78 "not file:, sqlite:, Sentinel or Cluster" --faults net mem:x

# No message shows a password.
url=redis://u:S3CRET@127.0.0.1:1
said=$(for words in "mem: $url" "--ulr=$url" "-x$url" "-d $url" "--workload $url" "--verbose=$url"; do
    # shellcheck disable=SC2086
    timeout 60 "$torture" $words 2>&1 </dev/null
done)
number=$((number + 1))
case $said in
*S3CRET*)
    failed=1
    echo "not ok $number - no message shows a password"
    printf '%s\n' "$said" | sed 's/^/# /'
    ;;
*) echo "ok $number - no message shows a password" ;;
esac
refuses 64 "one URL is enough: 'redis://" mem: "$url"
refuses 64 "wrong option: '--ulr'" "--ulr=$url"
refuses 64 'wrong option' -x

# Whoever lists processes sees no password, neither of the run nor of its clients.
tmp=$(mktemp -d "${TMPDIR:-/tmp}/holdfast-usage.XXXXXX")
TMPDIR=$tmp "$torture" -p 2 -d 1h --faults none --workload lock "file:$tmp/locks?t%74l=7m" >"$tmp/out" 2>&1 &
run=$!
trap 'kill $run 2>/dev/null; wait $run; rm -rf "$tmp"' EXIT
# family: the command lines of the run and of its clients, when there are all.
family() {
    pids=$(cat /proc/$run/task/*/children 2>/dev/null)
    [ "$(echo "$pids" | wc -w)" -eq 2 ] || return 1
    for pid in $run $pids; do
        tr '\0' ' ' <"/proc/$pid/cmdline" && echo
    done
}
tries=0
hidden=false
until $hidden || [ $tries -eq 2400 ]; do
    sleep 0.025
    tries=$((tries + 1))
    said=$(family) && [ "$(printf '%s\n' "$said" | grep -c 'file\*\*')" -eq 3 ] && hidden=true
done
number=$((number + 1))
if $hidden; then
    echo "ok $number - a URL with a secret goes from the list of processes"
else
    failed=1
    echo "not ok $number - a URL with a secret goes from the list of processes"
    printf '%s\n' "$said" | sed 's/^/# /'
fi
echo "1..$number"
exit $failed
