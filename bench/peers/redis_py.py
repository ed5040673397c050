# SPDX-License-Identifier: MIT
"""redis-py's Lock, with its default settings."""
import os

import redis
from candidate import Candidate


class RedisPy(Candidate):
    version = redis.__version__

    def __init__(self):
        super().__init__()
        port = int(os.environ["HF_TEST_URL"].rsplit(":", 1)[1])
        self.server = redis.Redis(port=port)
        self.server.ping()

    def new(self, key):
        return self.server.lock(key, timeout=30)


RedisPy().run()
