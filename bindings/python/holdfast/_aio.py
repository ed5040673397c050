# SPDX-License-Identifier: MIT
"""Clients and locks for asyncio.

A wait is a request of the library, and its end arrives behind one descriptor, which
the event loop watches: there is no thread for a waiter, and no polling.  What the
library can only do in a blocking call (open, close, extend, downgrade, transfer,
detach, attach, break, holders, waiters, collect, observe) runs in the executor of the
loop.

A loop may be closed while tasks wait in it.  Nobody can be told there any more, so what
such a task gets is given back, and the others hear of their events all the same.
"""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from functools import partial
from types import TracebackType
from typing import (
    TYPE_CHECKING, Any, AsyncIterator, Callable, Dict, List, Optional, Sequence, Set,
    Tuple, Type, TypeVar, Union,
)

from . import _holdfast
from ._aio_events import Changes, Kept, Request, wake
from ._base import HeldLock, HeldLocks, open_client, open_clients, several
from ._client import _handle
from ._errors import Busy, Canceled, Error, Invalid, Lost
from ._types import (
    Change, Collected, Duration, Handle, Info, LockOptions, Service, Stats,
    Waiter, make_options, milliseconds, wait_ms,
)

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

T = TypeVar("T")


class AsyncLoss:
    """Set once the lock is lost, like an ``asyncio.Event``."""

    __slots__ = ("_lock", "_ended", "_task", "_canceled", "_fd", "_loop")

    def __init__(self, lock: AsyncLock) -> None:
        self._lock = lock
        self._fd = -1
        self._clear()

    def _clear(self) -> None:
        """Begin again, with a new acquisition."""
        self._ended = asyncio.Event()
        self._task: Optional[asyncio.Task[Any]] = None
        self._canceled = False

    def _watch(self, raw: _holdfast.Lock) -> None:
        """A lock that no request has got has no events but a descriptor."""
        self._fd = os.dup(raw.lost_fd())
        self._loop = self._lock._client._loop
        self._loop.add_reader(self._fd, self._set)

    def _end(self) -> None:
        """The lock is over: nothing will be lost any more."""
        wake(self._ended)
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def __bool__(self) -> bool:
        return self.is_set()

    def is_set(self) -> bool:
        """Whether the lock was held and is lost."""
        return self._lock.loss is not None

    async def wait(self) -> bool:
        """Wait for the loss; False if the lock is released before."""
        if self._lock._is_open:
            await self._ended.wait()
        return self.is_set()

    def _set(self) -> None:
        """The lock is lost: end the block that relies on it."""
        self._end()
        task = self._task
        if task is not None and not self._canceled and not task.get_loop().is_closed():
            self._canceled = True
            task.cancel()

    def _uncancel(self, kind: Optional[Type[BaseException]]) -> bool:
        """Was the task cancelled because of the loss, and for nothing else?"""
        task, self._task = self._task, None
        if not self._canceled or task is None:
            return False
        others = task.uncancel() if hasattr(task, "uncancel") else 0
        return not others and kind is asyncio.CancelledError


class AsyncLock(HeldLock):
    """A lock on one key: an asynchronous context manager.

    If the lock is lost inside an ``async with`` block, the block is cancelled, and
    ends with ``Lost``.  A task that is cancelled while it waits leaves nothing
    behind.
    """

    __slots__ = ("_client", "_wait_ms", "lost", "at_risk")

    def __init__(
        self, client: AsyncClient, key: str, timeout: Optional[Duration],
        options: LockOptions,
    ) -> None:
        super().__init__(key, options)
        self._client = client
        self._wait_ms = wait_ms(timeout)
        #: Set once the lock is lost: ``await lock.lost.wait()``.
        self.lost = AsyncLoss(self)
        #: Set when renewals fail, and only a third of the lease is left.
        self.at_risk = asyncio.Event()

    async def acquire(self) -> Self:
        """Take the lock, and return this object.

        ``Busy`` or ``Timeout`` if somebody else has it.  After any exception
        nothing of this call stays in the service.
        """
        self._begin()
        raw = await self._client._ready()
        self.lost._clear()
        self.at_risk = asyncio.Event()
        locks = await self._client._wait_for(
            partial(raw.acquire_start, self._key, self._wait_ms,
                    make_options(self._options)), [self])
        self._raw = locks[0]
        self._client._held.add(self)
        return self

    async def release(self) -> None:
        """Give the lock back.  It is over, whatever comes out.

        ``Lost``: it was not held to the end.  ``Uncertain``: there was no answer.
        """
        try:
            await self._client._release(self._last)
        except Lost as error:
            raise self._explain(error)
        finally:
            self.lost._end()

    async def extend(self, ttl: Optional[Duration] = None) -> None:
        """Renew the lock now, with another lease if ``ttl`` is given."""
        try:
            await self._client._run(self._last.extend, milliseconds(ttl))
        except Lost as error:
            raise self._explain(error)

    async def downgrade(self) -> None:
        """Make an exclusive lock a shared one; nobody can come in between."""
        await self._client._run(self._last.downgrade)

    async def transfer(self, heir: str) -> None:
        """Make a waiter the next: its token, owner id or note is ``heir``."""
        await self._client._run(self._last.transfer, heir)

    async def detach(self) -> Handle:
        """End this object but leave the lock in the service.

        It lapses at the end of its lease unless ``AsyncClient.attach()`` takes it
        up.  If the task is cancelled the lock is released.
        """
        raw, client = self._last, self._client._raw

        def release(got: Tuple[str, str, int]) -> None:
            if client is not None:
                client.handle_release(*self._to_handle(*got)._arguments({}))

        try:
            return self._to_handle(*await self._client._run_kept(raw.detach, release))
        finally:
            if not raw.open:
                self.lost._end()

    def _forget(self) -> None:
        """Release it in the background: a coroutine that is closed cannot await."""
        if self._raw is not None and self._raw.open:
            self._client._forget(self._raw)
            self.lost._end()

    async def __aenter__(self) -> Self:
        try:
            if self._enter():
                await self.acquire()
            if self.lost.is_set():  # before there was a block to cancel
                await self.release()
                raise self._explain(Lost("the lock is lost"))
        except BaseException:
            self._entered = False
            raise
        self.lost._task = asyncio.current_task()
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self._entered = False
        because_of_loss = self.lost._uncancel(kind)
        if kind is GeneratorExit:
            self._forget()
            return
        try:
            if self._is_open:
                await self.release()
        except Error:
            if error is None or because_of_loss:
                raise


class AsyncLockSet(HeldLocks[AsyncLock]):
    """Locks on several keys, taken all or none."""

    def __init__(
        self, client: AsyncClient, keys: Sequence[str], timeout: Optional[Duration],
        options: LockOptions,
    ) -> None:
        super().__init__(
            [AsyncLock(client, key, timeout, options) for key in several(keys)],
            timeout, options)
        self._client = client

    async def acquire(self) -> Self:
        """Take all locks or, with an exception, none."""
        for lock in self._locks:
            lock._begin()
            lock.lost._clear()
            lock.at_risk = asyncio.Event()
        raw = await self._client._ready()
        raws = await self._client._wait_for(
            partial(raw.acquire_all_start, [lock.key for lock in self._locks],
                    self._wait_ms, make_options(self._options)),
            self._locks)
        for lock, one in zip(self._locks, raws):
            lock._raw = one
            self._client._held.add(lock)
        return self

    async def release(self) -> None:
        """Give all of them back; raise what the first failure was."""
        ends = [lock.release() for lock in self._locks if lock._is_open]
        for outcome in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def __aenter__(self) -> Self:
        await self.acquire()
        if any(lock.lost.is_set() for lock in self._locks):
            await self.release()
            raise Lost("a lock is lost")
        for lock in self._locks:
            lock.lost._task = asyncio.current_task()
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        because_of_loss = any([lock.lost._uncancel(kind) for lock in self._locks])
        if kind is GeneratorExit:
            for lock in self._locks:
                lock._forget()
            return
        try:
            await self.release()
        except Error:
            if error is None or because_of_loss:
                raise


class AsyncObserver:
    """The changes of a lock, or of all whose keys have a prefix.

    An asynchronous context manager and iterator of ``Change``, see ``Observer``.
    """

    def __init__(self, client: AsyncClient, key: str, prefix: bool) -> None:
        self._client = client
        self._arguments = key, prefix
        self._raw: Optional[_holdfast.Observer] = None
        self._starting: Optional[asyncio.Future[None]] = None
        self._closed = False

    async def _start(self) -> None:
        """Start it, once for all tasks that wait."""
        raw = await self._client._ready()
        if self._starting is None:
            self._inbox = Changes()
            self._client._observers.add(self)  # aclose() may come while it starts
            self._starting = asyncio.ensure_future(self._open(raw))
        starting = self._starting
        try:
            await asyncio.shield(starting)
        except Error:
            if self._starting is starting:
                self._starting = None
                self._client._observers.discard(self)
            if not self._closed:
                raise

    async def _open(self, raw: _holdfast.Client) -> None:
        observer = await self._client._run(
            raw.observe_start, *self._arguments, self._inbox)
        if self._closed:
            observer.stop()
        else:
            self._raw = observer

    async def wait(self) -> Optional[Change]:
        """The next change; None if the observer is closed."""
        if self._raw is None and not self._closed:
            await self._start()
        while self._raw is not None and not self._closed:
            self._inbox.some.clear()
            found = self._raw.next()
            if found is not None:
                return Change(found[0], Info._make_from(found[1]))
            await self._inbox.some.wait()
        return None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        change = await self.wait()
        if change is None:
            raise StopAsyncIteration
        return change

    def close(self) -> None:
        """End it, and the waits of other tasks for it."""
        self._closed = True
        self._client._observers.discard(self)
        if self._raw is not None:
            self._raw.stop()
            wake(self._inbox.some)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *unused: object) -> None:
        self.close()


class AsyncElection(AsyncLock):
    """A campaign: the leader is who holds the lock, and its note is its value."""

    __slots__ = ()

    @property
    def value(self) -> str:
        """What this candidate tells of itself."""
        return self._options.get("note", "")

    async def leader(self) -> Optional[str]:
        """The value of the present leader, or None if there is none."""
        return Change(self._key, await self._client.inspect(self._key)).leader

    async def leaders(self) -> AsyncIterator[Optional[str]]:
        """The value of the present leader, and then of each that follows."""
        async with self._client.observe(self._key) as changes:
            async for change in changes:
                yield change.leader


class AsyncClient:
    """A connection to a lock service, for asyncio.

    The arguments are those of ``Client``.  It connects when it is first used, or at
    the beginning of an ``async with`` block, and belongs to the event loop that it
    is used in.
    """

    def __init__(
        self, url: Optional[str] = None, *, timeout: Optional[Duration] = None,
        note: Optional[str] = None, connect: Optional[Duration] = None,
        logger: Optional[logging.Logger] = None,
    ) -> None:
        self._arguments = url, timeout, note, connect, logger
        self._raw: Optional[_holdfast.Client] = None
        self._opening: Optional[asyncio.Future[_holdfast.Client]] = None
        self._bound: Optional[asyncio.AbstractEventLoop] = None
        self._observers: Set[AsyncObserver] = set()
        self._held: weakref.WeakSet[AsyncLock] = weakref.WeakSet()
        self._kept: Set[asyncio.Future[Any]] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        await self._ready()
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancel all waits, release what is held, and disconnect.

        A release that is under way ends before, with its own outcome.
        """
        self._closed = True
        loop = asyncio.get_running_loop()
        opening, self._opening = self._opening, None
        if opening is not None and opening.get_loop() is loop:
            await asyncio.wait([opening])
            if not opening.cancelled() and opening.exception() is None:
                self._raw = opening.result()
        while self._kept and self._bound is loop:
            await asyncio.wait(set(self._kept))
        raw, self._raw = self._raw, None
        if raw is not None:
            # It goes on when this task is cancelled: others wait for the end.
            await asyncio.shield(self._close(raw))

    async def _close(self, raw: _holdfast.Client) -> None:
        open_clients.discard(self)
        for observer in list(self._observers):
            observer.close()
        self._loop.remove_reader(raw.events_fd())
        for request in await self._run(raw.close):
            if request.waited_for:
                request.outcome.set_exception(Canceled("the client is closed"))
        for lock in list(self._held):  # No event tells of this loss.
            if lock._is_open and lock.lost.is_set():
                lock.lost._set()

    def _close_at_exit(self) -> None:
        if self._raw is not None:
            self._raw.close()

    def cancel(self) -> None:
        """End every wait of this client with ``Canceled``; any thread may call it."""
        if self._raw is not None:
            self._raw.cancel()

    # -- the event loop -----------------------------------------------------------

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        assert self._bound is not None
        return self._bound

    async def _run(self, call: Callable[..., T], *arguments: object) -> T:
        """Run a call that may block where it does not block the loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, partial(call, *arguments))

    async def _run_kept(self, call: Callable[[], T], undo: Callable[[T], object]) -> T:
        """The same for a call that goes on when the task is cancelled, and whose
        result is undone then.  aclose() waits for that."""
        kept = Kept(call, undo)
        future = self._keep(kept)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if kept.drop():
                self._keep(kept.undo)
            raise

    def _keep(self, call: Callable[[], T]) -> asyncio.Future[T]:
        future = asyncio.get_running_loop().run_in_executor(None, call)
        self._keep_until_done(future)
        return future

    def _keep_until_done(self, future: asyncio.Future[Any]) -> None:
        self._kept.add(future)
        future.add_done_callback(self._kept.discard)

    async def _ready(self) -> _holdfast.Client:
        """The open client, bound to the running loop."""
        loop = asyncio.get_running_loop()
        if self._raw is not None and self._bound is loop:
            return self._raw
        if self._closed:
            raise Invalid("the client is closed")
        if self._bound is not loop:
            self._bind(loop)
        if self._raw is None:
            if self._opening is None:
                self._opening = asyncio.ensure_future(
                    self._run(open_client, *self._arguments))
            opening = self._opening
            try:
                raw = await asyncio.shield(opening)
            finally:
                if self._opening is opening and opening.done():
                    self._opening = None
            if self._closed:
                raise Canceled("the client is closed")
            if self._raw is not None:
                return self._raw
            self._raw = raw
            open_clients.add(self)
        loop.add_reader(self._raw.events_fd(), self._drain)
        return self._raw

    def _bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Go to this loop.  Nobody waits in one that is closed any more."""
        if self._bound is not None and not self._bound.is_closed():
            raise Invalid("the client belongs to another event loop")
        if self._raw is not None:
            self._raw.cancel_requests()
        for observer in list(self._observers):
            observer.close()
        self._bound, self._opening, self._kept = loop, None, set()

    def _drain(self) -> None:
        for request in self._raw.events() if self._raw is not None else ():
            try:
                request.handle()
            except Exception as error:  # It is not the fault of the others.
                self._loop.call_exception_handler(
                    {"message": "an event of holdfast", "exception": error})

    async def _wait_for(
        self, start: Callable[[Request], Optional[_holdfast.Request]],
        locks: Sequence[AsyncLock] = (), keep: bool = False,
    ) -> Any:
        """Start a request, and wait for its outcome; so does aclose() if ``keep``."""
        request = Request(self, locks)
        handle = start(request)
        if handle is None:
            return None
        if keep:
            self._keep_until_done(request.outcome)
        try:
            return await request.outcome
        except asyncio.CancelledError:
            handle.cancel()
            request.drop()
            raise

    async def _release(self, lock: _holdfast.Lock) -> None:
        if self._raw is not None:
            try:
                await self._wait_for(
                    partial(self._raw.release_start, lock), keep=True)
                return
            except BlockingIOError:
                pass
        # The executor runs a call of this lock, perhaps of a task that was
        # cancelled, or closes the client.  The release waits for that there, and
        # goes on when its own task is cancelled.
        await asyncio.shield(self._keep(lock.release))

    def _forget(self, lock: _holdfast.Lock) -> None:
        """Release a lock that nobody can wait for."""
        if self._raw is not None:
            self._raw.release_start(lock, None)

    @property
    def service(self) -> Service:
        """The service, and what it can do; the client must be open."""
        if self._raw is None:
            raise Invalid("the client is not open")
        return Service._make_from(self._raw.describe())

    # -- locks ------------------------------------------------------------------

    def lock(
        self, key: str, *, timeout: Optional[Duration] = None, **options: Unpack[LockOptions]
    ) -> AsyncLock:
        """A lock on ``key``, to be used in an ``async with`` statement.

        The arguments are those of ``Client.lock()``.
        """
        return AsyncLock(self, key, timeout, options)

    async def try_lock(self, key: str, **options: Unpack[LockOptions]) -> Optional[AsyncLock]:
        """The lock if it is free, held already, or else None."""
        try:
            return await AsyncLock(self, key, 0, options).acquire()
        except Busy:
            return None

    def lock_all(
        self, keys: Sequence[str], *, timeout: Optional[Duration] = None,
        **options: Unpack[LockOptions],
    ) -> AsyncLockSet:
        """Locks on several keys, all or none, with one limit of time for all."""
        return AsyncLockSet(self, keys, timeout, options)

    def election(
        self, key: str, value: str = "", *, timeout: Optional[Duration] = None,
        **options: Unpack[LockOptions],
    ) -> AsyncElection:
        """A campaign for the leadership of ``key``: a block is a term."""
        if value:
            options["note"] = value
        return AsyncElection(self, key, timeout, options)

    # -- detached locks -----------------------------------------------------------

    async def attach(
        self, handle: Union[Handle, str], **options: Unpack[LockOptions]
    ) -> AsyncLock:
        """Take up a lock that was detached; it is renewed at once.

        A handle is taken up once.  ``Lost`` if the lock is gone.  If the task is
        cancelled the lock is released, or still detached if this was connecting.
        """
        handle = _handle(handle)
        raw = await self._ready()
        lock = AsyncLock(self, handle.key, None, handle._merged(options))
        got = await self._run_kept(
            partial(raw.attach, *handle._arguments(options)), _holdfast.Lock.release)
        lock._raw = got
        lock.lost._watch(got)
        return lock

    async def extend(
        self, handle: Union[Handle, str], ttl: Optional[Duration] = None
    ) -> None:
        """Renew a detached lock without taking it up."""
        handle = _handle(handle)
        more: LockOptions = {} if ttl is None else {"ttl": ttl}
        await self._run((await self._ready()).handle_extend, *handle._arguments(more))

    async def release(self, handle: Union[Handle, str]) -> None:
        """Release a detached lock without taking it up."""
        await self._run((await self._ready()).handle_release, *_handle(handle)._arguments({}))

    # -- looking ------------------------------------------------------------------

    async def inspect(self, key: str) -> Info:
        """Look at a lock without touching it."""
        raw = await self._ready()
        return Info._make_from(await self._wait_for(partial(raw.inspect_start, key)))

    async def holders(self, key: str) -> List[Info]:
        """Every holder of a lock, in no order."""
        found = await self._run((await self._ready()).holders, key)
        return [Info._make_from(raw) for _, raw in found]

    async def waiters(self, key: str) -> List[Waiter]:
        """Those who wait for a lock, in their order, where the service knows them."""
        found = await self._run((await self._ready()).waiters, key)
        return [Waiter._make_from(raw) for raw in found]

    async def list(self, prefix: str = "") -> Dict[str, Info]:
        """The locks that are held and whose key begins with ``prefix``."""
        raw = await self._ready()
        found = await self._wait_for(partial(raw.list_start, prefix))
        return {key: Info._make_from(raw) for key, raw in found}

    def observe(self, key: str, *, prefix: bool = False) -> AsyncObserver:
        """Hear of every change of a lock, or of all that begin with a prefix.

        ::

            async with client.observe("service") as changes:
                async for change in changes:
                    print(change.info.held, change.info.note)
        """
        return AsyncObserver(self, key, prefix)

    async def check(self, key: str, fence: int) -> bool:
        """Whether the grant with this fence stands."""
        raw = await self._ready()
        try:
            await self._wait_for(partial(raw.check_start, key, fence))
        except Lost:
            return False
        return True

    async def break_lock(self, key: str, fence: int, *, force: bool = False) -> None:
        """Take a lock away from its holder; see ``Client.break_lock()``."""
        await self._run((await self._ready()).break_lock, key, fence, force)

    async def stats(self) -> Stats:
        """What the client has counted: grants, waits, losses.  Asks no service."""
        return Stats._make_from((await self._ready()).stats())

    async def stats_text(self) -> str:
        """The same as OpenMetrics text, for an endpoint that Prometheus reads."""
        return (await self._ready()).stats_text()

    async def collect(self, older: Duration, *, dry_run: bool = False) -> Collected:
        """Remove what keys left behind that have been free for so long."""
        raw = await self._ready()
        return Collected(*await self._run(raw.collect, milliseconds(older), dry_run))
