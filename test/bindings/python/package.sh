#!/bin/sh
# SPDX-License-Identifier: MIT
#
# package.sh PYTHON ROOT BUILD - the package as its users meet it: its types, the
# wheel, the programs of its documents, and the example.

python=$1 root=$2 build=$3
here=$root/test/bindings/python
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
n=0 failed=0

say() { # STATUS NAME
    n=$((n + 1))
    [ "$1" -eq 0 ] || { sed 's/^/# /' "$tmp/out"; printf 'not ' && failed=1; }
    echo "ok $n - $2"
}

skip() { # NAME WHY
    n=$((n + 1))
    echo "ok $n - $1 # SKIP $2"
}

# The nth program in Python of a page, with a service that is here.
program() { # PAGE NUMBER
    # shellcheck disable=SC2016 # no command is meant
    awk -v n="$2" '/^```python$/ { on = ++i == n; next } /^```$/ { on = 0 } on' "$1" |
        sed "s|redis://localhost|$url|"
}

echo 1..10
if command -v mypy >/dev/null; then
    (cd "$root/bindings/python" && mypy --cache-dir "$tmp/cache" holdfast) >"$tmp/out" 2>&1
    say $? the_package_is_clean_for_mypy_strict
    (cd "$root/bindings/python" &&
        MYPYPATH=. mypy --cache-dir "$tmp/cache" "$here/typed.py") >"$tmp/out" 2>&1
    say $? a_program_is_clean_for_mypy_strict
    (cd "$root/bindings/python" &&
        MYPYPATH=. mypy --cache-dir "$tmp/cache" "$here/mistyped.py") >"$tmp/out" 2>&1
    [ "$(grep -o 'mistyped.py:[0-9]*: error' "$tmp/out" | sort -u)" = \
        "$(grep -n '# wrong' "$here/mistyped.py" | sed 's/^\([0-9]*\):.*/mistyped.py:\1: error/' | sort -u)" ]
    say $? mypy_finds_every_mistake_of_a_program
    url=mem:
    for i in 1 2; do
        program "$root/bindings/python/README.md" $i >"$tmp/readme_$i.py"
    done
    (cd "$root/bindings/python" &&
        MYPYPATH=. mypy --cache-dir "$tmp/cache" "$tmp"/readme_?.py) >"$tmp/out" 2>&1
    say $? the_programs_of_the_readme_are_clean_for_mypy_strict
else
    skip the_package_is_clean_for_mypy_strict 'no mypy here'
    skip a_program_is_clean_for_mypy_strict 'no mypy here'
    skip mypy_finds_every_mistake_of_a_program 'no mypy here'
    skip the_programs_of_the_readme_are_clean_for_mypy_strict 'no mypy here'
fi

# The wheel, from another place, and without anything of the build.
url=sqlite:$tmp/locks.db
wheel=$("$python" "$root/bindings/python/wheel" "$build" "$tmp/dist" 2>"$tmp/out")
say $? a_wheel_is_made
unset PYTHONPATH HOLDFAST_MODULE_DIR LD_LIBRARY_PATH
case $wheel in *-cp39-abi3-*) wheel=$(echo "$tmp"/dist/*.whl) ;; esac
"$python" -m venv --without-pip "$tmp/venv" >"$tmp/out" 2>&1 &&
    "$python" -m zipfile -e "$wheel" "$(echo "$tmp"/venv/lib/python3*/site-packages)" &&
    program "$root/bindings/python/README.md" 1 >"$tmp/program.py" &&
    (cd "$tmp" && "$tmp/venv/bin/python" program.py) >"$tmp/out" 2>&1 &&
    grep -q 'page 2 under fence' "$tmp/out"
say $? the_wheel_works_in_a_fresh_environment
if "$python" -m pip --version >/dev/null 2>&1; then
    "$python" -m pip install --quiet --no-index --no-deps --target "$tmp/target" \
        --disable-pip-version-check --root-user-action ignore "$wheel" >"$tmp/out" 2>&1 &&
        (cd "$tmp" && PYTHONPATH="$tmp/target" "$python" program.py) >"$tmp/out" 2>&1
    say $? the_wheel_is_installed_by_pip
else
    skip the_wheel_is_installed_by_pip 'no pip here'
fi

venv=$tmp/venv/bin/python
program "$root/bindings/python/README.md" 2 >"$tmp/program.py" &&
    "$venv" "$tmp/program.py" >"$tmp/out" 2>&1 && grep -q 'under fence' "$tmp/out"
say $? the_program_for_asyncio_of_the_readme_works

# The worker: three of them, twenty jobs, each is done once.
mkdir "$tmp/jobs"
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    echo "job number $i" >"$tmp/jobs/$i.job"
done
worker=$root/bindings/python/examples/worker.py
for i in 1 2 3; do
    "$venv" "$worker" "$url" "$tmp/jobs" >"$tmp/worker.$i" 2>&1 &
    eval "pid$i=\$!"
done
# shellcheck disable=SC2154 # eval sets them
wait "$pid1" && wait "$pid2" && wait "$pid3"
status=$?
cat "$tmp"/worker.? | grep -v 'jobs are open' >"$tmp/out"
[ $status -eq 0 ] && [ "$(sort "$tmp/out" | uniq | wc -l)" -eq 20 ] &&
    [ "$(wc -l <"$tmp/out")" -eq 20 ] &&
    [ "$(cat "$tmp"/jobs/*.done | grep -c 'JOB NUMBER')" -eq 20 ]
say $? three_workers_do_each_job_once

# It waits for a permit that it does not get, and is told to stop.
echo more >"$tmp/jobs/21.job"
cat >"$tmp/hold.py" <<'END'
import holdfast, subprocess, sys
with holdfast.Client(sys.argv[1]) as client:
    permits = [client.lock("workers", permits=2).acquire() for _ in range(2)]
    worker = subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE, text=True)
    assert worker.stdout.readline() == "1 jobs are open\n"
    worker.terminate()
    assert worker.communicate(timeout=60)[0] == "stopped\n"
    for permit in permits:
        permit.release()
END
"$venv" "$tmp/hold.py" "$url" "$venv" "$worker" "$url" "$tmp/jobs" >"$tmp/out" 2>&1
say $? a_worker_that_waits_stops_when_it_is_told
exit $failed
