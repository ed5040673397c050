#!/bin/sh
# SPDX-License-Identifier: MIT
#
# readme.sh - the README in both languages has the same headings, code, tables of
# services and links; the figures of doc/choosing.md are those that were measured.
. "$(dirname "$0")/../cli/lib.sh"
top=$(cd "$(dirname "$0")/../.." && pwd)

# facts FILE WHAT: what both must have in common.
facts() {
    case $2 in
    headings) grep -Eo '^#+ ' "$top/$1" ;;
    code) awk '/^```/ { print; inside = !inside; next } inside' "$top/$1" ;;
    services) sed -n '/services: begin/,/services: end/p' "$top/$1" ;;
    links) grep -Eo '\]\([^)]*\)' "$top/$1" | grep -v README | sort ;;
    points) grep -Ec '^(\* |\|)' "$top/$1" ;;
    esac
}
for what in headings code services links points; do
    is "both have the same $what" "$(facts README.md $what)" "$(facts README.zh-CN.md $what)"
    [ -n "$(facts README.md $what)" ]
    ok "there are $what"
done

# What it shows for a shell runs in any shell, with a service for several machines; here
# that is a directory, and the programs are scripts that write their name.
facts README.md code | sed -n '/^```sh/,/^```/{/^```/d;p;}' | sed -n '/^# run a job/,/^holdfast serve/p' |
    grep -v '^holdfast serve' >"$tmp/shown"
has 'the examples elect' 'holdfast elect' "$(cat "$tmp/shown")"
has 'and name a service that machines share' '://' \
    "$(facts README.md code | sed -n '/^```sh/,/^```/p' | grep '^export HOLDFAST_URL=')"
for name in backup.sh convert transfer scheduler; do
    printf '#!/bin/sh\necho %s ran\n' $name >"$tmp/$name"
    chmod 755 "$tmp/$name"
done
is 'the examples for a shell run' 'backup.sh ran convert ran transfer ran scheduler ran exit 0' \
    "$(cd "$tmp" && { env -i PATH="$(dirname "$HOLDFAST"):/usr/bin:/bin" HOLDFAST_URL="$HOLDFAST_URL" \
        HOLDFAST_MODULE_DIR="${HOLDFAST_MODULE_DIR-}" sh -eu ./shown 2>&1; echo "exit $?"; } | paste -sd' ')"

# Both fit into a terminal of 100 columns; a Chinese character takes two.
is 'no line is wider than 100 columns' '' "$(cd "$top" && python3 -c '
import sys, unicodedata
for name in sys.argv[1:]:
    for number, line in enumerate(open(name, encoding="utf-8"), 1):
        wide = sum(1 + (unicodedata.east_asian_width(c) in "WF") for c in line.rstrip("\n"))
        if wide > 100:
            print(name, number, wide)' README.md README.zh-CN.md)"

# The check of the figures says yes to the page and no to one with another figure.
mkdir -p "$tmp/copy/scripts"
cp -r "$top/doc" "$tmp/copy/"
cp "$top/scripts/choosing-table" "$tmp/copy/scripts/"
is 'the figures for choosing are those that were measured' '' \
    "$("$tmp/copy/scripts/choosing-table" --check 2>&1)"
sed -i '/speed: begin/,/speed: end/s/| `redis:` | [0-9]*/| `redis:` | 1/' "$tmp/copy/doc/choosing.md"
is 'another figure is found' 'doc/choosing.md: run scripts/choosing-table' \
    "$("$tmp/copy/scripts/choosing-table" --check 2>&1)"

# The mutants are as many as the page says.
listed=$(grep -vc '^#\|^$' "$top/test/mutants/list")
bugs=$(awk '!/^#/ && NF { print $1 }' "$top/test/mutants/list" | sort -u | wc -l)
has 'the page counts the mutants of the list' "$listed checks of $bugs bugs" "$(cat "$top/doc/testing.md")"
has 'and those of the last run' "has the $(grep -c '^| `' "$top/doc/mutants.md")" \
    "$(tr '\n' ' ' <"$top/doc/testing.md")"
finish
