#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""worker.py URL DIR - do each job of a directory once, whoever is faster.

Any number of these may run, on any machines that share the directory and the service.
A job is a file DIR/NAME.job; the one who has the lock of NAME does it, and writes
DIR/NAME.done with its fence.  At most two jobs are done at a time, by all workers
together: a permit is the right to work, and its slot is the number of the machine,
port or GPU to work with.

SIGTERM and Ctrl-C end a worker between two steps of a job, or while it waits.  A worker
that has lost its lock stops at once: somebody else may be at the job already.
"""
import signal
import sys
from pathlib import Path

import holdfast

LIMIT = 2


def steps(job):
    """The work, cut into pieces that are shorter than the lease."""
    for word in job.read_text().split():
        yield word.upper()


def do(client, job, slot):
    """Do one job, unless it is done, or somebody else is at it."""
    done = job.with_suffix(".done")
    lock = client.try_lock("job/" + job.stem, ttl=30)
    if lock is None:
        return
    with lock:
        if done.exists():
            return
        words = []
        for word in steps(job):
            if not lock.held:
                return  # The end of the block raises Lost.
            words.append(word)
        done.write_text("fence %d slot %d: %s\n" % (lock.fence, slot, " ".join(words)))
    print(job.stem, "is done", flush=True)


def work(url, directory):
    with holdfast.Client(url, note="worker") as client:
        while True:
            open_jobs = [job for job in sorted(directory.glob("*.job"))
                         if not job.with_suffix(".done").exists()]
            print(len(open_jobs), "jobs are open", flush=True)
            if not open_jobs:
                return
            for job in open_jobs:
                try:
                    with client.lock("workers", permits=LIMIT) as permit:
                        do(client, job, permit.slot)
                except holdfast.Lost as lost:
                    print(job.stem, "was lost:", lost.reason, file=sys.stderr)


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: worker.py URL DIR")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        work(sys.argv[1], Path(sys.argv[2]))
    except KeyboardInterrupt:
        print("stopped", flush=True)
    except holdfast.Error as error:
        sys.exit("worker: %s: %s" % (error.status, error))


main()
