#!/bin/sh
# SPDX-License-Identifier: MIT
#
# siege.sh - `holdfast top` against hostile names, odd terminals, signals, and ten
# thousand locks.
. "$(dirname "$0")/lib.sh"
# shellcheck source=test/cli/mux.sh
. "$(dirname "$0")/mux.sh"
hf=$HOLDFAST
kill_all() {
    for pid; do kill "$pid"; done
    for pid; do wait "$pid"; done
}
waiting() { [ "$("$hf" status --json job | grep -o '"place"' | wc -l)" -eq "$1" ]; }
hold() { "$hf" run --note "$1" "$2" -- sleep 1000 & }

# The screen is whole: head, heading and last line are where they belong, and no
# line is longer than the terminal.
whole() {
    screen >"$tmp/screen"
    [ "$(wc -l <"$tmp/screen")" -eq 24 ] &&
        sed -n 1p "$tmp/screen" | grep -q '^[0-9]* locks*, ' &&
        sed -n 2p "$tmp/screen" | grep -q '^AGE *LEASE *WAIT MODE *KEY *HOLDER' &&
        sed -n 24p "$tmp/screen" | grep -q '^q quit'
}

# Names that would like to be more than text.
long=$(printf '%01000d' 7)
hold "$(printf 'up\033[5A\033[2Jand\033]0;title\007away')" a-escape
all=$!
hold "$(printf 'line\nfeed\rreturn\ttab')" "$(printf 'b\nline')"
all="$all $!"
hold "$(printf '\377\376 no \303 text \355\240\200')" "$(printf 'c\200invalid')"
all="$all $!"
hold '漢字かな漢字かな漢字かな漢字かな漢字かな漢字かな' 'd-漢字漢字漢字漢字漢字漢字漢字漢字'
all="$all $!"
hold "$(printf 'e\314\201e\314\201 z\314\200\314\201\314\202\314\203\314\204\314\205\314\206\314\207algo')" e-marks
all="$all $!"
hold "$(printf 'right\342\200\256to left\342\201\246')" f-bidi
all="$all $!"
hold "note $(printf '%0240d' 7)" "g-$long"
all="$all $!"
begin LC_ALL=C.UTF-8
until_true shows '7 locks'
until_true whole
ok 'hostile names leave the screen whole'
for name in 'a-escape *up.x1b.5A.x1b' 'b.x0aline *line.x0afeed' 'c.x80invalid *.xff.xfe no ' \
    'd-漢字' 'f-bidi *right.u202eto left' 'g-0000'; do
    shows "$name"
    ok "shown as text: $name"
done
shows "$(printf 'e-marks *e\314\201e\314\201 z')"
ok 'what combines is drawn with its letter'
is 'the title of the window is untouched' 0 "$(mux display -p -t top '#{pane_title}' | grep -c '^title')"
begin LC_ALL=C
until_true shows '7 locks'
until_true whole
ok 'also where the terminal knows no UTF-8'
mux resize-window -t top -x 44 -y 4
until_true shows '7 locks'
ok 'also in 44x4'
mux resize-window -t top -x 1 -y 1
sleep 0.5
mux resize-window -t top -x 80 -y 24
until_true whole
ok 'and after 1x1'
press Enter
until_true shows 'fence [0-9]'
mux resize-window -t top -x 1 -y 2
sleep 0.5
mux resize-window -t top -x 80 -y 24
until_true shows 'fence [0-9]'
ok 'details come back, too'
press q q
until_true shows 'ended with 0, modes as before'
# shellcheck disable=SC2086
kill_all $all

# Without colour nothing is lost.
hold plain one
one=$!
begin NO_COLOR=1
until_true shows 'one *plain'
is 'NO_COLOR means it' 0 "$(mux capture-pane -p -e -t top | grep -c "$(printf '\033')\[3[0-7]m")"

# Terminals that cannot.
for term in dumb nonsense ''; do
    begin "TERM=$term"
    until_true shows 'ended with 125, modes as before'
    ok "TERM='$term' is refused"
    grep -q "terminal '$term' cannot show a screen: use --once" "$tmp/shell.err"
    ok 'with a reason, and the screen untouched'
done
for term in vt100 linux xterm-256color; do
    begin "TERM=$term"
    until_true shows 'one *plain'
    ok "TERM=$term works"
done

# A terminal that goes away.
pid=$(top_pid)
mux kill-server
until_true dead "$pid"
ok 'it ends with its terminal'

# Any other signal that ends a program.
for signal in USR1 ALRM PIPE TRAP XCPU; do
    begin
    until_true shows 'one *plain'
    kill -$signal "$(top_pid)"
    until_true shows 'ended with 1[0-9]*, modes as before'
    ok "$signal leaves the terminal as it was"
done

# ^Z and fg.
begin_script
sed -i 's/^trap.*/set -m/; s/^status=.*/echo "stopped, $(modes)"; read -r _; fg >\/dev\/null; status=$?/' "$tmp/shell"
begin_shell
until_true shows 'one *plain'
press C-z
until_true shows 'stopped, modes as before'
ok '^Z gives the terminal back'
press Enter
until_true whole
ok 'and fg goes on'
press q
until_true shows 'ended with 0, modes as before'
ok 'to the end'
kill_all $one

# Who waits, by name.
if [ -n "${HOLD-}" ] && "$hf" ls -u "sqlite:$tmp/db" >/dev/null 2>&1; then
    HOLDFAST_URL=sqlite:$tmp/db
    hold 'the holder' job
    all=$!
    until_true held job
    for n in 1 2 3; do
        "$hf" run --note "$(printf 'waiter %d\033[2J' $n)" job -- true &
        all="$all $!"
        until_true waiting $n
    done
    begin
    until_true shows 'job *the holder'
    press Enter
    until_true shows 'queue: 3 wait'
    ok 'details show the queue'
    shows ' 1\. .*waiter 1.x1b' && shows ' 2\. .*waiter 2' && shows ' 3\. .*waiter 3'
    ok 'with names, in order, as text'
    press Down Down b
    sleep 0.3
    gone 'y/n'
    ok 'a waiter cannot be broken'
    press Home b
    until_true shows "held by the holder? y/n"
    ok 'its holder can'
    press n q
    until_true shows 'q quit'

    # Ten thousand locks.
    mkfifo "$tmp/end"
    "$HOLD" "$HOLDFAST_URL" 10000 <"$tmp/end" >"$tmp/ready" &
    holder=$!
    exec 9>"$tmp/end"
    until_true grep -q ready "$tmp/ready"
    until_true shows '^10006 locks'
    ok 'ten thousand locks are shown'
    press s s s
    until_true shows 'by key'
    press End
    until_true shows 'right.u202e to left'
    ok 'and it answers to keys'
    press / 0 0 9 9 9 7 Enter
    until_true gone 'order/009998'
    shows 'order/009997'
    ok 'filters'
    press q
    until_true shows 'ended with 0, modes as before'
    exec 9>&-
    wait $holder
    mux kill-server
    # shellcheck disable=SC2086
    kill_all $all
else
    skip 'the queue in the details' 'there is no SQLite'
fi
finish
