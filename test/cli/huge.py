#!/usr/bin/python3
# SPDX-License-Identifier: MIT
#
# huge.py - `holdfast top` in terminals that say they are larger than any screen: it
# shows the list, with little memory, and goes on when they change.
#
# $HOLDFAST is the command.  Prints TAP.

import fcntl
import os
import pty
import re
import resource
import select
import shutil
import struct
import subprocess
import tempfile
import termios
import time

HOLDFAST = os.environ["HOLDFAST"]
tmp = tempfile.mkdtemp(prefix="holdfast-huge.")
url = "file:%s/locks" % tmp
count = 0


def check(good, name):
    global count
    count += 1
    print("%s %d - %s" % ("ok" if good else "not ok", count, name), flush=True)


def size(fd, rows, columns):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def shows(fd, text):
    """Does it, in a minute?"""
    seen, end = b"", time.monotonic() + 60
    while not re.search(text, seen) and time.monotonic() < end:
        if select.select([fd], [], [], 0.2)[0]:
            try:
                seen += os.read(fd, 65536)
            except OSError:
                break
    return re.search(text, seen) is not None


def begin(rows, columns):
    """The screen in a terminal of that size, with 512 MB of address space."""
    master, slave = pty.openpty()
    size(slave, rows, columns)
    process = subprocess.Popen([HOLDFAST, "top", "-u", url], stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
                               env=dict(os.environ, TERM="xterm", LC_ALL="C.UTF-8"),
                               preexec_fn=lambda: (resource.setrlimit(resource.RLIMIT_AS, (512 << 20, 512 << 20)),
                                                   fcntl.ioctl(0, termios.TIOCSCTTY, 0)))
    os.close(slave)
    return process, master


def end(process, fd):
    os.write(fd, b"q")
    shows(fd, rb"\x1b\[\?1049l")
    ret = process.wait()
    os.close(fd)
    return ret == 0


holder = subprocess.Popen([HOLDFAST, "run", "-u", url, "the-key", "--", "sh", "-c", "echo; cat"], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE)
top = None
try:
    holder.stdout.readline()
    for rows, columns in ((24, 80), (500, 2000), (3000, 10), (32000, 32000), (65535, 65535)):
        top, fd = begin(rows, columns)
        word = rb"too small" if columns < 40 else rb"the-key"
        check(shows(fd, word), "a terminal of %d x %d has a screen" % (rows, columns))
        check(end(top, fd), "which ends")
    top, fd = begin(24, 80)
    shows(fd, rb"the-key")
    for rows, columns in ((65535, 65535), (20, 60), (1000, 5000)):
        size(fd, rows, columns)
        check(shows(fd, rb"the-key"), "it goes on with %d x %d" % (rows, columns))
    check(end(top, fd), "and ends")
finally:
    if top and top.poll() is None:
        top.kill()
        top.wait()
    holder.stdin.close()
    holder.wait()
    shutil.rmtree(tmp)
print("1..%d" % count)
