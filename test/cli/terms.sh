#!/bin/sh
# SPDX-License-Identifier: MIT
#
# terms.sh - terms of `elect` on a service that keeps leases by itself: a private
# Redis, which can be frozen and restarted.
. "$(dirname "$0")/lib.sh"
hf=$HOLDFAST

redis_start
cat >"$tmp/work" <<'END'
echo "begin $HOLDFAST_FENCE" >>"$0.log"
trap 'echo "end $HOLDFAST_FENCE" >>"$0.log"; exit 0' TERM
while ! [ -e "$0.end" ]; do sleep 0.02; done
rm "$0.end"
echo "end $HOLDFAST_FENCE" >>"$0.log"
END
: >"$tmp/work.log"
begun() { [ "$(grep -c begin "$tmp/work.log")" -ge "$1" ]; }
in_turn() { [ "$(sed 's/ .*//' "$tmp/work.log" | uniq -d)" = '' ]; }

# The service does not answer when the leader resigns.
"$hf" elect --forever -t 6s k -- sh "$tmp/work" 2>"$tmp/err" &
leader=$!
until_true begun 1
kill -STOP $server
: >"$tmp/work.end"
until_true grep -q 'could not be released' "$tmp/err"
ok 'a resignation without an answer is told'
alive $leader
ok 'and elect goes on'
kill -CONT $server
until_true begun 2
ok 'and is elected again when the service answers'

# The service does not answer while it leads.
kill -STOP $server
until_true grep -q "lost 'k' (expired): ending the command" "$tmp/err"
ok 'a leader that cannot renew ends its command'
kill -CONT $server
until_true begun 3
ok 'and is elected again'
in_turn
ok 'no command began before the last had ended'

# The service is restarted and has forgotten everything.
port=${HOLDFAST_URL##*:}
kill -KILL $server
wait $server 2>/dev/null
redis_serve "$port"
until_true begun 4
ok 'the same after a restart of the service'
in_turn
ok 'in turn'
sed -n 's/^begin //p' "$tmp/work.log" | sort -nc
ok 'and the terms rise'

# An heir.
# campaign VALUE PLACE: a candidate that writes its value when it leads.
campaign() {
    "$hf" elect --value "$1" heirs -- sh -c "echo $1 >>$tmp/heirs" &
    until_true sh -c '"$HOLDFAST" status --json heirs | grep -q "\"waiters\": $0,"' \
        "$2"
}
# resigns HEIR: a leader that resigns when two others campaign.
resigns() {
    : >"$tmp/heirs"
    mkfifo "$tmp/fifo"
    "$hf" elect --heir "$1" heirs -- sh -c 'read go <"$0"; exit 5' \
        "$tmp/fifo" 2>"$tmp/heir.err" &
    old=$!
    until_true held heirs
    campaign second 1
    second=$!
    campaign third 2
    third=$!
    echo go >"$tmp/fifo"
    rm "$tmp/fifo"
    wait $old
    is 'a leader with an heir ends as its command did' 5 $?
    wait $second $third
}
resigns third
is 'the heir follows before those who came earlier' 'third second' \
    "$(echo $(cat "$tmp/heirs"))"
is 'without a word' '' "$(cat "$tmp/heir.err")"
resigns nobody
is 'without one the first in the queue follows' 'second third' \
    "$(echo $(cat "$tmp/heirs"))"
has 'and that is said' "'nobody' could not be made the next leader of 'heirs'" \
    "$(cat "$tmp/heir.err")"

# Frozen, and told to end.
kill -STOP $server
kill $leader
wait $leader
is 'TERM ends elect also when nobody answers' 0 $?
kill -CONT $server
is 'and the command has ended' end "$(tail -n 1 "$tmp/work.log" | sed 's/ .*//')"
kill -KILL $server
wait $server 2>/dev/null
finish
