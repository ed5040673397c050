#!/bin/sh
# SPDX-License-Identifier: MIT
#
# torture.sh - holdfast-torture as its users meet it; prints TAP.
#
# $TORTURE and $HOLDFAST name the programs.
set -u
dir=$(mktemp -d "${TMPDIR:-/tmp}/hf-torture.XXXXXX")
trap 'rm -rf "$dir"' EXIT
export TMPDIR="$dir"
count=0 failed=0

# point NAME STATUS: prints what was said if it is not 0.
point() {
    count=$((count + 1))
    if [ "$2" -eq 0 ]; then
        echo "ok $count - $1"
        return
    fi
    failed=$((failed + 1))
    echo "not ok $count - $1"
    sed 's/^/# /' "$dir/said"
}

# expect NAME STATUS COMMAND...
expect() {
    name=$1 status=$2
    shift 2
    timeout 120 "$@" >"$dir/said" 2>&1
    [ $? -eq "$status" ]
    point "$name" $?
}

says() {
    grep -q -- "$2" "$dir/said"
    point "$1" $?
}

expect 'a run on files is clean' 0 \
    "$TORTURE" -d 2s --seed 5 --history "$dir/h" "file:$dir/locks"
says 'and says so' '^verdict: clean (exclusive)$'
[ -z "$(find "$dir" -name 'holdfast-torture.*' -type d)" ]
point 'and leaves no directory behind' $?
expect 'the history that was kept is judged the same' 0 "$TORTURE" --check "$dir/h"
says 'with the same verdict' '^verdict: clean (exclusive)$'
expect 'a run in memory is clean' 0 "$TORTURE" -d 1s --ttl 500ms --keys 1 mem:t
expect 'holdfast torture is the same program' 0 "$HOLDFAST" torture --help
says 'with the same options' '--clock-shim LIB'

# The first and the fortieth grant of a key, with the same fence.
awk '$3 == "got" && $4 == 1 && ++n == 1 { f = $5 }
     $3 == "got" && $4 == 1 && n == 40 { $5 = f } { print }' "$dir/h" >"$dir/bad"
expect 'a fence that is given twice is found' 1 "$TORTURE" --check "$dir/bad"
says 'by its name' '^fence-[a-z]*: '
says 'with the lines that prove it' '^    [0-9]* [0-9.]* got 1 '

# Nobody releases any more.
sed '/ free /d; / freed /d' "$dir/h" >"$dir/bad"
expect 'belief without an end is found' 1 "$TORTURE" --check "$dir/bad"
says 'as an overlap' '^overlap: '

expect 'nonsense is refused' 64 "$TORTURE" --faults dance
expect 'a workload that is none, too' 64 "$TORTURE" --workload dance
expect 'a fault that cannot be had is not passed over' 78 \
    "$TORTURE" -d 1s --faults stop,net "file:$dir/locks"
says 'but named, with the reason' 'not possible here: part,.*need a URL that names all hosts'
expect 'without a name it is left out' 0 "$TORTURE" -d 1s --ttl 500ms --workload lock "file:$dir/locks"
says 'and named as well' 'not possible here: part,'
expect 'a history that is none is told' 74 "$TORTURE" --check "$0"
expect 'a service that is not there is told' 69 "$TORTURE" -d 1s "file:$dir/none/a/b"
"$HOLDFAST" run -q -u "file:$dir/locks" holdfast-torture.run -- sleep 20 &
other=$!
until ! "$HOLDFAST" run -q -n -u "file:$dir/locks" holdfast-torture.run -- true; do
    sleep 0.05
done
expect 'two runs do not meet' 75 "$TORTURE" -d 1s --ttl 500ms "file:$dir/locks"
kill "$other"

echo "1..$count"
[ "$failed" -eq 0 ]
