# SPDX-License-Identifier: MIT
"""What goes into the calls, and what comes out of them."""

from __future__ import annotations

import math
from datetime import timedelta
from enum import IntFlag
from functools import lru_cache
from typing import Any, Dict, NamedTuple, Optional, Tuple, TypedDict, Union
from urllib.parse import quote, unquote

from . import _holdfast
from ._errors import Invalid

#: Seconds, or a ``timedelta``.
Duration = Union[float, timedelta]

class LockOptions(TypedDict, total=False):
    """The keyword arguments of everything that takes a lock.

    ``ttl``          the lease, in seconds; 30 if not given
    ``shared``       share the lock with other shared holders
    ``permits``      at most so many holders, each with a ``slot``
    ``owner``        acquisitions with the same id are reentrant
    ``note``         for people who look at the lock
    ``manual``       nobody renews the lock but ``extend()``
    ``fair``         a place of its own in the service's queue
    ``poll``         ask every ``retry`` seconds even where waiters are woken
    ``retry``        seconds between polls
    ``tries``        give up after so many
    ``linger``       keep the lease so long after the last release
    ``max_hold``     lose the lock after so long
    ``min_hold``     released earlier, it stays taken until so long after
    ``local_turns``  hand-overs inside this client in a row; -1: no limit
    """

    ttl: Duration
    shared: bool
    permits: int
    owner: str
    note: str
    manual: bool
    fair: bool
    poll: bool
    retry: Duration
    tries: int
    linger: Duration
    max_hold: Duration
    min_hold: Duration
    local_turns: int


_FLAGS = {
    "manual": _holdfast.MANUAL,
    "fair": _holdfast.FAIR,
    "shared": _holdfast.SHARED,
    "poll": _holdfast.POLL,
}
_KNOWN = frozenset(_FLAGS) | {
    "ttl", "permits", "owner", "note", "retry", "tries", "linger", "max_hold",
    "min_hold", "local_turns",
}


def milliseconds(duration: Optional[Duration]) -> int:
    """Whole milliseconds, never fewer than were asked for; 0 for ``None``."""
    if duration is None:
        return 0
    if isinstance(duration, timedelta):
        duration = duration.total_seconds()
    if not 0 <= duration < 2**53:
        raise Invalid(f"a duration is not negative, and finite: {duration!r}")
    return math.ceil(duration * 1000)


def wait_ms(timeout: Optional[Duration]) -> int:
    """How long to wait for a lock: ``None`` is for ever."""
    return -1 if timeout is None else milliseconds(timeout)


def make_options(options: LockOptions) -> Optional[_holdfast.Options]:
    """What the library wants of the keyword arguments; None for the defaults."""
    return _make_options(tuple(options.items())) if options else None


@lru_cache(maxsize=64)
def _make_options(items: Tuple[Tuple[str, Any], ...]) -> _holdfast.Options:
    """A program uses few combinations, and many times."""
    options = dict(items)
    unknown = options.keys() - _KNOWN
    if unknown:
        raise TypeError(f"unknown option {min(unknown)!r}")
    get = options.get
    flags = 0
    for name, bit in _FLAGS.items():
        if get(name) not in (None, False, True):  # a text that says no counts as true
            raise TypeError(f"{name} must be True or False")
        flags |= bit if get(name) else 0
    return _holdfast.Options(
        milliseconds(get("ttl")), get("owner"), get("note"), flags,
        get("tries") or 0, milliseconds(get("retry")), milliseconds(get("linger")),
        milliseconds(get("max_hold")), get("local_turns") or 0, get("permits") or 0,
        milliseconds(get("min_hold")),
    )


class Trait(IntFlag):
    """What a service promises."""

    FENCED = 1 << 0  #: every grant has a rising number
    LEASED = 1 << 1  #: a lock lapses by itself when it is not renewed
    QUEUED = 1 << 2  #: first come, first served
    NOTIFY = 1 << 3  #: waiters are woken, not polling
    SHARED = 1 << 4  #: ``shared=True`` works
    REENTRANT = 1 << 5  #: owner ids count across processes
    DETACH = 1 << 6  #: ``Lock.detach()`` works
    BREAK = 1 << 7  #: ``Client.break_lock()`` works
    PROCESSES = 1 << 8  #: excludes between processes
    MACHINES = 1 << 9  #: excludes between machines
    DEATH = 1 << 10  #: a dead process frees its locks at once
    TWICE = 1 << 11  #: or only after up to twice the lease
    NOTED = 1 << 12  #: owner id and note are kept with the lock
    PERMITS = 1 << 13  #: ``permits=`` works
    MIN_HOLD = 1 << 14  #: ``min_hold=`` works


class Service(NamedTuple):
    """The service behind a client."""

    scheme: str
    endpoint: str  #: where, without any password
    warning: str  #: what is doubtful about this set-up
    traits: Trait
    ttl: float  #: the lease of a lock that asks for none

    @classmethod
    def _make_from(cls, raw: Tuple[str, str, str, int, int]) -> Service:
        return cls(raw[0], raw[1], raw[2], Trait(raw[3]), raw[4] / 1000)


class ServiceKind(NamedTuple):
    """A kind of service that this build knows."""

    name: str
    schemes: Tuple[str, ...]
    options: Tuple[str, ...]  #: of its URLs
    tested: str  #: versions that the tests run against
    module: str  #: the file that serves it; empty if the library does
    missing: str  #: why that cannot be loaded; empty if it can
    traits: Trait
    varies: Trait  #: traits that some URLs or servers add or remove
    page: str  #: its manual page, in section 7


def services() -> Tuple[ServiceKind, ...]:
    """Every kind of service that this build knows; no server is asked."""
    return tuple(
        ServiceKind(name, tuple(schemes.split()), tuple(options.split()), tested,
                    module, missing, Trait(traits), Trait(varies), page)
        for name, schemes, options, tested, module, missing, traits, varies, page
        in _holdfast.services()
    )


class Info(NamedTuple):
    """A lock as the service showed it; it may be outdated already.

    Numbers are ``None`` where the service does not tell them.
    """

    held: bool  #: the rest describes the first holder
    shared: bool
    fence: int  #: of the newest grant, also when it is free
    left: Optional[float]  #: seconds of the lease
    since: Optional[float]  #: seconds since the grant
    holders: int
    waiters: Optional[int]
    owner: str  #: token or owner id
    note: str
    takeover: Optional[float]  #: if the holder dies, others wait so long at most
    broken: bool  #: stays taken until the holder releases it or its lease ends
    kept: bool  #: released; its ``min_hold`` keeps it
    permits: Optional[int]
    slot: Optional[int]  #: of this holder

    @classmethod
    def _make_from(cls, raw: _holdfast.RawInfo) -> Info:
        def seconds(ms: int) -> Optional[float]:
            return None if ms < 0 else ms / 1000

        (held, shared, fence, left, since, holders, waiters, owner, note, takeover,
         broken, kept, permits, slot) = raw
        return cls(held, shared, fence, seconds(left), seconds(since), holders,
                   None if waiters < 0 else waiters, owner, note,
                   seconds(takeover) or None, broken, kept, permits or None,
                   None if slot < 0 else slot)


class Waiter(NamedTuple):
    """One who waits for a lock."""

    place: int  #: 1 is the next
    permits: Optional[int]  #: it asks for one of so many
    shared: bool
    since: Optional[float]  #: seconds that it has waited
    left: Optional[float]  #: until its place is given up, unless it asks again
    owner: str  #: token or owner id
    note: str

    @classmethod
    def _make_from(cls, raw: Tuple[int, int, bool, int, int, str, str]) -> Waiter:
        place, permits, shared, since, left, owner, note = raw
        return cls(place, permits or None, shared, None if since < 0 else since / 1000,
                   None if left < 0 else left / 1000, owner, note)


class Change(NamedTuple):
    """What an observer has to tell: the state of a key, as it is now."""

    key: str
    info: Info  #: ``held`` is false if nobody has it

    @property
    def leader(self) -> Optional[str]:
        """The note of the holder: the value of a leader.  None if there is none."""
        return self.info.note if self.info.held and not self.info.kept else None


class Collected(NamedTuple):
    """What ``collect()`` has done with the entries of keys that are free."""

    looked_at: int
    removed: int
    kept: int


class Histogram(NamedTuple):
    """Times that something took."""

    count: int  # type: ignore[assignment]  # not that of a tuple
    sum: float  #: seconds
    #: ``buckets[i]`` counts those below 2**i microseconds that are in no earlier
    #: one; the last has the rest.
    buckets: Tuple[int, ...]


class Stats(NamedTuple):
    """What a client has counted since it was opened."""

    granted: int  #: these are acquisitions that have ended, by their status
    busy: int
    timeout: int
    canceled: int
    unavailable: int
    uncertain: int
    failed: int
    wait: Histogram  #: how long acquisitions have waited
    hold: Histogram  #: from grant to release
    renewed: int  #: renewals that were confirmed
    renewals_failed: int
    renewals_late: int  #: confirmed when the lease was over
    margin: Histogram  #: what was left of the lease when a renewal was confirmed
    lost: Dict[str, int]  #: by reason, those that are not 0
    at_risk: int
    taken_back: int  #: claims, in the background
    reconnects: int
    requests: int  #: on Redis, Redlock and etcd; 0 elsewhere
    bytes_sent: int
    bytes_received: int
    held: int  #: now
    waiting: int  #: now

    @classmethod
    def _make_from(cls, raw: _holdfast.RawStats) -> Stats:
        def histogram(of: _holdfast.RawHistogram) -> Histogram:
            count, sum_us, buckets = of
            return Histogram(count, sum_us / 1e6, tuple(buckets))

        (granted, busy, timeout, canceled, unavailable, uncertain, failed, wait, hold,
         renewed, renewals_failed, renewals_late, margin, lost, *rest) = raw
        return cls(granted, busy, timeout, canceled, unavailable, uncertain, failed,
                   histogram(wait), histogram(hold), renewed, renewals_failed,
                   renewals_late, histogram(margin), lost, *rest)


class Handle(NamedTuple):
    """A detached lock: all that another process needs besides the URL.

    ``str()`` makes one word of it, which ``parse()`` reads, and which the command
    ``holdfast renew`` and ``holdfast release`` take.
    """

    key: str
    token: str
    fence: int
    ref: str = ""
    ttl: float = 30.0
    shared: bool = False
    permits: Optional[int] = None
    owner: Optional[str] = None

    def __str__(self) -> str:
        def word(text: str) -> str:
            code = quote(text.encode("utf-8", "surrogateescape"), safe="")
            return code.replace(".", "%2E").replace("~", "%7E")

        mode = f"p{self.permits}" if self.permits else "s" if self.shared else "x"
        return ".".join(["hf1", mode, str(milliseconds(self.ttl)), str(self.fence),
                         *map(word, (self.token, self.ref, self.owner or "", self.key))])

    @classmethod
    def parse(cls, text: str) -> Handle:
        """The handle that was printed as ``text``; ``Invalid`` if it is none."""
        if not isinstance(text, str):
            raise TypeError(f"a handle is read from a str, not {type(text).__name__}")
        parts = [unquote(part, errors="surrogateescape") for part in text.split(".")]
        try:
            version, mode, ttl, fence, token, ref, owner, key = parts
            if version != "hf1" or not (mode in ("x", "s") or mode[0] == "p"):
                raise ValueError
            return cls(key, token, int(fence), ref, int(ttl) / 1000, mode == "s",
                       int(mode[1:]) if mode[0] == "p" else None, owner or None)
        except (ValueError, IndexError):
            raise Invalid("not a handle of a detached lock") from None

    def _merged(self, more: LockOptions) -> LockOptions:
        """The options that it was acquired with, and ``more``."""
        options: LockOptions = {"ttl": self.ttl, "shared": self.shared}
        if self.permits:
            options["permits"] = self.permits
        if self.owner:
            options["owner"] = self.owner
        options.update(more)
        return options

    def _arguments(
        self, more: LockOptions
    ) -> Tuple[str, str, str, int, Optional[_holdfast.Options]]:
        """What the C part wants to know of it."""
        return (self.key, self.token, self.ref, self.fence,
                make_options(self._merged(more)))
