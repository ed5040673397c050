# SPDX-License-Identifier: MIT
"""The questions, each asked of every candidate that can answer it."""
import random
import time
from concurrent.futures import ThreadPoolExecutor

from .process import Cannot, Dead, Hung, cpu_of_all, family, listeners
from .plan import FEWEST, PATIENCE
from .report import quantile, quartiles, rankable
from .services import ports


class Team:
    """The candidates of one service.  A dead one is told once and left out of
    the question that killed it."""

    def __init__(self, service, report, plan, start):
        self.service, self.report, self.plan = service, report, plan
        self.start = start  # (name, env) -> Process
        self.names = []
        self.processes = {}

    def get(self, name):
        if name not in self.processes:
            self.processes[name] = self.start(name)
        return self.processes[name]

    def retire(self, name):
        process = self.processes.pop(name, None)
        if process:
            process.close()

    def close(self):
        for name in list(self.processes):
            self.retire(name)


class Rounds:
    """Jobs that are measured in turns.  A job whose candidate dies is dropped,
    and with it what it had so far; the candidate is started again for its other
    jobs, unless it hung."""

    def __init__(self, team, jobs, measure):
        self.team, self.measure = team, measure
        self.alive, self.samples = list(jobs), {job: [] for job in jobs}
        self.silent, self.wasted, self.begin = set(), 0, time.monotonic()

    def spent(self):
        """What those took who answered: who hangs takes nobody's time."""
        return time.monotonic() - self.begin - self.wasted

    def once(self, job, text):
        self.team.report.progress("%s, %s" % (text, " ".join(map(str, flat(job)))))
        at = time.monotonic()
        try:
            self.samples[job].append(self.measure(job))
        except Dead as why:
            self.drop(job, why)
            self.wasted += time.monotonic() - at

    def drop(self, job, why):
        name, note = flat(job)[0], self.team.report.note
        if not isinstance(why, Cannot):
            note("%s: left out (%s)" % (" ".join(map(str, flat(job))), why))
        elif name not in self.silent:
            note("%s: cannot do that" % name)
        self.silent.add(name)
        self.alive.remove(job)
        if isinstance(why, Hung):  # once is enough to wait for
            self.alive = [one for one in self.alive if flat(one)[0] != name]
        self.team.retire(name)

    def round(self, jobs, text="round"):
        for job in jobs:
            if job in self.alive:
                self.once(job, text)

    def shuffled(self, keen=None):
        some = list(filter(keen, self.alive)) if keen else list(self.alive)
        random.shuffle(some)
        return some

    def most(self):
        return max((len(self.samples[job]) for job in self.alive), default=0)


def interleave(team, jobs, seconds, least, measure, keen=None, keen_s=0, most=200):
    """Rounds in random order until the time is over: measure(job) each; and then
    for keen_s more of the keen jobs alone, where there are any."""
    rounds, n = Rounds(team, jobs, measure), 0
    rounds.round(jobs, "warming up")
    for samples in rounds.samples.values():
        samples.clear()  # the warm-up is not counted
    while rounds.alive and n < most and (
            n < FEWEST or rounds.spent() < seconds * PATIENCE) and (
            n < least or rounds.spent() < seconds):
        n += 1
        rounds.round(rounds.shuffled(), "round %d" % n)
    end = rounds.spent() + keen_s
    while keen and any(map(keen, rounds.alive)) and rounds.spent() < end and rounds.most() < most:
        rounds.round(rounds.shuffled(keen), "round %d" % (rounds.most() + 1))
    if rounds.alive and n < least:
        team.report.note("only %d rounds of %d in %.0f s: the machine is busy, or a candidate "
                         "is slow" % (n, least, rounds.spent()))
    return {job: rounds.samples[job] for job in jobs
            if job in rounds.alive and rounds.samples[job]}


def flat(job):
    return job if isinstance(job, tuple) else (job,)


def ratios(over, under):
    """Of two lists of rounds: quartiles of the quotients round by round."""
    return quartiles([a / b for a, b in zip(over, under)])


# ---- acquire and release, one thread ------------------------------------


def pair(team):
    report, plan = team.report, team.plan
    report.heading("pair", "acquire+release, one thread, nobody else")
    n, pool, server = {}, {}, {}

    def measure(name):
        process, key = team.get(name), "key-" + name.replace(" ", "-")
        if name not in n:
            for _ in range(plan.warm_pairs(name)):
                first = process.ask("pairs", 5, key)
            n[name] = max(3, min(2000, int(plan.round_ns / quantile(first, 0.5))))
            process.ask("pairs", n[name], key)
            server[name] = family(listeners(set(ports())))
        cpu, there = process.cpu(), cpu_of_all(server[name])
        times = process.ask("pairs", n[name], key)
        cpu, there = process.cpu() - cpu, cpu_of_all(server[name]) - there
        pool.setdefault(name, []).append((times, cpu * 1e6 / n[name], there * 1e6 / n[name]))
        return quantile(times, 0.5)

    names = plan.pairs_of(team.names)
    found = interleave(team, names, plan.pair_s, plan.least, measure)
    limit = found.get(team.service.limit)
    report.columns("p50 us", "p99", "p99.9", "ratio", "q1", "q3", "cpu us", "server us")
    for name in names:
        if name not in found:
            continue
        every = [ns for one in pool[name][1:] for ns in one[0]]
        here, there = (quantile([one[i] for one in pool[name][1:]], 0.5) for i in (1, 2))
        if name in team.service.slow:  # its time is its children's
            here = None
        tail = [quantile(every, q) / 1e3 for q in (0.5, 0.99, 0.999)]
        ratio = ratios(found[name], limit) if limit else [None] * 3
        unsure = limit and not rankable(ratio)
        report.row(name, tail + [ratio[1], ratio[0], ratio[2], here, there or None],
                   "spread too large to rank" if unsure else "")
        report.record(candidate=name, unit="us", rounds=len(found[name]), pairs=len(every),
                      p50=tail[0], p99=tail[1], p999=tail[2], limit=team.service.limit,
                      ratio_q1=ratio[0], ratio=ratio[1], ratio_q3=ratio[2], cpu=here,
                      server_cpu=there or None, rankable=not unsure)
    for name, goal in team.service.goals.get("pair", {}).items():
        if name in found and limit:
            report.judge("%s / %s" % (name, team.service.limit),
                         ratios(found[name], limit), "x", goal, candidate=name)
    for name, other, goals in team.service.goals.get("bindings", ()):
        if name in found and other in found:
            report.judge("%s / %s, pairs a second" % (name, other),
                         ratios(found[other], found[name]), "x", goals["pair"], candidate=name)


# ---- throughput -----------------------------------------------------------


def threads(team):
    report, plan = team.report, team.plan
    report.heading("threads", "pairs a second, every thread on a key of its own")
    jobs = plan.threads_of(team.names)
    server, spent = {}, {}

    def measure(job):
        process = team.get(job[0])
        here, there = process.cpu_ever(), cpu_of_all(server.get(job, ()))
        count, ns = process.ask("many", job[1], plan.many_ms)
        if job in server:
            used = spent.setdefault(job, [0, 0.0, 0.0])
            used[0] += count
            used[1] += process.cpu_ever() - here
            used[2] += cpu_of_all(server[job]) - there
        else:  # Now that it is connected, the server's processes are all there.
            server[job] = family(listeners(set(ports())))
        return max(1.0, count) * 1e9 / ns

    found = interleave(team, jobs, plan.threads_s, plan.least_many, measure,
                       plan.keen_threads, plan.keen_s)
    report.columns(*["%d thr" % n for n in plan.threads])
    for name in team.names:
        row, unsure = [], False
        for n in plan.threads:
            rounds = found.get((name, n))
            row.append(quantile(rounds, 0.5) if rounds else None)
            if rounds:
                stat = quartiles(rounds)
                unsure |= not rankable(stat)
                count, here, there = spent.get((name, n), (0, 0, 0))
                report.record(candidate=name, x=n, unit="pairs/s", rounds=len(rounds),
                              q1=stat[0], median=stat[1], q3=stat[2], rankable=rankable(stat),
                              cpu=here * 1e6 / max(1, count),
                              server_cpu=there * 1e6 / max(1, count))
        if any(row):
            report.row(name, row, "some spread too much to rank" if unsure else "")
    tell_spent(team, spent)
    for name, other, n, goal in team.service.goals.get("threads", ()):
        if (name, n) in found and (other, n) in found:
            report.judge("%s / %s, %d threads" % (name, other, n),
                         ratios(found[name, n], found[other, n]), "x", goal, x=n)


def tell_spent(team, spent):
    """Processor time of a pair, here and in the server: what a busy machine
    does not change much."""
    report = team.report
    report.note("")
    report.columns("1 thr, us", "server", "64 thr, us", "server")
    for name in team.names:
        row = []
        for n in (1, 64):
            count, here, there = spent.get((name, n), (0, 0, 0))
            row += [here * 1e6 / count, there * 1e6 / count or None] if count else [None, None]
        if any(row):
            report.row(name + ", cpu", row)


# ---- contention -----------------------------------------------------------


def turns_of(answers):
    """From each contender's (asked, got, left)...: all in order of the grants."""
    every = []
    for who, numbers in enumerate(answers):
        for i in range(0, len(numbers), 3):
            every.append((numbers[i + 1], numbers[i + 2], numbers[i], who))
    return sorted(every)


def crowd_round(crowd, key, ms, patience):
    crowd[0].ask("found", key)
    at = time.monotonic_ns() + 20000000
    for process in crowd:
        process.tell("contend", at, ms, key)
    turns = turns_of([process.hear(ms / 1000 + patience) for process in crowd])
    inside = [turn for turn in turns if turn[0] < at + ms * 1000000]
    passed = [b[0] - a[1] for a, b in zip(inside, inside[1:]) if a[3] != b[3]]
    shares = [sum(turn[3] == who for turn in inside) for who in range(len(crowd))]
    waits = [turn[0] - turn[2] for turn in inside]
    return len(passed) * 1000 / ms, passed, waits, min(shares) / max(1, max(shares))


def handover(team):
    report, plan = team.report, team.plan
    jobs = plan.crowds(team.names)
    if not jobs:
        return
    report.heading("handover", "contenders in processes of their own, one key")
    crowds, spent, every, serial = {}, {}, {}, [0]

    def measure(job):
        name, n = job
        crowd = crowds.setdefault(name, [])
        with ThreadPoolExecutor(4) as pool:
            crowd += pool.map(lambda _: team.start(name), range(n - len(crowd)))
        serial[0] += 1
        key = "turn-%s-%d" % (name.replace(" ", "-").replace("%", ""), serial[0])
        try:
            rate, passed, waits, share = crowd_round(crowd[:n], key, plan.round_ms(name),
                                                     plan.patience)
        except Dead:
            for process in crowds.pop(name):
                process.close(patient=False)
            raise
        if job in spent:  # the first time is the warm-up
            every.setdefault(job, []).append((passed, waits, share))
        spent[job] = True
        return max(rate, 1e-3)

    found = interleave(team, jobs, plan.handover_s, plan.least_many, measure,
                       plan.keen_crowds, plan.keen_s)
    for crowd in crowds.values():
        for process in crowd:
            process.close()
    report.columns("contenders", "per s", "p50 us", "p99 us", "wait p99", "share")
    for job in jobs:
        if job in found:
            tell_handover(report, job, found[job], every[job])
    judge_handover(team, found, every)


def tell_handover(report, job, rates, rounds):
    passed = [ns / 1e3 for one in rounds for ns in one[0]] or [float("nan")]
    waits = [ns / 1e3 for one in rounds for ns in one[1]] or [float("nan")]
    share = quantile([one[2] for one in rounds], 0.5)
    low, rate, high = quartiles(rates)
    p50, p99, wait = quantile(passed, 0.5), quantile(passed, 0.99), quantile(waits, 0.99)
    unsure = not rankable((low, rate, high))
    report.row(job[0], [job[1], rate, p50, p99, wait, share],
               "spread too large to rank" if unsure else "")
    clean = {key: value for key, value in dict(p50=p50, p99=p99, wait_p99=wait).items()
             if value == value}
    report.record(candidate=job[0], x=job[1], unit="hand-overs/s", rounds=len(rates), q1=low,
                  median=rate, q3=high, share=share, rankable=not unsure, **clean)


def judge_handover(team, found, every):
    goals, report = team.service.goals.get("handover", {}), team.report
    for name, other, more in team.service.goals.get("bindings", ()):
        if (name, 8) in found and (other, 8) in found:
            report.judge("8 contenders, %s / %s" % (name, other),
                         ratios(found[name, 8], found[other, 8]), "x", more["handover"])
    ours = found.get(("holdfast", 8))
    if not ours:
        return
    if "rival" in goals:
        name, goal = goals["rival"]
        if (name, 8) in found:
            report.judge("8 contenders, holdfast / %s" % name,
                         ratios(ours, found[name, 8]), "x", goal)
    if "pollers" in goals:
        judge_pollers(report, found, every, *goals["pollers"])
    if "trips" in goals and team.plan.ping:
        trip = team.plan.ping() / 2
        report.judge("8 contenders, one-way trips a hand-over",
                     quartiles([1e9 / rate / trip for rate in ours]), "trips", goals["trips"])
    if "share" in goals:
        report.judge("8 contenders, fewest / most turns",
                     quartiles([one[2] for one in every["holdfast", 8]]), "", goals["share"])


def judge_pollers(report, found, every, names, goal):
    """Against the best of those that are as fair as we are.  Who lets one
    process keep the lock hands over nothing and is fast for it."""
    def share(name):
        return quantile([one[2] for one in every[name, 8]], 0.5)

    def best(some):
        return max(some, key=lambda name: quantile(found[name, 8], 0.5))

    there = [name for name in names if (name, 8) in found]
    ours, fair = found["holdfast", 8], [name for name in there
                                        if share(name) >= 0.9 * share("holdfast")]
    if fair:
        report.judge("8 contenders, holdfast / %s, the best fair poller" % best(fair),
                     ratios(ours, found[best(fair), 8]), "x", goal)
    elif there:
        name = best(there)
        stat = ratios(ours, found[name, 8])
        report.note("no poller is as fair; for information: holdfast / %s %.3g x, whose share "
                    "is %.2g" % (name, stat[1], share(name)))
        report.record(what="8 contenders, holdfast / %s, which is not fair" % name, unit="x",
                      q1=stat[0], median=stat[1], q3=stat[2], rankable=rankable(stat))
