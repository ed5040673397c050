#!/bin/sh
# SPDX-License-Identifier: MIT
#
# leader.sh - the leader in Python, $LEADER: one leads for ever, another follows and
# knows who leads; when the first is killed, the second leads its three terms.
#
# Each step waits for what the one before has printed, so it does not matter how fast
# either of them is.
. "$(dirname "$0")/../cli/lib.sh"

# candidate NAME [TERMS]: in the background, as $!, printing into NAME.out.
candidate() {
    # shellcheck disable=SC2086
    $LEADER "file:$tmp/locks" k "$@" >"$tmp/$1.out" &
}

# terms NAME: in which it led, without repetition, in the order in which it did.
terms() { sed -n 's/^leading in term //p' "$tmp/$1.out" | uniq; }

candidate a
a=$!
until_true grep -q '^leading' "$tmp/a.out"
ok 'the first leads'

candidate b 3
b=$!
until_true grep -q '^leader: a$' "$tmp/b.out"
ok 'the second learns who leads'
is 'and does not lead itself' 0 "$(grep -c '^leading' "$tmp/b.out")"

kill -KILL $a
wait $a 2>/dev/null
wait $b
ok 'the second ends well when the first was killed'
is 'it has led five steps in each term' 15 "$(grep -c '^leading' "$tmp/b.out")"
is 'in three terms' 3 "$(terms b | wc -l)"
is 'and terms rise from one leader to the next' \
    "$({ terms a; terms b; } | sort -nu)" "$({ terms a; terms b; })"
has 'who follows is told of the new leader' 'leader: b' "$(cat "$tmp/b.out")"
finish
