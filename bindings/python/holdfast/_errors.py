# SPDX-License-Identifier: MIT
"""One exception for each status of the library."""

from __future__ import annotations

from typing import Optional, Tuple, Type


class Error(Exception):
    """The base of all exceptions of this package.

    ``status`` is the name of the status in C (``"busy"``), and ``errno`` the
    number of the system's error, 0 if that was not the cause.
    """

    status: str = "error"
    errno: int = 0


class Busy(Error):
    """Somebody else holds the lock, and the call was not to wait."""

    status = "busy"


class Timeout(Error, TimeoutError):
    """Somebody else held the lock for as long as the call was to wait."""

    status = "timeout"


class Canceled(Error):
    """The wait was ended by ``Client.cancel()`` or ``Client.close()``."""

    status = "canceled"


class Lost(Error):
    """The lock is not, or no longer, held.

    ``reason`` says why, where it is known: ``"expired"``, ``"broken"``, ...
    """

    status = "lost"
    reason: Optional[str] = None


class Uncertain(Error):
    """The request was sent, and no answer came.

    What it may have left in the service is taken back in the background.
    """

    status = "uncertain"


class Unavailable(Error, ConnectionError):
    """The service cannot be reached, or cannot serve now."""

    status = "unavailable"


class Denied(Error, PermissionError):
    """The service or the system refused: credentials or rights."""

    status = "denied"


class Invalid(Error, ValueError):
    """A wrong argument, URL or option, or an object that is closed."""

    status = "invalid"


class Unsupported(Error, NotImplementedError):
    """This service or this build cannot do that."""

    status = "unsupported"


class Protocol(Error):
    """The service gave an answer that makes no sense, or has foreign data."""

    status = "protocol"


class NoMemory(Error, MemoryError):
    """Out of memory."""

    status = "nomem"


class System(Error, OSError):
    """A system call failed; see ``errno``."""

    status = "system"


#: Read by the C part: the class for each ``hf_status``, in its order.
BY_STATUS: Tuple[Type[Error], ...] = (
    Error, Busy, Timeout, Canceled, Lost, Uncertain, Unavailable, Denied, Invalid,
    Unsupported, Protocol, NoMemory, System,
)
