#!/bin/sh
# SPDX-License-Identifier: MIT
#
# probes.sh LIBRARY PAGE - the library has the probes that doc/tracing.md lists.
names=$(sed -n 's/^| `\([a-z_]*\)` |.*/\1/p' "$2")
notes=$(readelf -n "$1" | sed -n '/Provider: holdfast/{n;s/.*Name: //p}' | sort -u)
count=0 failed=0
point() {
    count=$((count + 1))
    [ "$2" = "$3" ] || { failed=1; echo "# expected: $2"; echo "# actual: $3"; printf 'not '; }
    echo "ok $count - $1"
}
for name in $names; do
    point "there is a probe $name" "$name" "$(echo "$notes" | grep -x "$name")"
done
point 'and no other' "$(echo "$names" | sort | tr '\n' ' ')" "$(echo "$notes" | tr '\n' ' ')"
echo "1..$count"
exit $failed
