# SPDX-License-Identifier: MIT
"""A command that runs another one under a lock: flock(1), consul lock, holdfast.

command.py STAMP COMMAND...: `%` in a word of COMMAND stands for the key, and it
is given STAMP to run, a program that prints the time.
"""
import subprocess
import sys

from candidate import Candidate

stamp, command = sys.argv[1], sys.argv[2:]


class Command(Candidate):
    many = None

    def new(self, key):
        outer = self

        class Lock:
            def acquire(self):
                outer.once(key)

            def release(self):
                pass

        return Lock()

    @staticmethod
    def once(key):
        words = [word.replace("%", key) for word in command] + [stamp]
        done = subprocess.run(words, stdout=subprocess.PIPE, check=True,
                              stderr=subprocess.DEVNULL)
        return int(done.stdout.split()[-1])

    def contend(self, at, ms, key):
        import time
        end = int(at) + int(ms) * 1000000
        turns = []
        time.sleep(max(0, (int(at) - time.monotonic_ns()) / 1e9))
        while time.monotonic_ns() < end:
            asked = time.monotonic_ns()
            got = self.once(key)
            turns += [asked, got, got]
        return turns

    take = wait = give = None

    def answer(self, words):
        if words[0] in ("pairs", "contend", "found"):
            super().answer(words)
        else:
            print("no", words[0], flush=True)


Command().run()
