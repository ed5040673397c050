# SPDX-License-Identifier: MIT
#
# tap.py - what the tests of holdfast serve share: TAP, and processes that end
# with the test.

import subprocess

running = []
count = failed = 0


def check(good, name, why=""):
    global count, failed
    count += 1
    failed += not good
    if not good:
        print("# %s" % ascii(why))
    print("%s %d - %s" % ("ok" if good else "not ok", count, name), flush=True)


def start(*words):
    """The process, and the first line that it says."""
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    running.append(process)
    return process, process.stdout.readline().strip()


def stop(process):
    """TERM; its exit status."""
    process.terminate()
    running.remove(process)
    return process.wait()


def finish():
    for process in running:
        process.kill()
        process.wait()


def result():
    print("1..%d" % count)
    raise SystemExit(failed > 0)
