#!/bin/sh
# SPDX-License-Identifier: MIT
#
# top.sh - `holdfast top` in a terminal, that of a private tmux.
. "$(dirname "$0")/lib.sh"
# shellcheck source=test/cli/mux.sh
. "$(dirname "$0")/mux.sh"
hf=$HOLDFAST

# --once, without a terminal.
exits '--once prints a table' 0 "$hf" top --once
has 'with a heading' 'AGE      LEASE' "$said"
"$hf" run --note 'the one' app/one -- sleep 1000 &
one=$!
until_true held app/one
exits '--once --json prints JSON' 0 "$hf" top --once --json
printf '%s\n' "$said" >"$tmp/json"
valid_json "$tmp/json"
ok 'that is valid'
has 'with the lock' '"key": "app/one", "held": true' "$said"
exits 'a PREFIX chooses' 0 "$hf" top --once --json nothing
is 'what is shown' '[]' "$said"
exits 'without a terminal there is no screen' 64 "$hf" top
has 'and the message says what to do' 'use --once' "$said"
exits 'a wrong option is refused' 64 "$hf" top --nonsense
exits 'and two prefixes' 64 "$hf" top a b
exits 'and a URL where a prefix belongs' 64 "$hf" top --once redis://u:S3CRET@127.0.0.1:1
is 'whose password is not shown' 0 "$(printf '%s\n' "$said" | grep -c S3CRET)"
exits 'and an interval that is none' 64 "$hf" top -i soon
exits 'and a URL that is none' 78 "$hf" top -u nosuch:thing
for url in 'redis//user:S3CRET@host' 'u:S3CRET@h' 'redis://user:S3CRET/0' \
    'postgres:host=127.0.0.1 port=1 password=S3CRET'; do
    said=$("$hf" top --once -u "$url" 2>&1
        "$hf" top --once "--ulr=$url" 2>&1
        "$hf" top --once "-x$url" 2>&1)
    is "$url: no message shows the secret" 0 "$(printf '%s\n' "$said" | grep -c S3CRET)"
done

# Whoever lists processes sees no password, and top goes on with it.
cat >"$tmp/shell" <<'END'
echo $$ >"$0.pid"
exec "$HOLDFAST" top -u redis://u:S3CRET@127.0.0.1:1 "--url=$HOLDFAST_URL?t%74l=7m"
END
begin_shell
until_true shows 'app/one.*the one'
ok 'the last of several URLs counts'
said=$(words "$(cat "$tmp/shell.pid")")
is 'a password of any -u is in no list of processes' 'holdfast-top -u redis**' "$(printf '%s' "$said" | sed 's/\*\*.*/**/')"
is 'nor an option that may be one' 0 "$(printf '%s\n' "$said" | grep -c -e S3CRET -e 't%74l')"
press q

# The list.
"$hf" run --note "$(printf 'evil\033[2Jnote')" -s app/two -- sleep 1000 &
two=$!
until_true held app/two
begin
until_true shows 'app/one.*the one'
ok 'the list shows key and holder'
shows 'AGE *LEASE *WAIT MODE *KEY *HOLDER'
ok 'under a heading'
shows 'shared 1 .*app/two.*evil.x1b.2Jnote'
ok 'controls in a note are shown, not obeyed'
shows '2 locks, 0 waiting, by age'
ok 'the first line counts'
press s
until_true shows 'by lease left'
press s s
until_true shows 'by key'
ok 's sorts in another way'
press / o n e Enter
until_true gone app/two
shows 'filter one'
ok '/ filters'
press / Escape
until_true shows app/two
ok 'and Escape takes the filter away'
kill $two
wait $two
until_true gone app/two
ok 'a lock that is released disappears'

# Pause.
press p
until_true shows '\[paused\]'
"$hf" run --note late app/late -- sleep 1000 &
late=$!
until_true held app/late
gone app/late
ok 'p pauses'
press p
until_true shows app/late
ok 'and goes on'
kill $late
wait $late
until_true gone app/late

# Details and break.
press Enter
until_true shows "fence $(fence app/one)"
ok 'Enter shows the holders with their fences'
press q
until_true shows 'q quit'
press b
until_true shows "break 'app/one', fence $(fence app/one), held by the one? y/n"
ok 'b asks, and shows the fence'
press n
until_true shows 'q quit'
alive $one
ok 'n leaves it alone'
press b
until_true shows 'y/n'
press y
wait $one
is 'y breaks it' 79 $?

# It shows what it asks for, however long that is, and only what comes behind it is
# an answer.
long=app/$(printf '%0100d' 1 | tr 01 xA)$(printf '%090d' 0 | tr 0 y)/end
"$hf" run --note "from $(printf '%0100d' 0) to" "$long" -- sleep 1000 &
one=$!
until_true shows 'app/xxxx'
press b
until_true shows "^break fence $(fence "$long")? y/n"
ok 'the question about a long key shows the fence'
shows '^held by: from 000.*000\.\.\.000.* to$'
ok 'and the holder'
is 'and all of the key' "key: $long" "$(screen | sed -n '/^key: /,$p' | tr -d '\n')"
mux resize-window -t top -x 44 -y 4
until_true shows "^key, shortened: app/xxx.*\.\.\..*yyy/end"
shows "^break fence $(fence "$long")? y/n"
ok 'its ends where there is no room for more'
mux resize-window -t top -x 20 -y 4
until_true shows 'too small'
mux resize-window -t top -x 80 -y 24
until_true shows 'q quit'
ok 'a question that cannot be shown is none'
press -l by
until_true shows 'y/n'
alive $one && [ "$("$hf" status --json "$long" | grep -c '"broken": false')" = 1 ]
ok 'what was typed before it could be read is no answer'
press n
until_true shows 'q quit'
kill $one
wait $one
until_true gone 'app/xxxx'

# The question stands for what it asked, whatever happens meanwhile.
"$hf" run --note older app/older -- sleep 1000 &
older=$!
until_true held app/older
"$hf" run --note other app/other -- sleep 1000 &
other=$!
until_true held app/other
until_true shows 'by key'
until_true shows '^2 locks'
press Home b
until_true shows "break 'app/older', fence .*, held by older? y/n"
asked=$(screen | grep y/n)
kill $older
wait $older
until_true shows '^1 lock, '
is 'a question keeps its lock when that goes' "$asked" "$(screen | grep y/n)"
press y
until_true gone y/n
until_true shows "'app/older' is not broken: "
ok 'what comes of it is told'
alive $other && [ "$("$hf" status --json app/other | grep -c '"broken": false')" = 1 ]
ok 'and its answer hits no other'
kill $other
wait $other
until_true shows '^0 locks'

# A filter shows all that match, from wherever one was.
holders=
for i in 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33; do
    "$hf" run "app/row$i" -- sleep 1000 &
    holders="$holders $!"
done
until_true shows '^24 locks'
press End
until_true shows app/row33
gone app/row10
ok 'the end is beyond the screen'
press / r o w 1 Enter
all_ten() { [ "$(screen | grep -c 'app/row1[0-9]')" = 10 ] && gone app/row33; }
until_true all_ten
ok 'a filter shows all that match'
press Escape
until_true shows app/row20
gone 'filter row1'
ok 'Escape ends a filter that Enter has confirmed'
press / "$(printf '\303\251')" BSpace x
until_true shows 'filter: x_'
ok 'Backspace takes back a letter, not a byte'
press Escape
kill $holders
wait $holders
until_true shows '^0 locks'

# Of several who hold a lock one is chosen.
"$hf" run --note 'reader A' -s app/both -- sleep 1000 &
one=$!
until_true shows 'shared 1 *app/both'
"$hf" run --note 'reader B' -s app/both -- sleep 1000 &
two=$!
until_true shows 'shared 2 *app/both'
shows '^1 lock, 0 waiting'
ok 'one lock is not several'
press b
until_true shows 'q back'
gone y/n
ok 'b of a lock that several hold shows them first'
until_true shows 'reader B'
# fence_of NOTE: that on the line above it.
fence_of() { screen | grep -B 1 "$1" | sed -n 's/^fence \([0-9]*\) .*/\1/p'; }
fence=$(fence_of 'reader B')
asks_for_b() {
    press "$1" b
    until_true shows y/n
    shows 'held by reader B? y/n' || { press n && false; }
}
asks_for_b Home || asks_for_b Down
shows "break 'app/both', fence $fence, held by reader B? y/n"
ok 'b of a holder asks for its own fence'
press y
wait $two
is 'y breaks that one' 79 $?
alive $one && [ "$("$hf" status --json app/both | grep -c '"broken": false')" = 1 ]
ok 'and no other'
press q
until_true shows 'q quit'
press b
until_true shows 'q back'
gone y/n
ok 'nor is one reader who may be joined asked for at once'
press q
kill $one
wait $one
until_true shows '^0 locks'

# More holders than details show.
holders=
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34; do
    "$hf" run --note "reader $i" -s app/read -- sleep 1000 &
    holders="$holders $!"
done
until_true shows 'shared 34 *app/read'
ok 'the mode has room for many readers'
press Enter
until_true shows 'held .*lease'
press End
until_true shows 'and 2 more hold it'
ok 'details say how many holders they leave out'
shows 'queue: nobody waits'
ok 'and the queue can be reached'
press q
kill $holders
wait $holders
until_true shows '^0 locks'

# Another size.
"$hf" run --note 'a new one' app/new -- sleep 1000 &
new=$!
until_true shows app/new
mux resize-window -t top -x 120 -y 10
last_line() { screen | sed -n 10p | grep -q 'q quit'; }
until_true last_line
ok 'it follows the size of the terminal'
mux resize-window -t top -x 30 -y 3
until_true shows 'too small'
mux resize-window -t top -x 80 -y 24
until_true shows app/new
ok 'however small it was'
press q
until_true shows 'ended with 0, modes as before'
ok 'q ends it and leaves the terminal as it was'
gone 'AGE *LEASE'
ok 'without the table'

# However it ends.
for signal in INT TERM HUP SEGV ABRT; do
    begin NO_COLOR=1
    until_true shows app/new
    kill -$signal "$(top_pid)"
    until_true shows 'ended with 1[0-9]*, modes as before'
    ok "$signal leaves the terminal as it was"
done
begin
until_true shows app/new
press C-c
until_true shows 'ended with 130, modes as before'
ok 'and so does ^C'
mux kill-server
kill $new
wait $new

# A service that is away for a while.
if command -v redis-server >/dev/null && redis_start; then
    "$hf" run --note there -t 1h away -- sleep 1000 &
    holder=$!
    until_true held away
    begin
    until_true shows 'away.*there'
    kill -STOP $server
    press b
    until_true shows y/n
    number=$(screen | sed -n 's/.*, fence \([0-9]*\), .*/\1/p')
    press y
    until_true shows "^breaking fence $number of 'away'"
    ok 'a break that is under way is told'
    until_true shows "^it is not known whether 'away' is broken: "
    ok 'and that nobody knows whether it has happened'
    kill -CONT $server
    until_true shows 'q quit'
    kill $holder
    wait $holder
    "$hf" run --note there -t 1h away -- sleep 1000 &
    holder=$!
    until_true held away
    until_true shows 'away.*there'
    port=${HOLDFAST_URL##*:}
    kill -KILL $server
    wait $server 2>/dev/null
    until_true gone 'q quit'
    shows 'away.*there'
    ok 'a service that is away leaves the table as it was'
    shows "127.0.0.1:$port: "
    ok 'and the last line says what is wrong'
    press s
    until_true shows 'by lease left'
    screen | sed -n 24p | grep -q "127.0.0.1:$port: "
    ok 'which no key removes'
    kill $holder
    wait $holder
    redis_serve "$port"
    until_true shows '^0 locks'
    ok 'and it goes on when the service is back'
    press q
    until_true shows 'ended with 0, modes as before'
    mux kill-server
    kill -KILL $server
    wait $server 2>/dev/null
else
    skip 'a service that is away' 'there is no Redis'
fi
finish
