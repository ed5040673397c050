# SPDX-License-Identifier: MIT
#
# redis-peer.py PORT SECONDS - take and release redis-py's Lock as often as it
# goes, with its default settings, and print when each grant was, in ns.

import sys
import time

import redis

server = redis.Redis(port=int(sys.argv[1]))
server.ping()
end = time.monotonic() + float(sys.argv[2])
grants = []
while time.monotonic() < end:
    lock = server.lock("peer", timeout=30)
    if lock.acquire(blocking_timeout=max(0, end - time.monotonic())):
        grants.append(time.monotonic_ns())
        lock.release()
print(*grants, sep="\n")
