#!/bin/sh
# SPDX-License-Identifier: MIT
#
# interop.sh HOLDFAST - holdfast beside node-redlock; see interop.mjs.  The
# library is fetched once into $HF_PEERS; where that cannot be done the test is
# skipped and says so.
set -eu

here=$(dirname "$0")
dir=${HF_PEERS:?}/redlock
if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
    echo '1..0 # SKIP this host: there is no npm'
    exit 0
fi
mkdir -p "$dir"
if ! [ -d "$dir/node_modules/redlock" ] &&
    ! (cd "$dir" && timeout 60 npm install --no-audit --no-fund --silent \
        ioredis@5 redlock@5.0.0-beta.2) >"$dir/log" 2>&1; then
    echo '1..0 # SKIP this host: the registry of npm does not answer'
    exit 0
fi
exec "$here/../servers/redlock" node "$here/interop.mjs" "$dir" "$1"
