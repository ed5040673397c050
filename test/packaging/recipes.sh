#!/bin/sh
# SPDX-License-Identifier: MIT
#
# recipes.sh - what doc/recipes says can be run, runs.  Each page is one script
# that stops at the first command that fails.
. "$(dirname "$0")/../cli/lib.sh"
top=$(cd "$(dirname "$0")/../.." && pwd)
PATH=$(dirname "$HOLDFAST"):$PATH
export PATH

for page in "$top"/doc/recipes/*.md; do
    name=$(basename "$page" .md)
    awk '/^```sh run$/ { inside = 1; next } /^```/ { inside = 0 } inside' "$page" >"$tmp/$name.sh"
    [ "$name" != README ] || continue
    [ -s "$tmp/$name.sh" ]
    ok "$name has something to run"
    if ! command -v sqlite3 >/dev/null && grep -q sqlite3 "$tmp/$name.sh"; then
        skip "$name" 'sqlite3 is missing'
        continue
    fi
    mkdir "$tmp/$name"
    (cd "$tmp/$name" && timeout 60 sh -eu "$tmp/$name.sh") >"$tmp/out" 2>&1
    status=$?
    [ $status -eq 0 ] || sed 's/^/# /' "$tmp/out"
    is "$name runs" 0 $status
done

# The line of the crontab, as cron runs it: with a user, a name that is looked for, and
# a mail for each line on standard output or standard error.
crontab=$(awk '/^```crontab / { inside = 1; next } /^```/ { inside = 0 } inside' \
    "$top/doc/recipes/cron.md")
has 'cron finds the command that "make install" installs' 'PATH=/usr/local/bin:' "$crontab"
line=$(echo "$crontab" | sed -n 's|^0 3 \* \* \*  *app  *||p' | sed 's|/opt/app/nightly|echo done|')
nightly() { (cd "$tmp" && HOLDFAST_URL=file:$tmp/cron sh -c "$line" 2>&1; echo "exit $?"); }
is 'the job of the crontab runs' 'done exit 0' "$(nightly | paste -sd' ')"
is 'the second machine sends no mail' 'exit 0' "$(nightly)"
is 'no page expects the command in a certain directory' '' \
    "$(cd "$top" && grep -n '/bin/holdfast' README*.md doc/*.md doc/recipes/*.md doc/man/*.[17])"

# What cannot be run here is at least well-formed.
awk '/^```yaml / { inside = 1; n++; next } /^```/ { inside = 0 }
    inside { print >(out "/" n ".yaml") }' out="$tmp" "$top"/doc/recipes/*.md
if python3 -c 'import yaml' 2>/dev/null; then
    for file in "$tmp"/*.yaml; do
        python3 -c '
import sys, yaml
text = open(sys.argv[1]).read()
tree = yaml.safe_load(text)
assert isinstance(tree, dict) and tree
if "apiVersion" in tree:
    spec = tree["spec"]
    pod = spec.get("jobTemplate", {}).get("spec", spec)["template"]["spec"]
    command = pod["containers"][0]["command"]
    assert command[0] == "holdfast" and all(isinstance(word, str) for word in command)
    assert pod["terminationGracePeriodSeconds"] > 0
    if "--grace" in command:  # what is more than a third of the lease is cut
        after = lambda option: int(command[command.index(option) + 1].rstrip("s"))
        assert 3 * after("--grace") <= after("-t"), command' "$file" 2>"$tmp/out"
        status=$?
        [ $status -eq 0 ] || sed 's/^/# /' "$tmp/out"
        is "$(sed -n 's/^kind: //p' "$file") ${file##*/} is well-formed YAML" 0 $status
    done
else
    skip 'YAML' 'python3-yaml is missing'
fi
if command -v systemd-analyze >/dev/null; then
    mkdir "$tmp/units"
    awk '/^# \/etc\/systemd/ { sub(".*/", ""); file = out "/" $0; next }
        /^```/ { file = "" } file { print >file }' out="$tmp/units" "$top/doc/recipes/systemd.md"
    # holdfast is not installed here, so its name without a directory, which systemd looks
    # for, is that of a program that is; everything else is as it stands.
    sed -i 's|^ExecStart=holdfast |ExecStart=true |' "$tmp"/units/*.service
    is 'there are three units' 3 "$(ls "$tmp/units" | wc -l)"
    said=$(cd "$tmp/units" && systemd-analyze verify --man=no ./*.service ./*.timer 2>&1)
    status=$?
    is 'systemd finds no fault with the units' "0 " "$status $(echo "$said" | grep "$tmp/units")"
else
    skip 'units' 'systemd-analyze is missing'
fi

# Every block says whether it is run.
is 'no block is left unmarked' '' \
    "$(awk '/^```/ { open = !open; if (open && !/^```[a-z]+ (run|shown|s3)$/) print FILENAME ": " $0 }' \
        "$top"/doc/recipes/*.md)"
finish
