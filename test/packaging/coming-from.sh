#!/bin/sh
# SPDX-License-Identifier: MIT
#
# coming-from.sh - the first rows of doc/coming-from.md are true: the command on the
# left and the one on the right exclude each other as they are printed there.
#
# $COMING is the section: flock, etcdctl, consul, or redis for redis-py.  The server
# is that of $HF_TEST_URL.  CMD becomes a command that holds until a file is there.
. "$(dirname "$0")/../cli/lib.sh"
top=$(cd "$(dirname "$0")/../.." && pwd)
PATH=$(dirname "$HOLDFAST"):$PATH
unset HOLDFAST_URL
host=${HF_TEST_URL-}
host=${host#*://}
host=${host%%[/?]*}

case $COMING in
flock) first='| `flock /' ;;
etcdctl) first='| `etcdctl lock NAME' ;;
consul)
    first='| `consul lock PREFIX CMD'
    PATH=$(dirname "$HF_TEST_CONSUL"):$PATH
    CONSUL_HTTP_ADDR=http://$host
    export CONSUL_HTTP_ADDR
    ;;
redis) first="| one pool, redis-py's" ;;
esac
export PATH

# The cells of the row, with names of this test in place of those that stand for some.
row=$(grep -F "$first" "$top/doc/coming-from.md" | head -n 1)
cell() {
    echo "$row" | cut -d'|' -f"$1" | sed "s/^ *\`//; s/\` *\$//; s|/run/lock/app|$tmp/app|
        s/HOST/$host/; s/NAME/job/; s/PREFIX/job/"
}
theirs=$(cell 2) ours=$(cell 3)
mkdir "$tmp/app"

# redis-py has no command; the row has a URL only.
if [ "$COMING" = redis ]; then
    if ! /usr/bin/python3 -c 'import redis' 2>/dev/null; then
        echo '1..0 # SKIP python3-redis is missing'
        exit
    fi
    cat >"$tmp/redis-py" <<'END'
import subprocess, sys, redis
with redis.Redis(port=int(sys.argv[1])).lock("job", timeout=60, sleep=0.01):
    subprocess.run(sys.argv[2:], check=True)
END
    theirs="/usr/bin/python3 $tmp/redis-py ${host##*:} CMD"
    ours="holdfast run -u '$ours' job -- CMD"
fi
echo "# $theirs"
echo "# $ours"

cat >"$tmp/hold" <<'END'
#!/bin/sh
echo in >"$1"
until [ -e "$1.go" ]; do sleep 0.02; done
END
chmod 755 "$tmp/hold"

# starts NAME COMMAND: holds until let_go NAME.
starts() {
    eval "$(echo "$2" | sed "s|CMD|$tmp/hold $tmp/$1|") &"
    eval "pid_$1=\$!"
}
holds() { until_true [ -s "$tmp/$1" ]; }
let_go() {
    : >"$tmp/$1.go"
    eval "wait \$pid_$1"
}

starts first "$theirs"
holds first
ok 'the other one holds'
is 'holdfast finds it busy' 75 \
    "$(eval "$(echo "$ours" | sed 's|run |run -q -n |; s|CMD|true|')" >/dev/null 2>&1; echo $?)"
starts second "$ours"
let_go first
holds second
ok 'holdfast is granted it afterwards'
starts third "$theirs"
sleep 0.5
[ ! -e "$tmp/third" ]
ok 'the other one waits for holdfast'
let_go second
holds third
ok 'and has it afterwards'
let_go third
ok 'all ended well'
finish
