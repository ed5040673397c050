#!/bin/sh
# SPDX-License-Identifier: MIT
#
# cli.sh - what the command says of ZooKeeper; test/servers/zk runs it.

. "$(dirname "$0")/../cli/lib.sh"
export HOLDFAST_URL="$HF_TEST_URL"

# A session for a lease of another length is made when the lock is taken: only
# then it is known what the server made of it.
out=$("$HOLDFAST" run -t 500ms brief -- true 2>&1)
is "a short lease is granted" 0 $?
has "a session that lasts longer than its lease is warned of" \
    "warning: the server's sessions last at least 1000 ms" "$out"
is "and it is warned of once" 1 "$(echo "$out" | grep -c warning)"

out=$("$HOLDFAST" run -q -t 500ms brief -- true 2>&1)
is "-q says nothing of it" '' "$out"

out=$("$HOLDFAST" run -t 5s brief -- true 2>&1)
is "a session as long as was asked for is not warned of" '' "$out"

finish
