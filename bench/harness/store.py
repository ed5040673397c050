# SPDX-License-Identifier: MIT
"""The file of results: one JSON object a line, replaced question by question.

Every record names its service, its question and the run that it is of (the
moment at which that began).  When a question has been answered, its records
take the place of those that an earlier run left there; all others stay.  So a
run of one service mends the figures of that service only, and a run that is cut
off leaves every question that it has finished.  What is said of the machine
stays as long as there is a figure of that run.

The file is written beside its place and then put there, so it is always whole.
"""
import json
import os


def load(path):
    try:
        with open(path) as file:
            return [json.loads(line) for line in file if line.strip()]
    except FileNotFoundError:
        return []


def save(path, records):
    with open(path + ".new", "w") as file:
        file.writelines(json.dumps(one) + "\n" for one in records)
    os.replace(path + ".new", path)


def key_of(one):
    return one.get("service"), one.get("question")


def is_figure(one):
    return "machine" not in one


class Store:
    def __init__(self, path, run):
        self.path, self.run = path, run

    def replace(self, service, question, records, partial=False):
        """Put the records of one question there.  Those of one that was cut
        off are worth less than any that are there."""
        if not self.path or not records:
            return
        every, key = self.there(), (service, question)
        if partial and any(key_of(one) == key for one in every):
            return
        every = [one for one in every if key_of(one) != key]
        every += [{"run": self.run, "service": service, "question": question, **one}
                  for one in records]
        runs = {one.get("run") for one in every if is_figure(one)} | {self.run}
        save(self.path, [one for one in every
                         if is_figure(one) or one.get("run") in runs])

    def machine(self, records):
        """What is known of the machine in this run, beside what is there."""
        if self.path:
            save(self.path, self.there() + [dict(one, run=self.run) for one in records])

    def there(self):
        """What earlier runs have left; what is of no run is not of this format."""
        return [one for one in load(self.path) if "run" in one]
