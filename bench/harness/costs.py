# SPDX-License-Identifier: MIT
"""What a lock costs while nothing happens, when all goes away, and when there
are many: requests, memory, processor, loss and growth."""
import time
from concurrent.futures import ThreadPoolExecutor

from .process import Cannot, Dead, cpu_of_all, family, listeners
from .proxy import Proxy
from .report import Goal, quantile
from .services import environment, ports

LEASES = 3  # in the window in which an idle waiter is watched
GROWTH = (1, 10, 100, 1000, 10000, 100000)


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
    names = [name for name in plan.some(team) if name not in team.service.slow]
    waiting = all_at_once(team, names, lambda name: Waiter(team, name)).values()
    time.sleep(0.5)
    for one in waiting:
        one.begin()
    time.sleep(plan.ttl_s * LEASES)
    report.columns("per pair", "idle, /ttl", "idle cpu %", "bare, /ttl")
    for one in waiting:
        one.end(report, plan.ttl_s)
    goal = Goal("at most", 2)
    for one in waiting:
        if one.name == "holdfast" and one.idle is not None:
            report.judge("holdfast, requests of an idle waiter in a lease",
                         [one.idle] * 3, "", goal)


class Waiter:
    """One process that holds a key, one that waits for it, and one that is
    only connected: what the connection costs by itself is no waiter's."""

    def __init__(self, team, name):
        self.name = name
        self.each = self.idle = None
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

    def end(self, report, seconds):
        share = bare = None
        if self.waiter:
            bare = (self.bare.count() - self.bare_before) / LEASES
            self.idle = (self.waiter.count() - self.before) / LEASES
            share = (self.waiter.process.cpu() - self.cpu) * 100 / seconds / LEASES
        report.row(self.name, [self.each, self.idle, share, bare])
        report.record(candidate=self.name, unit="requests", pair=self.each, idle=self.idle,
                      idle_cpu=share, bare=bare, lease_s=seconds)
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

    there = all_at_once(team, [name for name in plan.some(team)
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


# ---- many held ------------------------------------------------------------


def held(team):
    report, plan = team.report, team.plan
    report.heading("held", "locks held and renewed, lease %g s" % plan.held_ttl_s)
    report.columns("locks", "bytes", "rss bytes", "cpu %", "server %", "lost")
    server = family(listeners(set(ports()))) if ports() else []
    for name in plan.some(team):
        for n in plan.held:
            report.progress("%s, %d" % (name, n))
            try:
                held_one(team, name, n, server)
            except Dead as why:
                if not isinstance(why, Cannot):
                    report.note("%s, %d: left out (%s)" % (name, n, why))
                break


def held_one(team, name, n, server):
    report, plan = team.report, team.plan
    process = team.start(name)
    try:
        process.ask("pairs", 3, "warm-" + name.replace(" ", "-"))
        rss = process.rss()
        got, took, size = process.ask("hold", n, int(plan.held_ttl_s * 1000),
                                   int(plan.hold_s * 1000), seconds=plan.hold_s + 60)
        rss = (process.rss() - rss) / max(1, got)
        cpu, there, begin = process.cpu(), cpu_of_all(server), time.monotonic()
        time.sleep(plan.window_s(n))
        seconds = time.monotonic() - begin
        cpu = (process.cpu() - cpu) * 100 / seconds
        there = (cpu_of_all(server) - there) * 100 / seconds if server else None
        why = process.why()
        lost = process.ask("drop", seconds=120)[0]
    finally:
        process.close()
    note = "" if got == n else "all that could be taken in %g s" % plan.hold_s
    if got < n and took / 1e9 < plan.hold_s:
        note = "then it failed: " + why
    report.row(name, [got, size or None, rss, cpu, there, lost], note)
    report.record(candidate=name, x=n, got=got, unit="bytes", median=size or None, rss=rss,
                  cpu=cpu, server_cpu=there, lost=lost, lease_s=plan.held_ttl_s)
    if name == "holdfast" and n == plan.held[-1]:
        # One renewal of each takes the same whatever the lease; the target is
        # for 30 s.
        scaled = cpu * plan.held_ttl_s / 30
        report.judge("%d held, processor for a lease of 30 s" % got, [scaled] * 3,
                     "% of one core", Goal("at most", 10), x=n)
        if got >= 10000 and team.service.server:  # what is there once counts less
            report.judge("%d held, memory" % got, [size] * 3, "bytes a lock",
                         Goal("at most", 512), x=n)
        report.judge("%d held, lost" % got, [lost] * 3, "", Goal("at most", 0), x=n)


# ---- growth ---------------------------------------------------------------


def pair_us(process, plan):
    times = process.ask("pairs", plan.growth_pairs, "beside")
    return quantile(times, 0.5) / 1e3


def growth(team):
    """A pair beside N held locks, after N keys, and beside N that wait."""
    report, plan = team.report, team.plan
    report.heading("growth", "a pair of holdfast beside N others, p50 in us")
    report.columns("N", "held", "keys", "waiting", "take us", "queue us", "drain us")
    for n in GROWTH[:plan.growth]:
        report.progress("%d" % n)
        process = team.start("holdfast")
        begin = time.monotonic()
        try:
            if not growth_one(report, plan, process, n):
                break
        except Dead as why:
            report.note("%d: left out (%s)" % (n, why))
            break
        finally:
            process.close()
        if time.monotonic() - begin > plan.growth_s:
            report.note("no further: %d took %.0f s" % (n, time.monotonic() - begin))
            break


def growth_one(report, plan, process, n):
    process.ask("pairs", plan.growth_pairs, "beside")
    got, ns, _ = process.ask("hold", n, 600000, int(plan.growth_s * 1000),
                             seconds=plan.growth_s + 60)
    if got < n:
        report.note("no further: only %d of %d in %g s" % (got, n, plan.growth_s))
        return False
    beside = pair_us(process, plan)
    process.ask("drop", seconds=plan.growth_s * 4 + 60)
    after = pair_us(process, plan)
    _, queue_ns, size = process.ask("queue", n, seconds=60)
    waiting = pair_us(process, plan)
    drain_ns, = process.ask("unqueue", seconds=plan.growth_s * 10 + 60)
    row = dict(held=beside, keys=after, waiting=waiting, take=ns / n / 1e3,
               queue=queue_ns / n / 1e3, drain=drain_ns / n / 1e3)
    report.row("", [n] + list(row.values()))
    report.record(x=n, unit="us", candidate="holdfast", waiter_bytes=size, **row)
    return True
