#!/bin/sh
# SPDX-License-Identifier: MIT
#
# serve.sh - holdfast serve shows the locks of real services, to those who may
# look, and touches none.
. "$(dirname "$0")/../cli/lib.sh"
hf=$HOLDFAST

# begin ARGS...: $server and $at, the address.
begin() {
    : >"$tmp/out" # The line of the last one is gone before anybody looks.
    "$hf" serve -l 127.0.0.1:0 "$@" >"$tmp/out" 2>"$tmp/err" &
    server=$!
    until_true grep -q '^listening' "$tmp/out"
    at=$(sed -n 's/^listening on \(.*\)\/$/\1/p' "$tmp/out")
}
get() { curl -s --max-time 20 "$@"; }
code() { get -o /dev/null -w '%{http_code}' "$@"; }
shows() { get "$at/api/locks" | grep -qF "$1"; }
hides() { ! shows "$1"; }
ends() { kill "$server"; wait "$server"; }
# Does it, with status 0, in 4 seconds?  Those it may ask have 5.
ends_soon() {
    begun=$(date +%s)
    ends && [ $(($(date +%s) - begun)) -le 4 ]
}

begin -u "file:$tmp/locks" -u "sqlite:$tmp/locks.db" --label-keys job/
"$hf" run -u "file:$tmp/locks" job/1 --note 'first <b>&"' -- sh -c "touch '$tmp/a'; sleep 100" &
one=$!
"$hf" run -u "sqlite:$tmp/locks.db" job/2 -- sh -c "touch '$tmp/b'; sleep 100" &
two=$!
until_true test -e "$tmp/a" -a -e "$tmp/b"
until_true shows '"key": "job/1"'
ok 'a lock of the first service is shown'
until_true shows '"key": "job/2"'
ok 'and one of the second'
shows 'first <b>&\"'
ok 'notes are JSON'
metrics=$(get "$at/metrics")
has 'the metrics count it' 'holdfast_locks_held{service="file:' "$metrics"
has 'keys have labels where that was asked for' ',key="job/1"}' "$metrics"
if command -v promtool >/dev/null; then
    printf '%s\n' "$metrics" | promtool check metrics >"$tmp/prom" 2>&1
    ok 'promtool finds nothing wrong'
else
    skip 'promtool finds nothing wrong' 'prometheus is missing'
fi
timeout 5 curl -sN "$at/events" >"$tmp/events" 2>/dev/null
has 'a stream begins with the whole table' '{"reset":true,"locks":[{' "$(head -c 200 "$tmp/events")"
has 'which has both' 'job/2' "$(cat "$tmp/events")"
has 'the holders of one can be had' '"status":"ok"' "$(get "$at/api/holders?service=0&key=job/1")"
holders=$(get "$at/api/holders?service=1&key=job/2")
number=$(get "$at/api/locks" | sed -n 's/.*"id": \([0-9]*\), "service": 1, "key": "job\/2".*/\1/p')
has 'with the names that the table has' "[{\"id\": $number, \"service\": 1, \"key\": \"job/2\"" "$holders"
has 'and how many waiters are left out' '"queue":[],"queue_not_shown":0' "$holders"
is 'both services were listed' 2 "$(get "$at/api/locks" | grep -o '"listed":true' | wc -l)"
is 'all services answer' 200 "$(code "$at/healthz")"
kill $two
wait $two 2>/dev/null
until_true hides '"key": "job/2"'
ok 'a lock that was released goes away'

# Who may ask.
is 'another host name is refused' 421 "$(code -H 'Host: evil.example' "$at/api/locks")"
is 'localhost is fine' 200 "$(code -H "Host: localhost:${at##*:}" "$at/api/locks")"
is 'breaking is not allowed' 403 \
    "$(code -X POST -H 'X-Holdfast: break' "$at/api/break?service=0&key=job/1&fence=1")"
is 'an unknown path' 404 "$(code "$at/nothing")"
is 'an unknown method' 405 "$(code -X PUT "$at/api/locks")"
is 'nonsense for a service' 400 "$(code "$at/api/holders?service=9&key=x")"
is 'no key' 400 "$(code "$at/api/holders?service=0")"
# raw HEADERS: the status of a request with just these.
raw() { printf 'GET /api/locks HTTP/1.1\r\n%b\r\n' "$1" | timeout 20 curl -s --max-time 5 "telnet://${at#http://}" | head -1; }
has 'two hosts' ' 400 ' "$(raw 'Host: localhost\r\nHost: evil.example\r\n')"
has 'a blank before a colon' ' 400 ' "$(raw 'Host: localhost\r\nX : y\r\n')"
has 'two lengths' ' 400 ' "$(raw 'Host: localhost\r\nContent-Length: 0\r\nContent-Length: 1\r\n')"
has 'a length and a coding' ' 400 ' "$(raw 'Host: localhost\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n')"
has 'two codings' ' 400 ' "$(raw 'Host: localhost\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n')"
has 'a coding that is unknown' ' 400 ' "$(raw 'Host: localhost\r\nTransfer-Encoding: xchunked\r\n')"
has 'two origins' ' 400 ' "$(raw "Host: localhost\r\nOrigin: http://evil.example\r\nOrigin: $at\r\n")"
has 'and nothing behind it is a request' '1' "$(printf 'POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n' |
    timeout 20 curl -s --max-time 5 "telnet://${at#http://}" | grep -c '^HTTP/')"
is 'more arguments than anybody means' 414 "$(code "$at/api/holders?$(seq -s '&' 5000)")"
is 'HEAD answers like GET' '200 200 200 404' \
    "$(for path in / /metrics /events /nothing; do code -I "$at$path"; echo; done | xargs)"
is 'and has no body' 0 "$(get -X HEAD -o /dev/null -w '%{size_download}' --head "$at/metrics")"
page=$(get -i "$at/")
has 'the page forbids what it does not bring' "default-src 'none'; script-src 'nonce-" "$page"
has 'nothing is guessed' 'X-Content-Type-Options: nosniff' "$page"
is 'the word is a new one each time' 2 \
    "$({ get "$at/"; get "$at/"; } | grep -o '<script nonce="[0-9a-f]*"' | sort -u | wc -l)"
is 'the page loads nothing from elsewhere' '' "$(get "$at/" | grep -Eo '(src|href)=.*')"
is 'and has no script in attributes' '' "$(get "$at/" | grep -Eio '<[^>]* on[a-z]+ *=.*')"
ends
ok 'it ends when it is told to'
kill $one
wait $one 2>/dev/null

# Breaking, when that is allowed.
begin -u "file:$tmp/locks" --allow-break
"$hf" run --grace 1s victim -- sh -c "touch '$tmp/c'; sleep 100" 2>/dev/null &
three=$!
until_true test -e "$tmp/c"
until_true shows '"key": "victim"'
fence=$("$hf" status --json victim | sed 's/.*"fence": "*\([0-9]*\).*/\1/')
run() { get "$at/api/locks" | sed -n 's/.*"run":"\([0-9a-f]*\)".*/\1/p'; }
what="service=0&endpoint=file:$tmp/locks&key=victim"
url="$at/api/break?run=$(run)&$what&fence="
is 'not without its own header' 403 "$(code -X POST "$url$fence")"
is 'not from another site' 403 \
    "$(code -X POST -H 'X-Holdfast: break' -H 'Origin: http://evil.example' "$url$fence")"
is 'not by a link' 404 "$(code -H 'X-Holdfast: break' "$url$fence")"
is 'not with another fence' 409 "$(code -X POST -H 'X-Holdfast: break' "${url}1")"
is 'not without the run that showed it' 409 \
    "$(code -X POST -H 'X-Holdfast: break' "$at/api/break?$what&fence=$fence")"
is 'not with that of another' 409 \
    "$(code -X POST -H 'X-Holdfast: break' "$at/api/break?run=$(run | tr 0-9a-f 1-9a-f0)&$what&fence=$fence")"
is 'not of another service' 409 \
    "$(code -X POST -H 'X-Holdfast: break' "$at/api/break?run=$(run)&service=0&endpoint=file:$tmp/other&key=victim&fence=$fence")"
is 'nor are its holders another run can ask for' 409 "$(code "$at/api/holders?run=1&service=0&key=victim")"
is 'no fence is 0' 400 "$(code -X POST -H 'X-Holdfast: break' "${url}0")"
kill -0 $three
ok 'the holder is still there'
is 'with the fence that was shown' 200 "$(code -X POST -H 'X-Holdfast: break' -H "Origin: $at" "$url$fence")"
wait $three
is 'its holder has lost it' 79 $?
ends

# What is not shown can neither be asked for nor broken.
begin -u "file:$tmp/locks" --allow-break --prefix pub/
is 'who holds a lock that is not shown' 404 "$(code "$at/api/holders?service=0&key=victim")"
is 'nor can that be broken' 404 \
    "$(code -X POST -H 'X-Holdfast: break' "$at/api/break?run=$(run)&$what&fence=$fence")"
is 'but of one below the prefix' 200 "$(code "$at/api/holders?service=0&key=pub/x")"
ends

# Whoever lists processes sees no password, and the services are asked with it.
begin -u "file:$tmp/locks?t%74l=7m" -u redis://u:S3CRET@127.0.0.1:1 "--url=mysql://u:S3CRET@127.0.0.1:1/d" \
    -umysql://127.0.0.1:1/d?password=S3CRET -u redis//u:S3CRET@h -u u:S3CRET@h -u redis:S3CRET@h \
    -u 'postgres:host=127.0.0.1 port=1 password=S3CRET' -u redis+unix:/u:S3CRET@/x -u redis://u:S3CRET/0
"$hf" run -u "file:$tmp/locks" job/4 -- sleep 1000 &
four=$!
until_true shows '"key": "job/4"'
ok 'a URL with a secret is read'
said=$(words "$server")
has 'and goes from the list of processes' 'holdfast-serve -l 127.0.0.1:0 -u file\*\*' "$said"
is 'with each password' 0 "$(printf '%s\n' "$said" | grep -c -e S3CRET -e 't%74l')"
ends
kill $four
wait $four 2>/dev/null

# Others need a token.
exits 'an address for all needs a token' 64 "$hf" serve -l 0.0.0.0:0
exits 'a token is not too short' 64 sh -c "echo short >'$tmp/token'; exec '$hf' serve --token-file '$tmp/token'"
exits 'nor cut' 64 sh -c "head -c 600 /dev/zero | tr '\\0' x >'$tmp/token'; exec '$hf' serve --token-file '$tmp/token'"
exits 'nor missing' 66 "$hf" serve --token-file "$tmp/none"
has 'which is said' "--token-file $tmp/none: No such file" "$said"
exits 'nor a directory' 66 "$hf" serve --token-file "$tmp"
has 'which is said' "--token-file $tmp: it is a directory" "$said"
: >"$tmp/token"
exits 'nor empty' 66 "$hf" serve --token-file "$tmp/token"
has 'which is said' "--token-file $tmp/token: it is empty" "$said"
printf '\nsixteen-or-more-of-them\n' >"$tmp/token"
exits 'nor is its line' 66 "$hf" serve --token-file "$tmp/token"
has 'which is said' "--token-file $tmp/token: its first line is empty" "$said"
# A header must carry it as it is.
n=0
for bad in ' a-long-and-secret-token' 'a-long-and-secret-token ' 'a-long-and-secret-token\t' 'a long and secret token' \
    '                    ' 'a-long-and-secret-t\303\266ken' 'a-long-and-secret-t\366ken' 'a-long-and-secret-t\033ken' \
    'a-long-and-secret-t\177ken' 'a-long-and-secret\rtoken' 'a-long-and-secret\0token' 'a-long-and-secret-token\0'; do
    # shellcheck disable=SC2059
    printf "$bad\n" >"$tmp/token"
    n=$((n + 1))
    exits "token $n that a header cannot carry is refused" 64 "$hf" serve -l 192.0.2.1:9707 --token-file "$tmp/token"
    has 'with what is wrong' 'visible ASCII characters' "$said"
done
n=0
for good in 'a-long-and-secret-token' 'a-long-and-secret-token\n' 'a-long-and-secret-token\r\n' '!"#$&()*+,-./:;<=>?@[]^_`{|}~\n' \
    'a-long-and-secret-token\n \303\266\n'; do
    # shellcheck disable=SC2059
    printf "$good" >"$tmp/token"
    n=$((n + 1))
    exits "token $n that it can carry is taken" 71 "$hf" serve -l 192.0.2.1:9707 --token-file "$tmp/token"
done
exits 'no such address' 64 "$hf" serve -l nowhere
echo a-long-and-secret-token >"$tmp/token"
chmod 644 "$tmp/token"
said=$("$hf" serve -l 192.0.2.1:9707 --token-file "$tmp/token" 2>&1)
has 'a token that others can read is warned about' "warning: $tmp/token" "$said"
chmod 600 "$tmp/token"
said=$("$hf" serve -l 192.0.2.1:9707 --token-file "$tmp/token" 2>&1)
is 'one that they cannot is not' 0 "$(echo "$said" | grep -c "warning: $tmp/token")"
exits 'an address that is not ours' 71 "$hf" serve -l 192.0.2.1:9707 --token-file "$tmp/token"
has 'and others would see the token' 'warning: 192.0.2.1:9707 is not encrypted' "$said"
exits 'an empty URL' 64 "$hf" serve -u ''
exits 'an empty name' 64 "$hf" serve --host ''
begin -u "file:$tmp/locks" --token-file "$tmp/token"
is 'the page comes without' 200 "$(code "$at/")"
is 'the locks do not' 401 "$(code "$at/api/locks")"
is 'nor the metrics' 401 "$(code "$at/metrics")"
is 'nor with a wrong one' 401 "$(code -H 'Authorization: Bearer a-long-and-secret-toke_' "$at/api/locks")"
is 'with it they do' 200 "$(code -H 'Authorization: Bearer a-long-and-secret-token' "$at/api/locks")"
is 'however the scheme is written' 200 "$(code -H 'Authorization: bearer a-long-and-secret-token' "$at/api/locks")"
ends

# Hostile clients: many, slow, and with more than it wants.
begin -u "file:$tmp/locks"
head -c 300000 /dev/zero | tr '\0' x >"$tmp/long"
is 'a long header is refused' 4 "$(code -H "X: $(head -c 120000 "$tmp/long")" "$at/api/locks" | cut -c1)"
is 'a body is not wanted, and harmless' 404 "$(code --data-binary "@$tmp/long" "$at/api/locks")"
for _ in 1 2 3 4 5 6 7 8 9 10; do
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        timeout 20 curl -sN --limit-rate 10 "$at/events" >/dev/null 2>&1 &
    done
done
is 'many slow readers keep nobody else out' 200 "$(code "$at/api/locks")"
kill -0 "$server"
ok 'it lives'
ends
ok 'and ends with streams open'
server=

# A password that is longer than what is shown of a URL; one server named twice.
password=SECRET$(head -c 400 /dev/zero | tr '\0' x)
begin -u "redis://user:$password@127.0.0.1:1/0" -u "redis://user:$password@127.0.0.1:1/0"
is 'a long password is not shown' 0 "$(get "$at/api/locks" "$at/metrics" | grep -c SECRET)"
is 'two services have two names' 2 \
    "$(get "$at/metrics" | grep '^holdfast_service_up' | sort -u | wc -l)"
ends

# Whatever is wrong with a URL, its password is nowhere.
set --
for url in 'redis//user:SECRET@host' 'u:SECRET@h' ':SECRET@h' 'redis:SECRET@h' 'redis://user:SECRET' \
    'redis://user:SECRET/0' 'redis://user:SECRET:1' 'redis:/user:SECRET@127.0.0.1:1' 'nosuch://u:SECRET@h' \
    'postgres:host=127.0.0.1 port=1 password=SECRET' 'mysql:host=127.0.0.1;password=SECRET' \
    'zk://digest:SECRET@127.0.0.1:1/p' 'consul://SECRET@127.0.0.1:1' 'redis://u:a/SECRET@127.0.0.1:1'; do
    said=$("$hf" serve "$url" 2>&1
        "$hf" serve "--ulr=$url" 2>&1
        "$hf" serve "-x$url" 2>&1
        "$hf" serve -l "$url" 2>&1)
    is "$url: no message shows the password" 0 "$(printf '%s\n' "$said" | grep -c SECRET)"
    set -- "$@" -u "$url"
done
begin "$@"
asked() { get "$at/api/locks" | grep -q '"error":"[^"]'; }
until_true asked
is 'nor do the page and the metrics' 0 \
    "$(get "$at/api/locks" "$at/metrics" "$at/api/holders?service=0&key=x" | grep -c SECRET)"
is 'one that cannot be read has a name' 1 \
    "$(get "$at/metrics" | grep -c '^holdfast_service_up{service="a URL that cannot be read"}')"
ends
is 'nor what is said meanwhile' 0 "$(grep -c SECRET "$tmp/err")"
server=

# A service that is not there yet.
begin -u "sqlite:$tmp/no/such/dir/locks.db"
is 'it says so' 503 "$(code "$at/healthz")"
mkdir -p "$tmp/no/such/dir"
healthy() { [ "$(code "$at/healthz")" = 200 ]; }
ill() { [ "$(code "$at/healthz")" = 503 ]; }
until_true healthy
ok 'and finds it later'
ends
server=

# Services that are not there have names, without passwords.
begin -u 'redis://user:hidden@127.0.0.1:1' -u 'etcd://127.0.0.1:1'
metrics=$(get "$at/metrics")
has 'one that was never reached has its name' 'up{service="redis://127.0.0.1:1"} 0' "$metrics"
has 'and another has another' 'up{service="etcd://127.0.0.1:1"} 0' "$metrics"
ends
server=

# Hostile names as labels.
begin -u "file:$tmp/locks" --label-keys ''
hostile=$(printf 'no text \377\n"')
"$hf" run -u "file:$tmp/locks" "$hostile" -- sh -c "touch '$tmp/d'; sleep 100" &
one=$!
until_true test -e "$tmp/d"
until_true shows 'no text'
get "$at/metrics" >"$tmp/metrics"
grep -qF 'no text \\xff\\x0a\""}' "$tmp/metrics"
ok 'a label is UTF-8'
iconv -f UTF-8 -t UTF-8 "$tmp/metrics" >/dev/null
ok 'and so are the metrics'
kill $one
wait $one 2>/dev/null
ends
server=

# It ends while somebody waits for a service that is silent.
if command -v redis-server >/dev/null; then
    redis_start
    redis=$server
    HOLDFAST_LOG=debug
    export HOLDFAST_LOG
    begin -u "$HOLDFAST_URL" -u "file:$tmp/locks"
    until_true healthy
    has 'its name is that of its URL' "up{service=\"$HOLDFAST_URL\"} 1" "$(get "$at/metrics")"
    kill -KILL $redis
    until_true ill
    ok 'a service that dies is told'
    site=$server
    redis_serve "${HOLDFAST_URL##*:}"
    redis=$server
    server=$site
    until_true healthy
    "$hf" run again -- sleep 100 &
    one=$!
    until_true shows '"key": "again"'
    ok 'and it is observed again when it is back'
    grep -q "^holdfast: warning: $HOLDFAST_URL: " "$tmp/err" &&
        grep -q "^holdfast: info: $HOLDFAST_URL: up" "$tmp/err"
    ok 'HOLDFAST_LOG has both'
    unset HOLDFAST_LOG
    kill $one
    wait $one 2>/dev/null
    kill -STOP $redis
    is 'a service that is silent is told like one that is away' 503 "$(code "$at/api/holders?service=0&key=x")"
    askers=
    for _ in 1 2 3 4 5 6 7 8; do
        get "$at/api/holders?service=0&key=x" >/dev/null &
        askers="$askers $!"
    done
    asked() { get --max-time 1 "$at/api/holders?service=0&key=x" | grep -q 'too many'; }
    until_true asked
    ok 'eight may ask at once'
    is 'and others of another service' 200 "$(code "$at/api/holders?service=1&key=x")"
    ends_soon
    is 'it ends at once though a service is silent' 0 $?
    begin -u "file:$tmp/locks"
    is 'and also where the address is taken' 71 \
        "$(timeout 4 "$hf" serve -u "$HOLDFAST_URL" -l "${at#http://}" 2>/dev/null; echo $?)"
    ends
    wait $askers
    kill -KILL $redis
    server=
else
    skip 'its name is that of its URL' 'redis is missing'
    skip 'a service that dies is told' 'redis is missing'
    skip 'and it is observed again when it is back' 'redis is missing'
    skip 'HOLDFAST_LOG has both' 'redis is missing'
    skip 'a service that is silent is told like one that is away' 'redis is missing'
    skip 'eight may ask at once' 'redis is missing'
    skip 'and others of another service' 'redis is missing'
    skip 'it ends at once though a service is silent' 'redis is missing'
    skip 'and also where the address is taken' 'redis is missing'
fi
finish
