#!/bin/sh
# SPDX-License-Identifier: MIT
#
# fencing-postgres.sh - the SQL of doc/recipes/fencing.md, in PostgreSQL ($HF_TEST_URL):
# a writer with the fence of an earlier grant changes nothing.
. "$(dirname "$0")/../cli/lib.sh"
top=$(cd "$(dirname "$0")/../.." && pwd)
page=$top/doc/recipes/fencing.md
HOLDFAST_URL=$HF_TEST_URL
sql() { psql -X -q -A -t -v ON_ERROR_STOP=1 "$HF_TEST_URL" -c "$1" 2>&1; }

block=$(awk '/^```sql/ { inside = 1; next } /^```/ { inside = 0 } inside' "$page")
update=$(echo "$block" | grep '^UPDATE')
sql "$(echo "$block" | grep '^CREATE TABLE'); INSERT INTO account (id, balance) VALUES (1, 0)"
ok 'the table of the page can be made'

# write BALANCE FENCE: how many rows it changed.
write() {
    sql "PREPARE w AS ${update%;} RETURNING 1; EXECUTE w($1, 1, $2)"
}
fence_now() { "$HOLDFAST" run -q account/1 -- sh -c 'echo $HOLDFAST_FENCE'; }
old=$(fence_now)
new=$(fence_now)
[ "$new" -gt "$old" ]
ok 'fences rise'
is 'the later holder writes' 1 "$(write 20 "$new")"
is 'and writes again' 1 "$(write 30 "$new")"
is 'a late writer changes nothing' '' "$(write 10 "$old")"
is 'what the later holder wrote is there' "30|$new" "$(sql 'SELECT balance, fence FROM account')"
finish
