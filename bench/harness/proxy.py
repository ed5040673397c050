# SPDX-License-Identifier: MIT
"""A proxy that counts what a candidate sends, and can make the server vanish.

It is slow, and no time is taken through it.  What counts as one request is
read from the protocol itself, so that pipelining hides nothing:

    redis      a command               etcd      a message of gRPC
    zk         a packet, pings too     consul    a request of HTTP
    postgres   an execution or query   mysql     a command packet
"""
import re
import socket
import threading


class Redis:
    def __init__(self):
        self.buffer = b""
        self.left = 0  # arguments of the command that is being read

    def feed(self, data):
        count = 0
        self.buffer += data
        while b"\r\n" in self.buffer:
            head, rest = self.buffer.split(b"\r\n", 1)
            if head[:1] == b"$":
                size = int(head[1:]) + 2
                if len(rest) < size:
                    break
                rest = rest[size:]
                self.left -= 1
            else:
                self.left = int(head[1:]) if head[:1] == b"*" else 0
            if self.left == 0:
                count += 1
            self.buffer = rest
        return count


class Http:
    pattern = re.compile(rb"(?:GET|PUT|POST|DELETE) /v1/[^ ]* HTTP/1")

    def feed(self, data):
        return len(self.pattern.findall(data))


class Frames:
    """Messages with a length in front: `head` bytes, told by size()."""
    head = 4

    def __init__(self):
        self.buffer = b""

    def feed(self, data):
        count = 0
        self.buffer += data
        while len(self.buffer) >= self.head:
            size = self.size(self.buffer)
            if len(self.buffer) < size:
                break
            count += self.counts(self.buffer[:size])
            self.buffer = self.buffer[size:]
        return count


class ZooKeeper(Frames):
    def __init__(self):
        super().__init__()
        self.greeted = False

    def size(self, data):
        return 4 + int.from_bytes(data[:4], "big")

    def counts(self, _message):
        was, self.greeted = self.greeted, True
        return was


class Postgres(Frames):
    head = 8

    def __init__(self):
        super().__init__()
        self.greeted = False
        self.head = 8

    def size(self, data):
        if self.greeted:
            return 1 + int.from_bytes(data[1:5], "big")
        return int.from_bytes(data[:4], "big")

    def counts(self, message):
        if self.greeted:
            return message[:1] in b"QE"
        # A request for encryption comes before the greeting proper.
        self.greeted = message[4:8] not in (b"\x04\xd2\x16\x2f", b"\x04\xd2\x16\x30")
        self.head = 5 if self.greeted else 8
        return 0


class MySQL(Frames):
    def size(self, data):
        return 4 + int.from_bytes(data[:3], "little")

    def counts(self, message):
        return message[3] == 0


class Etcd(Frames):
    head = 9
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

    def feed(self, data):
        if data.startswith(self.preface):
            data = data[len(self.preface):]
        return super().feed(data)

    def size(self, data):
        return 9 + int.from_bytes(data[:3], "big")

    def counts(self, frame):
        return frame[3] == 0 and len(frame) > 9


class Proxy:
    """Listens on a port of its own and passes everything on to `port`."""

    def __init__(self, port, protocol):
        self.to = port
        self.protocol = protocol
        self.count = 0
        self.gone = threading.Event()
        self.lock = threading.Lock()
        self.server = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.server.getsockname()[1]
        self.ends = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                here, _ = self.server.accept()
            except OSError:
                return
            self.ends.append(here)
            if self.gone.is_set():
                continue
            there = socket.create_connection(("127.0.0.1", self.to))
            self.ends.append(there)
            for end in (here, there):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for a, b, count in ((here, there, self.protocol()), (there, here, None)):
                threading.Thread(target=self.pump, args=(a, b, count), daemon=True).start()

    def pump(self, source, sink, counter):
        try:
            while True:
                data = source.recv(65536)
                if not data:
                    break
                if counter:
                    found = counter.feed(data)
                    with self.lock:
                        self.count += found
                if not self.gone.is_set():
                    sink.sendall(data)
            if not self.gone.is_set():
                sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def vanish(self):
        """From now on nothing gets through and nobody is told."""
        self.gone.set()

    def close(self):
        for end in [self.server] + self.ends:
            try:
                end.close()
            except OSError:
                pass
