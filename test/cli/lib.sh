# SPDX-License-Identifier: MIT
#
# lib.sh - what the shell tests of the command share: TAP, a private lock
# directory, and waiting for something to happen instead of for time to pass.
#
# $HOLDFAST names the executable.  Every test file calls `finish` at its end.

set -u

# Begin with all signals at their defaults, whoever runs the tests: nohup(1)
# ignores HUP, and a shell cannot undo that for its children.
if [ -z "${CLI_SIGNALS-}" ]; then
    CLI_SIGNALS=default exec env --default-signal "$0"
fi
: "${HOLDFAST:?must name the executable}"
tmp=$(mktemp -d "${TMPDIR:-/tmp}/holdfast-cli.XXXXXX")
server=
trap '[ -z "$server" ] || kill -KILL $server 2>/dev/null; rm -rf "$tmp"' EXIT
unset CLI_SIGNALS
HOLDFAST_URL=file:$tmp/locks
export HOLDFAST HOLDFAST_URL
unset HOLDFAST_KEY HOLDFAST_FENCE HOLDFAST_OWNER HOLDFAST_LOST_FD HOLDFAST_WITHIN
unset HOLDFAST_FENCES HOLDFAST_SLOT
count=0
failed=0

# ok NAME: the status of the command before it decides.
ok() {
    if [ $? -eq 0 ]; then
        result=ok
    else
        result='not ok'
        failed=$((failed + 1))
    fi
    count=$((count + 1))
    echo "$result $count - $1"
}

# skip NAME WHY: this host does not let the test set its scene.
skip() {
    count=$((count + 1))
    echo "ok $count - $1 # SKIP this host: $2"
}

# is NAME EXPECTED ACTUAL
is() {
    if [ "$2" != "$3" ]; then
        printf '%s\n' "expected: $2" "actual:   $3" | sed 's/^/# /'
    fi
    [ "$2" = "$3" ]
    ok "$1"
}

# has NAME PATTERN TEXT: a shell pattern somewhere in the text.
has() {
    case $3 in
    *$2*) true ;;
    *)
        printf '%s\n' "no '$2' in: $3" | sed 's/^/# /'
        false
        ;;
    esac
    ok "$1"
}

# exits NAME STATUS COMMAND...: what it says is left in $said.
exits() {
    promise=$1 status=$2
    shift 2
    said=$(timeout 60 "$@" 2>&1 </dev/null)
    is "$promise" "$status" $?
}

# until_true COMMAND...: true as soon as it succeeds, false after a minute.
until_true() {
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt 2400 ] || return 1
        sleep 0.025
    done
}

# alive PID: it exists and is not a zombie.
alive() {
    state=$(sed -n 's/^State:[^A-Z]*\([A-Z]\).*/\1/p' "/proc/$1/status" \
        2>/dev/null)
    [ -n "$state" ] && [ "$state" != Z ] && [ "$state" != X ]
}

dead() { ! alive "$1"; }

# stopped PID
stopped() { grep -q '^State:.*T' "/proc/$1/status"; }

# words PID: its command line, as ps(1) shows it.
words() { tr '\0' ' ' <"/proc/$1/cmdline"; }

held() { ! "$HOLDFAST" run -q -n "$1" -- true; }

is_free() { "$HOLDFAST" run -q -n "$1" -- true; }

# fence KEY: of the grant that stands.
fence() { "$HOLDFAST" status "$1" | sed -n 's/.*fence \([0-9]*\).*/\1/p'; }

# redis_start: a private Redis, $server, which $HOLDFAST_URL then names.
redis_start() {
    mkdir -p "$tmp/redis"
    for port in 21379 21380 21381 21382 21383 21384 21385 21386; do
        redis_serve $port
        alive $server && break
    done
    HOLDFAST_URL=redis://127.0.0.1:$port
    "$HOLDFAST" ls -q >/dev/null 2>&1
}

# redis_serve PORT: start it there and wait until it answers or is dead.
redis_serve() {
    redis-server --port "$1" --bind 127.0.0.1 --save '' --dir "$tmp/redis" \
        >"$tmp/redis.log" 2>&1 &
    server=$!
    until_true redis_up
}

redis_up() { dead $server || grep -q 'Ready to accept' "$tmp/redis.log"; }

# shimmed WHAT COMMAND...: with fork-shim.c in it; can_shim tells if it is there.
can_shim() { [ -n "${FORK_SHIM_FILE-}" ]; }
shimmed() {
    what=$1
    shift
    exec env LD_PRELOAD="$FORK_SHIM_FILE" FORK_SHIM="$what" "$@"
}

# valid_json FILE
valid_json() {
    if command -v python3 >/dev/null; then
        python3 -m json.tool "$1" >/dev/null
    else
        grep -q '^[{[].*[]}]$' "$1"
    fi
}

finish() {
    echo "1..$count"
    [ $failed -eq 0 ]
    exit
}
