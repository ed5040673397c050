#!/bin/sh
# SPDX-License-Identifier: MIT
#
# secure.sh - TLS with client certificates, users, and tokens that lapse.  The
# server is started with -t -a, so that tokens live for ten seconds.
set -u
. "$(dirname "$0")/lib.sh"

with() {
    "$holdfast" run -n -u "$1" k -- true
}
base=${url%%\?*} query=${url#*\?}
host=${base##*@}

ok 'user, password and certificate' with "$url"
ok 'a wrong password is refused' status 77 with "etcds://app:wrong@$host?$query"
ok 'so is no user' status 77 with "etcds://$host?$query"
ok 'and a prefix that the user may not write' status 77 with "$url&prefix=other/"
ok 'a server that nobody vouches for is refused' status 77 with "$base?cert=$HF_TEST_CERTS/holdfast.pem&key=$HF_TEST_CERTS/holdfast.key"
with "$base?ca=$HF_TEST_CERTS/ca.pem"
got=$?
ok 'without a certificate there is no way in' test $got -ne 0
ok 'verify=no takes any server' with "$url&verify=no"
ok 'a name that is in the certificate will do' with "etcds://app:word@localhost:${host##*:}?$query"
# It is the same address, but not written so in the certificate.
ok 'a name that is not in it is refused' status 77 with "etcds://app:word@127.1:${host##*:}?$query"
ok 'unless nobody asks' with "etcds://app:word@127.1:${host##*:}?$query&verify=no"

openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=holdfast -keyout "$work/stranger.key" \
    -out "$work/stranger.pem" 2>/dev/null
with "$base?ca=$HF_TEST_CERTS/ca.pem&cert=$work/stranger.pem&key=$work/stranger.key"
got=$?
ok 'nor with one that a stranger has made' test $got -ne 0
etcdctl user add holdfast --no-password >/dev/null
etcdctl user grant-role holdfast locks >/dev/null
ok 'a certificate can stand for its user' with "etcds://$host?$query"

# Hold and wait for longer than a token lives.  To log in takes etcd a tenth of
# a second of its processor, so the lease must not be a short one.
hf run --ttl 12s k -- sh -c "touch $work/in; sleep 14; test -z \"\$(etcdctl get none)\"" &
holder=$!
until_true test -e "$work/in"
hf run --ttl 12s k -- true &
waiter=$!

# Meanwhile another user's password is changed, and with it the file.
etcdctl user add other:first >/dev/null
etcdctl user grant-role other locks >/dev/null
echo first >"$work/secret"
other="etcds://other@$host?$query&password_file=$work/secret"
with_other() {
    "$holdfast" run -n -u "$other" p -- true
}
ok 'a password is read from a file' with_other
ok 'which must be there' status 78 with "etcds://other@$host?$query&password_file=$work/none"
ok 'and there must be one password only' status 78 with "etcds://other:first@$host?$query&password_file=$work/secret"
"$holdfast" run --ttl 12s -u "$other" o -- sh -c "touch $work/on; sleep 14" 2>"$work/other" &
rotated=$!
until_true test -e "$work/on"
echo second >"$work/secret"
echo second | etcdctl user passwd other --interactive=false >/dev/null
ok 'the new password is used from now on' until_true with_other

wait "$holder"
ok 'a lock is held for longer than a token lives' test $? = 0
wait "$waiter"
ok 'and waited for' test $? = 0
wait "$rotated"
ok 'a lock outlives the password that it was taken with' test $? = 0
ok 'nothing is left' clean
finish
