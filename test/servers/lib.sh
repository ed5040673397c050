# shellcheck shell=sh
# SPDX-License-Identifier: MIT
#
# lib.sh - what the scripts that start servers share; they read it with `.`.
#
# A script calls begin, which makes the directory $dir, starts its servers, and
# ends with beside.  However it ends, the servers are stopped by stop_servers,
# which it may define anew, and the directory is removed.

# begin NAME [memory] - make $dir for NAME, in memory where that can be if asked:
# some servers wait for the disk at every write.
begin() {
    base=${TMPDIR:-/tmp}
    [ "${2-}" != memory ] || [ ! -w /dev/shm ] || base=/dev/shm
    dir=$(mktemp -d "$base/hf-$1.XXXXXX")
    # An ordinary user begins with 1024 descriptors; Consul does not start then.
    ulimit -S -n "$(ulimit -H -n)"
    command='' helpers=''
    trap end EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

# Kill the process of every file called pid in $dir or in a directory there.  A
# stopped one is killed, too.
stop_servers() {
    for file in "$dir"/pid "$dir"/*/pid; do
        [ ! -f "$file" ] || kill -KILL "$(cat "$file")" 2>/dev/null || :
    done
}

end() {
    status=$?
    trap '' HUP INT TERM
    [ -z "$command" ] || kill -TERM "$command" 2>/dev/null || :
    # shellcheck disable=SC2086 # a list of numbers
    [ -z "$helpers" ] || kill -KILL $helpers 2>/dev/null || :
    stop_servers
    wait 2>/dev/null || :
    rm -rf "$dir"
    exit "$status"
}

# beside COMMAND ARGS... - run it; its exit status is ours.  It runs in the
# background, so that a signal reaches us meanwhile.
beside() {
    "$@" <&0 &
    command=$!
    status=0
    wait "$command" || status=$?
    command=''
    exit "$status"
}

# Wait until the process $1 is gone.  One whose parent has not looked yet is.
gone() {
    while state=$(ps -o stat= -p "$1"); do
        case $state in Z*) return ;; esac
        sleep 0.05
    done
}

# Print $1 free ports of the loopback interface, all different.  The system gives
# none of these to a connection by itself, so that a server that is started again
# finds its own; another that looks for ports draws others.
free_ports() {
    python3 -c '
import random, socket, sys
try:
    low = int(open("/proc/sys/net/ipv4/ip_local_port_range").read().split()[0])
except OSError:
    low = 32768
first, last = (10000, low - 1) if low > 14000 else (61000, 65535)
held = []
while len(held) < int(sys.argv[1]):
    s = socket.socket()
    try:
        s.bind(("127.0.0.1", random.randint(first, last)))
        held.append(s)
    except OSError:
        s.close()
print(*[s.getsockname()[1] for s in held])' "$1"
}

# A server that a test starts again must outlive the test: the test asks us.
# ask_restart is called in the test, answer_restarts before it, with the function
# that starts the server; $1 is the directory.
answer_restarts() {
    mkfifo "$1/ask" "$1/answer"
    (while read -r word <"$1/ask"; do
        start
        echo "$word" >"$1/answer"
    done) &
    helpers="$helpers $!"
}
ask_restart() {
    echo start >"$1/ask"
    read -r _ <"$1/answer"
}
