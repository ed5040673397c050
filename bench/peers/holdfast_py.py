# SPDX-License-Identifier: MIT
"""holdfast_py.py PACKAGES [URL] - the Python package in the directory PACKAGES."""
import os
import sys

sys.path.insert(0, sys.argv[1])
import holdfast  # noqa: E402
from candidate import Candidate  # noqa: E402


class HoldfastPy(Candidate):
    version = holdfast.__version__

    def __init__(self):
        super().__init__()
        url = sys.argv[2] if len(sys.argv) > 2 else os.environ["HF_TEST_URL"]
        self.client = holdfast.Client(url)

    def new(self, key):
        return self.client.lock(key, ttl=30)


HoldfastPy().run()
