#!/bin/sh
# SPDX-License-Identifier: MIT
#
# sums.sh - what `make torture` keeps adds up; TAP.

here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
n=0 bad=0

# $1 is the text, $2 what came out, $3 what is right.
is() {
    n=$((n + 1))
    if [ "$2" = "$3" ]; then
        echo "ok $n - $1"
    else
        echo "not ok $n - $1"
        printf '# got    %s\n# wanted %s\n' "$2" "$3"
        bad=1
    fi
}

sums() { python3 "$here/sums.py" "$@"; }

# A round of the seed $1 with the status $2, so many operations, under the commit $3.
round() {
    echo "redis kill $1 $2 ${5:-exclusive} operations=$3 faults=2 violations=$2 overlaps=0 damaged=1" >"$work/run"
    sums add "$work/kept" "$4" "$work/run"
}

page() {
    printf '# name server kill stop url\nredis redis e e url\nmem - - e url\n' >"$work/services"
    printf 'head\n<!-- torture: begin -->\n<!-- torture: end -->\ntail\n' >"$work/page"
    python3 "$here/table.py" "$work/page" "$work/services" "$work/kept"
    grep 'a client is killed' "$work/page"
}

is 'the first round has the first seed' "$(sums next "$work/kept" redis kill)" 1
round 1 0 100 aaaa
round 2 0 50 aaaa
is 'a run goes on where the last has stopped' "$(sums next "$work/kept" redis kill)" 3
is 'each fault has seeds of its own' "$(sums next "$work/kept" redis stop)" 1
is 'rounds of a commit are one line' "$(sed 1d "$work/kept/redis")" \
    'kill exclusive aaaa 1-2 rounds=2 broken=0 operations=150 faults=4 violations=0 overlaps=0 damaged=2'
round 3 1 7 bbbb
is 'a broken promise is kept' "$(tail -n 1 "$work/kept/redis")" \
    'kill exclusive bbbb 3-3 rounds=1 broken=1 operations=7 faults=2 violations=1 overlaps=0 damaged=1'
echo 'redis kill 4 1 exclusive' >"$work/run"
sums add "$work/kept" bbbb "$work/run"
is 'a round that judged nothing adds nothing' "$(sums next "$work/kept" redis kill)" 4
is 'the page shows the sums of all commits' "$(page)" \
    '| a client is killed | exclusive: 157, 6, **1**; unfenced damage 3 | - |'
round 4 0 1 bbbb fence
is 'the weaker promise is shown' "$(page)" \
    '| a client is killed | fence: 158, 8, **1**; unfenced damage 4 | - |'
echo "1..$n"
exit $bad
