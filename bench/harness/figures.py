# SPDX-License-Identifier: MIT
"""The file of results, read again, and told as tables of Markdown."""
from .report import number
from .store import load  # noqa: F401

ORDER = ("mem", "file", "sqlite", "redis", "redlock", "etcd", "zk", "consul", "postgres", "mysql")


def services(results, question):
    """The services that answered a question, each with its records, in order."""
    found = {}
    for one in results:
        if one.get("question") == question and "candidate" in one and "verdict" not in one \
                and "service" in one:
            found.setdefault(one["service"], []).append(one)
    return [(name, found[name]) for name in ORDER if name in found]


def limit_of(results, service):
    for one in results:
        if one.get("service") == service and one.get("limit"):
            return one["limit"]
    return None


def names(records):
    return list(dict.fromkeys(one["candidate"] for one in records))


COLUMNS = {
    "pair": ("acquire+release, one thread", (
        ("p50 us", "p50"), ("p99 us", "p99"), ("p99.9 us", "p999"), ("ratio", "ratio"),
        ("q1", "ratio_q1"), ("q3", "ratio_q3"), ("cpu us", "cpu"), ("server cpu us", "server_cpu"),
        ("rounds", "rounds"))),
    "threads": ("pairs a second, every thread on a key of its own", (
        ("threads", "x"), ("median", "median"), ("q1", "q1"), ("q3", "q3"),
        ("cpu us a pair", "cpu"), ("server cpu us", "server_cpu"))),
    "handover": ("contenders in processes of their own, one key", (
        ("contenders", "x"), ("a second", "median"), ("q1", "q1"), ("q3", "q3"),
        ("p50 us", "p50"), ("p99 us", "p99"), ("wait p99 us", "wait_p99"),
        ("fewest/most", "share"))),
    "requests": ("requests to the server", (
        ("per pair", "pair"), ("idle waiter, per lease", "idle"),
        ("to each node", "idle_node"),
        ("only connected, per lease", "bare"), ("idle, cpu %", "idle_cpu"),
        ("lease s", "lease_s"))),
    "loss": ("the server vanishes; the holder knows after", (
        ("s", "median"), ("lease s", "lease_s"))),
    "held": ("locks held and renewed", (
        ("locks", "got"), ("heap bytes each", "median"), ("resident bytes each", "rss"),
        ("cpu %", "cpu"), ("server cpu %", "server_cpu"), ("lost", "lost"),
        ("lease s", "lease_s"), ("of", "x"), ("why not more", "why"))),
    "growth": ("a pair of holdfast beside N others, p50 in us", (
        ("N", "x"), ("held", "held"), ("after N keys", "keys"), ("waiting", "waiting"),
        ("take each", "take"), ("give each", "give"), ("queue each", "queue"),
        ("drain each", "drain"), ("bytes a waiter", "waiter_bytes"))),
}


def cell(value):
    return value.replace("|", "/") if isinstance(value, str) else number(value)


def table(records, columns):
    rows = ["| | " + " | ".join(title for title, _ in columns) + " |",
            "|---|" + "---:|" * len(columns)]
    for one in records:
        mark = "" if one.get("rankable", True) else " *"
        rows.append("| %s%s | " % (one["candidate"], mark) +
                    " | ".join(cell(one.get(key)) for _, key in columns) + " |")
    return "\n".join(rows) + "\n"


def verdicts(results):
    rows = ["| service | what | figure | target | |", "|---|---|---:|---:|---|"]
    place = {name: i for i, name in enumerate(ORDER)}
    for one in sorted(results, key=lambda one: place.get(one.get("service"), -1)):
        if "verdict" in one:
            rows.append("| %s | %s | %s %s | %s %s | %s%s |" % (
                one.get("service", "local"), one["what"], number(one["median"]), one["unit"],
                one["sense"], number(one["target"]), one["verdict"],
                "" if one.get("rankable", True) else " *"))
    return "\n".join(rows) + "\n"


def asked(results):
    """Which questions of each service there are answers to."""
    found = {}
    for one in results:
        if "machine" not in one and "service" in one:
            found.setdefault(one["service"], {})[one["question"]] = True
    return found


def machines(results):
    """What is known of each run, and what is of it."""
    text = []
    for run in dict.fromkeys(one.get("run", "?") for one in results if "machine" in one):
        mine = [one for one in results if one.get("run", "?") == run]
        about, every = asked(mine), asked(results)
        text.append("Run of %s: %s.\n" % (run, "; ".join(
            service if found == every[service] else "%s (%s)" % (service, ", ".join(found))
            for service, found in about.items()) or "all was measured again later"))
        text += ["- %s: %s" % (one["machine"], one["value"]) for one in mine if "machine" in one]
        text.append("")
    return text


def tables(results):
    text = ["# Every figure\n",
            "Made by `bench/plot` from `results.jsonl`; [the page](../bench.md) explains it.\n"
            "A star: the quartiles are further apart than a quarter of the median, so it ranks\n"
            "nothing.\n", "## Machine\n"] + machines(results)
    text.append("## Against the targets\n")
    text.append(verdicts(results))
    for service in ORDER:
        mine = [one for one in results if one.get("service") == service]
        if not mine:
            continue
        text.append("## %s\n" % service)
        text += dict.fromkeys(  # each once, though there may have been several runs
            "- %s %s%s" % (one["candidate"], one.get("version") or "",
                           "left out: " + one["left_out"] if "left_out" in one else "")
            for one in mine if one["question"] == "candidates" and "candidate" in one)
        text.append("")
        for question, (title, columns) in COLUMNS.items():
            found = [one for one in mine if one["question"] == question and "candidate" in one
                     and (question == "loss" or "verdict" not in one)]
            if found:
                text.append(title[:1].upper() + title[1:] + ":\n")
                text.append(table(found, columns))
    return "\n".join(text)
