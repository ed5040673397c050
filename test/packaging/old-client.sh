#!/bin/sh
# SPDX-License-Identifier: MIT
#
# old-client.sh - holdfast 0.1 and this holdfast exclude each other.
#
# 0.1 is built from its commit by scripts/get-old.  It runs beside a server
# ($HF_TEST_URL) or, without one, on the URL $OLD_URL, in which %T is a directory.
# $OLD_OPTIONS are added to the URL of both.  Each promise is tried in both
# directions, and on tables ($OLD_TABLE) that either of them has made first.
. "$(dirname "$0")/../cli/lib.sh"
top=$(cd "$(dirname "$0")/../.." && pwd)

if ! home=$("$top/scripts/get-old" 2>"$tmp/why"); then
    echo "1..0 # SKIP there is no 0.1 here: $(tail -n 1 "$tmp/why")"
    exit
fi
url=${HF_TEST_URL:-$(echo "$OLD_URL" | sed "s|%T|$tmp|")}
case $url in *\?*) also='&' ;; *) also='?' ;; esac
HOLDFAST_URL=$url${OLD_OPTIONS:+$also$OLD_OPTIONS}
old="env HOLDFAST_MODULE_DIR=$home $home/holdfast"
new=$HOLDFAST
# $OLD_WITHOUT: what the service refuses; $OLD_APART: it shares a key among holders
# of one version only.
can() { case " ${OLD_WITHOUT-} " in *" $1 "*) false ;; esac; }

# by WHO: the command, in $cmd.
by() {
    case $1 in
    old) cmd=$old ;;
    new) cmd=$new ;;
    esac
}

# hold WHO KEY NAME OPTIONS...: until let_go NAME; its fence is in $tmp/NAME.
hold() {
    by "$1"
    key=$2 name=$3
    shift 3
    rm -f "$tmp/$name" "$tmp/$name.go"
    # shellcheck disable=SC2086 # a command of several words
    $cmd run -q "$@" "$key" -- sh -c 'echo "$HOLDFAST_FENCE ${HOLDFAST_SLOT-}" >"$0.new"
        mv "$0.new" "$0"; until [ -e "$0.go" ]; do sleep 0.02; done' "$tmp/$name" &
    eval "pid_$name=\$!"
}
holds() { until_true [ -s "$tmp/$1" ]; }
let_go() {
    : >"$tmp/$1.go"
    eval "wait \$pid_$1"
}
fence_of() { cut -d' ' -f1 "$tmp/$1"; }
rises() {
    printf '%s\n' "$2" "$3" | sort -n -u -c 2>/dev/null && [ "$2" != "$3" ]
    ok "$1"
}

# busy NAME WHO KEY OPTIONS...: WHO cannot have it now.
busy() {
    promise=$1
    by "$2"
    key=$3
    shift 3
    # shellcheck disable=SC2086
    exits "$promise" 75 $cmd run -q -n "$@" "$key" -- true
}
free() {
    promise=$1
    by "$2"
    key=$3
    shift 3
    # shellcheck disable=SC2086
    exits "$promise" 0 $cmd run -q -n "$@" "$key" -- true
}

# One holds: the other is busy, sees who holds, waits, and has it afterwards.
excludes() {
    hold "$1" "$3" first --note "first-$1"
    holds first
    ok "$1 holds"
    busy "$2 is busy beside $1" "$2" "$3"
    by "$2"
    # shellcheck disable=SC2086
    seen=$($cmd status "$3")
    has "$2 shows the fence of $1" "$(fence_of first)" "$seen"
    has "$2 shows the note of $1" "first-$1" "$seen"
    hold "$2" "$3" second -w 60s
    sleep 0.4
    [ ! -s "$tmp/second" ]
    ok "$2 waits for $1"
    let_go first
    holds second
    ok "$2 is granted after $1"
    rises "the fence of $2 is greater than that of $1" "$(fence_of first)" "$(fence_of second)"
    busy "$1 is busy beside $2, who waited for it" "$1" "$3"
    let_go second
    free "$1 can have it again" "$1" "$3"
}

# in_turn LOG: nobody comes in before the one before is out, and fences rise.
in_turn() {
    is "$2: one at a time" '' \
        "$(awk '(NR % 2 ? $1 != "in" : $1 != "out") || (NR % 2 == 0 && $2 != last) { print NR ": " $0 } { last = $2 }' "$1")"
    awk '$1 == "in" { print $3 }' "$1" | sort -n -u -c 2>"$tmp/order"
    is "$2: fences rise" '' "$(cat "$tmp/order")"
}
visit='echo "in $0 $HOLDFAST_FENCE" >>"$1"; sleep 0.0$2; echo "out $0" >>"$1"'

# Both wait in one queue, or in what there is of it.
queue() {
    : >"$tmp/log"
    hold "$1" "$3" first
    holds first
    waiters=
    for n in 1 2 3 4 5 6; do
        by "$([ $((n % 2)) = 0 ] && echo "$1" || echo "$2")"
        # shellcheck disable=SC2086
        $cmd run -q -w 60s "$3" -- sh -c "$visit" "$n" "$tmp/log" 5 &
        waiters="$waiters $!"
        sleep 0.05
    done
    let_go first
    served=0
    for pid in $waiters; do
        wait "$pid" && served=$((served + 1))
    done
    is "$1 and $2 wait together: all are served" 6 "$served"
    in_turn "$tmp/log" "$1 and $2 wait together"
}

# Many of both, each again and again.
crowd() {
    : >"$tmp/log"
    visitors=
    for n in 1 2 3 4 5 6; do
        (
            by "$([ $((n % 2)) = 0 ] && echo old || echo new)"
            for round in 1 2 3 4 5 6; do
                # shellcheck disable=SC2086
                $cmd run -q -w 60s "$1" -- sh -c "$visit" "$n.$round" "$tmp/log" 0 || exit 1
            done
        ) &
        visitors="$visitors $!"
    done
    served=0
    for pid in $visitors; do
        wait "$pid" && served=$((served + 1))
    done
    is 'many of both: all are served' 6 "$served"
    is 'many of both: all visits are in the log' 72 "$(wc -l <"$tmp/log")"
    in_turn "$tmp/log" 'many of both'
}

# Where holders of different versions do not share, they exclude each other.
apart() {
    hold "$1" "$3" first "$4"
    holds first
    busy "$4 of $1: $2 is busy" "$2" "$3" -s
    busy "$4 of $1: a writer of $2 is busy" "$2" "$3"
    hold "$2" "$3" writer -w 60s
    sleep 0.2
    [ ! -s "$tmp/writer" ]
    ok "$4 of $1: a writer of $2 waits"
    let_go first
    holds writer
    ok "$4 of $1: then it is granted"
    rises "$4 of $1: the writer's fence is greater" "$(fence_of first)" "$(fence_of writer)"
    busy "$4 of $1: is busy beside the writer of $2" "$1" "$3" -s
    let_go writer
    free "$4 of $1: is free for $1" "$1" "$3" "$4"
    free "$4 of $1: is free for $2" "$2" "$3" "$4"
}

# Readers beside readers, no writer beside them.
readers() {
    can shared || return 0
    if [ -n "${OLD_APART-}" ]; then
        apart "$@" -s
        return
    fi
    hold "$1" "$3" first -s
    hold "$2" "$3" second -s -w 60s
    holds first && holds second
    ok "readers: $1 and $2 share"
    busy "readers: a writer of $1 is busy" "$1" "$3"
    busy "readers: a writer of $2 is busy" "$2" "$3"
    let_go first
    busy "readers: a writer of $1 is busy while $2 reads" "$1" "$3"
    hold "$1" "$3" writer -w 60s
    sleep 0.2
    [ ! -s "$tmp/writer" ]
    ok "readers: a writer of $1 waits for a reader of $2"
    let_go second
    holds writer
    ok "readers: then it is granted"
    rises "readers: the writer's fence is greater" "$(fence_of second)" "$(fence_of writer)"
    busy "readers: a reader of $2 is busy beside the writer of $1" "$2" "$3" -s
    let_go writer
}

permits() {
    can permits || return 0
    if [ -n "${OLD_APART-}" ]; then
        apart "$@" --permits=2
        return
    fi
    hold "$1" "$3" first --permits 2
    holds first
    hold "$2" "$3" second --permits 2 -w 60s
    holds second
    ok "permits: $1 and $2 hold one each"
    is "permits: $1 and $2 have slots of their own" '0 1' \
        "$(cut -d' ' -f2 "$tmp/first" "$tmp/second" | sort | tr '\n' ' ' | sed 's/ $//')"
    busy "permits: there is no third for $1" "$1" "$3" --permits 2
    busy "permits: there is no third for $2" "$2" "$3" --permits 2
    hold "$2" "$3" third --permits 2 -w 60s
    sleep 0.2
    [ ! -s "$tmp/third" ]
    ok "permits: a third of $2 waits"
    let_go first
    holds third
    ok "permits: it is granted when $1 is done"
    let_go second
    let_go third
}

# The lock of a dead process is kept for its lease, and no longer.
death() {
    hold "$1" "$3" first -t 2s
    holds first
    eval "kill -KILL \$pid_first"
    eval "wait \$pid_first" 2>/dev/null
    hold "$2" "$3" second -w 60s
    holds second
    ok "death: $2 is granted after the death of $1"
    rises "death: the fence of $2 is greater" "$(fence_of first)" "$(fence_of second)"
    let_go second
}

kept() {
    can kept || return 0
    by "$1"
    # shellcheck disable=SC2086
    exits "kept: $1 releases early" 0 $cmd run -q --min-hold 4s "$3" -- true
    busy "kept: $2 is busy for the minimum hold of $1" "$2" "$3"
    hold "$2" "$3" second -w 60s
    holds second
    ok "kept: then $2 is granted"
    let_go second
}

# A handle of one is good for the other.
detached() {
    can detached || return 0
    by "$1"
    # shellcheck disable=SC2086
    handle=$(eval "$($cmd acquire -t 60s "$3")" && echo "$HOLDFAST_HANDLE")
    busy "detached: $2 is busy" "$2" "$3"
    by "$2"
    # shellcheck disable=SC2086
    exits "detached: $2 renews what $1 acquired" 0 $cmd renew -q -t 60s "$handle"
    busy "detached: $1 is still busy" "$1" "$3"
    # shellcheck disable=SC2086
    exits "detached: $2 releases it" 0 $cmd release -q "$handle"
    free "detached: $1 can have it" "$1" "$3"
}

breaks() {
    can breaks || return 0
    hold "$1" "$3" first -t 2s
    holds first
    by "$2"
    # shellcheck disable=SC2086
    exits "break: $2 breaks the lock of $1" 0 $cmd break -q --fence "$(fence_of first)" "$3"
    eval "wait \$pid_first" 2>/dev/null
    is "break: $1 ends its command" 79 $?
    hold "$2" "$3" second -w 60s
    holds second
    ok "break: $2 is granted then"
    let_go second
}

for case in ${OLD_CASES:-excludes queue readers permits death kept detached breaks}; do
    echo "# $case"
    $case old new "$case-old"
    $case new old "$case-new"
done
crowd crowd

# The table of the first cases was made by 0.1; this one is made by the present one.
if [ -n "${OLD_TABLE-}" ]; then
    case $HOLDFAST_URL in *\?*) also='&' ;; *) also='?' ;; esac
    HOLDFAST_URL=$HOLDFAST_URL${also}table=$OLD_TABLE
    echo "# $OLD_TABLE"
    excludes new old "$OLD_TABLE"
    queue old new "$OLD_TABLE"
fi
finish
