#!/bin/sh
# SPDX-License-Identifier: MIT
#
# guard.sh - whatever happens to holdfast, the command's group is dead before
# somebody else gets the lock.
. "$(dirname "$0")/lib.sh"
hf=$HOLDFAST

# A command of three processes.  The last one ignores TERM.  Each writes its
# number down, and the group is complete when the file has three lines.
cat >"$tmp/family" <<'END'
echo $$ >>"$1"
sleep 1000 &
echo $! >>"$1"
sh -c 'trap "" TERM; echo $$ >>"$0"; while :; do sleep 0.1; done' "$1" &
wait
END
complete() { [ "$(wc -l <"$1")" -eq 3 ]; }
all_dead() {
    for member in $(cat "$1"); do
        alive "$member" && return 1
    done
    return 0
}
guard_of() {
    for status in /proc/[0-9]*/status; do
        grep -q '^Name:.holdfast-guard$' "$status" 2>/dev/null &&
            grep -q "^PPid:.$1\$" "$status" && basename "$(dirname "$status")"
    done
}

# holdfast is killed.  The contender is there already and looks at once.
start() { # URL KEY FILE OPTIONS...
    url=$1 key=$2 file=$3
    shift 3
    : >"$file"
    "$hf" run -u "$url" "$@" "$key" -- sh "$tmp/family" "$file" 2>"$file.err" &
    pid=$!
    until_true complete "$file"
}
start "$HOLDFAST_URL" killed "$tmp/f1" --grace 1s
ok 'a family runs'
cat >"$tmp/look" <<'END'
for member in $(cat "$1"); do
    case $(sed -n 's/^State:[^A-Z]*\([A-Z]\).*/\1/p' /proc/$member/status 2>&1) in
    R | S | D | T) echo "$member lives" ;;
    esac
done
END
"$hf" run -w 30 killed -- sh "$tmp/look" "$tmp/f1" >"$tmp/seen" &
contender=$!
kill -KILL $pid
wait $pid 2>/dev/null
held killed
ok 'after SIGKILL the lock stays taken while one of the family lives'
wait $contender
is 'and is passed on when all are dead' 0 $?
is 'the next holder sees none of them' '' "$(cat "$tmp/seen")"
until_true grep -q 'supervisor was killed' "$tmp/f1.err"
ok 'and the guard says why'
until_true all_dead "$tmp/f1"
ok 'all are dead'

# holdfast and its guard have their own signals and sessions.
start "$HOLDFAST_URL" session "$tmp/f2" --grace 100ms
guard=$(guard_of $pid)
[ -n "$guard" ] && set -- $(cat "/proc/$guard/stat") && [ "$6" = "$guard" ]
ok 'the guard leads a session of its own'
kill -HUP "$guard"
kill -INT "$guard"
kill -TERM "$guard"
kill -USR1 "$guard"
alive "$guard"
ok 'and survives signals'
kill -KILL "$guard"
replaced() {
    new=$(guard_of $pid)
    [ -n "$new" ] && [ "$new" != "$guard" ]
}
until_true replaced
ok 'a guard that is killed is replaced'
kill -KILL $pid
until_true all_dead "$tmp/f2"
ok 'and the new one does the work'
until_true is_free session
ok 'and frees the lock'

# The main process dies with holdfast even if the guard is dead too.
start "$HOLDFAST_URL" both "$tmp/f3"
guard=$(guard_of $pid)
kill -STOP $pid
kill -KILL "$guard"
kill -KILL $pid
until_true dead "$(head -n 1 "$tmp/f3")"
ok 'the command dies with holdfast even without a guard'
for member in $(cat "$tmp/f3"); do
    kill -KILL "$member" 2>/dev/null
done

# holdfast is frozen, and there is a lease (mem: has one).
start mem:frozen frozen "$tmp/f4" -q --ttl 1s
kill -STOP $pid
until_true all_dead "$tmp/f4"
ok 'frozen for longer than the lease, the family is dead'
stopped $pid
ok 'while holdfast is still frozen'
kill -CONT $pid
wait $pid
is 'and when it thaws it says that the lock was lost' 79 $?
has 'in words' "lost 'frozen'" "$(cat "$tmp/f4.err")"

# holdfast is frozen for a while only.
: >"$tmp/go"
"$hf" run -q -u mem:thaw --ttl 30s thaw -- \
    sh -c 'while [ -e "$0" ]; do sleep 0.05; done; exit 7' "$tmp/go" &
pid=$!
kill -STOP $pid
until_true stopped $pid
kill -CONT $pid
rm "$tmp/go"
wait $pid
is 'frozen for less than the lease, nothing happens' 7 $?

# holdfast is frozen, and the lock is the kernel's (file:).
: >"$tmp/go"
"$hf" run --ttl 300ms kept -- \
    sh -c 'while [ -e "$0" ]; do sleep 0.05; done; exit 8' "$tmp/go" &
pid=$!
until_true held kept
kill -STOP $pid
until_true stopped $pid
held kept
ok 'frozen on file: the lock stays, for as long as it takes'
kill -CONT $pid
rm "$tmp/go"
wait $pid
is 'and the command ends as it likes' 8 $?

# holdfast is stopped after the grant and before the fork of the guard, or of the
# command, and continued when the lease is over.
for nth in 1 2; do
    promise="stopped before fork $nth for longer than the lease"
    can_shim || { skip "$promise" 'there is no fork-shim'; continue; }
    shimmed stop-before:$nth "$hf" run -u mem:late --ttl 1s \
        --report "$tmp/report" late -- sh -c ': >"$0"' "$tmp/late$nth" \
        2>"$tmp/err" &
    pid=$!
    until_true stopped $pid
    sleep 1.1 # the lease is over
    kill -CONT $pid
    wait $pid
    is "$promise: the lock is lost" 79 $?
    [ ! -e "$tmp/late$nth" ]
    ok "$promise: the command has not been started"
    has "$promise: the report says so" '"ended": "not-started"' \
        "$(cat "$tmp/report")"
    has "$promise: and the message" "lost 'late'" "$(cat "$tmp/err")"
done

# The child is stopped before it becomes the command, and holdfast goes on.
promise='the child stopped for longer than the lease'
if can_shim && [ -r /proc/$$/task/$$/children ]; then
    shimmed stop-child:2 "$hf" run -u mem:slow --ttl 1s slow -- \
        sh -c ': >"$0"; exit 8' "$tmp/slow" 2>"$tmp/err" &
    pid=$!
    child_stopped() {
        for child in $(cat /proc/$pid/task/$pid/children); do
            ! stopped "$child" || return 0
        done
        false
    }
    until_true child_stopped
    sleep 1.1 # the first lease is over
    kill -CONT "$child"
    wait $pid
    is "$promise: the lock was renewed, and the command starts" 8 $?
else
    skip "$promise" 'there is no fork-shim, or /proc shows no children'
fi

# --max-hold is kept even when holdfast is frozen.
start "$HOLDFAST_URL" maxhold "$tmp/f5" --max-hold 500ms --grace 100ms
kill -STOP $pid
until_true all_dead "$tmp/f5"
ok '--max-hold is kept while holdfast is frozen'
kill -CONT $pid
wait $pid
is 'and is the reason it tells' 124 $?
finish
