# SPDX-License-Identifier: MIT
#
# lib.sh - what the shell tests of etcd: share.  Sourced; speaks TAP.
#
# $1 is the holdfast command.  A check is `ok NAME COMMAND...`: true is good.

holdfast=$1
url=$HF_TEST_URL
count=0 failed=0
work=$(mktemp -d "${TMPDIR:-/tmp}/hf-etcd-test.XXXXXX")
trap 'rm -rf "$work"' EXIT

ok() {
    count=$((count + 1))
    name=$1
    shift
    if "$@" >"$work/said" 2>&1; then
        echo "ok $count - $name"
    else
        echo "not ok $count - $name"
        sed 's/^/# /' "$work/said"
        failed=1
    fi
}

# Does the command end with this status?
status() {
    want=$1
    shift
    "$@"
    got=$?
    [ $got = "$want" ] || { echo "status $got, not $want"; return 1; }
}

# Until the command is true, for at most half a minute.
until_true() {
    tries=0
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || return 1
        sleep 0.1
    done
}

hf() {
    command=$1
    shift
    "$holdfast" "$command" -u "$url" "$@"
}

keys() {
    etcdctl get '' --prefix --keys-only | grep -c .
}

leases() {
    etcdctl lease list | sed -n 's/^found \([0-9]*\) leases/\1/p'
}

# After each scene nothing of ours is left.
is_clean() {
    [ "$(keys)" = 0 ] && [ "$(leases)" = 0 ]
}
clean() {
    until_true is_clean || {
        etcdctl get '' --prefix --keys-only
        etcdctl lease list
        return 1
    }
}

# --- a cluster of three

cluster=$HF_TEST_MEMBERS
member() {
    cat "$cluster/$1/pid"
}
is_well() {
    etcdctl endpoint health >/dev/null 2>&1
}
leader() {
    etcdctl endpoint status 2>/dev/null | awk -F', ' '$5 == "true" { print NR }'
}

# A holder that ends when told, exclusive or -s, and one that waits behind it.
scene() {
    rm -f "$work/in" "$work/go" "$work/next"
    hf run --ttl "$1" "${2--x}" k -- sh -c "touch $work/in; while [ ! -e $work/go ]; do sleep 0.1; done" 2>"$work/holder" &
    holder=$!
    until_true test -e "$work/in"
    hf run --ttl "$1" k -- touch "$work/next" 2>"$work/waiter" &
    waiter=$!
    until_true sh -c 'test $(etcdctl get holdfast/k/ --prefix --keys-only | grep -c .) = 2'
}
# Both come to a good end.
kept() {
    touch "$work/go"
    wait "$holder" || { echo "holder: $?"; cat "$work/holder"; return 1; }
    wait "$waiter" || { echo "waiter: $?"; cat "$work/waiter"; return 1; }
}

finish() {
    echo "1..$count"
    exit "$failed"
}
