#!/usr/bin/python3
# SPDX-License-Identifier: MIT
#
# many.py - hostile clients of holdfast serve: connections without number, requests
# that never end or come byte by byte, streams that nobody reads.  It stays small and answers others,
# and the lock that it shows is touched by nobody.
#
# $HOLDFAST is the command.  Prints TAP.

import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request

from tap import check, finish, result, start, stop

HOLDFAST = os.environ["HOLDFAST"]
tmp = tempfile.mkdtemp(prefix="holdfast-many.")
url = "sqlite:%s/locks.db" % tmp


def table(port):
    with urllib.request.urlopen("http://127.0.0.1:%d/api/locks" % port, timeout=20) as answer:
        return json.load(answer)["locks"]


def connect(port, *parts):
    """Connections that say the beginning of something; those that were not refused."""
    kept = []
    for n in range(600):
        link = socket.socket()
        try:
            link.connect(("127.0.0.1", port))
            link.sendall(parts[n % len(parts)])
            kept.append(link)
        except OSError:
            link.close()
    time.sleep(1)
    open_ones = []
    for link in kept:
        link.setblocking(False)
        try:
            data = link.recv(1)
        except BlockingIOError:
            data = b"-"  # It waits for more.
        except OSError:
            data = b""
        if data:
            open_ones.append(link)
        else:
            link.close()
    return open_ones


def memory(process):
    with open("/proc/%d/status" % process.pid) as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def descriptors(process):
    return len(os.listdir("/proc/%d/fd" % process.pid))


def answers(port, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if len(table(port)) == 1:
                return True
        except OSError:
            pass
        time.sleep(0.1)
    return False


class Drip:
    """Connections that send a byte each second, so that none of them is quiet."""

    def __init__(self, port, begin, number):
        self.open, self.lock, self.ends = [], threading.Lock(), threading.Event()
        for _ in range(number):
            link = socket.create_connection(("127.0.0.1", port))
            link.sendall(begin)
            self.open.append(link)
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.ends.wait(1):
            with self.lock:
                self.open = [link for link in self.open if self.moves(link)]

    @staticmethod
    def moves(link):
        try:
            link.sendall(b"x")
            return link.recv(1, socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def left(self):
        with self.lock:
            return len(self.open)

    def stop(self):
        self.ends.set()
        self.thread.join()
        for link in self.open:
            link.close()


def drips(port):
    host = b"Host: localhost\r\n"
    for what, begin in (("head", b"GET / HTTP/1.1\r\n" + host + b"X: "),
                        ("body", b"POST /api/break HTTP/1.1\r\n" + host + b"Content-Length: 99999\r\n\r\n")):
        few = Drip(port, begin, 5)
        end = time.monotonic() + 90
        while few.left() and time.monotonic() < end:
            time.sleep(0.5)
        check(not few.left(), "a %s that comes byte by byte has its limit" % what, few.left())
        few.stop()
    many = Drip(port, b"GET / HTTP/1.1\r\n" + host + b"X: ", 200)
    refused = 0
    for _ in range(20):
        try:
            refused += len(table(port)) != 1
        except OSError:
            refused += 1
    check(not refused, "and whoever comes meanwhile is answered at once", refused)
    many.stop()


def quick(port):
    """Streams that are closed as soon as they have begun; those that were refused."""
    refused = 0
    for _ in range(300):
        with socket.create_connection(("127.0.0.1", port)) as link:
            link.settimeout(60)
            link.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            said = b""
            while b"data: {" not in said and b" 503 " not in said:
                said += link.recv(65536)
            refused += b" 503 " in said
            time.sleep(0.01)  # It sleeps, and is not looked at.
    return refused


def main():
    holder, _ = start(HOLDFAST, "run", "-u", url, "held", "--", "sh", "-c", "echo $HOLDFAST_FENCE; cat")
    fence = json.loads(subprocess.run([HOLDFAST, "status", "-u", url, "--json", "held"], capture_output=True, text=True).stdout)["fence"]
    server, line = start(HOLDFAST, "serve", "-u", url, "-l", "127.0.0.1:0")
    port = int(line.rsplit(":", 1)[1].rstrip("/"))
    check(answers(port, 60), "a lock is shown")
    refused = quick(port)
    check(not refused, "streams that were closed keep no place", refused)
    before, had = memory(server), descriptors(server)
    host = b"Host: localhost\r\n"
    links = connect(port, b"GET /api/locks HTTP/1.1\r\n" + host, b"", b"POST /api/break HTTP/1.1\r\n" + host + b"Content-Length: 99999999\r\n\r\nx",
                    b"GET /events HTTP/1.1\r\n" + host + b"\r\n", b"\x16\x03\x01\x02\x00\x01\x00" * 9, b"GET " + b"/" * 90000)
    grown, more = memory(server) - before, descriptors(server) - had
    print("# of 600 connections %d are open, and cost %d kB" % (more, grown))
    check(more <= 128, "connections are limited", more)
    check(grown < 64 * 1024, "and so is their memory", grown)
    begin = time.monotonic()
    check(answers(port, 40), "others are answered while they are open")
    print("# after %.1f s" % (time.monotonic() - begin))
    for link in links:
        link.close()
    check(answers(port, 20), "and when they are gone")
    drips(port)
    status = json.loads(subprocess.run([HOLDFAST, "status", "-u", url, "--json", "held"], capture_output=True, text=True).stdout)
    check(status["held"] and status["fence"] == fence and holder.poll() is None, "the lock is held by who had it, with its fence", status)
    check(stop(server) == 0, "it ends when it is told to")


try:
    main()
finally:
    finish()
    shutil.rmtree(tmp)
result()
