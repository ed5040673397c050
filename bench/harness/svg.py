# SPDX-License-Identifier: MIT
"""Just enough SVG: shapes, logarithmic axes, and labels that keep apart."""
import math
from xml.sax.saxutils import escape

INK, FAINT, GRID, PAPER = "#1f2328", "#656d76", "#d8dee4", "#ffffff"
OURS, LIMIT, OURS_TOO, RAW = "#0b57d0", "#57606a", "#79aef5", "#a0a8b0"
PEERS = ("#d1570c", "#8250df", "#1a7f37", "#bf3989", "#9a6700")


BARE = ("hiredis", "lib", "raw", "open+", "sqlite3", "pthread")


class Colours:
    """Ours is blue and bare libraries are grey in every picture."""

    def __init__(self, limit, names):
        self.known = {}
        others = [name for name in names
                  if name != limit and not name.startswith(("holdfast",) + BARE)]
        for name in names:
            if name == "holdfast":
                self.known[name] = OURS
            elif name.startswith("holdfast"):
                self.known[name] = OURS_TOO
            elif name == limit:
                self.known[name] = LIMIT
            elif name.startswith(BARE):
                self.known[name] = RAW
            else:
                self.known[name] = PEERS[others.index(name) % len(PEERS)]

    def __getitem__(self, name):
        return self.known.get(name, FAINT)


class Picture:
    def __init__(self, width, height, title, below=""):
        self.width, self.height = width, height
        self.parts = []
        self.text(16, 26, title, size=17, weight="bold")
        if below:
            self.text(16, 46, below, size=12.5, fill=FAINT)

    def add(self, tag, text=None, **members):
        fields = " ".join('%s="%s"' % (key.replace("_", "-"),
                                       "%.1f" % value if isinstance(value, float) else value)
                          for key, value in members.items())
        self.parts.append("<%s %s/>" % (tag, fields) if text is None
                          else "<%s %s>%s</%s>" % (tag, fields, escape(text), tag))

    def text(self, x, y, text, size=12, anchor="start", fill=INK, weight="normal"):
        self.add("text", text, x=float(x), y=float(y), font_size=size, text_anchor=anchor,
                 fill=fill, font_weight=weight)

    def line(self, x1, y1, x2, y2, stroke=GRID, width=1, dash=None):
        more = {"stroke_dasharray": dash} if dash else {}
        self.add("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2),
                 stroke=stroke, stroke_width=width, **more)

    def dot(self, x, y, colour, radius=4.5, hollow=False):
        self.add("circle", cx=float(x), cy=float(y), r=radius, stroke=colour, stroke_width=2,
                 fill=PAPER if hollow else colour)

    def path(self, points, colour, width=2):
        self.add("polyline", points=" ".join("%.1f,%.1f" % point for point in points),
                 fill="none", stroke=colour, stroke_width=width, stroke_linejoin="round")

    def done(self):
        return ('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" '
                'viewBox="0 0 %d %d" font-family="Helvetica, Arial, sans-serif">\n'
                '<rect width="100%%" height="100%%" fill="%s"/>\n%s\n</svg>\n'
                % (self.width, self.height, self.width, self.height, PAPER,
                   "\n".join(self.parts)))


class Log:
    """A logarithmic scale from `low` to `high`, drawn from `start` to `end`."""

    def __init__(self, low, high, start, end):
        self.low, self.high = math.log10(low), math.log10(high)
        self.start, self.end = start, end

    def __call__(self, value):
        share = (math.log10(value) - self.low) / ((self.high - self.low) or 1)
        return self.start + min(1, max(0, share)) * (self.end - self.start)

    def ticks(self, steps=(1,)):
        for power in range(math.floor(self.low) - 1, math.ceil(self.high) + 1):
            for step in steps:
                value = step * 10.0 ** power
                if self.low - 1e-9 <= math.log10(value) <= self.high + 1e-9:
                    yield value


def decades(values, least=1):
    """Powers of ten around the values."""
    low = math.floor(math.log10(min(values)) + 1e-9)
    high = math.ceil(math.log10(max(values)) - 1e-9)
    if high - low < least:
        high = low + least
    return 10.0 ** low, 10.0 ** high


def short(value):
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return "%.3g%s" % (value / size, letter)
    return "%.3g" % value


def apart(labels, gap, low, high):
    """Move labels (y, ...) so that they do not lie on each other."""
    labels = sorted(labels)
    at = []
    for label in labels:
        at.append(max(label[0], at[-1] + gap if at else low))
    over = at[-1] - high if at else 0
    if over > 0:
        at[-1] -= over
        for i in range(len(at) - 2, -1, -1):
            at[i] = min(at[i], at[i + 1] - gap)
    return [(y,) + tuple(label) for y, label in zip(at, labels)]
