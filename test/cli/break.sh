#!/bin/sh
# SPDX-License-Identifier: MIT
#
# break.sh - an operator breaks a lock: nobody is granted it while the command
# of its holder lives.  Over each service that can be had without much ado.
. "$(dirname "$0")/lib.sh"
hf=$HOLDFAST

# A family of which nobody heeds TERM.
cat >"$tmp/family" <<'END'
trap '' TERM
sh -c 'trap "" TERM; while :; do sleep 0.02; done' &
echo "$$ $!" >"$1"
while :; do sleep 0.02; done
END
cat >"$tmp/look" <<'END'
for member in $(cat "$1"); do
    case $(sed -n 's/^State:[^A-Z]*\([A-Z]\).*/\1/p' /proc/$member/status 2>&1) in
    R | S | D | T) echo "$member lives" ;;
    esac
done
END

# The holder's grace is long, so that a lock that is passed on with the break
# finds the family alive.
broken() { # NAME
    rm -f "$tmp/family.pids"
    "$hf" run -t 3s --grace 1s k -- sh "$tmp/family" "$tmp/family.pids" \
        2>"$tmp/err" &
    pid=$!
    until_true [ -s "$tmp/family.pids" ]
    "$hf" run -w 60 k -- sh "$tmp/look" "$tmp/family.pids" >"$tmp/seen" &
    contender=$!
    exits "$1: break breaks the lock" 0 "$hf" break --fence "$(fence k)" k
    has "$1: and says what happens next" "broke 'k': its holder" "$said"
    wait $contender
    is "$1: the lock is passed on" 0 $?
    is "$1: the next holder sees nobody alive" '' "$(cat "$tmp/seen")"
    wait $pid
    is "$1: the old holder tells that it lost the lock" 79 $?
    has "$1: and why" "lost 'k' (broken)" "$(cat "$tmp/err")"
}

broken file

# The holder is in a pid namespace below ours and has another number there.
if unshare -pf --mount-proc true 2>/dev/null; then
    unshare -pf --mount-proc "$hf" run -q -t 900ms inside -- sleep 1000 \
        2>"$tmp/err" &
    until_true held inside
    has 'a holder in a container is shown' '(sleep), fence' \
        "$("$hf" status inside)"
    exits 'check from the host says that its grant stands' 0 \
        "$hf" check --fence "$(fence inside)" inside
    exits 'and break reaches it' 0 "$hf" break --fence "$(fence inside)" inside
    until_true is_free inside
    ok 'and ends it'
else
    skip 'a holder in a container is shown' 'no pid namespace can be made'
fi
HOLDFAST_URL=sqlite:$tmp/locks.db
if "$hf" ls -q >"$tmp/said" 2>&1; then
    broken sqlite
fi
if command -v redis-server >/dev/null && redis_start; then
    broken redis
fi
finish
