#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""sums.py add DIR COMMIT RESULTS   add the rounds of a run to what is kept
sums.py next DIR SERVICE FAULT   the seed with which the next round goes on

DIR/SERVICE keeps what all rounds of a service have come to: a line for each fault,
promise and commit, with the seeds, how many rounds there were, how many of them
broke the promise, and the sums of the figures.  RESULTS has a line for each round:
SERVICE FAULT SEED STATUS PROMISE NAME=NUMBER...

A seed is used once for a fault, so rounds of different runs are different, and a run
that was ended is continued by the next.
"""
import os
import pathlib
import sys

FIGURES = ("operations", "faults", "violations", "overlaps", "damaged")


def read(path):
    """{(fault, promise, commit): {"seeds": [first, last], "rounds": n, ...}}"""
    kept = {}
    if not path.is_file():
        return kept
    for line in path.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        fault, promise, commit, seeds, *words = line.split()
        entry = {name: int(number) for name, number in (word.split("=") for word in words)}
        entry["seeds"] = [int(seed) for seed in seeds.split("-")]
        kept[fault, promise, commit] = entry
    return kept


def write(path, kept):
    """Whole or not at all: what is kept took hours."""
    lines = ["# fault promise commit seeds and sums; see test/torture/sums.py"]
    for (fault, promise, commit), entry in kept.items():
        words = ["%s=%d" % (name, entry[name]) for name in ("rounds", "broken") + FIGURES]
        lines.append(" ".join([fault, promise, commit, "%d-%d" % tuple(entry["seeds"])] + words))
    new = path.with_name(path.name + ".new")
    new.write_text("\n".join(lines) + "\n")
    os.replace(new, path)


def add(directory, commit, results):
    directory.mkdir(parents=True, exist_ok=True)
    for line in results.read_text().splitlines():
        service, fault, seed, status, promise, *words = line.split()
        figures = dict(word.split("=") for word in words)
        if not all(name in figures for name in FIGURES):
            continue  # it ended before it judged anything
        kept = read(directory / service)
        entry = kept.setdefault((fault, promise, commit), {
            "seeds": [int(seed), int(seed)], "rounds": 0, "broken": 0, **dict.fromkeys(FIGURES, 0)})
        entry["seeds"] = [min(entry["seeds"][0], int(seed)), max(entry["seeds"][1], int(seed))]
        entry["rounds"] += 1
        entry["broken"] += status != "0"
        for name in FIGURES:
            entry[name] += int(figures[name])
        write(directory / service, kept)


def next_seed(directory, service, fault):
    used = [entry["seeds"][1] for key, entry in read(directory / service).items() if key[0] == fault]
    return max(used, default=0) + 1


def total(directory):
    """{(service, fault): {"promise": ..., figure: sum}}; the weakest promise counts."""
    sums = {}
    for path in sorted(directory.glob("*")):
        for (fault, promise, _), entry in read(path).items():
            cell = sums.setdefault((path.name, fault), {"promise": promise, **dict.fromkeys(FIGURES, 0)})
            if promise == "fence":
                cell["promise"] = promise
            for name in FIGURES:
                cell[name] += entry[name]
    return sums


if __name__ == "__main__":
    what, directory = sys.argv[1], pathlib.Path(sys.argv[2])
    if what == "add":
        add(directory, sys.argv[3], pathlib.Path(sys.argv[4]))
    elif what == "next":
        print(next_seed(directory, sys.argv[3], sys.argv[4]))
    else:
        sys.exit(__doc__)
