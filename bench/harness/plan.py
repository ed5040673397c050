# SPDX-License-Identifier: MIT
"""How long and how often each question is asked, and how long all will take.

There are three plans: QUICK, within a minute for a service; the usual one, all
services within 28 minutes on two processors; and LONG, for narrower quartiles.
Time goes where it decides something: every candidate gets a few rounds of
every size, and then those sizes and candidates that a target is set for get
some seconds more.  A question may take its time, or what the least number of
rounds needs; after PATIENCE times its time the rounds that are there must do, if
there are FEWEST.
"""
CONTENDERS = (2, 8, 32)
GROWTH = (1, 10, 100, 1000, 10000, 100000)
PATIENCE = 2.5
FEWEST = 2
LEASES = 3  # in the window in which an idle waiter is watched

# Microseconds that one of many locks takes: to take, to give back, and to wait
# and be served, together.  Only the forecast needs them.
EACH_US = {"mem": 6, "file": 60, "sqlite": 90, "redis": 90, "redlock": 500, "etcd": 260,
           "zk": 620, "consul": 900, "postgres": 280, "mysql": 380}
# How many peers of a service can hold many.
HOLDERS = {"redis": 1, "etcd": 1, "zk": 1}
# Seconds until one process of a peer is there, with the others'.
PEER_S = 0.12
# Seconds until the server is there and its candidates are, and those of the
# programs that only one service is asked by (see bench/all).
START_S = {"mem": 1, "file": 1, "sqlite": 1, "redis": 3, "redlock": 3, "etcd": 3, "zk": 8,
           "consul": 6, "postgres": 4, "mysql": 4}
INSIDE_S = {"mem": 32, "file": 26, "redlock": 12, "postgres": 16}
QUICK_INSIDE_S = {"mem": 8, "file": 8, "redlock": 12, "postgres": 6}


def choose(quick, usual, long):
    return {"quick": quick, "usual": usual, "long": long}


# Seconds unless it says otherwise.
TABLE = {
    "least": choose(5, 15, 30),           # rounds of pairs
    "least_many": choose(2, 3, 7),        # rounds of everything else
    "round_ns": choose(30e6, 40e6, 50e6),  # of pairs, for each candidate
    "pair_s": choose(5, 12, 30),
    "many_ms": choose(60, 100, 200),
    "threads_s": choose(6, 15, 50),
    "handover_s": choose(7, 28, 80),
    "contend_ms": choose(200, 300, 500),
    "keen_s": choose(1, 8, 25),           # more, for those who are judged
    "ttl_s": choose(1.5, 3, 5),
    "held": choose((10000,), (100, 10000, 100000), (100, 10000, 100000)),
    "held_ttl_s": choose((3,), (6, 6, 30), (30, 30, 30)),
    "hold_s": choose(2, 60, 300),         # to take one number of locks, or to give
    "peer_hold_s": choose(2, 6, 60),
    "growth": choose(5, 6, 6),            # how many of GROWTH
    "growth_pairs": choose(100, 500, 1000),
    "patience": choose(4, 10, 15),
}


# What is made shorter where the services before took longer than planned.
HURRIED = ("pair_s", "threads_s", "handover_s", "keen_s", "hold_s", "peer_hold_s")
SCALE_MIN = 0.4


def scale_of(left, wanted):
    """By how much: `left` seconds are there for what should take `wanted`."""
    return max(SCALE_MIN, min(1, left / max(1, wanted)))


class Plan:
    """What TABLE says for one service."""

    def __init__(self, name, service, mode, scale=1):
        self.name, self.service, self.mode, self.scale = name, service, mode, scale
        self.quick = mode == "quick"
        self.threads = (1, 4, 16, 64, 256)
        self.ping = None
        for key, value in TABLE.items():
            setattr(self, key, value[mode] * scale if key in HURRIED else value[mode])
        self.slow_ms = self.contend_ms * 2

    def lease_of(self, n):
        """The lease with which n locks are held."""
        return dict(zip(self.held, self.held_ttl_s)).get(n, 600)

    def window_s(self, n):
        """How long held locks are watched: two rounds of renewals."""
        return self.lease_of(n) * 2 / 3

    def warm_pairs(self, name):
        """A virtual machine gets faster with time, and is given some."""
        return 40 if name == "Curator" else 2

    def round_ms(self, name):
        """How long contenders are watched at a time.  Pollers need longer."""
        slow = name in self.service.slow or name in ("redis-py", "node-redlock")
        return self.slow_ms if slow else self.contend_ms

    def some(self, names):
        """Without those that differ in one question only: variants of ours and
        hand-piped loops."""
        return [name for name in names
                if not name.startswith("holdfast ") and "piped" not in name]

    def pairs_of(self, names):
        return [name for name in names if "piped" not in name]

    def threads_of(self, names):
        return [(name, n) for name in names for n in self.threads
                if name not in self.service.slow]

    def keen_threads(self, job):
        """Is it on either side of a target?"""
        return any(job in ((name, n), (other, n))
                   for name, other, n, _ in self.service.goals.get("threads", ()))

    def crowds(self, names):
        """Who contends with how many.  In a hurry only the limit and ours are
        started 32 times."""
        others = [name for name in names
                  if "piped" not in name and not name.endswith(("acquire=set", "fence=off"))]
        return [(name, n) for name in others for n in CONTENDERS
                if n <= self.service.crowd.get(name, 32) and
                (n <= 8 or not self.quick or name in (self.service.limit, "holdfast"))]

    def keen_crowds(self, job):
        goals = self.service.goals.get("handover", {})
        names = ("holdfast", goals.get("rival", ("",))[0], *goals.get("pollers", ((),))[0])
        return bool(goals) and job[1] == 8 and job[0] in names

    def seconds(self, question):
        """What a question will take, about."""
        names = [name for name, _ in self.service.candidates]
        rounds = self.least_many + 1
        if question == "pair":
            return self.pair_s + 1
        if question == "threads":
            keen = self.keen_s if self.service.goals.get("threads") else 0
            return keen + max(self.threads_s,
                              rounds * len(self.threads_of(names)) * self.many_ms / 900)
        if question == "handover":
            return self.handover_seconds(self.crowds(names), rounds)
        if question in ("requests", "loss"):
            if not self.service.protocol:
                return 0
            return (LEASES + 0.6) * self.ttl_s + 4
        return self.many_seconds()

    def handover_seconds(self, jobs, rounds):
        crowds = {name: n for name, n in jobs}  # the largest comes last
        start = sum(PEER_S * n for name, n in crowds.items()
                    if not self.service.is_raw(name) and not name.startswith("holdfast"))
        turns = rounds * sum(self.round_ms(name) / 1000 + 0.1 for name, _ in jobs)
        keen = self.keen_s if self.service.goals.get("handover") else 0
        return keen + max(self.handover_s, start + turns) if jobs else 0

    def many_seconds(self):
        wanted = sum(GROWTH[:self.growth])
        peers = HOLDERS.get(self.name, 0) * (
            sum(self.window_s(n) for n in self.held[:2]) + 1.5 * self.peer_hold_s)
        return (sum(self.window_s(n) for n in self.held) + 1 + peers +
                min(wanted * EACH_US[self.name] / 1e6, 4 * self.hold_s))

    def forecast(self, asked, inside):
        """Seconds for these questions, the server and the programs inside."""
        programs = QUICK_INSIDE_S if self.quick else INSIDE_S
        return (START_S[self.name] + sum(self.seconds(question) for question in asked) +
                (programs.get(self.name, 0) if inside else 0))
