# SPDX-License-Identifier: MIT
"""Distributed locks over the service you already run.

::

    import holdfast

    with holdfast.Client("redis://localhost") as client:
        with client.lock("nightly", ttl=30) as lock:
            while work_left() and lock.held:
                do_some_work(lock.fence)

``Client`` is for threads, ``AsyncClient`` for asyncio; their methods have the same
names.  Durations are seconds or ``timedelta``.  Each status of the library is an
exception: ``Busy``, ``Timeout``, ``Lost``, ...; all of them are an ``Error``.
"""

from ._aio import (
    AsyncClient, AsyncElection, AsyncLock, AsyncLockSet, AsyncLoss, AsyncObserver,
)
from ._client import Client, Election, Lock, LockSet, Loss, Observer
from ._errors import (
    Busy, Canceled, Denied, Error, Invalid, Lost, NoMemory, Protocol, System, Timeout,
    Unavailable, Uncertain, Unsupported,
)
from ._holdfast import version as __version__
from ._types import (
    Change, Collected, Duration, Handle, Histogram, Info, LockOptions, Service, ServiceKind,
    Stats, Trait, Waiter, services,
)

__all__ = [
    "AsyncClient", "AsyncElection", "AsyncLock", "AsyncLockSet", "AsyncLoss",
    "AsyncObserver", "Busy", "Canceled", "Change", "Client", "Collected", "Denied", "Duration",
    "Election", "Error", "Handle", "Histogram", "Info", "Invalid", "Lock", "LockOptions", "LockSet",
    "Loss", "Lost", "NoMemory", "Observer", "Protocol", "Service", "ServiceKind",
    "Stats", "System", "Timeout", "Trait", "Unavailable", "Uncertain", "Unsupported", "Waiter", "services",
    "__version__",
]
