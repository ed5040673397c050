#!/usr/bin/python3
# SPDX-License-Identifier: MIT
#
# news.py - what holdfast serve tells while locks are renewed, waited for and
# lost: differences, names, losses.
#
# $HOLDFAST is the command, $HOLD holds many locks.  Prints TAP.

import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request

from tap import check, finish, result, running, start, stop

HOLDFAST, HOLD = os.environ["HOLDFAST"], os.environ["HOLD"]
LOCKS = 300
HOSTILE = '</script><img src=x onerror="x">\x1b[2J'
tmp = tempfile.mkdtemp(prefix="holdfast-news.")
url = "sqlite:%s/locks.db?ttl=8s" % tmp


def run(key, note):
    """Held once this has returned, until stdin ends."""
    return start(HOLDFAST, "run", "-u", url, "--note", note, key, "--", "sh", "-c", "echo; cat")[0]


def wait_for(key, note):
    process = subprocess.Popen([HOLDFAST, "run", "-u", url, "--note", note, key, "--", "cat"],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    running.append(process)
    return process


def end(process):
    process.stdin.close()
    process.wait()
    running.remove(process)


def messages(address):
    """What the stream tells."""
    for line in urllib.request.urlopen(address + "events", timeout=120):
        if line.startswith(b"data: "):
            yield json.loads(line[6:])


def get(address, path):
    return urllib.request.urlopen(address + path, timeout=60).read().decode()


def told_once(news):
    """The table, and then numbers for what was only renewed."""
    ids, again, leases = {}, 0, []
    for message in news:
        for lock in message["locks"]:
            again += lock["id"] in ids
            ids[lock["id"]] = lock["key"]
        leases += message.get("leases", [])
        if len(ids) >= LOCKS + 7 and len(leases) >= 2 * LOCKS:
            break
    check(len(ids) == LOCKS + 7, "every lock is told", len(ids))
    check(again == 0, "and not again when it is renewed", again)
    check(all(number in ids and 0 <= left <= 8000 for number, left in leases),
          "but its number and what is left of its lease", leases[:3])


def queue(news, address):
    """Who waits, by name and in order."""
    names = ["first " + HOSTILE, "second"]
    waiters = []
    for n, note in enumerate(names):
        waiters.append(wait_for("job", note))
        locks = []
        for message in news:
            locks += [lock for lock in message["locks"]]
            if any(lock["key"] == "job" and lock.get("waiters") == n + 1 for lock in locks):
                break
        check(all(lock["key"] == "job" for lock in locks), "waiter %d changes one lock" % (n + 1),
              [lock["key"] for lock in locks])
    answer = json.loads(get(address, "api/holders?service=0&key=job"))
    check([w["note"] for w in answer["queue"]] == names, "the queue has names, in order", answer["queue"])
    check([w["place"] for w in answer["queue"]] == [1, 2], "and places", answer["queue"])
    status = json.loads(subprocess.run([HOLDFAST, "status", "-u", url, "--json", "job"],
                                       capture_output=True, text=True).stdout)
    check([w["note"] for w in status["queue"]] == names, "holdfast status has the same", status["queue"])
    said = subprocess.run([HOLDFAST, "status", "-u", url, "job"], capture_output=True, text=True).stdout
    check("\n  waiter 1: first " in said and "\n  waiter 2: second\n" in said and "\x1b" not in said,
          "and in words", said)
    return waiters


def releases(news, holder):
    """A release is no loss."""
    what = set()
    end(holder)
    for message in news:
        what |= {event["what"] for event in message["events"] if event["key"] == "other"}
        if what:
            break
    check(what == {"free"}, "a lock that is released is free", what)


def losses(news, address, holder):
    """Holders that die."""
    what = set()
    holder.kill()
    holder.wait()
    running.remove(holder)
    for message in news:
        what |= {event["what"] for event in message["events"] if event["key"].startswith("order/")}
        if "free" in what:
            break
    check("lapsed" in what, "a lock that nobody renews has lapsed", what)
    lapses = [line for line in get(address, "metrics").splitlines() if line.startswith("holdfast_lapses_observed_total{")]
    check(len(lapses) == 1 and int(lapses[0].split()[-1]) > 0, "the metrics count it", lapses)


def short():
    """A lease that is over before the next listing is refreshed by itself."""
    db = "sqlite:%s/short.db" % tmp
    holder, _ = start(HOLDFAST, "run", "-u", db, "-t", "4s", "short", "--", "sh", "-c", "echo; cat")
    server, line = start(HOLDFAST, "serve", "-u", db, "-l", "127.0.0.1:0")
    address = line.rsplit(" ", 1)[-1]
    while '"short"' not in get(address, "api/locks"):
        pass
    left = []
    for _ in range(48):
        time.sleep(0.25)
        left.append(json.loads(get(address, "api/locks"))["locks"][0]["left_ms"])
    check(left.count(0) < len(left) / 4, "a short lease that is renewed is not shown as over", left)
    end(holder)
    stop(server)


def main():
    short()
    holder, _ = start(HOLD, url, str(LOCKS))
    job, other = run("job", "holder"), run("other", "other")
    server, line = start(HOLDFAST, "serve", "-u", url, "-l", "127.0.0.1:0")
    address = line.rsplit(" ", 1)[-1]
    while get(address, "api/locks").count('"key"') < LOCKS + 7:
        pass
    news = messages(address)
    told_once(news)
    waiters = queue(news, address)
    releases(news, other)
    losses(news, address, holder)
    metrics = get(address, "metrics")
    for name in ("service_up", "round_trip_seconds", "locks_held", "lock_holders", "lock_waiters", "grants_observed_total",
                 "handovers_observed_total", "breaks_observed_total", "oldest_grant_seconds", "oldest_waiter_seconds",
                 "lease_left_seconds", "hold_seconds_bucket", "first_in_line_seconds_bucket"):
        check("\nholdfast_%s{" % name in metrics, "there is holdfast_" + name, metrics[:200])
    end(job)
    for waiter in waiters:
        end(waiter)
    check(stop(server) == 0, "it ends when it is told to")


try:
    main()
finally:
    finish()
    shutil.rmtree(tmp)
result()
