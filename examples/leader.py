#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""leader.py URL KEY ADDRESS [TERMS] - one leader among any number of processes.

Each process campaigns, and follows in a thread of its own.  The lock is the
leadership, its note is the address of the leader, and its fence is the term.  A
leader works until the leadership is lost, or for a moment if TERMS says how often it
is to lead; then it resigns and campaigns again.
"""
import sys
import threading
import time

import holdfast

STEPS, STEP = 5, 0.02


def follow(election):
    """Print who leads, at every change, until the client is closed."""
    try:
        for address in election.leaders():
            print("leader:", address or "nobody", flush=True)
    except holdfast.Error:
        pass


def lead(election, limited):
    """A term: small steps, each of them only while the leadership is proven."""
    step = 0
    while election.held and (step < STEPS or not limited):
        print("leading in term", election.fence, flush=True)
        time.sleep(STEP)
        step += 1


def main(url, key, address, terms=0):
    with holdfast.Client(url) as client:
        follower = threading.Thread(target=follow, args=[client.election(key, address)], daemon=True)
        follower.start()
        done = 0
        while not terms or done < terms:
            try:
                with client.election(key, address) as election:
                    lead(election, terms > 0)
                done += 1
            except holdfast.Lost:
                print("lost the leadership", flush=True)
    follower.join()


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))
