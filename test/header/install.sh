#!/bin/sh
# SPDX-License-Identifier: MIT
#
# install.sh BUILD PROGRAM.c PREFIX [python] - `meson install` into a directory that is
# not the prefix, as a package or a moved tree is; then the command and a program
# lock through a module, without LD_LIBRARY_PATH.
#
# The points that concern programs do what libholdfast(3) says.  With "python" the
# package for Python was built.

build=$1 source=$2 prefix=$3 python=${4-}
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
unset LD_LIBRARY_PATH HOLDFAST_MODULE_DIR HOLDFAST_URL
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

echo 1..6
meson install -C "$build" --no-rebuild --quiet --destdir "$tmp/tree" >"$tmp/out" 2>&1
say $? it_installs_into_a_directory
root=$tmp/tree$prefix
url=sqlite:$tmp/locks.db

"$root/bin/holdfast" -u "$url" run k -- true >"$tmp/out" 2>&1
say $? the_command_of_a_moved_tree_finds_its_modules
(PATH=$root/bin:$PATH holdfast -u "$url" run k -- true) >"$tmp/out" 2>&1
say $? and_so_it_does_when_it_is_found_in_the_path

PKG_CONFIG_PATH=$(dirname "$(find "$tmp/tree" -name libholdfast.pc)")
PKG_CONFIG_SYSROOT_DIR=$tmp/tree
export PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR
libdir=$(dirname "$(find "$tmp/tree" -name libholdfast.so)")
# shellcheck disable=SC2046 # a list of words
${CC:-cc} "$source" $(pkg-config --cflags --libs libholdfast) \
    -Wl,-rpath,"$libdir" -o "$tmp/with-rpath" >"$tmp/out" 2>&1 &&
    "$tmp/with-rpath" "$url" >"$tmp/out" 2>&1
say $? a_program_with_a_run_path_needs_nothing_else

# ldconfig writes a cache of its own, which is put in the place of the system's
# where only this program sees it.
name=a_program_needs_nothing_else_after_ldconfig
echo "$libdir" >"$tmp/ld.so.conf"
if ! unshare -m true 2>/dev/null || ! command -v ldconfig >/dev/null; then
    skip $name 'no right to a mount namespace of our own'
else
    # shellcheck disable=SC2046 # a list of words
    ${CC:-cc} "$source" $(pkg-config --cflags --libs libholdfast) \
        -o "$tmp/plain" >"$tmp/out" 2>&1 &&
        cat /etc/ld.so.conf >>"$tmp/ld.so.conf" &&
        ldconfig -C "$tmp/cache" -f "$tmp/ld.so.conf" 2>"$tmp/out" &&
        unshare -m sh -ec 'mount --bind "$1" /etc/ld.so.cache; exec "$2" "$3"' \
            sh "$tmp/cache" "$tmp/plain" "$url" >"$tmp/out" 2>&1
    say $? $name
fi

# The system's Python imports the package where it is installed, with nothing set.
name=python_imports_what_was_installed
if [ -z "$python" ] || ! [ -x /usr/bin/python3 ]; then
    skip $name 'the package for Python was not built'
elif [ -z "$(/usr/bin/python3 "$(dirname "$0")/../../bindings/python/where" "$prefix")" ]; then
    skip $name "the system's Python does not look below $prefix"
elif ! unshare -m true 2>/dev/null; then
    skip $name 'no right to a mount namespace of our own'
else
    unshare -m sh -ec 'mount --bind "$1" "$2"; cd /; exec env -i PATH=/usr/bin:/bin \
        /usr/bin/python3 -c "import holdfast, sys
with holdfast.Client(sys.argv[1]) as client:
    with client.lock(\"k\") as lock:
        assert lock.fence > 0" "$3"' sh "$root" "$prefix" "$url" >"$tmp/out" 2>&1
    say $? $name
fi
exit $failed
