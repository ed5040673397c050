#!/bin/sh
# SPDX-License-Identifier: MIT
#
# elect.sh - campaign, lead, resign; and who leads.
. "$(dirname "$0")/lib.sh"
hf=$HOLDFAST

# The first example of holdfast-elect(1), as it is printed, with the service of this
# test in place of the one that it names.
mkdir "$tmp/page" "$tmp/bin"
ln -s "$hf" "$tmp/bin/holdfast"
printf '#!/bin/sh\nexec sleep 1000\n' >"$tmp/page/server"
chmod +x "$tmp/page/server"
sed -n '/^\.Bd/,/^\.Ed/{s/\\(dq/"/g;/^\.[BE]d/!p;/^\.Ed/q;}' \
    "$(dirname "$0")/../../doc/man/holdfast-elect.1" |
    sed '/^export HOLDFAST_URL=/d' >"$tmp/page/example"
grep -q '^holdfast leader --wait' "$tmp/page/example"
ok 'the page begins with an example'
cat >>"$tmp/page/example" <<'END'
kill $!
wait $!
exit 0
END
is 'which prints who leads' "$(uname -n):8080" \
    "$(cd "$tmp/page" && PATH=$tmp/bin:$PATH timeout 60 sh example)"

# One term.
exits 'nobody leads: status 1' 1 "$hf" leader k
has 'and that is said' "nobody leads 'k'" "$said"
exits 'the status is that of the command' 3 "$hf" elect --value 'here:80' k -- \
    sh -c '"$HOLDFAST" leader $HOLDFAST_KEY; echo "term $HOLDFAST_FENCE"
        "$HOLDFAST" leader --json $HOLDFAST_KEY >"$0"; exit 3' "$tmp/json"
has 'leader prints the value' 'here:80' "$said"
term=$(printf '%s\n' "$said" | sed -n 's/^term //p')
valid_json "$tmp/json"
ok 'leader --json prints JSON'
has 'with the value' '"leader": "here:80"' "$(cat "$tmp/json")"
has 'and the term, which is the fence' "\"term\": $term," "$(cat "$tmp/json")"
exits 'and the leadership is given up' 1 "$hf" leader -q k
is 'about which -q is silent' '' "$said"
exits 'without a value there is a name' 0 "$hf" elect k -- "$hf" leader k
has 'of host, process and program' '(holdfast)' "$said"

# Waiting for a leader.
"$hf" leader --wait waits >"$tmp/waits" &
watcher=$!
exits 'a limited wait ends: status 1' 1 "$hf" leader -w 50ms waits
"$hf" elect --value first waits -- sleep 1000 &
leader=$!
wait $watcher
is 'leader --wait waits for one' 0 $?
is 'and prints it' first "$(cat "$tmp/waits")"
exits 'elect -n does not wait: status 75' 75 "$hf" elect -n waits -- true
exits 'nor -w for long' 9 "$hf" elect -w 50ms -E 9 waits -- true
kill $leader
wait $leader
is 'TERM reaches the command and ends the term' 143 $?
exits 'and the leadership is free' 1 "$hf" leader waits

# Each command writes a line when it begins and when it ends.
cat >"$tmp/work" <<'END'
echo "begin $HOLDFAST_FENCE" >>"$0.log"
trap 'echo "end $HOLDFAST_FENCE" >>"$0.log"; exit 0' TERM
while :; do sleep 0.02; done
END
: >"$tmp/work.log"
begun() { [ "$(grep -c begin "$tmp/work.log")" -ge "$1" ]; }

# A leadership that is lost is campaigned for again.
"$hf" elect -t 1s lost -- sh "$tmp/work" 2>"$tmp/err" &
leader=$!
until_true begun 1
n=$(fence lost)
"$hf" break -q --fence "$n" lost
until_true begun 2
m=$(fence lost)
is 'the command was ended before it began again' \
    "begin $n end $n begin $m" "$(echo $(cat "$tmp/work.log"))"
[ "$m" -gt "$n" ]
ok 'in a later term'
has 'the loss is told' "lost 'lost' (broken): ending the command" \
    "$(cat "$tmp/err")"
has 'and the next campaign' "campaigning for 'lost' again" "$(cat "$tmp/err")"
kill $leader
wait $leader
is 'a command that was told to end is not started again' 0 $?
is 'and has ended' "end $m" "$(tail -n 1 "$tmp/work.log")"

# The next leader begins when the work of the last is over: what the command
# left in the background, and what ignores TERM, is dead.
cat >"$tmp/leaves" <<'END'
sh -c 'trap "" TERM; echo $$ >"$0"; while :; do sleep 0.02; done' "$0.child" &
while ! [ -s "$0.child" ]; do sleep 0.02; done
while ! [ -e "$0.go" ]; do sleep 0.02; done
exit 4
END
"$hf" elect --grace 100ms rest -- sh "$tmp/leaves" &
leader=$!
until_true [ -s "$tmp/leaves.child" ]
"$hf" elect rest -- sh -c 'sed -n "s/^State:[^A-Z]*\([A-Y]\).*/\1/p" \
    "/proc/$(cat "$0.child")/status" 2>/dev/null >"$0.seen"; exit 0' "$tmp/leaves" &
heir=$!
: >"$tmp/leaves.go"
wait $leader
is 'the status is that of the command, whatever it left' 4 $?
wait $heir
is 'the next leader follows' 0 $?
is 'and finds nobody of the last at work' '' "$(cat "$tmp/leaves.seen")"

exits '--wait-group lets the rest of the group finish' 0 "$hf" elect \
    --wait-group group -- sh -c '(sleep 0.3; echo finished) & exit 0'
has 'by itself' finished "$said"

# A leader whose holdfast is killed.
: >"$tmp/work.log"
"$hf" elect -q killed -- sh "$tmp/work" 2>/dev/null &
leader=$!
until_true begun 1
n=$(fence killed)
"$hf" elect -q killed -- sh "$tmp/work" &
heir=$!
kill -KILL $leader
wait $leader 2>/dev/null
until_true begun 2
is 'a killed leader is followed' "begin $(fence killed)" \
    "$(tail -n 1 "$tmp/work.log")"
kill $heir
wait $heir

# --forever.
cat >"$tmp/short" <<'END'
echo "$HOLDFAST_FENCE" >>"$0.log"
exit 7
END
: >"$tmp/short.log"
ran() { [ "$(wc -l <"$tmp/short.log")" -ge "$1" ]; }
"$hf" elect --forever forever -- sh "$tmp/short" 2>"$tmp/err" &
leader=$!
until_true ran 1
exits 'others can lead while it pauses' 0 "$hf" elect -w 60 forever -- true
until_true ran 2
ok '--forever campaigns again when the command has ended'
has 'and says so' "ended with status 7: campaigning for 'forever' again in 1s" \
    "$(cat "$tmp/err")"
kill $leader
wait $leader
is 'TERM ends the pause' 143 $?
exits 'a command that does not exist ends it' 127 "$hf" elect --forever f -- \
    "$tmp/none"
: >"$tmp/work.log"
"$hf" elect --forever told -- sh "$tmp/work" &
leader=$!
until_true begun 1
kill $leader
wait $leader
is 'and so does a signal that the command obeys' 0 $?
exits '--max-hold ends a term' 124 "$hf" elect --max-hold 100ms max -- sleep 1000

# While it campaigns.
"$hf" run campaign -- sleep 1000 &
holder=$!
until_true held campaign
"$hf" elect campaign -- true &
candidate=$!
kill -TERM $candidate
wait $candidate
is 'TERM ends the campaign' 143 $?
kill $holder
wait $holder
exits 'and nothing stays behind' 1 "$hf" leader campaign

# A service that is silent when the leader resigns has two seconds in all, also
# if an heir is named.  The default limit of a request is five.
if command -v redis-server >/dev/null && command -v redis-cli >/dev/null &&
    redis_start; then
    "$hf" elect --heir next silent -- sh -c "touch '$tmp/leads'; sleep 2" 2>"$tmp/err" &
    leader=$!
    until_true [ -e "$tmp/leads" ]
    kill -STOP $server
    begun=$(date +%s)
    wait $leader
    is 'a silent service does not change the status' 0 $?
    [ $(($(date +%s) - begun)) -le 7 ] # 2 of the command, 2 of the service
    ok 'and is not waited for twice'
    has 'the message says for how long it was' 'no answer in 2 s' "$(cat "$tmp/err")"
    kill -CONT $server

    # Whoever asks for the key is not answered any more: it is not known who leads.
    cat >"$tmp/mute.py" <<'END'
import socket, sys, threading
def pump(a, b, mute):
    try:
        while data := a.recv(65536):
            if b"hushed" in data:
                mute.set()
            if not mute.is_set():
                b.sendall(data)
    except OSError:
        pass
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    client, server = listener.accept()[0], socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    mute = threading.Event()
    for way in (client, server), (server, client):
        threading.Thread(target=pump, args=(*way, mute), daemon=True).start()
END
    python3 "$tmp/mute.py" $port >"$tmp/mute" &
    mute=$!
    until_true [ -s "$tmp/mute" ]
    exits 'who leads is unknown where nothing answers: status 69' 69 \
        "$hf" leader -u "redis://127.0.0.1:$(cat "$tmp/mute")" -w 100ms hushed
    has 'and the message says so' 'not known who leads' "$said"
    kill $mute

    # Somebody leads after the way to the service was cut: that nobody did before is
    # no answer.  Looked at below, when the time of -w is over.
    python3 "$tmp/mute.py" $port >"$tmp/cut" &
    cut=$!
    until_true [ -s "$tmp/cut" ]
    for way in text json; do
        "$hf" leader --wait -w 10s $([ $way = text ] || echo --json) -u "redis://127.0.0.1:$(cat "$tmp/cut")" \
            gone >"$tmp/$way" 2>"$tmp/$way.err" &
        eval "$way=\$!"
    done
    until_true sh -c '[ $(redis-cli -p $0 client list | grep -c cmd=exists) = 2 ]' $port
    kill $cut
    "$hf" elect --value alpha gone -- sleep 1000 &
    alpha=$!
    until_true "$hf" leader -q gone >/dev/null
    until_true sh -c '! redis-cli -p $0 client list | grep -q cmd=exists' $port

    # An error that is final ends the wait for a leader as it ends everything else.
    redis-cli -p $port acl setuser stranger on '>pw' +@all '~other' '&*' >/dev/null
    none=redis://stranger:pw@127.0.0.1:$port
    exits 'leader --wait ends where the key may not be read: status 77' 77 \
        "$hf" leader --wait -u $none rights
    has 'and says why' NOPERM "$said"
    exits 'and so it does with a limit' 77 "$hf" leader --wait -w 50s -u $none rights
    "$hf" leader --wait denied >"$tmp/denied" 2>&1 &
    watcher=$!
    until_true sh -c 'redis-cli -p $0 client list | grep -q cmd=exists' $port
    redis-cli -p $port acl setuser default -@all +acl +set >/dev/null
    redis-cli -p $port set holdfast:denied x >/dev/null
    wait $watcher
    is 'also when the right is lost meanwhile' 77 $?
    redis-cli -p $port acl setuser default +@all >/dev/null

    for way in text json; do
        wait $(eval "echo \$$way")
        is "leader --wait -w ($way) without an answer at the end: status 69" 69 $?
        is 'prints nothing' '' "$(cat "$tmp/$way")"
        has 'says that the service went away' 'waiting for the service' "$(cat "$tmp/$way.err")"
        has 'what is not known' "not known who leads 'gone'" "$(cat "$tmp/$way.err")"
        has 'and what was known last' 'nobody did' "$(tail -n 1 "$tmp/$way.err")"
    done
    kill $alpha
    wait $alpha

    # A service that is not there yet.
    kill $server
    wait $server
    exits 'leader asks once' 69 "$hf" leader late
    exits 'leader -w waits for the service as long' 69 "$hf" leader -w 50ms late
    exits 'a wrong URL ends leader --wait at once' 78 "$hf" leader --wait -u no: late
    "$hf" leader --wait late >"$tmp/late" 2>"$tmp/err" &
    watcher=$!
    until_true grep -q 'trying again' "$tmp/err"
    ok 'leader --wait waits for the service, too, and says so'
    "$hf" watch late >"$tmp/watched" 2>"$tmp/watch.err" &
    watch=$!
    until_true grep -q 'trying again' "$tmp/watch.err"
    redis_serve $port
    until_true grep -q 'the service answers again' "$tmp/watch.err"
    ok 'watch says when a service that was not there at the start answers'
    kill $watch
    "$hf" elect --value first late -- sleep 1000 &
    leader=$!
    wait $watcher
    is 'and then for a leader' 0 $?
    is 'which it prints' first "$(cat "$tmp/late")"
    has 'after the word that the service is there' 'the service answers again' \
        "$(cat "$tmp/err")"
    kill $leader
    wait $leader
    kill $server
else
    skip 'a silent service does not change the status' 'redis-server is missing'
fi

# Wrong words.  No service is asked about them: this one is silent.
HOLDFAST_URL=redis://127.0.0.1:1
exits 'elect needs a key and a command' 64 "$hf" elect
exits 'and a command' 64 "$hf" elect k
has 'as the message shows' "holdfast elect 'k' -- CMD" "$said"
exits 'the command cannot outlive the leadership' 64 "$hf" elect --on-lost warn \
    k -- true
exits 'a leadership is not shared' 64 "$hf" elect --shared k -- true
has 'and the message names who can' 'these do: run, acquire' "$said"
exits 'leader takes one key' 64 "$hf" leader
long=$(printf '%300s' x)
exits 'a value that is too long is refused' 64 "$hf" elect --value "$long" k -- \
    true
exits 'and so is none' 64 "$hf" elect --value '' k -- true
has 'as the message says' '--value: the TEXT is empty' "$said"
exits 'an heir has a name' 64 "$hf" elect --heir '' k -- true
has 'as the message says' '--heir: the VALUE is empty' "$said"
exits 'that is no longer than a value' 64 "$hf" elect --heir "$long" k -- true
has 'as the message says' 'longer than 256 bytes' "$said"

finish
