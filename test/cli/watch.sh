#!/bin/sh
# SPDX-License-Identifier: MIT
#
# watch.sh - watch a key or a prefix; a command at each change.
. "$(dirname "$0")/lib.sh"
hf=$HOLDFAST

# hold KEY NOTE: until let_go.
hold() {
    "$hf" run --note "$2" "$1" -- sleep 1000 &
    holder=$!
    until_true held "$1"
}
let_go() {
    kill $holder
    wait $holder
}
says() { grep -q "$2" "$1"; }

# One key.
: >"$tmp/lines"
"$hf" watch k >"$tmp/lines" &
watcher=$!
until_true says "$tmp/lines" '^k: free'
ok 'watch begins with the present state, nobody too'
hold k first
until_true says "$tmp/lines" 'held by first, fence'
ok 'a line tells the new holder'
until_true sh -c '[ "$("$HOLDFAST" status k | grep -c "held by first")" = 1 ]'
let_go
until_true says "$tmp/lines" '^k: free, last known fence'
ok 'and another that it is free'
hold k second
until_true says "$tmp/lines" 'held by second'
"$hf" break -q --fence "$(fence k)" k
until_true says "$tmp/lines" 'broken, still held by second\|free'
ok 'a lock that is broken is a change'
wait $holder
kill $watcher
wait $watcher
is 'TERM ends it' 143 $?
said=$(sed -n 's/.*fence \([0-9]*\).*/\1/p' "$tmp/lines" | sort -nc 2>&1)
is 'fences never go back' '' "$said"

# A prefix.
: >"$tmp/lines"
hold app/one a
"$hf" watch --prefix --json app/ >"$tmp/lines" &
watcher=$!
until_true says "$tmp/lines" '"key": "app/one", "held": true'
ok 'of a prefix the locks that are held come first'
let_go
until_true says "$tmp/lines" '"key": "app/one", "held": false'
ok 'then each change'
hold apple no
let_go
hold app/two b
until_true says "$tmp/lines" '"key": "app/two", "held": true'
ok 'of new keys too'
let_go
kill $watcher
wait $watcher
says "$tmp/lines" apple
[ $? -eq 1 ]
ok 'and of no others'
while read -r line; do
    printf '%s\n' "$line" >"$tmp/json"
    valid_json "$tmp/json" || echo "$line" >>"$tmp/bad"
done <"$tmp/lines"
[ ! -e "$tmp/bad" ]
ok 'each line is JSON'
"$hf" watch --prefix >"$tmp/lines" &
watcher=$!
hold any c
until_true says "$tmp/lines" '^any: held by c'
ok 'without a PREFIX all keys are watched'
let_go
kill $watcher
wait $watcher

# --exec: one at a time, the newest state, the last one always.
cat >"$tmp/each" <<'END'
mkdir "$0.busy" || echo 'two at a time' >>"$0.log"
echo "$HOLDFAST_KEY $HOLDFAST_HELD $HOLDFAST_HOLDER" >>"$0.log"
[ -z "$HOLDFAST_HOLDER" ] || "$HOLDFAST" check --fence "$HOLDFAST_FENCE" "$HOLDFAST_KEY" || :
while [ -e "$0.slow" ]; do sleep 0.02; done
rmdir "$0.busy"
exit 3
END
: >"$tmp/each.slow"
: >"$tmp/each.log"
"$hf" watch --exec "sh '$tmp/each'" job >"$tmp/out" 2>"$tmp/err" &
watcher=$!
until_true says "$tmp/each.log" '^job 0 $'
ok '--exec runs the command at once, for nobody too'
for n in 1 2 3 4; do
    hold job holder-$n
    [ $n = 4 ] || let_go
done
is 'changes wait while it runs' 'job 0' "$(echo $(cat "$tmp/each.log"))"
rm "$tmp/each.slow"
until_true says "$tmp/each.log" 'job 1 holder-4'
ok 'the last state is always told'
is 'those in between are merged' 'job 0 job 1 holder-4' \
    "$(echo $(cat "$tmp/each.log"))"
has 'a status that is not 0 is told' 'ended with status 3' "$(cat "$tmp/err")"
[ ! -s "$tmp/out" ]
ok 'and there are no other lines'
let_go
until_true sh -c '[ "$(grep -c "^job 0 $" "$0")" = 2 ]' "$tmp/each.log"
ok 'the end of the last holder is told'
kill $watcher
wait $watcher
# ended WORDS: of a command that writes a process into $tmp/long, it ends with watch.
ended() {
    : >"$tmp/long"
    "$hf" watch --exec "$1" job &
    watcher=$!
    until_true [ -s "$tmp/long" ]
    kill $watcher
    wait $watcher
    until_true dead "$(cat "$tmp/long")"
}
ended "echo \$\$ >$tmp/long; exec sleep 1000"
ok 'a signal ends the command, too'
ended "sleep 1000 & echo \$! >$tmp/long; wait"
ok 'and what the command has started'

# A reader that does not read: each change is a line, until the pipe is full.
mkfifo "$tmp/full"
exec 7<>"$tmp/full"
"$hf" watch k >"$tmp/full" &
watcher=$!
note=$(printf '%0250d' 0)
full() { # is the watcher waiting for room?
    "$hf" run --note "$note" k -- true
    ! dd if=/dev/zero of="$tmp/full" bs=4096 count=1 oflag=nonblock 2>/dev/null
}
until_true full
kill $watcher
wait $watcher
is 'TERM ends it also when nobody reads its lines' 143 $?
exec 7>&-

# The same on a terminal with more lines than it has room for, and a stopped one.
cat >"$tmp/terminal.py" <<'END'
import fcntl, os, select, signal, subprocess, sys, termios, time, tty
hf, hold, url = sys.argv[1:4]
holder = subprocess.Popen([hold, url, "1000"], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE)
holder.stdout.readline()
def ends(sig, stopped):
    master, slave = os.openpty()
    tty.setraw(slave)
    own = os.open(os.ttyname(slave), os.O_WRONLY | os.O_NOCTTY)
    watch = subprocess.Popen([hf, "watch", "--prefix"], stdout=slave)
    os.read(master, 1)
    if stopped:
        termios.tcflow(slave, termios.TCOOFF)
    end = time.monotonic() + 1  # It may sleep although there is a little room.
    while time.monotonic() < end and select.select([], [own], [], 0)[1]:
        time.sleep(0.01)
    shared = fcntl.fcntl(slave, fcntl.F_GETFL) & os.O_NONBLOCK
    watch.send_signal(sig)
    try:
        code = watch.wait(60)
    except subprocess.TimeoutExpired:
        watch.kill()
        code = watch.wait()
    for fd in master, slave, own:
        os.close(fd)
    return code == -sig and not shared
good = all(ends(sig, stopped) for stopped in (False, True, False, False)
           for sig in (signal.SIGTERM, signal.SIGINT))
holder.stdin.close()
holder.wait()
sys.exit(not good)
END
timeout 250 python3 "$tmp/terminal.py" "$hf" "$HOLD" "$HOLDFAST_URL"
ok 'TERM and INT end it also on a terminal that is full or stopped'

# Signals that end nothing, while a reader of many long lines is slow.
cat >"$tmp/slow.py" <<'END'
import fcntl, json, os, signal, subprocess, sys
hf, long = sys.argv[1], "x" * 1000
keys = ["slow/%d%s" % (n, long) for n in range(12)]
holders = [subprocess.Popen([hf, "run", key, "--", "sh", "-c", "echo; exec sleep 1000"],
                            stdout=subprocess.PIPE) for key in keys]
for holder in holders:
    holder.stdout.readline()
reader, writer = os.pipe()
fcntl.fcntl(writer, 1031, 4096)  # F_SETPIPE_SZ
watch = subprocess.Popen([hf, "watch", "--json", "--prefix", "slow/"], stdout=writer)
os.close(writer)
seen, text, pieces = set(), b"", 0
while len(seen) < len(keys) and (piece := os.read(reader, 512)):
    text, pieces = text + piece, pieces + 1
    if pieces % 4 == 0:
        for sig in signal.SIGCONT, signal.SIGWINCH, signal.SIGCHLD:
            watch.send_signal(sig)
    *lines, text = text.split(b"\n")
    seen |= {json.loads(line)["key"] for line in lines}
for one in (watch, *holders):
    one.terminate()
    one.wait()
sys.exit(seen != set(keys))
END
timeout 60 python3 "$tmp/slow.py" "$hf" 2>"$tmp/err"
ok 'and no signal that does not end it costs a byte of its lines'

# A service that is not there yet, and errors that are final.
exits 'a wrong URL ends it at once' 78 "$hf" watch -u no: k
if command -v redis-server >/dev/null && command -v redis-cli >/dev/null &&
    redis_start; then
    redis-cli -p $port acl setuser stranger on '>pw' +@all '~other' '&*' >/dev/null
    none=127.0.0.1:$port
    exits 'and so does a wrong password: status 77' 77 \
        "$hf" watch -u redis://stranger:no@$none k
    exits 'or a key that may not be read' 77 "$hf" watch --retry 1h \
        -u redis://stranger:pw@$none k
    kill $server
    wait $server
    "$hf" watch k >"$tmp/lines" 2>"$tmp/err" &
    watcher=$!
    until_true says "$tmp/err" 'trying again'
    ok 'watch waits for a service that is not there at the start, and says so'
    redis_serve $port
    until_true says "$tmp/lines" '^k: free'
    ok 'and begins when it is'
    kill $watcher
    wait $watcher
    kill $server
    wait $server
    "$hf" watch k >"$tmp/lines" 2>"$tmp/err" &
    watcher=$!
    until_true says "$tmp/err" 'trying again'
    kill $watcher
    wait $watcher
    is 'TERM ends that wait' 143 $?
else
    skip 'watch waits for a service' 'redis-server is missing'
fi

# Wrong words.
exits 'watch needs a key' 64 "$hf" watch
exits 'one of them' 64 "$hf" watch a b
exits '--exec and --json exclude each other' 64 "$hf" watch --exec x --json k

finish
