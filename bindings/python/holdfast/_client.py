# SPDX-License-Identifier: MIT
"""Clients and locks whose calls wait."""

from __future__ import annotations

import logging
from threading import get_ident, main_thread
from types import TracebackType
from typing import (
    TYPE_CHECKING, Dict, Iterator, List, Optional, Sequence, Type, Union,
)

from . import _holdfast
from ._base import HeldLock, HeldLocks, open_client, open_clients, several
from ._errors import Busy, Canceled, Error, Lost
from ._types import (
    Change, Collected, Duration, Handle, Info, LockOptions, Service, Stats,
    Waiter, make_options, milliseconds, wait_ms,
)

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

#: A signal handler can wait for so long.
_SHORT_MS = 200


class Loss:
    """Set once the lock is lost, like a ``threading.Event``."""

    __slots__ = ("_lock",)

    def __init__(self, lock: Lock) -> None:
        self._lock = lock

    def __bool__(self) -> bool:
        return self.is_set()

    def is_set(self) -> bool:
        """Whether the lock was held and is lost."""
        return self._lock.loss is not None

    def wait(self, timeout: Optional[Duration] = None) -> bool:
        """Wait for the loss; False if the lock is released before, or in time."""
        raw = self._lock._raw
        return raw is not None and raw.wait_lost(wait_ms(timeout))


class Lock(HeldLock):
    """A lock on one key: a context manager that acquires and releases it.

    It can be used again after it was released, but by one holder at a time: two
    parts of a program that exclude each other use two of these.
    """

    __slots__ = ("_client", "_wait_ms", "_lost")

    def __init__(
        self, client: Client, key: str, timeout: Optional[Duration], options: LockOptions
    ) -> None:
        super().__init__(key, options)
        self._client = client
        self._wait_ms = wait_ms(timeout)
        self._lost: Optional[Loss] = None

    def acquire(self) -> Self:
        """Take the lock, and return this object.

        ``Busy`` or ``Timeout`` if somebody else has it.  After any exception
        nothing of this call stays in the service.
        """
        self._begin()
        self._raw = self._client._acquire(self._key, self._wait_ms, self._options)
        return self

    def release(self) -> None:
        """Give the lock back.  It is over, whatever comes out.

        ``Lost``: it was not held to the end.  ``Uncertain``: there was no answer.
        """
        try:
            self._last.release()
        except Lost as error:
            raise self._explain(error)

    def extend(self, ttl: Optional[Duration] = None) -> None:
        """Renew the lock now, with another lease if ``ttl`` is given."""
        try:
            self._last.extend(milliseconds(ttl))
        except Lost as error:
            raise self._explain(error)

    def downgrade(self) -> None:
        """Make an exclusive lock a shared one; nobody can come in between."""
        self._last.downgrade()

    def transfer(self, heir: str) -> None:
        """Make a waiter the next: its token, owner id or note is ``heir``."""
        self._last.transfer(heir)

    def detach(self) -> Handle:
        """End this object but leave the lock in the service.

        It lapses at the end of its lease unless ``Client.attach()`` takes it up.
        """
        return self._to_handle(*self._last.detach())

    @property
    def lost(self) -> Loss:
        """Set once the lock is lost: ``lock.lost.wait(timeout)``."""
        if self._lost is None:
            self._lost = Loss(self)
        return self._lost

    def __enter__(self) -> Self:
        try:
            return self.acquire() if self._enter() else self
        except BaseException:
            self._entered = False
            raise

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self._entered = False
        try:
            if self._is_open:
                self.release()
        except Error:
            if error is None:
                raise


class LockSet(HeldLocks[Lock]):
    """Locks on several keys, taken all or none: a context manager."""

    def __init__(
        self, client: Client, keys: Sequence[str], timeout: Optional[Duration],
        options: LockOptions,
    ) -> None:
        super().__init__(
            [Lock(client, key, timeout, options) for key in several(keys)],
            timeout, options)
        self._client = client

    def acquire(self) -> Self:
        """Take all locks or, with an exception, none."""
        for lock in self._locks:
            lock._begin()
        raws = self._client._acquire_all(
            [lock.key for lock in self._locks], self._wait_ms, self._options)
        for lock, raw in zip(self._locks, raws):
            lock._raw = raw
        return self

    def release(self) -> None:
        """Give all of them back; raise what the first failure was."""
        first: Optional[Error] = None
        for lock in self._locks:
            try:
                if lock._is_open:
                    lock.release()
            except Error as error:
                first = first or error
        if first is not None:
            raise first

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        try:
            self.release()
        except Error:
            if error is None:
                raise


class Observer:
    """The changes of a lock, or of all whose keys have a prefix.

    An iterator of ``Change``, which waits for the next one, and ends when the
    observer or the client is closed.  The present state comes first.  Changes may
    be merged; the last one always comes, and fences never go back.
    """

    def __init__(self, client: Client, key: str, prefix: bool) -> None:
        self._client = client._raw
        self._raw = client._raw.observe_start(key, prefix, [])

    def wait(self, timeout: Optional[Duration] = None) -> Optional[Change]:
        """The next change; None if there is none in time, or it is closed."""
        found = self._client.observe_wait(self._raw, wait_ms(timeout))
        return None if found is None else Change(found[0], Info._make_from(found[1]))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Change:
        try:
            change = self.wait()
        except Canceled:
            change = None
        if change is None:
            raise StopIteration
        return change

    def close(self) -> None:
        """End it, and the waits of other threads for it."""
        self._raw.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()


class Election(Lock):
    """A campaign: the leader is who holds the lock, and its note is its value."""

    __slots__ = ()

    @property
    def value(self) -> str:
        """What this candidate tells of itself."""
        return self._options.get("note", "")

    def leader(self) -> Optional[str]:
        """The value of the present leader, or None if there is none."""
        return Change(self._key, self._client.inspect(self._key)).leader

    def leaders(self) -> Iterator[Optional[str]]:
        """The value of the present leader, and then of each that follows."""
        with self._client.observe(self._key) as changes:
            for change in changes:
                yield change.leader


class Client:
    """A connection to a lock service.

    ``url`` names the service, see holdfast-url(7); None is ``"file:"``.
    ``timeout`` limits each request to the service (default 5 seconds), and ``note``
    is for people who look at locks (default: host and process).  With ``connect`` it
    returns at once and connects in the background, again and again for so many
    seconds (``math.inf``: no limit), while calls wait.  ``logger`` is told of
    reconnects, retries and failed renewals.  Any thread may use the client.  ``close()``, or the end of a ``with`` block or of the interpreter,
    releases everything that it holds.
    """

    def __init__(
        self, url: Optional[str] = None, *, timeout: Optional[Duration] = None,
        note: Optional[str] = None, connect: Optional[Duration] = None,
        logger: Optional[logging.Logger] = None,
    ) -> None:
        self._raw = open_client(url, timeout, note, connect, logger)
        open_clients.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel all waits, release what is held, and disconnect.

        A second call returns when the first has ended.
        """
        self._raw.close()
        open_clients.discard(self)

    _close_at_exit = close

    def cancel(self) -> None:
        """End every wait of this client with ``Canceled``; any thread may call it."""
        self._raw.cancel()

    @property
    def service(self) -> Service:
        """The service, and what it can do."""
        return Service._make_from(self._raw.describe())

    # -- locks ------------------------------------------------------------------

    def lock(
        self, key: str, *, timeout: Optional[Duration] = None, **options: Unpack[LockOptions]
    ) -> Lock:
        """A lock on ``key``, to be used in a ``with`` statement.

        ``timeout`` is how long to wait for it: None is for ever, and 0 is not at
        all.  For the options see ``holdfast.LockOptions``.
        """
        return Lock(self, key, timeout, options)

    def try_lock(self, key: str, **options: Unpack[LockOptions]) -> Optional[Lock]:
        """The lock if it is free, held already, or else None.

        ::

            if lock := client.try_lock("report"):
                with lock:
                    ...
        """
        try:
            return Lock(self, key, 0, options).acquire()
        except Busy:
            return None

    def lock_all(
        self, keys: Sequence[str], *, timeout: Optional[Duration] = None,
        **options: Unpack[LockOptions],
    ) -> LockSet:
        """Locks on several keys, all or none, with one limit of time for all.

        They are taken in an order of their own, so that two callers never wait for
        each other in a circle.
        """
        return LockSet(self, keys, timeout, options)

    def election(
        self, key: str, value: str = "", *, timeout: Optional[Duration] = None,
        **options: Unpack[LockOptions],
    ) -> Election:
        """A campaign for the leadership of ``key``: a ``with`` block is a term."""
        if value:
            options["note"] = value
        return Election(self, key, timeout, options)

    def _acquire(self, key: str, wait: int, options: LockOptions) -> _holdfast.Lock:
        raw, opts = self._raw, make_options(options)
        acquire = raw.acquire_wait if self._interruptible(wait) else raw.acquire
        return acquire(key, wait, opts)

    def _acquire_all(
        self, keys: Sequence[str], wait: int, options: LockOptions
    ) -> List[_holdfast.Lock]:
        raw, opts = self._raw, make_options(options)
        acquire = raw.acquire_all_wait if self._interruptible(wait) else raw.acquire_all
        return acquire(keys, wait, opts)

    @staticmethod
    def _interruptible(wait: int) -> bool:
        """Must signal handlers run meanwhile?  They do so in the main thread only,
        and not inside a call of the library: there the thread makes the first
        request, and then waits for the event, which it can interrupt."""
        return (wait < 0 or wait > _SHORT_MS) and get_ident() == main_thread().ident

    # -- detached locks -----------------------------------------------------------

    def attach(self, handle: Union[Handle, str], **options: Unpack[LockOptions]) -> Lock:
        """Take up a lock that was detached; it is renewed at once.

        A handle is taken up once.  ``Lost`` if the lock is gone.
        """
        handle = _handle(handle)
        lock = Lock(self, handle.key, None, handle._merged(options))
        lock._raw = self._raw.attach(*handle._arguments(options))
        return lock

    def extend(self, handle: Union[Handle, str], ttl: Optional[Duration] = None) -> None:
        """Renew a detached lock without taking it up."""
        more: LockOptions = {} if ttl is None else {"ttl": ttl}
        self._raw.handle_extend(*_handle(handle)._arguments(more))

    def release(self, handle: Union[Handle, str]) -> None:
        """Release a detached lock without taking it up."""
        self._raw.handle_release(*_handle(handle)._arguments({}))

    # -- looking ------------------------------------------------------------------

    def inspect(self, key: str) -> Info:
        """Look at a lock without touching it."""
        return Info._make_from(self._raw.inspect(key))

    def holders(self, key: str) -> List[Info]:
        """Every holder of a lock, in no order."""
        return [Info._make_from(raw) for _, raw in self._raw.holders(key)]

    def waiters(self, key: str) -> List[Waiter]:
        """Those who wait for a lock, in their order, where the service knows them."""
        return [Waiter._make_from(raw) for raw in self._raw.waiters(key)]

    def list(self, prefix: str = "") -> Dict[str, Info]:
        """The locks that are held and whose key begins with ``prefix``."""
        return {key: Info._make_from(raw) for key, raw in self._raw.list(prefix)}

    def observe(self, key: str, *, prefix: bool = False) -> Observer:
        """Hear of every change of a lock, or of all that begin with a prefix.

        ::

            with client.observe("service") as changes:
                for change in changes:
                    print(change.info.held, change.info.note)
        """
        return Observer(self, key, prefix)

    def check(self, key: str, fence: int) -> bool:
        """Whether the grant with this fence stands."""
        try:
            self._raw.check(key, fence)
        except Lost:
            return False
        return True

    def break_lock(self, key: str, fence: int, *, force: bool = False) -> None:
        """Take a lock away from its holder, if its grant has this fence.

        The holder is told, and nobody else is granted the lock before the holder
        has released it or its lease is over.  ``force`` frees it at once: for a
        holder that is known to be dead.  ``Lost`` if the grant is another one.
        """
        self._raw.break_lock(key, fence, force)

    def stats(self) -> Stats:
        """What the client has counted: grants, waits, losses.  Asks no service."""
        return Stats._make_from(self._raw.stats())

    def stats_text(self) -> str:
        """The same as OpenMetrics text, for an endpoint that Prometheus reads."""
        return self._raw.stats_text()

    def collect(self, older: Duration, *, dry_run: bool = False) -> Collected:
        """Remove what keys left behind that have been free for so long."""
        return Collected(*self._raw.collect(milliseconds(older), dry_run))


def _handle(handle: Union[Handle, str]) -> Handle:
    if isinstance(handle, str):
        return Handle.parse(handle)
    if not isinstance(handle, Handle):
        raise TypeError(f"a handle is a Handle or a str, not {type(handle).__name__}")
    return handle
