# SPDX-License-Identifier: MIT
"""The pictures of doc/bench/, one function each."""
from .figures import ORDER, limit_of, names, services
from .svg import FAINT, GRID, INK, OURS, Colours, Log, Picture, apart, decades, short

PANEL, TALL, COLUMNS, EDGE = 392, 236, 2, 60


def rows_of(results, question, want):
    """(service, record, value) of all that have the value, with gaps between."""
    found = []
    for service, records in services(results, question):
        found.append((service, [(one, want(one)) for one in records if want(one) is not None]))
    return [(service, rows) for service, rows in found if rows]


def strip(results, question, want, title, below, aim, low=None, high=None, span=None,
          label=None):
    """A row for each candidate, a dot on one logarithmic scale."""
    groups = rows_of(results, question, want)
    values = [value for _, rows in groups for _, value in rows if value]
    if not values:
        return None
    first, last = decades(values + ([aim[0]] if aim else []))
    last = high or last
    scale = Log(low or first, last, 250, 750)
    height = 92 + sum(34 + 22 * len(rows) for _, rows in groups) + 20
    picture = Picture(900, height, title, below)
    for tick in scale.ticks((1, 2, 5) if last / (low or first) <= 1000 else (1,)):
        picture.line(scale(tick), 72, scale(tick), height - 20)
        picture.text(scale(tick), 66, short(tick), size=11, anchor="middle", fill=FAINT)
    if aim:
        picture.line(scale(aim[0]), 72, scale(aim[0]), height - 20, stroke=OURS, dash="5 4")
        picture.text(scale(aim[0]) + 4, height - 6, aim[1], size=11, fill=OURS)
    y = 92
    for service, rows in groups:
        colours = Colours(limit_of(results, service), names([one for one, _ in rows]))
        picture.text(16, y + 4, service, size=13, weight="bold")
        picture.line(16, y + 11, 884, y + 11, stroke=GRID)
        y += 26
        for one, value in rows:
            strip_row(picture, scale, y, one, value, colours[one["candidate"]], span, label)
            y += 22
        y += 8
    return picture.done()


def strip_row(picture, scale, y, one, value, colour, span, label):
    ours = one["candidate"] == "holdfast"
    picture.text(238, y + 4, one["candidate"], anchor="end", fill=INK if ours else FAINT,
                 weight="bold" if ours else "normal")
    if span and span(one):
        low, high = span(one)
        picture.line(scale(low), y, scale(high), y, stroke=colour, width=2)
    hollow = not one.get("rankable", True)
    if value > 10 ** scale.high:
        picture.text(scale.end + 2, y + 4, "\u25b6", size=12, anchor="middle", fill=colour)
    else:
        picture.dot(scale(max(value, 10 ** scale.low)), y, colour, hollow=hollow)
    picture.text(890, y + 4, label(one, value) if label else short(value), size=11,
                 anchor="end", fill=INK if ours else FAINT)


def pair(results):
    return strip(
        results, "pair", lambda one: one.get("ratio"),
        "Acquire and release, one thread: time over that of the bare client library",
        "Median of the rounds and both quartiles; hollow: too far apart to rank. "
        "At the right the ratio, and p50 in us.",
        (1.15, "target 1.15"), low=0.1, high=100,
        span=lambda one: (one["ratio_q1"], one["ratio_q3"]),
        label=lambda one, value: "%s x, %s us" % (short(value), short(one["p50"])))


def idle(results):
    return strip(
        results, "requests", lambda one: one.get("idle_node", one.get("idle")),
        "Requests that an idle waiter sends to the server in one lease",
        "Counted in the protocol; to each of five for redlock. What sends none at all stands "
        "at the left edge.",
        (2, "target 2"), low=0.1)


def loss(results):
    told = {(one["service"], one["candidate"]): one["median"] / one["lease_s"]
            for one in results if one.get("question") == "loss" and one.get("median")}
    if not told:
        return None
    order = sorted(dict.fromkeys((one["service"], one["candidate"]) for one in results
                                 if one.get("question") == "loss" and "candidate" in one),
                   key=lambda key: ORDER.index(key[0]))
    picture = Picture(900, 100 + 22 * len(order),
                      "The server vanishes without a word: when does the holder know?",
                      "In leases, since it vanished. Right of the line somebody else may "
                      "already have the lock.")
    scale = lambda share: 250 + min(share, 2) / 2 * 500  # noqa: E731
    for tick in (0, 0.5, 1, 1.5, 2):
        picture.line(scale(tick), 72, scale(tick), 84 + 22 * len(order),
                     stroke=OURS if tick == 1 else GRID, dash="5 4" if tick == 1 else None)
        picture.text(scale(tick), 66, "%g" % tick, size=11, anchor="middle", fill=FAINT)
    for i, key in enumerate(order):
        y = 92 + 22 * i
        ours = key[1] == "holdfast"
        picture.text(238, y + 4, "%s: %s" % key, anchor="end", fill=INK if ours else FAINT,
                     weight="bold" if ours else "normal")
        colour = OURS if ours else "#d1570c"
        if key in told:
            picture.dot(scale(told[key]), y, colour)
            picture.text(884, y + 4, "%.2f leases" % told[key], size=11, anchor="end", fill=FAINT)
        else:
            picture.text(884, y + 4, "not told within three", size=11, anchor="end", fill=colour)
    return picture.done()


def panels(results, question, title, below, series, x_ticks, y_unit):
    """Small pictures, one for each service.  series(service, records) gives
    {name: [(x, y, hollow)]}."""
    groups = [(service, series(service, records))
              for service, records in services(results, question)]
    groups = [(service, lines) for service, lines in groups if any(lines.values())]
    if not groups:
        return None
    deep = (len(groups) + COLUMNS - 1) // COLUMNS
    picture = Picture(COLUMNS * (PANEL + EDGE) + 20, 64 + deep * (TALL + 44), title, below)
    for i, (service, lines) in enumerate(groups):
        x = 16 + i % COLUMNS * (PANEL + EDGE)
        y = 70 + i // COLUMNS * (TALL + 44)
        panel(picture, x, y, service, lines, x_ticks, y_unit,
              Colours(limit_of(results, service), list(lines)))
    return picture.done()


def panel(picture, x, y, service, lines, x_ticks, y_unit, colours):
    left, right, top, bottom = x + 44, x + PANEL - 92, y + 16, y + TALL
    values = [point[1] for line in lines.values() for point in line]
    down, up = decades(values)
    across = Log(x_ticks[0], x_ticks[-1], left, right)
    scale = Log(down, up, bottom, top)
    picture.text(x, y + 4, service, size=13, weight="bold")
    picture.text(right, y + 4, y_unit, size=11, anchor="end", fill=FAINT)
    for tick in scale.ticks((1,) if up / down > 100 else (1, 3)):
        picture.line(left, scale(tick), right, scale(tick))
        picture.text(left - 6, scale(tick) + 4, short(tick), size=11, anchor="end", fill=FAINT)
    for tick in x_ticks:
        picture.text(across(tick), bottom + 16, short(tick), size=11, anchor="middle",
                     fill=FAINT)
    ends = []
    for name, line in lines.items():
        if not line:
            continue
        points = [(across(a), scale(b)) for a, b, _ in line]
        picture.path(points, colours[name], 3 if name == "holdfast" else 1.8)
        for (px, py), (_, _, hollow) in zip(points, line):
            picture.dot(px, py, colours[name], radius=3.2, hollow=hollow)
        ends.append((points[-1][1], points[-1][0], name))
    for at, real, end_x, name in apart(ends, 13, top, bottom):
        if end_x < right - 1:
            picture.line(end_x + 5, real, right + 4, at, stroke=colours[name], width=0.6)
        picture.text(right + 8, at + 4, name, size=11, fill=colours[name],
                     weight="bold" if name == "holdfast" else "normal")


def by_x(records, value, hollow):
    lines = {}
    for one in records:
        if value(one):
            lines.setdefault(one["candidate"], []).append((one["x"], value(one), hollow(one)))
    return {name: sorted(line) for name, line in lines.items()}


def threads(results):
    return panels(
        results, "threads", "Pairs a second, every thread on a key of its own",
        "By the number of threads of one process. Hollow: the rounds were too far apart to rank.",
        lambda _, records: by_x(records, lambda one: one["median"],
                                lambda one: not one["rankable"]),
        (1, 4, 16, 64, 256), "pairs a second")


def handover(results):
    return panels(
        results, "handover", "Hand-overs a second, contenders in processes of their own, one key",
        "By the number of contenders. Hollow: unfair, one had less than half the turns of another.",
        lambda _, records: by_x(records, lambda one: one["median"] if one["median"] > 0.1 else None,
                                lambda one: one.get("share", 1) < 0.5),
        (2, 8, 32), "hand-overs a second")


def growth(results):
    def series(_, records):
        return {name: [(one["x"], one[key], False) for one in records if one.get(key)]
                for name, key in (("N held", "held"), ("after N keys", "keys"),
                                  ("N waiting", "waiting"))}
    return panels(
        results, "growth", "What a pair costs beside N other locks, keys and waiters",
        "p50 in us of one thread of holdfast; a flat line means that the number does not matter.",
        series, (1, 10, 100, 1000, 10000, 100000), "us")


def held(results):
    """Bytes of one of many locks; the number of them stands beside the name."""
    rows = [dict(one, candidate=one["candidate"] if one["candidate"] != "holdfast" else
                 "holdfast" if one["x"] == 100000 else "holdfast ", rankable=True)
            for one in results if one.get("question") == "held" and "candidate" in one
            and "verdict" not in one and size_of(one) > 0]  # A peer may have shrunk meanwhile.
    return strip(
        rows, "held", size_of,
        "Bytes that a held lock takes, when one process holds many",
        "At the right: how many, bytes each, and how much of a core renewing them takes, here "
        "and in the server.",
        (512, "target 512"), low=100, high=100000,
        label=lambda one, value: "%s: %s B, %s %%, %s %%" % (
            short(one["got"]), short(value), share_of(one, "cpu"), share_of(one, "server_cpu")))


def size_of(one):
    return one.get("median") or one.get("rss") or 0


def share_of(one, key):
    return "%.2g" % one[key] if key in one else "-"


PICTURES = {"pair": pair, "threads": threads, "handover": handover, "idle": idle, "loss": loss,
            "held": held, "growth": growth}
