# SPDX-License-Identifier: MIT
"""Quartiles, verdicts, the table, the file of results and the progress line.

The rules are those of bench/bench.h: a ratio is formed within a round before
the median is taken; a target is met or missed if both quartiles say so, else
undecided; quartiles further apart than a quarter of the median rank nothing.
"""
import os
import sys
import time

SPREAD_MAX = 0.25


def quantile(values, q):
    values = sorted(values)
    at = q * (len(values) - 1)
    low = int(at)
    if low + 1 >= len(values):
        return values[-1]
    return values[low] + (at - low) * (values[low + 1] - values[low])


def quartiles(values):
    return [quantile(values, q) for q in (0.25, 0.5, 0.75)]


class Goal:
    def __init__(self, sense, target):
        self.sense, self.target = sense, target

    def meets(self, value):
        if self.sense == "at most":
            return value <= self.target
        return value >= self.target

    def verdict(self, low, high):
        low, high = self.meets(low), self.meets(high)
        return "met" if low and high else "undecided" if low or high else "missed"


def rankable(stat):
    low, middle, high = stat
    return middle > 0 and (high - low) / middle <= SPREAD_MAX


def number(value):
    if value is None:
        return "-"
    if value == 0 or abs(value) >= 100:
        return "%.0f" % value
    return "%.3g" % value


def clock(seconds):
    return "%d:%02d" % (seconds // 60, seconds % 60)


class Report:
    def __init__(self, service, store):
        self.service, self.store = service, store
        self.question = "?"
        self.kept = []  # (question, record) that are not in the file yet
        self.begin = float(os.environ.get("BENCH_BEGIN") or time.monotonic())
        self.expected = float(os.environ.get("BENCH_EXPECTED") or 0)
        self.where = os.environ.get("BENCH_WHERE") or service
        self.shown = False

    def record(self, question=None, **members):
        members = {key: value for key, value in members.items() if value is not None}
        self.kept.append((question or self.question, members))

    def finish(self, seconds):
        """A question is answered, unless it was not one for this service: then
        nothing was recorded, and what was answered before stays."""
        if self.kept:
            self.record(seconds=seconds)
        self.commit()

    def commit(self, partial=False):
        """Put what has been recorded into the file, question by question."""
        for question in dict.fromkeys(question for question, _ in self.kept):
            self.store.replace(self.service, question, [
                members for one, members in self.kept if one == question], partial)
        self.kept.clear()

    def heading(self, question, text):
        self.clear()
        self.question = question
        print("\n%s: %s" % (self.service, text), flush=True)

    def columns(self, *names):
        print("    %-30s" % "" + "".join("%11s" % name for name in names), flush=True)

    def row(self, name, values, note=""):
        self.clear()
        print("    %-30s" % name + "".join("%11s" % number(value) for value in values)
              + ("  " + note if note else ""), flush=True)

    def note(self, text):
        self.clear()
        print("    " + text, flush=True)

    def judge(self, what, stat, unit, goal, **members):
        """Hold a figure against its target, in words and in the file."""
        verdict = goal.verdict(stat[0], stat[2])
        self.clear()
        print("  > %s  %s %s, target %s %s: %s" % (
            what, number(stat[1]), unit, goal.sense, number(goal.target), verdict))
        if verdict == "undecided":
            print("    the quartiles %s and %s lie on both sides of the target"
                  % (number(stat[0]), number(stat[2])))
        if not rankable(stat) and stat[0] != stat[2]:
            print("    spread %.0f %%: too large to rank"
                  % ((stat[2] - stat[0]) * 100 / stat[1] if stat[1] else 0))
        sys.stdout.flush()
        self.record(what=what, unit=unit, q1=stat[0], median=stat[1], q3=stat[2],
                    sense=goal.sense, target=goal.target, verdict=verdict,
                    rankable=rankable(stat) or stat[0] == stat[2], **members)

    def progress(self, text):
        if not sys.stderr.isatty():
            return
        now = time.monotonic() - self.begin
        about = " of about %s" % clock(self.expected) if self.expected else ""
        line = "%s, %s%s: %s, %s" % (self.where, clock(now), about, self.question, text)
        sys.stderr.write("\r\033[K" + line[:os.get_terminal_size(2).columns - 1])
        sys.stderr.flush()
        self.shown = True

    def clear(self):
        if self.shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
            self.shown = False
