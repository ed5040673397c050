# SPDX-License-Identifier: MIT
"""The dialogue of bench/cand/cand.h, for candidates in Python.

A peer makes a class with new(key), which gives a lock object with acquire() and
release(), and calls run().  Optional: hold(n, ttl_ms, ms), drop(),
watch(key, ttl_ms, lost), and for bench/sharing.c readers(threads, ms) and
among(clients, ms, permits).
"""
import functools
import sys
import threading
import time


def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


class Candidate:
    version = ""
    waits = True

    def __init__(self):
        self.kept = {}

    def new(self, key):
        raise NotImplementedError

    def pairs(self, n, key):
        times = []
        last = time.monotonic_ns()
        for _ in range(int(n)):
            lock = self.new(key)
            lock.acquire()
            lock.release()
            now = time.monotonic_ns()
            times.append(now - last)
            last = now
        return times

    def crowd(self, locks, ms):
        """Each lock is taken and released in a thread of its own."""
        done = [0] * len(locks)
        start = threading.Barrier(len(locks) + 1)

        def work(i):
            start.wait()
            while time.monotonic_ns() < end:
                lock = locks[i]()
                lock.acquire()
                lock.release()
                done[i] += 1

        crowd = [threading.Thread(target=work, args=(i,)) for i in range(len(locks))]
        for one in crowd:
            one.start()
        begin = time.monotonic_ns()
        end = begin + int(ms) * 1000000
        start.wait()
        for one in crowd:
            one.join()
        return [sum(done), time.monotonic_ns() - begin]

    def many(self, threads, ms):
        keys = ["many-%s-%d" % (type(self).__name__, i) for i in range(int(threads))]
        return self.crowd([functools.partial(self.new, key) for key in keys], ms)

    def contend(self, at, ms, key):
        end = int(at) + int(ms) * 1000000
        turns = []
        lock = self.new(key)
        time.sleep(max(0, (int(at) - time.monotonic_ns()) / 1e9))
        while time.monotonic_ns() < end:
            asked = time.monotonic_ns()
            if lock.acquire() is False:
                continue
            turns += [asked, time.monotonic_ns()]
            turns.append(time.monotonic_ns())
            lock.release()
        return turns

    def found(self, _key):
        return []

    def take(self, key):
        self.kept[key] = self.new(key)
        self.kept[key].acquire()
        return []

    wait = take

    def give(self, key):
        self.kept.pop(key).release()
        return []

    def answer(self, words):
        known = ["pairs", "many", "take", "give", "hold", "drop", "watch", "readers", "among"]
        if self.waits:
            known += ["contend", "wait", "found"]
        if words[0] not in known or not hasattr(self, words[0]):
            return say("no", words[0])
        return say("ok", *(getattr(self, words[0])(*words[1:]) or []))

    def run(self):
        say("ready", self.version)
        for line in sys.stdin:
            if line.strip():
                self.answer(line.split())
