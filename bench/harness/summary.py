# SPDX-License-Identifier: MIT
"""What the page says of the figures: the short table, and every target.

It stands between two marks in doc/bench.md, and bench/plot writes it there, so
that no figure on the page is older than the file beside it.
"""
from .figures import ORDER, limit_of, machines, verdicts
from .report import number

BEGIN = "<!-- from here to the end mark: written by bench/plot -->\n"
END = "<!-- end of what bench/plot has written -->\n"


def answers(results, service, question, **want):
    return [one for one in results if one.get("service") == service
            and one.get("question") == question and "candidate" in one
            and "verdict" not in one
            and all(one.get(key) == value for key, value in want.items())]


def cell(one, value, more=""):
    """A figure; with a star if its rounds were too far apart to rank it."""
    if one is None or one.get(value) is None:
        return ""
    return number(one[value]) + ("" if one.get("rankable", True) else " *") + more


def beside(found, limit, value, lower):
    """(ours, the limit, the best of the others) of one question."""
    by = {one["candidate"]: one for one in found if one.get(value) is not None}
    bare = ("hiredis", "lib", "raw", "open+", "sqlite3", "pthread")
    peers = [one for name, one in by.items()
             if not name.startswith("holdfast") and name != limit and not name.startswith(bare)]
    best = min(peers, key=lambda one: one[value] if lower else -one[value]) if peers else None
    return by.get("holdfast"), by.get(limit), best


def unfair(one):
    return ", unfair" if one and one.get("share", 1) < 0.5 else ""


def compared(results, title, question, value, lower, unit, **want):
    rows = []
    for service in ORDER:
        found = answers(results, service, question, **want)
        ours, bare, best = beside(found, limit_of(results, service), value, lower)
        if not ours:
            continue
        peer = "%s%s (%s)" % (cell(best, value), unfair(best), best["candidate"]) if best else ""
        rows.append("| %s`%s` | %s%s | %s%s | %s |" % (
            title + ", " if not rows else "", service, cell(ours, value, unit), unfair(ours),
            cell(bare, value), unfair(bare), peer))
    return rows


def alone(results):
    """What only ours is asked, or only ours is interesting in."""
    rows = ["| | requests of an idle waiter in a lease | loss known after, in leases | "
            "100,000 held: bytes each | % of a core | % of a core in the server | "
            "pair beside them / beside one |", "|---|" + "---:|" * 6]
    for service in ORDER:
        idle = (answers(results, service, "requests", candidate="holdfast") or [{}])[0]
        loss = [one for one in results if one.get("service") == service
                and one.get("question") == "loss" and one.get("candidate") == "holdfast"]
        held = answers(results, service, "held", candidate="holdfast", x=100000)
        grown = {one["x"]: one for one in answers(results, service, "growth",
                                                  candidate="holdfast")}
        told = loss[0]["median"] / loss[0]["lease_s"] if loss and loss[0].get("median") else None
        most = held[0] if held else {}
        less = " (%s of them)" % number(most["got"]) if most and most["got"] < 100000 else ""
        steady = None
        if len(grown) > 1 and grown.get(1):
            steady = grown[max(grown)]["held"] / grown[1]["held"]
        each = idle.get("idle_node")
        if not idle and not most:
            continue
        rows.append("| `%s` | %s%s | %s | %s%s | %s | %s | %s |" % (
            service, number(idle.get("idle")),
            ", %s to each node" % number(each) if each is not None else "", number(told),
            number(most.get("median")), less, number(most.get("cpu")),
            number(most.get("server_cpu")), number(steady)))
    return rows


def text(results):
    rows = ["| | holdfast | the limit | best peer |", "|---|---:|---:|---:|"]
    rows += compared(results, "acquire+release, one thread, us", "pair", "p50", True, "")
    rows += compared(results, "pairs a second, 64 threads", "threads", "median", False, "", x=64)
    rows += compared(results, "hand-overs a second, 8 processes", "handover", "median", False, "",
                     x=8)
    return "\n".join(machines(results) + rows + ["", *alone(results), "", "Every target:", "",
                                                 verdicts(results)])


def put(path, results):
    """Write it between the marks, where there are any."""
    try:
        with open(path) as file:
            page = file.read()
    except FileNotFoundError:
        return
    if BEGIN not in page or END not in page:
        return
    head, rest = page.split(BEGIN, 1)
    with open(path, "w") as file:
        file.write(head + BEGIN + "\n" + text(results) + "\n" + END + rest.split(END, 1)[1])
