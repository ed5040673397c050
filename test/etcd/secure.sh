#!/bin/sh
# SPDX-License-Identifier: MIT
#
# secure.sh - TLS with client certificates, users, and tokens that lapse.  The
# server is started with -t -a, so that tokens live for ten seconds.
set -u
. "$(dirname "$0")/lib.sh"

status() {
    want=$1
    shift
    "$@"
    got=$?
    [ $got = "$want" ] || { echo "status $got, not $want"; return 1; }
}
with() {
    "$holdfast" run -n -u "$1" k -- true
}
base=${url%%\?*} query=${url#*\?}
host=${base##*@}

ok 'user, password and certificate' with "$url"
ok 'a wrong password is refused' status 77 with "etcds://app:wrong@$host?$query"
ok 'so is no user' status 77 with "etcds://$host?$query"
ok 'and a prefix that the user may not write' status 77 with "$url&prefix=other/"
ok 'a server that nobody vouches for is refused' status 77 with "$base?cert=$HF_TEST_CERTS/client.pem&key=$HF_TEST_CERTS/client.key"
with "$base?ca=$HF_TEST_CERTS/ca.pem"
got=$?
ok 'without a certificate there is no way in' test $got -ne 0
ok 'verify=no takes any server' with "$url&verify=no"
ok 'the name must be the one in the certificate' with "etcds://app:word@localhost:${host##*:}?$query"

# Hold and wait for longer than a token lives.
hf run --ttl 3s k -- sh -c "touch $work/in; sleep 14; test -z \"\$(etcdctl get none)\"" &
holder=$!
until_true test -e "$work/in"
hf run --ttl 3s k -- true &
waiter=$!
wait "$holder"
ok 'a lock is held for longer than a token lives' test $? = 0
wait "$waiter"
ok 'and waited for' test $? = 0
ok 'nothing is left' clean
finish
