#!/bin/sh
# SPDX-License-Identifier: MIT
#
# missing.sh - a service whose module is not installed says which package has it.
. "$(dirname "$0")/../cli/lib.sh"
export HOLDFAST_MODULE_DIR="$tmp/nothing"
mkdir "$HOLDFAST_MODULE_DIR"

for row in $PACKAGES; do
    scheme=${row%%=*} package=${row#*=}
    exits "$scheme: does not run" 78 "$HOLDFAST" run -u "$scheme://127.0.0.1/x" k -- true
    has "$scheme: names the package" "install the package $package " "$said"
    is "$scheme: does not blame the URL" 0 "$(echo "$said" | grep -c 'what a URL can be')"
    has "$scheme: so does doctor" "install the package $package " \
        "$("$HOLDFAST" doctor --all | grep "^$scheme ")"
done

# A module that is there and is not one says what the loader said.
echo text >"$HOLDFAST_MODULE_DIR/holdfast-sqlite.so"
exits 'a broken module does not run' 78 "$HOLDFAST" run -u "sqlite:$tmp/x.db" k -- true
has 'and says what is wrong with it' 'holdfast-sqlite.so: ' "$said"
is 'it is not called missing' 0 "$(echo "$said" | grep -c 'not installed')"
finish
