#!/usr/bin/python3
# SPDX-License-Identifier: MIT
#
# names.py - keys and notes that are no text, or look as if they were none: whoever
# shows them shows no two the same, and a break hits the one that was named.
#
# $HOLDFAST is the command, $TOP says whether it has a top.  Prints TAP.

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

from tap import check, finish, result, running, stop

HOLDFAST = os.environ["HOLDFAST"]
INVISIBLE = "\u00ad\u034f\u115f\u1160\u17b4\u180e\u200d\u202e\u2064\u3164\ufe00\ufe0f\ufeff\uffa0\U0001d173\U000e0001\U000e007f"
KEYS = [b"\xff", b"\xfe", b"\\xff", b"\\\\xff", b"\\\xff", "\ufffd".encode(), b"\xed\xb3\xbf", b"\xc3", b"a\\b",
        b"a\\\\b", b"\\u000a", b"\n", b"\\\n", b"\\", "\N{LOCK}".encode(), *(b"a%sb" % c.encode() for c in INVISIBLE)]
tmp = tempfile.mkdtemp(prefix="holdfast-names.")
url = "sqlite:%s/locks.db" % tmp


def back(text):
    """The bytes of what is told."""
    def one(match):
        return b"\\" if match[0] == b"\\\\" else bytes([int(match[0][2:], 16)])
    return re.sub(rb"\\\\|\\x[0-9a-f]{2}", one, text.encode())


def out(*words):
    return subprocess.run([HOLDFAST, words[0], "-u", url, *words[1:]], capture_output=True, check=True).stdout


def told(locks):
    return sorted((back(lock["key"]), back(lock["note"])) for lock in locks)


def agrees(name, text):
    """Is it UTF-8 without surrogates, and are all there, as what they are?"""
    try:
        seen = told(text())
    except (UnicodeError, ValueError, KeyError) as error:
        seen = error
    check(seen == sorted((key, key) for key in KEYS), name, seen)


def watched():
    """The first line of each key."""
    process = subprocess.Popen([HOLDFAST, "watch", "-u", url, "--prefix", "", "--json"], stdout=subprocess.PIPE)
    lines = [json.loads(process.stdout.readline().decode()) for _ in KEYS]
    process.terminate()
    process.wait()
    process.stdout.close()
    return lines


def hold(key):
    process = subprocess.Popen([HOLDFAST, "run", "-u", url, "--grace", "1s", "--note", key, key, "--", "sh", "-c", "echo; cat"],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    running.append(process)
    process.stdout.readline()
    return process


def serve():
    process = subprocess.Popen([HOLDFAST, "serve", "-u", url, "-l", "127.0.0.1:0", "--allow-break", "--label-keys", ""],
                               stdout=subprocess.PIPE, text=True)
    running.append(process)
    return process, process.stdout.readline().split()[-1]


def get(address):
    return urllib.request.urlopen(address, timeout=60).read().decode()


def broken(address, table, lock):
    """The status of a break of what the table names."""
    query = urllib.parse.urlencode({"run": table["run"], "service": 0, "endpoint": table["services"][0]["endpoint"],
                                    "fence": lock["fence"], "key": back(lock["key"])})
    request = urllib.request.Request(address + "api/break?" + query, method="POST", headers={"X-Holdfast": "break"})
    return urllib.request.urlopen(request, timeout=60).status


def code(address):
    try:
        return urllib.request.urlopen(address, timeout=60).status
    except urllib.error.HTTPError as error:
        return error.code


def main():
    holders = {key: hold(key) for key in KEYS}
    agrees("ls --json", lambda: json.loads(out("ls", "--json").decode()))
    agrees("status --json", lambda: [json.loads(out("status", "--json", key).decode()) for key in KEYS])
    agrees("watch --json", watched)
    if os.environ.get("TOP"):
        agrees("top --once --json", lambda: json.loads(out("top", "--once", "--json").decode()))
    lines = [line.split(b": held by ")[0] for line in out("ls").splitlines()]
    check(len(set(lines)) == len(KEYS), "ls shows no two the same", lines)
    check(not any(c in line.decode() for line in lines for c in INVISIBLE), "and nothing that nobody sees", lines)
    server, address = serve()
    locks = []
    end = time.monotonic() + 60
    while len(locks) < len(KEYS) and time.monotonic() < end:
        table = json.loads(get(address + "api/locks"))
        locks = table["locks"]
    agrees("/api/locks", lambda: locks)
    labels = re.findall(r'^holdfast_lock_age_seconds\{.*,key="(.*)"\}', get(address + "metrics"), re.M)
    check(len(labels) == len(set(labels)) == len(KEYS), "/metrics has a series for each", labels)
    for key in (b"\xff", b"\\xff", b"\\\n"):
        lock = next(lock for lock in locks if back(lock["key"]) == key)
        check(broken(address, table, lock) == 200 and holders.pop(key).wait() == 79, "a break hits %s" % ascii(key))
        check(all(holder.poll() is None for holder in holders.values()), "and nobody else")
    check(code(address + "api/holders?service=0&key=a%00b") == 400, "no key has a NUL")
    check(stop(server) == 0, "it ends when it is told to")


try:
    main()
finally:
    finish()
    shutil.rmtree(tmp)
result()
