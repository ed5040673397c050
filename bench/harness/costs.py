# SPDX-License-Identifier: MIT
"""What a lock costs while nothing happens, when all goes away, and when there
are many: requests, memory, processor, loss and growth."""
import resource
import time
from concurrent.futures import ThreadPoolExecutor

from .plan import GROWTH, LEASES
from .process import Cannot, Dead, cpu_of_all, family, listeners
from .proxy import Proxy
from .report import Goal, quantile
from .services import environment, ports


class Behind:
    """A candidate that reaches the service through proxies of its own."""

    def __init__(self, team, name):
        self.proxies = [Proxy(port, team.service.protocol) for port in ports()]
        self.env = environment(self.proxies)
        self.process = team.start(name, self.env)

    def count(self):
        return sum(one.count for one in self.proxies)

    def close(self):
        self.process.close(patient=False)
        for one in self.proxies:
            one.close()


# ---- requests -------------------------------------------------------------


def all_at_once(team, names, begin):
    """begin(name) for each, side by side; those that can, in order."""
    def attempt(name):
        try:
            return begin(name)
        except Dead as why:
            return why

    with ThreadPoolExecutor(8) as pool:
        found = dict(zip(names, pool.map(attempt, names)))
    for name, one in list(found.items()):
        if isinstance(one, Dead):
            team.report.note("%s: left out (%s)" % (name, one))
            del found[name]
    return found


def requests(team):
    """Requests to the server for one acquisition, and of one that waits."""
    report, plan = team.report, team.plan
    if not team.service.protocol:
        return
    report.heading("requests", "requests to the server, leases of %g s" % plan.ttl_s)
    report.progress("somebody waits")
    names = [name for name in plan.some(team.names) if name not in team.service.slow]
    waiting = all_at_once(team, names, lambda name: Waiter(team, name)).values()
    time.sleep(0.5)
    for one in waiting:
        one.begin()
    time.sleep(plan.ttl_s * LEASES)
    nodes = len(ports())
    report.columns("per pair", "idle, /ttl", "idle cpu %", "bare, /ttl",
                   *["/ttl, node"][:nodes > 1])
    for one in waiting:
        one.end(report, plan.ttl_s, nodes)
    for one in waiting:
        if one.name == "holdfast" and one.idle is not None:
            each = one.idle / nodes
            report.judge("holdfast, requests of an idle waiter in a lease" +
                         (", to each of %d nodes" % nodes if nodes > 1 else ""),
                         [each - 1 / LEASES, each, each],  # the window may cut one
                         "", Goal("at most", 2))
            report.judge("holdfast, processor time of an idle waiter", [one.share] * 3,
                         "% of one core", Goal("at most", 0.1))


class Waiter:
    """One process that holds a key, one that waits for it, and one that is
    only connected: what the connection costs by itself is no waiter's."""

    def __init__(self, team, name):
        self.name = name
        self.each = self.idle = self.share = None
        self.holder = Behind(team, name)
        self.waiter = Behind(team, name)
        self.bare = Behind(team, name)
        key = "idle-" + name.replace(" ", "-")
        ms = str(int(team.plan.ttl_s * 1000))
        process = self.holder.process
        process.ask("pairs", 20, key)
        before = self.holder.count()
        process.ask("pairs", 50, key)
        self.each = (self.holder.count() - before) / 50
        for one in (self.waiter, self.bare):
            try:
                one.process.ask("ttl", ms)
            except Dead:
                pass
            one.process.ask("pairs", 5, key + one.env["HF_TEST_URL"][-3:])
        try:
            process.ask("found", key)
            process.ask("wait", key)
            self.waiter.process.tell("wait", key)
        except Dead:
            self.waiter.close()
            self.waiter = None

    def begin(self):
        if self.waiter:
            self.cpu = self.waiter.process.cpu()
            self.before = self.waiter.count()
            self.bare_before = self.bare.count()

    def end(self, report, seconds, nodes):
        bare = each = None
        if self.waiter:
            bare = (self.bare.count() - self.bare_before) / LEASES
            self.idle = (self.waiter.count() - self.before) / LEASES
            self.share = (self.waiter.process.cpu() - self.cpu) * 100 / seconds / LEASES
            each = self.idle / nodes if nodes > 1 else None
        report.row(self.name, [self.each, self.idle, self.share, bare] + [each][:nodes > 1])
        report.record(candidate=self.name, unit="requests", pair=self.each, idle=self.idle,
                      idle_cpu=self.share, bare=bare, idle_node=each, lease_s=seconds)
        for one in (self.holder, self.waiter, self.bare):
            if one:
                one.close()


# ---- loss -----------------------------------------------------------------


def loss(team):
    """The server vanishes without a word: when does the holder know?"""
    report, plan = team.report, team.plan
    if not team.service.protocol:
        return
    report.heading("loss", "the server vanishes; the holder knows after")

    def begin(name):
        behind = Behind(team, name)
        try:
            behind.process.ask("watch", "loss-" + name.replace(" ", "-"), int(plan.ttl_s * 1000))
        except Dead as why:
            behind.close()
            raise Dead("has no way to tell") from why
        return behind

    there = all_at_once(team, [name for name in plan.some(team.names)
                               if name not in team.service.slow
                               and not team.service.is_raw(name)], begin)
    time.sleep(plan.ttl_s / 2)
    at = time.monotonic_ns()
    for behind in there.values():
        for one in behind.proxies:
            one.vanish()
    end = time.monotonic() + plan.ttl_s * LEASES
    report.columns("s", "lease s")
    for name, behind in there.items():
        report.progress(name)
        tell_loss(report, name, behind, at, end, plan.ttl_s)
        behind.close()


def tell_loss(report, name, behind, at, end, ttl):
    try:
        text = behind.process.line(max(0.1, end - time.monotonic()))
        after = (int(text.split()[1]) - at) / 1e9
    except (Dead, ValueError, IndexError):
        report.row(name, [None, ttl], "not told within three leases")
        report.record(candidate=name, unit="s", lease_s=ttl)
        return
    report.row(name, [after, ttl])
    if name == "holdfast":
        report.judge("holdfast, loss known after", [after] * 3, "s", Goal("at most", ttl),
                     candidate=name, lease_s=ttl)
    else:
        report.record(candidate=name, unit="s", median=after, lease_s=ttl)


# ---- many held, and what a pair costs beside them -------------------------


def pair_us(process, plan):
    times = process.ask("pairs", plan.growth_pairs, "beside")
    return quantile(times, 0.5) / 1e3


def many(team):
    """N locks held by one process, for N up to 100,000: what they cost while
    they are held, and what a pair costs beside them, after their keys, and
    beside N requests that wait.  Recorded as two questions, held and growth."""
    report, plan = team.report, team.plan
    report.heading("held", "N locks held, and a pair of holdfast beside them, p50 in us")
    report.columns("N", "held", "keys", "waiting", "take us", "give us", "queue us", "drain us")
    rows = []
    for n in GROWTH[:plan.growth] if "holdfast" in team.names else ():
        report.progress("%d" % n)
        try:
            if not Many(team, "holdfast", n, rows).grow():
                break
        except Dead as why:
            report.note("%d: left out (%s)" % (n, why))
            break
    for name in plan.some(team.names):
        for n in plan.held[:2] if name != "holdfast" else ():
            report.progress("%s, %d" % (name, n))
            try:
                if not Many(team, name, n, rows).hold():
                    break
            except Dead as why:
                if not isinstance(why, Cannot):
                    report.note("%s, %d: left out (%s)" % (name, n, why))
                break
    tell_held(team, rows)


class Many:
    """One candidate that holds N locks, from its start to its end."""

    def __init__(self, team, name, n, rows):
        self.team, self.name, self.n, self.rows = team, name, n, rows
        self.plan, self.lease = team.plan, team.plan.lease_of(n)
        self.limit = self.plan.hold_s if name == "holdfast" else self.plan.peer_hold_s

    def hold(self):
        process = self.team.start(self.name)
        try:
            self.take(process)
            self.give(process)
        finally:
            process.close()
        return self.got == self.n

    def grow(self):
        """False where it ends: not all could be had, or not all given back."""
        process, row = self.team.start(self.name), {}
        try:
            process.ask("pairs", self.plan.growth_pairs, "beside")
            self.take(process)
            whole = self.got == self.n
            row["held"] = pair_us(process, self.plan) if whole else None
            self.give(process)
            row.update(take=self.took / max(1, self.got) / 1e3, give=self.gave / 1e3)
            if whole and self.given == self.got:
                row.update(self.wait(process))
        finally:
            process.close()
        if whole:
            self.team.report.row("", [self.n] + [row.get(key) for key in (
                "held", "keys", "waiting", "take", "give", "queue", "drain")],
                "" if self.given == self.got else "only %d given back in %g s" % (
                    self.given, self.limit))
            self.team.report.record("growth", x=self.n, unit="us", candidate=self.name, **row)
        return whole and self.given == self.got

    def wait(self, process):
        """A pair after all those keys, and beside as many that wait."""
        keys = pair_us(process, self.plan)
        _, queue_ns, size = process.ask("queue", self.n, seconds=60)
        waiting = pair_us(process, self.plan)
        drain_ns, = process.ask("unqueue", seconds=self.limit + 60)
        return dict(keys=keys, waiting=waiting, queue=queue_ns / self.n / 1e3,
                    drain=drain_ns / self.n / 1e3, waiter_bytes=size)

    def take(self, process):
        """Take them, and see what it costs to keep them."""
        process.ask("pairs", 3, "warm-" + self.name.replace(" ", "-"))
        rss = process.rss()
        self.got, self.took, size = process.ask(
            "hold", self.n, int(self.lease * 1000), int(self.limit * 1000),
            seconds=self.limit + 60)
        self.row = dict(candidate=self.name, x=self.n, got=self.got, lease_s=self.lease,
                        unit="bytes", median=size or None,
                        rss=(process.rss() - rss) / max(1, self.got), why=self.why(process))
        if self.n not in self.plan.held:
            return
        # Only now: a server may have a process for each connection.
        server = family(listeners(set(ports()))) if ports() else ()
        cpu, there, begin = process.cpu(), cpu_of_all(server), time.monotonic()
        time.sleep(self.plan.window_s(self.n))
        seconds = time.monotonic() - begin
        self.row["cpu"] = (process.cpu() - cpu) * 100 / seconds
        if server:
            self.row["server_cpu"] = (cpu_of_all(server) - there) * 100 / seconds

    def why(self, process):
        """Why there are not all, or None."""
        if self.got == self.n:
            return None
        if self.took / 1e9 < self.limit:
            text = process.why()
            if text.endswith("Too many open files"):
                return "a descriptor for each, and this machine allows %d" % (
                    resource.getrlimit(resource.RLIMIT_NOFILE)[1])
            return "the next one failed: " + text
        return "%.0f us each; %g s were given" % (self.took / 1e3 / max(1, self.got), self.limit)

    def give(self, process):
        begin = time.monotonic_ns()
        answer = process.ask("drop", int(self.limit * 1000), seconds=self.limit + 60)
        self.row["lost"] = answer[0]
        self.given = answer[1] if len(answer) > 1 else self.got
        self.gave = (time.monotonic_ns() - begin) / max(1, self.given)
        if self.n in self.plan.held or self.got < self.n:
            self.rows.append(self.row)


def tell_held(team, rows):
    report = team.report
    report.note("")
    report.columns("locks", "bytes", "rss bytes", "cpu %", "server %", "lost", "lease s")
    for row in rows:
        report.row(row["candidate"], [row["got"]] + [row.get(key) for key in (
            "median", "rss", "cpu", "server_cpu", "lost", "lease_s")],
            "of %d: %s" % (row["x"], row["why"]) if row["why"] else "")
        report.record(**row)
    ours = [row for row in rows if row["candidate"] == "holdfast"]
    if ours and "cpu" in ours[-1]:
        judge_held(team, ours)


def each_more(rows):
    """Bytes of one more: what a process has once is in both."""
    (some, less), (most, more) = [(row["got"], row["got"] * row["median"]) for row in rows[-2:]]
    return (more - less) / (most - some)


def judge_held(team, ours):
    """One renewal of each takes the same whatever the lease; the target is for
    30 s."""
    report, row, got = team.report, ours[-1], ours[-1]["got"]
    report.judge("%d held, processor for a lease of 30 s" % got,
                 [row["cpu"] * row["lease_s"] / 30] * 3, "% of one core", Goal("at most", 10),
                 x=row["x"])
    if team.plan.name == "mem":
        pass  # the service itself is in the same memory
    elif got > 10000 and len(ours) > 1 and all(row["median"] for row in ours):
        report.judge("%d held, memory of each beyond %d" % (got, ours[-2]["got"]),
                     [each_more(ours)] * 3, "bytes", Goal("at most", 512), x=row["x"])
    report.judge("%d held, lost" % got, [row["lost"]] * 3, "", Goal("at most", 0), x=row["x"])
