#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
#
# table.py PAGE SERVICES DIR - put the sums that sums.py keeps in DIR into the
# table between the marks in PAGE; a cell that has none stays.
import pathlib
import sys

sys.dont_write_bytecode = True
import sums

page_path, services_path, kept_path = sys.argv[1:]
FAULTS = {
    "kill": "a client is killed",
    "stop": "a client is stopped",
    "point": "a client is killed or stopped at a chosen point of its code",
    "net": "the network of a client fails",
    "wall": "the wall clock of a client jumps",
    "crash": "a server is killed and started",
    "freeze": "a server is stopped",
    "roll": "servers are restarted one by one",
    "clock": "the clock of a server jumps",
    "drift": "the clocks of servers run 0.9 percent too fast",
    "break": "an operator breaks locks",
    "lie": "a proxy says that what was done has failed",
    "split": "a client and a server are cut off from the others",
    "depose": "a leader is stopped, deposed and goes on",
    "older": "a server restarts with older data",
    "full": "a server is full",
    "sessions": "an operator ends all sessions",
    "failover": "a replica takes over",
    "reshard": "a slot moves to another server",
    "replace": "the database is replaced by an older copy",
}
BEGIN, END = "<!-- torture: begin -->\n", "<!-- torture: end -->"

services = [
    line.split() for line in open(services_path)
    if line.strip() and not line.lstrip().startswith("#")
]
names = [words[0] for words in services]
listed = next(line.split()[3:-1] for line in open(services_path)
              if line.startswith("# name "))

page = open(page_path).read()
head, rest = page.split(BEGIN)
old, tail = rest.split(END)

# What stands there now.
cells = {}
columns = []
for line in old.splitlines():
    parts = [part.strip() for part in line.strip().strip("|").split("|")]
    if line.startswith("| fault"):
        columns = [part.strip("`:") for part in parts[1:]]
    elif line.startswith("| ") and columns:
        for fault, words in FAULTS.items():
            if parts[0] == words:
                for name, text in zip(columns, parts[1:]):
                    cells[name, fault] = text

for cell, f in sums.total(pathlib.Path(kept_path)).items():
    text = "%s: %d, %d, **%d**" % (
        f["promise"], f["operations"], f["faults"], f["violations"])
    if f["overlaps"]:
        text += "; overlaps %d" % f["overlaps"]
    if f["damaged"]:
        text += "; unfenced damage %d" % f["damaged"]
    cells[cell] = text

rows = ["| fault | " + " | ".join("`%s:`" % name for name in names) + " |",
        "|---" * (len(names) + 1) + "|"]
for at, fault in enumerate(listed):
    row = [FAULTS[fault]]
    for service in services:
        promised = service[2 + at]
        row.append("-" if promised == "-" else
                   cells.get((service[0], fault), "not run"))
    rows.append("| " + " | ".join(row) + " |")
open(page_path, "w").write(
    head + BEGIN + "\n".join(rows) + "\n" + END + tail)
