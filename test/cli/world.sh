#!/bin/sh
# SPDX-License-Identifier: MIT
#
# world.sh - the command finds the world that holdfast was started in, plus its
# own five variables and one descriptor.
. "$(dirname "$0")/lib.sh"
hf=$HOLDFAST

# Variables.
out=$(HOLDFAST_KEY=old HOLDFAST_FENCE=old HOLDFAST_OWNER=old \
    HOLDFAST_LOST_FD=old HOLDFAST_FENCES=old HOLDFAST_SLOT=old "$hf" run 'my key' -- sh -c 'env' | grep '^HOLDFAST_')
has 'HOLDFAST_KEY is set' 'HOLDFAST_KEY=my key' "$out"
has 'HOLDFAST_URL is set' "HOLDFAST_URL=file:$tmp/locks" "$out"
case $out in
*=old*) false ;;
esac
ok 'no inherited value survives'
is 'each is there once' 7 "$(printf '%s\n' "$out" | grep -c '^HOLDFAST_[KFOLUS]')"
one=$("$hf" run k -- sh -c 'echo $HOLDFAST_FENCE')
two=$("$hf" run k -- sh -c 'echo $HOLDFAST_FENCE')
[ "$two" -gt "$one" ]
ok 'HOLDFAST_FENCE rises from run to run'
is 'HOLDFAST_FENCE is what status tells' '' \
    "$("$hf" run k -- sh -c \
        '[ "$("$HOLDFAST" status k | sed "s/.*fence \([0-9]*\).*/\1/")" = \
        $HOLDFAST_FENCE ] || echo differs')"
is 'HOLDFAST_OWNER is the owner id' 'me' \
    "$("$hf" run --owner me k -- sh -c 'echo $HOLDFAST_OWNER')"
"$hf" run k -- sh -c 'echo $HOLDFAST_OWNER' | grep -Eq '^[0-9a-f]{32}$'
ok 'or the token'
"$hf" run k -- sh -c '"$HOLDFAST" check --fence $HOLDFAST_FENCE k'
ok 'check confirms the fence from inside'
is 'nested runs see the inner values' 'inner outer' "$("$hf" run outer -- \
    sh -c '"$HOLDFAST" run inner -- sh -c "echo \$HOLDFAST_KEY"; echo $HOLDFAST_KEY' |
    tr '\n' ' ' | sed 's/ $//')"
"$hf" run outer -- sh -c 'a=$HOLDFAST_FENCE; [ "$("$HOLDFAST" run inner -- \
    sh -c "echo \$HOLDFAST_FENCE")" != $a ]'
ok 'and the inner fence'
is 'a nested run of the same key with the same owner does not wait' yes \
    "$("$hf" run --owner me k -- "$hf" run -n --owner me k -- echo yes)"
is 'an owner of two processes holds until the last is done' yes \
    "$("$hf" run --owner me k -- sh -c '"$HOLDFAST" run -n --owner me k -- true
        "$HOLDFAST" run -q -n k -- true || echo yes')"

# Descriptors.
ls /proc/self/fd >"$tmp/before"
"$hf" run k -- sh -c 'ls /proc/self/fd
    printf "%s\n" $HOLDFAST_LOST_FD ${HOLDFAST_WITHIN%%.*} >"$0"' \
    "$tmp/fd" >"$tmp/after"
grep -vxFf "$tmp/fd" "$tmp/after" >"$tmp/rest"
cmp -s "$tmp/before" "$tmp/rest"
ok 'no descriptor leaks into the command but those that it is told'
is 'with a report, a wait and a shared lock neither' '' "$(
    exec 5>"$tmp/report"
    ls /proc/self/fd | grep -vx 5 >"$tmp/before"
    "$hf" run -s -w 5 --report fd:5 k -- sh -c \
        'ls /proc/self/fd
    printf "%s\n" $HOLDFAST_LOST_FD ${HOLDFAST_WITHIN%%.*} >"$0"' "$tmp/fd" >"$tmp/after"
    grep -vxFf "$tmp/fd" "$tmp/after" | diff "$tmp/before" -
)"
is 'HOLDFAST_LOST_FD is a number that any shell can use' 9 \
    "$(sed -n 1p "$tmp/fd")"
is 'and another one if that is taken' 8 \
    "$("$hf" run k -- sh -c 'echo $HOLDFAST_LOST_FD' 9</dev/null)"
is 'stdin is passed' 'hello' "$(echo hello | "$hf" run k -- cat)"
is 'stdout is passed' 'out' "$("$hf" run k -- sh -c 'echo out; echo err >&2' \
    2>/dev/null)"
is 'stderr is passed and nothing is added' 'err' \
    "$("$hf" run k -- sh -c 'echo err >&2' 2>&1 >/dev/null)"
is 'the command may close its stdin' '' "$("$hf" run k -- true <&- 2>&1)"

for fd in 0 1 2; do
    eval "\"\$hf\" run k -- sh -c '[ ! -e /proc/\$\$/fd/$fd ]' $fd>&-"
    ok "descriptor $fd stays closed if it was"
done
is 'what is printed goes nowhere else then' \
    'holdfast: standard output cannot be written: Bad file descriptor' \
    "$("$hf" status k 2>&1 >&-)"

# Signals.
is 'mask and dispositions are those that holdfast was given' \
    "$(sh -c 'trap "" USR2; exec grep -E "^Sig(Blk|Ign)" /proc/self/status')" \
    "$(sh -c 'trap "" USR2; exec "$HOLDFAST" run k -- \
        grep -E "^Sig(Blk|Ign)" /proc/self/status')"
sh -c 'trap "" HUP; exec "$HOLDFAST" run hup -- sleep 1000' &
pid=$!
until_true held hup
kill -HUP $pid
held hup
ok 'HUP stays ignored under nohup'
kill -TERM $pid
wait $pid
is 'and TERM still ends it' 143 $?
"$hf" run hup2 -- sleep 1000 &
holder=$!
until_true held hup2
sh -c 'trap "" HUP; exec "$HOLDFAST" run -v hup2 -- true' 2>"$tmp/said" &
pid=$!
until_true grep -q waiting "$tmp/said"
kill -HUP $pid
kill $holder
wait $holder
wait $pid
is 'and does not end a wait either' 0 $?
"$hf" run k -- sh -c 'set -- $(cat /proc/$$/stat); [ $1 = $5 ]'
ok 'the command leads a process group of its own'

# A command that leaves something behind.
"$hf" run left -- sh -c 'sleep 1000 & echo $! >"$0"' "$tmp/pid"
is_free left
ok 'the lock is released when the command ends, whatever it left behind'
alive "$(cat "$tmp/pid")"
ok 'and what it left behind is left alone'
kill "$(cat "$tmp/pid")"
"$hf" run --wait-group group -- sh -c 'sleep 1000 & echo $! >"$0"' "$tmp/pid2" &
pid=$!
until_true [ -s "$tmp/pid2" ]
until_true held group
ok '--wait-group holds while one of the group lives'
kill "$(cat "$tmp/pid2")"
wait $pid
is 'and ends with the status of the command' 0 $?

# The note.
"$hf" run note -- sh -c '"$HOLDFAST" status note' >"$tmp/note"
has 'others see host and process' "$(hostname):" "$(cat "$tmp/note")"
has 'and the name of the program, none of its words' ' (sh),' "$(cat "$tmp/note")"
cp /bin/sh "$tmp/sh"
"$hf" run note -- "$tmp/sh" -c '"$HOLDFAST" status note' >"$tmp/note"
has 'and not the directory that it is in' ' (sh),' "$(cat "$tmp/note")"
"$hf" run --note 'hand made' note -- sh -c '"$HOLDFAST" status note' >"$tmp/note"
has 'or what --note says' 'held by hand made' "$(cat "$tmp/note")"
long=$(printf 'é%.0s' $(seq 120))
cp /bin/sh "$tmp/$long"
"$hf" run note -- "$tmp/$long" -c '"$HOLDFAST" status --json note' >"$tmp/note"
valid_json "$tmp/note" && grep -q "é)\"" "$tmp/note"
ok 'a long name is cut between characters'

# The service.
out=$("$hf" run -u "file:$tmp/other" k -- sh -c 'echo $HOLDFAST_URL')
is '-u wins over $HOLDFAST_URL, and nested runs use it' "file:$tmp/other" "$out"
# nested COMMAND...: what a run inside the command finds after cd.
nested() {
    mkdir -p "$tmp/100%? here/down"
    (cd "$tmp/100%? here" && "$@" k -- sh -c \
        'cd down && "$HOLDFAST" run -q -n k -- true; echo $?')
}
is 'a relative -u means the same service after cd' 75 \
    "$(nested "$hf" run -u file:locks)"
is 'and so does a relative $HOLDFAST_URL' 75 \
    "$(HOLDFAST_URL=file:locks nested "$hf" run)"
if "$hf" ls -q -u "sqlite:$tmp/x.db" >"$tmp/said" 2>&1; then
    is 'and a relative database' 75 "$(nested "$hf" run -u sqlite:x.db)"
fi
is 'options that all commands take may come first' 0 \
    "$("$hf" -u "file:$tmp/other" run k -- true; echo $?)"
# Secrets: whatever is wrong with a URL, its password is in no message, in no list
# of processes and not in the environment of the command.
for url in 'redis://u:S3CRET@127.0.0.1:1' 'redis:/u:S3CRET@127.0.0.1:1' \
    'redis://u:a/S3CRET@127.0.0.1:1' 'nosuch://u:S3CRET@h' \
    'redis+unix:/u:S3CRET@/x' 'postgres://127.0.0.1:1/d?password=a&S3CRET=1' \
    'redis://127.0.0.1:1?a_name_of_more_than_thirty_two_bytes_S3CRET=S3CRET' \
    'consul://127.0.0.1:1?tokem=S3CRET' 'mem:?p%61ssword=S3CRET' \
    'redis//user:S3CRET@host' 'u:S3CRET@h' ':S3CRET@h' 'redis:S3CRET@h' \
    'redis://user:S3CRET' 'redis://user:S3CRET/0' 'redis://user:S3CRET:1' \
    'postgres:host=127.0.0.1 port=1 password=S3CRET' \
    'mysql:host=127.0.0.1;password=S3CRET'; do
    said=$("$hf" status -v -u "$url" k 2>&1
        HOLDFAST_URL=$url "$hf" doctor 2>&1
        "$hf" "$url" 2>&1
        "$hf" run "$url" 2>&1
        "$hf" status k l "$url" 2>&1)
    case $said in
    *S3CRET*) printf '%s\n' "$said" | sed 's/^/# /'; false ;;
    *) true ;;
    esac
    ok "$url: no message shows the secret"
done
said=$("$hf" run -q -u "file:$tmp/locks?t%74l=7m" k -- \
    sh -c 'tr "\0" " " </proc/$PPID/cmdline; env' 2>&1)
has 'an option whose name is escaped is taken for a secret' '-u file*' "$said"
case $said in
*t%74l*) false ;;
*) true ;;
esac
ok 'which neither ps nor the command sees'
is 'nor does ps see one that another -u replaces' 0 "$("$hf" run -q -u 'redis://u:S3CRET@127.0.0.1:1' \
    --url=redis://u:S3CRET@127.0.0.1:2 -u "file:$tmp/locks" k -- sh -c 'tr "\0" " " </proc/$PPID/cmdline' | grep -c S3CRET)"
finish
