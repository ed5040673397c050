#!/usr/bin/python3
# SPDX-License-Identifier: MIT
#
# slow.py - a reader of /events that is slow hears of a lock that is freed while
# it reads the first table, slow readers of /api/locks cost no memory each, and
# streams that nobody reads keep no other out.
#
# $HOLDFAST is the command, $HOLD holds many locks.  Prints TAP.

import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request

HOLDFAST, HOLD = os.environ["HOLDFAST"], os.environ["HOLD"]
LOCKS = int(os.environ.get("LOCKS", "30000"))
tmp = tempfile.mkdtemp(prefix="holdfast-slow.")
url = "sqlite:%s/locks.db" % tmp
running = []


def start(*words):
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    running.append(process)
    return process, process.stdout.readline().strip()


def table(port):
    with urllib.request.urlopen("http://127.0.0.1:%d/api/locks" % port) as answer:
        return answer.read()


def connect(port, path="/events"):
    """A stream that holds as little as can be of what has not been read."""
    ret = socket.socket()
    ret.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    ret.settimeout(60)
    ret.connect(("127.0.0.1", port))
    ret.sendall(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode())
    return ret


def messages(stream):
    """What the stream tells; chunks of HTTP begin with their length."""
    text = stream.makefile("rb")
    while text.readline().strip():
        pass
    data = b""
    while True:
        size = int(text.readline(), 16)
        data += text.read(size)
        text.readline()
        while b"\n\n" in data:
            line, data = data.split(b"\n\n", 1)
            yield json.loads(line[6:]) if line.startswith(b"data: ") else None


def states(stream, key):
    """Whether the key is held, each time that the stream tells, until it has had
    nothing to tell for a while, twice."""
    told = quiet = 0
    for message in messages(stream):
        quiet += message is None
        if quiet == 2:
            return
        if message is None:
            continue
        told += len(message["locks"])
        for lock in message["locks"]:
            if lock["key"] == key:
                yield told, lock["held"]


def memory(process):
    with open("/proc/%d/status" % process.pid) as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def crowd(server, port):
    """Each comes after a while, and would have a text of its own."""
    size, before, most = len(table(port)) // 1024, memory(server), 0
    links = []
    for _ in range(40):
        links.append(connect(port, "/api/locks"))
        links[-1].recv(1)
        most = max(most, memory(server) - before)
        time.sleep(0.2)
    good = most < 10 * size
    print("# 40 slow readers of %d kB: %d kB" % (size, most))
    print("%s 3 - readers of the table share its text" % ("ok" if good else "not ok"), flush=True)
    good = len(json.loads(table(port))["locks"]) >= LOCKS
    print("%s 4 - and whoever comes gets it" % ("ok" if good else "not ok"), flush=True)
    for link in links:
        link.close()


def begins(port):
    """A stream, or None if it is refused."""
    link = connect(port)
    said = b""
    while b"\r\n\r\n" not in said:
        said += link.recv(4096)
    if b" 200 " in said.split(b"\r\n")[0]:
        return link
    link.close()
    return None


class Reader(threading.Thread):
    """Reads a stream until it ends."""

    def __init__(self, link):
        super().__init__()
        self.link = link
        self.start()

    def run(self):
        try:
            while self.link.recv(1 << 20):
                pass
        except OSError:
            pass

    def stop(self):
        """Whether it has not ended before."""
        lives = self.is_alive()
        self.link.shutdown(socket.SHUT_RDWR)
        self.join()
        self.link.close()
        return lives


def unread(port):
    """Streams that nobody reads keep none out, long before their own limit of a minute."""
    reader, links = Reader(begins(port)), []
    while len(links) < 80 and (link := begins(port)) is not None:
        links.append(link)
    link, end = None, time.monotonic() + 30
    while link is None and time.monotonic() < end:
        link = begins(port)
    print("%s 5 - streams that nobody reads keep none out" % ("ok" if link else "not ok"), flush=True)
    print("%s 6 - and who reads stays" % ("ok" if reader.stop() else "not ok"), flush=True)
    for one in links + [link]:
        if one:
            one.close()


def main():
    # "!first" is the first in the order of keys, so the first message has it.
    holder, _ = start(HOLD, url, str(LOCKS))
    victim, _ = start(HOLDFAST, "run", "-u", url, "!first", "--", "sh", "-c", "echo; cat")
    server, line = start(HOLDFAST, "serve", "-u", url, "-l", "127.0.0.1:0")
    port = int(line.rsplit(":", 1)[1].rstrip("/"))
    while table(port).count(b'"key"') <= LOCKS:
        pass
    told = states(connect(port), "!first")
    count, held = next(told)
    good = held and count < LOCKS
    print("%s 1 - the table begins with a lock" % ("ok" if good else "not ok"), flush=True)
    victim.stdin.close()
    victim.wait()
    running.remove(victim)
    while b'"!first"' in table(port):
        pass
    for _, held in told:
        if not held:
            break
    print("%s 2 - and the reader hears that it is free" % ("not ok" if held else "ok"))
    crowd(server, port)
    unread(port)
    server.terminate()
    good = server.wait() == 0
    print("%s 7 - it ends while somebody reads" % ("ok" if good else "not ok"))
    running.remove(server)
    holder.stdin.close()


try:
    print("1..7", flush=True)
    main()
finally:
    for process in running:
        process.kill()
        process.wait()
    shutil.rmtree(tmp)
