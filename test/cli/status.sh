#!/bin/sh
# SPDX-License-Identifier: MIT
#
# status.sh - the exit status says what happened, and nothing else.
. "$(dirname "$0")/lib.sh"
hf=$HOLDFAST

# The command's own.
for code in 0 1 7 64 75 79 125 126 127 128 200 255; do
    exits "a command's exit status $code is passed on" $code \
        "$hf" run k -- sh -c "exit $code"
done
for sig in HUP:129 INT:130 TERM:143 KILL:137 USR1:138 PIPE:141 ALRM:142; do
    exits "a command that dies of ${sig%:*} gives ${sig#*:}" "${sig#*:}" \
        env --default-signal "$hf" run k -- sh -c "kill -${sig%:*} \$\$"
done
exits '-c runs a shell' 9 "$hf" run k -c 'exit $((4 + 5))'
exits 'the command may follow KEY without --' 3 "$hf" run k sh -c 'exit 3'
exits 'options may follow KEY' 3 "$hf" run k -n -- sh -c 'exit 3'
exits 'a KEY may begin with a dash after --' 3 \
    "$hf" run -- -k -- sh -c 'exit 3'
exits 'options after the first word are the command'"'"'s' 0 \
    "$hf" run k test -n x

# It cannot be run; the lock is free afterwards.
printf 'no header\n' >"$tmp/data"
exits 'a command that does not exist gives 127' 127 "$hf" run e -- "$tmp/none"
is_free e
ok 'and the lock is free afterwards'
exits 'a command that is not executable gives 126' 126 "$hf" run e -- "$tmp/data"
is_free e
ok 'and the lock is free afterwards'
exits 'a directory is not executable either' 126 "$hf" run e -- "$tmp"

# Busy.
"$hf" run busy -- sleep 1000 &
holder=$!
until_true held busy
exits '-n gives 75 when it is busy' 75 "$hf" run -n busy -- true
has 'and names the holder' "'busy' is held by" "$said"
has 'and its command' '(sleep), fence' "$said"
exits '-w gives 75 when the time is over' 75 "$hf" run -w 0.05 busy -- true
exits '-w 0 is -n' 75 "$hf" run -w 0 busy -- true
exits '-w takes a unit' 75 "$hf" run --wait=20ms busy -- true
exits '-E changes the status' 3 "$hf" run -n -E 3 busy -- true
exits '-E 0 skips silently' 0 "$hf" run -nqE 0 busy -- sh -c 'exit 9'
is 'and -q says nothing' '' "$said"
exits '-s does not share with an exclusive holder' 75 \
    "$hf" run -n -s busy -- true
kill $holder
wait $holder
is 'TERM to holdfast ends the command, status 143' 143 $?
exits 'then it is free' 0 "$hf" run -n busy -- true
"$hf" run -s shared -- sleep 1000 &
holder=$!
until_true held shared
exits '-s shares with a shared holder' 0 "$hf" run -n -s shared -- true
kill $holder
wait $holder

# Limits.
exits '--max-hold gives 124' 124 "$hf" run --max-hold 50ms k -- sleep 1000
exits '--max-hold kills what ignores TERM' 124 "$hf" run --max-hold 50ms \
    --grace 50ms k -- sh -c 'trap "" TERM; while :; do sleep 1; done'
exits '--max-hold ends also what --on-lost warn would spare' 124 "$hf" run \
    --on-lost warn --max-hold 50ms --grace 50ms k -- \
    sh -c 'trap "" TERM; while :; do sleep 1; done'
exits '--max-hold leaves a command in time alone' 5 \
    "$hf" run --max-hold 1h k -- sh -c 'exit 5'

# Usage and configuration.
while IFS='|' read -r name args; do
    eval "exits '$name' 64 \"\$hf\" $args"
done <<'TABLE'
no command at all is a usage error|
an unknown command is a usage error|walk
run without KEY is a usage error|run
run without a command is a usage error|run k
run with only -- is a usage error|run k --
an empty KEY is a usage error|run '' -- true
an unknown option is a usage error|run --walk k -- true
an unknown letter is a usage error|run -Z k -- true
an option of another command is a usage error|ls --ttl 5s
a ttl of 0 is a usage error|run -t 0 k -- true
a negative ttl is a usage error|run -t -5s k -- true
a ttl without a number is a usage error|run -t s k -- true
a ttl with an unknown unit is a usage error|run -t 5parsec k -- true
a ttl that overflows is a usage error|run -t 99999999999999999999h k -- true
a wait that is no time is a usage error|run -w soon k -- true
an option without its value is a usage error|run k -w
-E 256 is a usage error|run -E 256 k -- true
-c beside a command is a usage error|run -c true k -- true
check without a fence is a usage error|check k
check with a fence that is no number is a usage error|check --fence x k
break without a fence is a usage error|break k
status without KEY is a usage error|status
status with two KEYs is a usage error|status a b
renew without a handle is a usage error|renew
a handle that is none is a usage error|release nonsense
completion for no shell is a usage error|completion tcsh
TABLE
# What is mistyped is told apart, and what was meant is guessed.
while IFS='|' read -r name words args; do
    eval "exits '$name' 64 \"\$hf\" $args"
    has 'in words' "$words" "$said"
done <<'TABLE'
a mistyped command|did you mean 'status'?|stauts k
a mistyped option|did you mean '--max-hold'?|run --maxhold 5s k -- true
an option of another command|these do: run, elect, acquire, renew|ls --ttl 5s
an option before the command|cannot stand before|--ttl 5s run k -- true
a mistyped --on-lost|term, kill, warn or a shell command|run --on-lost trem k -- true
a mistyped --on-lost is guessed|did you mean 'term'?|run --on-lost trem k -- true
two keys|'run' takes one KEY|run one two -- true
a URL as a command|'redis://***@host' is no command|redis://:s3cret@host
a URL as a duration|redis://***@host|run -w 'redis://:s3 cret@host' k -- true
TABLE
exits '--on-lost takes a program' 0 "$hf" run --on-lost true k -- true
exits 'the words after the first may hold --' 0 "$hf" run k test -- = --
exits 'an empty URL is a configuration error' 78 "$hf" run -u '' k -- true
has 'and says which one' 'the URL of -u is empty' "$said"
exits 'an empty variable too' 78 env HOLDFAST_URL= "$hf" run k -- true
has 'and says which one' '$HOLDFAST_URL is empty' "$said"
exits '-v names the service' 0 "$hf" run -v k -- true
has 'by its address' "using file:$tmp/locks" "$said"
exits 'a KEY that is too long is a usage error' 64 \
    "$hf" run "$(printf '%01100d' 0)" -- true
exits 'an unknown scheme is a configuration error' 78 \
    "$hf" run -u nosuch:thing k -- true
has 'and says where to look' '(see holdfast-url(7)' "$said"
exits 'no scheme is a configuration error' 78 "$hf" run -u thing k -- true
exits 'a directory that cannot be is a configuration error' 78 \
    "$hf" run -u file:/dev/null/x k -- true
exits 'acquire on file: is a configuration error' 78 "$hf" acquire k
has 'and says what to do' "use 'holdfast run'" "$said"
"$hf" status k | grep -q 'last known fence' && is_free k
ok 'and takes nothing'

# Refused by the system.  Root may do everything, so be nobody.
mkdir "$tmp/shut"
chmod 755 "$tmp"
if [ "$(id -u)" = 0 ]; then
    cp "$hf" "$tmp/holdfast"
    nobody() { setpriv --reuid 65534 --clear-groups "$tmp/holdfast" "$@"; }
else
    chmod 555 "$tmp/shut"
    nobody() { "$hf" "$@"; }
fi
said=$(nobody run -u "file:$tmp/shut" k -- true 2>&1)
is 'a directory that may not be written gives 77' 77 $?
has 'and is named' "$tmp/shut" "$said"
said=$(nobody status -u "file:$tmp/shut" k 2>&1)
is 'but whoever may read it may look' 'k: free 1' "$said $?"
said=$(nobody ls -u "file:$tmp/shut" 2>&1)
is 'and list' ' 0' "$said $?"
chmod 700 "$tmp/shut"
if [ "$(id -u)" = 0 ]; then
    "$hf" run -u "file:$tmp/shut" k -- true
    chmod 755 "$tmp/shut"
    said=$(nobody status -u "file:$tmp/shut" k 2>&1)
    has 'also at a lock of somebody else' 'k: free, last known fence' "$said"
    said=$(nobody run -n -u "file:$tmp/shut" k -- true 2>&1)
    is 'and may not take it' 77 $?

    # Users of a group share a directory, as holdfast-file(7) says under Rights.
    install -d -m 2775 -g 65533 "$tmp/group"
    # member UID UMASK COMMAND...
    member() {
        user=$1 mask=$2
        shift 2
        (umask "$mask" && exec setpriv --reuid "$user" --regid "$user" --groups 65533 "$tmp/holdfast" "$@")
    }
    member 65531 002 run -u "file:$tmp/group" k -- true
    ok 'a user of the group makes the file'
    member 65532 002 run -n -u "file:$tmp/group" k -- true
    ok 'and another one takes it'
    member 65531 022 run -u "file:$tmp/group" other -- true
    said=$(member 65532 022 run -n -u "file:$tmp/group" other -- true 2>&1)
    is 'but not with the usual umask' 77 $?
fi
exits 'a report that cannot be written is an error before anything runs' 125 \
    "$hf" run --report "$tmp/no/such" k -- touch "$tmp/ran"
[ ! -e "$tmp/ran" ]
ok 'and nothing runs'
exits '--version tells it' 0 "$hf" --version
has 'as a number' 'holdfast 0.' "$said"
exits '--help tells the commands' 0 "$hf" --help
has 'and the exit statuses' '79 lost' "$said"
exits 'help COMMAND tells the options' 0 "$hf" help run
has 'all of them' '--on-lost' "$said"
exits 'help renew tells of its lease' 0 "$hf" help renew
has 'which stays as it is' 'as long as before' "$said"
exits 'COMMAND --help does too' 0 "$hf" run --help
# What is wrong with words is said before a service is asked: this one is not there.
HOLDFAST_URL=redis://127.0.0.1:1
long=$(printf '%1100s' x)
for words in 'status' 'break --fence 1' 'check --fence 1' 'watch' 'leader' 'acquire'; do
    exits "$words: an empty KEY" 64 "$hf" $words ''
    has 'the message says so' 'the KEY is empty' "$said"
    exits "$words: a KEY that is too long" 64 "$hf" $words "$long"
done
for option in owner report; do
    exits "--$option without a text" 64 "$hf" run "--$option" '' k -- true
    has 'the message says so' "--$option: the" "$said"
done
exits '--owner that is too long' 64 "$hf" run --owner "$long" k -- true
exits '--note that is too long' 64 "$hf" run --note "$long" k -- true
exits '--and with a KEY that is too long' 64 "$hf" run --and "$long" k -- true
exits '--exec without a command' 64 "$hf" watch --exec '' k
HOLDFAST_URL=file:$tmp/locks
exits 'a note may be empty' 0 "$hf" run --note '' k -- true

finish
