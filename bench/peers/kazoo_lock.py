# SPDX-License-Identifier: MIT
"""kazoo's Lock, and its ReadLock and Semaphore for bench/sharing.c."""
import functools
import logging
import os
import time

import kazoo
from candidate import Candidate, say
from kazoo.client import KazooClient, KazooState

logging.disable(logging.CRITICAL)


class Kazoo(Candidate):
    version = kazoo.__version__ if hasattr(kazoo, "__version__") else ""

    def __init__(self):
        super().__init__()
        self.client = self.connect(20)
        self.others = []

    @staticmethod
    def connect(seconds):
        client = KazooClient(hosts=os.environ["HF_ZK_HOSTS"], timeout=seconds)
        client.start()
        return client

    def new(self, key):
        return self.client.Lock("/kazoo/" + key)

    def readers(self, threads, ms):
        return self.crowd([functools.partial(self.client.ReadLock, "/kazoo/readers")]
                          * int(threads), ms)

    def among(self, clients, ms, permits):
        """A client for each, so that all of them meet in the service."""
        while len(self.others) < int(clients):
            self.others.append(self.connect(20))
        return self.crowd([
            functools.partial(one.Semaphore, "/kazoo/permits", max_leases=int(permits))
            if int(permits) else functools.partial(one.Lock, "/kazoo/among")
            for one in self.others], ms)

    def watch(self, key, ttl_ms):
        """The session is the lease, and its end is told to a listener."""
        client = self.connect(int(ttl_ms) / 1000)
        client.Lock("/kazoo/" + key).acquire()
        gone = (KazooState.LOST, KazooState.SUSPENDED)

        def listen(state):
            if state in gone:
                say("lost", time.monotonic_ns())

        client.add_listener(listen)
        return []


Kazoo().run()
