#!/usr/bin/python3
# SPDX-License-Identifier: MIT
#
# cost.py - what holdfast serve costs: requests to a service where nothing
# happens, processor time with many locks, without and with somebody who looks,
# and series in the metrics.
#
# $HOLDFAST is the command, $HOLD holds $LOCKS locks of $HF_TEST_URL, for
# $SECONDS seconds; with $LOCKS 0 only what happens where nothing happens is
# measured.  Requests to Consul, which counts none, are counted on the way.
# Prints TAP, and the figures.

import http.client
import os
import re
import socket
import threading
import time
import urllib.request

from tap import check, finish, result, start, stop

HOLDFAST, HOLD = os.environ["HOLDFAST"], os.environ["HOLD"]
URL = os.environ["HF_TEST_URL"]
LOCKS = int(os.environ.get("LOCKS", "10000"))
SECONDS = int(os.environ.get("SECONDS", "60"))
LIMIT = 2.0  # per cent of a core
LEASE = 30  # seconds, the default
READS = {"client", "command", "evalsha", "eval", "exists", "get", "hello", "hget", "hlen", "hmget", "info", "ping", "pttl",
         "quit", "scan", "script", "spublish", "subscribe", "time", "unsubscribe", "zcount", "zscore"}


class Relay:
    """Passes on what is sent to a server, and counts the HTTP requests in it."""

    def __init__(self, host, port):
        self.to, self.made, self.lock = (host, port), {}, threading.Lock()
        self.door = socket.create_server(("127.0.0.1", 0))
        self.port = self.door.getsockname()[1]
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            near = self.door.accept()[0]
            far = socket.create_connection(self.to)
            threading.Thread(target=self.carry, args=(near, far, True), daemon=True).start()
            threading.Thread(target=self.carry, args=(far, near, False), daemon=True).start()

    def carry(self, source, sink, counts):
        try:
            while data := source.recv(65536):
                for name in re.findall(rb"(?m)^([A-Z]+ /\S*) HTTP/1", data) if counts else ():
                    with self.lock:
                        self.made[name.decode()] = self.made.get(name.decode(), 0) + 1
                sink.sendall(data)
        except OSError:
            pass  # One of them is gone, and the other goes with it.
        for link in source, sink:
            try:
                link.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def requests(self):
        with self.lock:
            return dict(self.made)


class Serve:
    """A serve of its own, and how much processor time it has used."""

    def __init__(self, *words):
        self.process, line = start(HOLDFAST, "serve", "-u", WATCHED, "-l", "127.0.0.1:0", *words)
        self.address = line.rsplit(" ", 1)[-1]
        self.clock = ~self.process.pid << 3 | 2  # clock_getcpuclockid(3)
        self.bytes = 0

    def get(self, path):
        return urllib.request.urlopen(self.address + path, timeout=60).read()

    def used(self):
        return time.clock_gettime(self.clock)

    def view(self):
        """Read the stream to its end."""
        stream = urllib.request.urlopen(self.address + "events", timeout=600)

        def read():
            try:
                while data := stream.read1(65536):
                    self.bytes += len(data)
            except http.client.IncompleteRead:
                pass  # It was killed.
        threading.Thread(target=read, daemon=True).start()


def requests():
    """How often each request was made of the service so far; None: it does not say."""
    host, port = re.search(r"//([^:/]*):(\d+)", URL + "//:0").groups()
    if URL.startswith("redis:"):
        with socket.create_connection((host, int(port))) as link:
            link.sendall(b"INFO commandstats\r\nQUIT\r\n")
            text = link.makefile().read()
        found = re.findall(r"^cmdstat_([^:|]*)[^:]*:calls=(\d+)", text, re.M)
    elif URL.startswith("etcd:"):
        text = urllib.request.urlopen("http://%s:%s/metrics" % (host, port)).read().decode()
        found = re.findall(r'^grpc_server_msg_received_total\{grpc_method="(\w+)".* (\d+)$', text, re.M)
    else:
        return relay.requests() if relay else None
    ret = {}
    for name, number in found:
        ret[name] = ret.get(name, 0) + int(number)
    return ret


def idle():
    """Nobody holds a lock, and nobody looks."""
    if requests() is None:
        return
    server = Serve()
    while server.get("api/locks").count(b'"up":true') < 1:
        time.sleep(0.1)
    time.sleep(5)  # It has begun to observe.
    before = requests()
    time.sleep(2 * LEASE)
    after = requests()
    made = {name: n - before.get(name, 0) for name, n in after.items() if n > before.get(name, 0)}
    made.pop("info", None)  # Ours, as is the other.
    made.pop("quit", None)
    print("# nobody holds a lock: %d requests in 2 leases: %s" % (sum(made.values()), made), flush=True)
    check(sum(made.values()) <= 4, "at most 2 requests a lease where nothing happens")
    if URL.startswith("redis:"):
        check(set(after) <= READS, "it writes nothing: %s" % sorted(set(after) - READS))
    check(stop(server.process) == 0, "it ends when it is told to")


def series():
    """Keys are no labels unless that is asked for, and then not all of them."""
    for words, most in ((), 0), (("--label-keys", "order/"), 1000):
        server = Serve(*words)
        while server.get("api/locks").count(b'"key"') < LOCKS:
            time.sleep(0.2)
        metrics = server.get("metrics").decode()
        found = metrics.count("\nholdfast_lock_age_seconds{"), metrics.count(",key=")
        print("# %d locks, serve %s: %d series" % (LOCKS, " ".join(words), sum(line[:1] != "#" for line in metrics.split("\n"))))
        check(found == (most, 2 * most), "%d locks have labels by key" % most)
        stop(server.process)


def busy():
    """Many locks, nobody looks; and one who does."""
    servers = {"nobody looks": Serve(), "one viewer": Serve()}
    for server in servers.values():
        while server.get("api/locks").count(b'"key"') < LOCKS:
            time.sleep(0.2)
    servers["one viewer"].view()
    time.sleep(5)  # The first table is out.
    begin = time.monotonic()
    before = {name: (server.used(), server.bytes) for name, server in servers.items()}
    time.sleep(SECONDS)
    for name, server in servers.items():
        used, sent = server.used() - before[name][0], server.bytes - before[name][1]
        percent = 100 * used / (time.monotonic() - begin)
        print("# %d locks, %s: %.2f %% of a core, %d bytes/s" % (LOCKS, name, percent, sent / SECONDS), flush=True)
        check(percent <= LIMIT, "%d locks, %s: at most %g %% of a core" % (LOCKS, name, LIMIT))


relay, WATCHED = None, URL
if URL.startswith("consul:"):
    relay = Relay(*re.search(r"//([^:/]*):(\d+)", URL).groups())
    WATCHED = re.sub(r"//[^/?]*", "//127.0.0.1:%d" % relay.port, URL)
try:
    idle()
    if not LOCKS:
        result()
    holder, word = start(HOLD, URL, str(LOCKS))
    check(word == "ready", "locks are held")
    busy()
    series()
finally:
    finish()
result()
