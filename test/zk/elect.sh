#!/bin/sh
# SPDX-License-Identifier: MIT
#
# elect.sh - elections together with Curator's LeaderLatch and kazoo's Election:
# one leader at a time, in one queue, and each side sees whom the other elected.
# test/servers/zk runs it.
. "$(dirname "$0")/../cli/lib.sh"
hf=$HOLDFAST
hosts=${HF_TEST_URL#*://}
path=${hosts#*/}
path=/${path%%\?*}
hosts=${hosts%%/*}
here=$(cd "$(dirname "$0")" && pwd)

# together PEER OPTIONS
together() {
    peer=$here/$1 key=elect-$1
    HOLDFAST_URL=$HF_TEST_URL$2
    at=${path%/}/$key

    # Ours leads, theirs waits, another of ours behind it.
    mkfifo "$tmp/$1.in"
    "$hf" elect --value ours:80 "$key" -- sh -c 'echo $$ >"$0"; exec sleep 1000' \
        "$tmp/$1.ours" &
    ours=$!
    until_true [ -s "$tmp/$1.ours" ]
    has "$1: the peer shows our leader and its value" 'ours:80' \
        "$("$peer" "$hosts" "$at")"
    "$peer" "$hosts" "$at" theirs:81 <"$tmp/$1.in" >"$tmp/$1.theirs" &
    theirs=$!
    exec 8>"$tmp/$1.in"
    until_true sh -c '"$HOLDFAST" status --json "$0" | grep -q "\"waiters\": 1"' \
        "$key"
    ok "$1: their candidate waits behind our leader"
    "$hf" elect --value last "$key" -- "$hf" leader "$key" >"$tmp/$1.last" 8>&- &
    last=$!
    until_true sh -c '"$HOLDFAST" status --json "$0" | grep -q "\"waiters\": 2"' \
        "$key"
    ok "$1: and another of ours behind that"
    [ ! -s "$tmp/$1.theirs" ]
    ok "$1: nobody else leads meanwhile"
    kill $ours
    wait $ours
    until_true grep -q leading "$tmp/$1.theirs"
    ok "$1: when our leader resigns, theirs follows"
    is "$1: leader prints the value of theirs" theirs:81 "$("$hf" leader "$key")"
    [ ! -s "$tmp/$1.last" ]
    ok "$1: ours waits"
    exits "$1: and is not elected" 75 "$hf" elect -q -n "$key" -- true
    exec 8>&-
    wait $theirs
    wait $last
    is "$1: when theirs resigns, ours follows" last "$(cat "$tmp/$1.last")"
}

together election-peer '?layout=kazoo'
if [ -e /usr/share/java/curator-recipes.jar ] && command -v java >/dev/null; then
    together latch-peer '?recipe=latch'
else
    skip "Curator's LeaderLatch" 'there is no Curator'
fi
exits 'an unknown recipe is refused' 78 "$hf" status -u "$HF_TEST_URL?recipe=x" k
has 'and the message names those there are' \
    'recipe= is sequential, readwrite, latch or ephemeral' "$said"
finish
