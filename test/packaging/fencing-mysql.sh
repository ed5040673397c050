#!/bin/sh
# SPDX-License-Identifier: MIT
#
# fencing-mysql.sh - the SQL of doc/recipes/fencing.md, in MySQL or MariaDB ($HF_TEST_URL):
# a writer with the fence of an earlier grant sees that it has to stop, and one that
# writes what is there already does not.
. "$(dirname "$0")/../cli/lib.sh"
top=$(cd "$(dirname "$0")/../.." && pwd)
page=$top/doc/recipes/fencing.md
HOLDFAST_URL=$HF_TEST_URL
sql() { mariadb --no-defaults -u root -S "$HF_TEST_DIR/socket" -N test -e "$1" 2>&1; }

block=$(awk '/^```sql/ { inside = 1; next } /^```/ { inside = 0 } inside' "$page")
update=$(echo "$block" | grep '^UPDATE')
look=$(echo "$block" | grep '^SELECT')
sql "$(echo "$block" | grep '^CREATE TABLE'); INSERT INTO account (id, balance) VALUES (1, 0)"
ok 'the table of the page can be made'

# write BALANCE FENCE: what the page reads afterwards, and how many rows were changed.
write() {
    sql "$(echo "$update SELECT ROW_COUNT(); $look" | sed "s/\$1/$1/g; s/\$2/1/g; s/\$3/$2/g")" |
        paste -sd' '
}
fence_now() { "$HOLDFAST" run -q account/1 -- sh -c 'echo $HOLDFAST_FENCE'; }
old=$(fence_now)
new=$(fence_now)
[ "$new" -gt "$old" ]
ok 'fences rise'
is 'the later holder writes' "1 $new" "$(write 20 "$new")"
is 'the same once more changes no row, and the fence is still its own' "0 $new" "$(write 20 "$new")"
is 'a late writer finds the fence of another' "0 $new" "$(write 10 "$old")"
is 'what the later holder wrote is there' "20 $new" \
    "$(sql 'SELECT balance, fence FROM account' | tr '\t' ' ')"
finish
