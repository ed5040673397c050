# SPDX-License-Identifier: MIT
"""A candidate: a process that answers questions; see bench/cand/cand.h."""
import atexit
import os
import select
import signal
import subprocess
import tempfile
import time

PAGE = os.sysconf("SC_PAGESIZE")
TICKS = os.sysconf("SC_CLK_TCK")


class Dead(Exception):
    """The candidate has died, or does not answer; the text says why."""


class Hung(Dead):
    """It lives and does not answer."""


class Cannot(Dead):
    """It says itself that it cannot do what it was asked."""


def end_all():
    for process in list(Process.alive):
        process.close(patient=False)


class Process:
    """One running candidate.  Everything it prints is an answer."""
    alive = set()  # whatever happens to us, none of them stays behind

    def __init__(self, words, env=None):
        self.err = tempfile.TemporaryFile()
        self.buffer = b""
        try:
            self.child = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=self.err, env=env, bufsize=0, start_new_session=True)
        except OSError as error:
            raise Dead(str(error)) from error
        Process.alive.add(self)
        first = self.line(30)
        if not first.startswith("ready"):
            self.close()
            raise Dead(first)
        self.version = first[5:].strip()

    def why(self):
        self.err.seek(0)
        text = self.err.read().decode(errors="replace").strip().splitlines()
        return text[-1][:200] if text else "it ended"

    def line(self, seconds):
        """The next line that it prints, within so many seconds."""
        end = time.monotonic() + seconds
        while b"\n" not in self.buffer:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.child.stdout], [], [], left)[0]:
                raise Hung("no answer in %g s" % seconds)
            data = os.read(self.child.stdout.fileno(), 1 << 20)
            if not data:
                raise Dead(self.why())
            self.buffer += data
        text, self.buffer = self.buffer.split(b"\n", 1)
        return text.decode()

    def tell(self, *words):
        try:
            self.child.stdin.write((" ".join(map(str, words)) + "\n").encode())
        except OSError as error:
            raise Dead(self.why()) from error

    def hear(self, seconds=30):
        """The answer to the question before: a list of numbers."""
        text = self.line(seconds)
        if not text.startswith("ok"):
            raise Cannot(text)
        return [float(word) for word in text.split()[1:]]

    def ask(self, *words, seconds=30):
        self.tell(*words)
        return self.hear(seconds)

    def cpu(self):
        """Seconds of processor time of its living threads so far."""
        return cpu_of(self.child.pid)

    def cpu_ever(self):
        """The same with threads that have ended, but only to a tick."""
        with open("/proc/%d/stat" % self.child.pid) as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def rss(self):
        with open("/proc/%d/statm" % self.child.pid) as file:
            return int(file.read().split()[1]) * PAGE

    def close(self, patient=True):
        """End it: by the end of its input, or at once where it may be
        waiting for something."""
        Process.alive.discard(self)
        try:
            self.child.stdin.close()
            self.child.wait(2 if patient else 0)
        except (OSError, subprocess.TimeoutExpired):
            pass
        try:
            os.killpg(self.child.pid, signal.SIGKILL)
        except OSError:
            pass
        self.child.wait()
        self.child.stdout.close()
        self.err.close()


atexit.register(end_all)


def cpu_of(pid):
    """Seconds that the living threads of a process have run so far."""
    total = 0
    for task in os.listdir("/proc/%d/task" % pid):
        try:
            with open("/proc/%d/task/%s/schedstat" % (pid, task)) as file:
                total += int(file.read().split()[0])
        except OSError:
            continue
    return total / 1e9


def listeners(ports):
    """The processes that listen on these ports."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table) as file:
            for row in list(file)[1:]:
                fields = row.split()
                if fields[3] == "0A" and int(fields[1].split(":")[1], 16) in ports:
                    inodes.add("socket:[%s]" % fields[9])
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if any(os.readlink("/proc/%s/fd/%s" % (pid, fd)) in inodes
                   for fd in os.listdir("/proc/%s/fd" % pid)):
                found.append(int(pid))
        except OSError:
            continue
    return found


def family(pids):
    """These processes and their children: a server may have several."""
    every = set(pids)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/stat" % pid) as file:
                if int(file.read().rsplit(")", 1)[1].split()[1]) in every:
                    every.add(int(pid))
        except (OSError, IndexError):
            continue
    return every


def cpu_of_all(pids):
    total = 0.0
    for pid in pids:
        try:
            total += cpu_of(pid)
        except OSError:
            continue
    return total
