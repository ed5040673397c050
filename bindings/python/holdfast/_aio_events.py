# SPDX-License-Identifier: MIT
"""What tells the tasks of asyncio about events, and what nobody waits for any more."""

from __future__ import annotations

import asyncio
import threading
from typing import (
    TYPE_CHECKING, Any, Callable, Generic, List, Sequence, Tuple, TypeVar,
)

from . import _holdfast
from ._errors import Error

if TYPE_CHECKING:
    from ._aio import AsyncClient, AsyncLock

T = TypeVar("T")


def wake(event: asyncio.Event) -> None:
    """Set an event.  If its loop is closed nobody waits for it any more."""
    try:
        event.set()
    except RuntimeError:
        pass


class Request(List[Tuple[int, Any]]):
    """Where the C part puts the events of a request and of the locks it got."""

    def __init__(self, client: AsyncClient, locks: Sequence[AsyncLock] = ()) -> None:
        super().__init__()
        self._client = client
        self._locks = locks
        self.outcome: asyncio.Future[Any] = client._loop.create_future()

    def handle(self) -> None:
        """Do what the events say; there may be more than one."""
        while self:
            kind, payload = self.pop(0)
            if kind == _holdfast.GONE:
                self._locks[payload].lost._set()
            elif kind == _holdfast.AT_RISK:
                wake(self._locks[payload].at_risk)
            elif not self.waited_for:
                self.abandon(payload)
            elif isinstance(payload, Exception):
                self.outcome.set_exception(payload)
            else:
                self.outcome.set_result(payload)

    @property
    def waited_for(self) -> bool:
        """Can the outcome be told to a task?"""
        return not (self.outcome.done() or self.outcome.get_loop().is_closed())

    def drop(self) -> None:
        """The task is cancelled, perhaps when the outcome was there already."""
        outcome = self.outcome
        if outcome.done() and not outcome.cancelled() and outcome.exception() is None:
            self.abandon(outcome.result())

    def abandon(self, payload: Any) -> None:
        """Nobody waits for this any more.  If it is locks, release them."""
        for lock in payload if isinstance(payload, list) else ():
            if isinstance(lock, _holdfast.Lock):
                self._client._forget(lock)


class Changes(List[Tuple[int, Any]]):
    """Where the C part puts the events of an observer."""

    def __init__(self) -> None:
        super().__init__()
        self.some = asyncio.Event()

    def handle(self) -> None:
        self.clear()
        wake(self.some)


class Kept(Generic[T]):
    """A call whose result must not get lost: if nobody takes it, it is undone.

    The executor calls this object.  drop() is for the task that waited for it.
    """

    def __init__(self, call: Callable[[], T], undo: Callable[[T], object]) -> None:
        self._lock = threading.Lock()
        self._call = call
        self._undo = undo
        self._dropped = False
        self._results: List[T] = []

    def __call__(self) -> T:
        result = self._call()
        with self._lock:
            self._results.append(result)
            dropped = self._dropped
        if dropped:
            self.undo()
        return result

    def drop(self) -> bool:
        """Nobody takes the result: must the caller see to undo()?"""
        with self._lock:
            self._dropped = True
            return bool(self._results)

    def undo(self) -> None:
        try:
            self._undo(self._results[0])
        except Error:
            pass
