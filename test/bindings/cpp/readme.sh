#!/bin/sh
# SPDX-License-Identifier: MIT
#
# readme.sh ROOT LIBRARY LEADER - the program of the README, and the example.

root=$1 lib=$2 leader=$3
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
failed=0

say() { # STATUS NUMBER NAME
    [ "$1" -eq 0 ] || { sed 's/^/# /' "$tmp/out"; printf 'not ' && failed=1; }
    echo "ok $2 - $3"
}

echo 1..3
# shellcheck disable=SC2016 # no command is meant
sed -n '/^```cpp$/,/^```$/{/^```/!p;}' "$root/bindings/cpp/README.md" |
    sed 's|redis://localhost|mem:|' >"$tmp/readme.cpp"
${CXX:-c++} -std=c++17 -Wall -Wextra -Werror -I"$root/include" "$tmp/readme.cpp" "$lib" \
    -Wl,-rpath,"$(dirname "$(realpath "$lib")")" -o "$tmp/readme" >"$tmp/out" 2>&1 &&
    "$tmp/readme" >"$tmp/out" 2>&1 && grep -q 'page 2 under fence' "$tmp/out"
say $? 1 the_program_of_the_readme_works

# Each term is a run of three steps of one leader, under one fence.
for name in a b c; do
    "$leader" "file:$tmp/locks" $name 4 >>"$tmp/out" &
    eval "$name=\$!"
done
# shellcheck disable=SC2154 # eval sets them
wait "$a" && wait "$b" && wait "$c"
status=$?
sed -i '/under fence/!d;/^page/d' "$tmp/out"
[ $status -eq 0 ] && [ "$(wc -l <"$tmp/out")" -eq 36 ] &&
    awk '{ if ($3 == 1) who = $1 $NF; if (who != $1 $NF) exit 1 }' "$tmp/out"
say $? 2 one_leads_at_a_time

"$leader" "file:$tmp/locks" long 1000000 >"$tmp/long" &
long=$!
until grep -q 'step 1' "$tmp/long"; do kill -0 $long || break; done
"$leader" "file:$tmp/locks" waits 1000000 >"$tmp/out" 2>&1 &
waits=$!
until grep -q candidate "$tmp/out"; do kill -0 $waits || break; done
kill -STOP $long
kill -TERM $waits
wait $waits
status=$?
kill -CONT $long
kill -TERM $long
wait $long && [ $status -eq 0 ]
say $? 3 a_signal_ends_it
exit $failed
