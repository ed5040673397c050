# SPDX-License-Identifier: MIT
"""What the locks of both kinds of clients have in common."""

from __future__ import annotations

import atexit
import logging
import math
import weakref
from functools import partial
from typing import Any, Generic, Iterator, Optional, Sequence, Set, TypeVar

from . import _holdfast
from ._errors import Canceled, Invalid, Lost
from ._types import Duration, Handle, LockOptions, milliseconds, wait_ms

_FOREVER_MS = 2**63 - 1

#: Clients that the end of the interpreter closes: what they hold is released, and
#: not left to the end of its lease.
open_clients: weakref.WeakSet[Any] = weakref.WeakSet()


_ending = False


@atexit.register
def _close_all() -> None:
    """Close all clients; threads that still run open no others."""
    global _ending
    _ending = True
    closed: Set[int] = set()
    while clients := [one for one in list(open_clients) if id(one) not in closed]:
        for client in clients:
            closed.add(id(client))
            client._close_at_exit()
    _holdfast.finish()


#: From hf_log_level to the levels of Python: error, warning, info, debug.
_LEVELS = {1: logging.ERROR, 2: logging.WARNING, 3: logging.INFO, 4: logging.DEBUG}


def open_client(
    url: Optional[str], timeout: Optional[Duration], note: Optional[str],
    connect: Optional[Duration], logger: Optional[logging.Logger],
) -> _holdfast.Client:
    """Open a client with the arguments of ``Client``."""
    if _ending:
        raise Canceled("the interpreter ends")
    level = 0
    if logger is not None:
        if not all(callable(getattr(logger, name, None)) for name in ("log", "isEnabledFor")):
            raise TypeError(f"a logger is a logging.Logger, not {type(logger).__name__}")
        level = max((ours for ours, theirs in _LEVELS.items()
                     if logger.isEnabledFor(theirs)), default=1)
    connect_ms = -1 if connect == math.inf else milliseconds(connect)
    return _holdfast.Client(
        url, milliseconds(timeout), note, connect_ms,
        None if logger is None else partial(_log, logger), level)


def _log(logger: logging.Logger, level: int, text: str) -> None:
    logger.log(_LEVELS[level], "%s", text)


def several(keys: Sequence[str]) -> Sequence[str]:
    """The keys of several locks.  A str is a sequence of its letters: a mistake."""
    if isinstance(keys, (str, bytes)):
        raise TypeError(f"expected a sequence of keys, not one: {keys!r}")
    return keys


class HeldLock:
    """What can be asked of a lock without waiting.

    Key, token, fence and slot stay known when the lock has ended.
    """

    __slots__ = ("_key", "_options", "_raw", "_entered", "__weakref__")

    def __init__(self, key: str, options: LockOptions) -> None:
        self._key = key
        self._options = options
        self._raw: Optional[_holdfast.Lock] = None
        self._entered = False

    def __repr__(self) -> str:
        state = f"held, fence {self.fence}" if self.held else "not held"
        return f"<{type(self).__module__}.{type(self).__name__} {self._key!r}: {state}>"

    def __bool__(self) -> bool:
        """Whether the lock is held."""
        return self.held

    @property
    def _last(self) -> _holdfast.Lock:
        if self._raw is None:
            raise Invalid("the lock was never held")
        return self._raw

    @property
    def _is_open(self) -> bool:
        return self._raw is not None and self._raw.open

    def _begin(self) -> None:
        if self._is_open:
            raise Invalid("the lock is held already: use another Lock, or an owner id")

    def _enter(self) -> bool:
        """Note that a ``with`` block begins; should it acquire the lock?"""
        if self._entered:
            raise Invalid("the lock is in a `with` block already: use another Lock")
        self._entered = True
        return not self._is_open

    @property
    def key(self) -> str:
        """The key of the lock."""
        return self._key

    @property
    def held(self) -> bool:
        """Whether the lock is held.  It reads the clock and asks nobody; once
        false, it stays false for this acquisition."""
        return self._raw is not None and self._raw.held

    @property
    def fence(self) -> int:
        """A number greater than that of every earlier grant of this key.

        Give it to the resource that the lock protects, and let that refuse a
        smaller one.
        """
        return self._last.fence

    @property
    def slot(self) -> Optional[int]:
        """Which of the permits it is, from 0; None without permits."""
        return None if self._last.slot < 0 else self._last.slot

    @property
    def token(self) -> str:
        """The id of the acquisition in the service."""
        return self._last.token

    @property
    def remaining(self) -> float:
        """For how many seconds the lock can be relied on without a renewal."""
        ms = self._raw.remaining_ms if self._raw is not None else 0
        return math.inf if ms == _FOREVER_MS else ms / 1000

    @property
    def loss(self) -> Optional[str]:
        """Why the lock was lost (``"expired"``, ``"broken"``, ...), or None."""
        return self._raw.loss if self._raw is not None else None

    def _explain(self, error: Lost) -> Lost:
        error.reason = self.loss
        return error

    def _to_handle(self, token: str, ref: str, fence: int) -> Handle:
        ttl = self._options.get("ttl", 30.0)
        return Handle(
            self._key, token, fence, ref,
            ttl if isinstance(ttl, (int, float)) else ttl.total_seconds(),
            self._options.get("shared", False), self._options.get("permits"),
            self._options.get("owner"),
        )


L = TypeVar("L", bound=HeldLock)


class HeldLocks(Generic[L]):
    """Locks on several keys: a sequence in the order of the keys."""

    def __init__(
        self, locks: Sequence[L], timeout: Optional[Duration], options: LockOptions,
    ) -> None:
        self._locks = tuple(locks)
        self._wait_ms = wait_ms(timeout)
        self._options = options

    def __getitem__(self, index: int) -> L:
        return self._locks[index]

    def __iter__(self) -> Iterator[L]:
        return iter(self._locks)

    def __len__(self) -> int:
        return len(self._locks)

    @property
    def held(self) -> bool:
        """Whether all of them are held."""
        return all(lock.held for lock in self._locks)
