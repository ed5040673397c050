# SPDX-License-Identifier: MIT
#
# peer.py PORT - redis-py's Lock, told what to do line by line: one answer each.

import sys

import redis

server = redis.Redis(port=int(sys.argv[1]))
lock = None


def take(name, ttl, blocking):
    global lock
    lock = server.lock(name, timeout=int(ttl) / 1000, sleep=0.01)
    return "yes" if lock.acquire(blocking=blocking) else "busy"


def release():
    try:
        lock.release()
        return "ok"
    except redis.exceptions.LockError as error:
        return type(error).__name__


def count(name, counter, times):
    for _ in range(int(times)):
        with server.lock(name, timeout=10, sleep=0.005):
            server.set(counter, int(server.get(counter) or 0) + 1)
    return "ok"


actions = {
    "try": lambda name, ttl: take(name, ttl, False),
    "wait": lambda name, ttl: take(name, ttl, True),
    "extend": lambda: "ok" if lock.reacquire() else "no",
    "token": lambda: lock.local.token.decode(),
    "release": release,
    "count": count,
}
for line in sys.stdin:
    words = line.split()
    try:
        print(actions[words[0]](*words[1:]), flush=True)
    except redis.exceptions.RedisError as error:
        print("error:", error, flush=True)
