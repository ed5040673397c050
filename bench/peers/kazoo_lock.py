# SPDX-License-Identifier: MIT
"""kazoo's Lock."""
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

    @staticmethod
    def connect(seconds):
        client = KazooClient(hosts=os.environ["HF_ZK_HOSTS"], timeout=seconds)
        client.start()
        return client

    def new(self, key):
        return self.client.Lock("/kazoo/" + key)

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
