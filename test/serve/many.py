#!/usr/bin/python3
# SPDX-License-Identifier: MIT
#
# many.py - hostile clients of holdfast serve: connections without number, requests
# that never end, streams that nobody reads.  It stays small and answers others,
# and the lock that it shows is touched by nobody.
#
# $HOLDFAST is the command.  Prints TAP.

import json
import os
import shutil
import socket
import subprocess
import tempfile
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


def main():
    holder, _ = start(HOLDFAST, "run", "-u", url, "held", "--", "sh", "-c", "echo $HOLDFAST_FENCE; cat")
    fence = json.loads(subprocess.run([HOLDFAST, "status", "-u", url, "--json", "held"], capture_output=True, text=True).stdout)["fence"]
    server, line = start(HOLDFAST, "serve", "-u", url, "-l", "127.0.0.1:0")
    port = int(line.rsplit(":", 1)[1].rstrip("/"))
    check(answers(port, 60), "a lock is shown")
    before = memory(server)
    host = b"Host: localhost\r\n"
    links = connect(port, b"GET /api/locks HTTP/1.1\r\n" + host, b"", b"POST /api/break HTTP/1.1\r\n" + host + b"Content-Length: 99999999\r\n\r\nx",
                    b"GET /events HTTP/1.1\r\n" + host + b"\r\n", b"\x16\x03\x01\x02\x00\x01\x00" * 9, b"GET " + b"/" * 90000)
    grown = memory(server) - before
    print("# of 600 connections %d are open, and cost %d kB" % (len(links), grown))
    check(len(links) <= 128, "connections are limited", len(links))
    check(grown < 64 * 1024, "and so is their memory", grown)
    begin = time.monotonic()
    check(answers(port, 40), "others are answered while they are open")
    print("# after %.1f s" % (time.monotonic() - begin))
    for link in links:
        link.close()
    check(answers(port, 20), "and when they are gone")
    status = json.loads(subprocess.run([HOLDFAST, "status", "-u", url, "--json", "held"], capture_output=True, text=True).stdout)
    check(status["held"] and status["fence"] == fence and holder.poll() is None, "the lock is held by who had it, with its fence", status)
    check(stop(server) == 0, "it ends when it is told to")


try:
    main()
finally:
    finish()
    shutil.rmtree(tmp)
result()
