# Errors of the library as exceptions. SPDX-License-Identifier: Apache-2.0
"""Every status of the library below zero becomes one of these; the text is the library's own."""

from __future__ import annotations

__all__ = [
    "EpxError",
    "ArgumentError",
    "RoutingError",
    "UnsupportedError",
    "NoMemoryError",
    "TimeoutError",
    "PeerError",
    "MismatchError",
    "AbortedError",
    "FabricError",
    "CorruptError",
    "FatalError",
]


class EpxError(RuntimeError):
    """A call of the library failed. `status` is its code (include/epx/status.h)."""

    status: int = 0

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        if status is not None:
            self.status = status


class ArgumentError(EpxError, ValueError):
    """EPX_ERR_ARG: nothing has changed; mend the arguments and call again."""

    status = -1


class RoutingError(EpxError, ValueError):
    """EPX_ERR_ROUTING: an expert id is out of range; mend the router and route again."""

    status = -2


class UnsupportedError(EpxError, NotImplementedError):
    """EPX_ERR_UNSUPPORTED: not in this build, or not with this transport, fabric or device."""

    status = -3


class NoMemoryError(EpxError, MemoryError):
    """EPX_ERR_NO_MEMORY: the text says how much was asked for."""

    status = -4


class TimeoutError(EpxError):  # noqa: A001 - the library's word for it
    """EPX_ERR_TIMEOUT: the text names the rank that was waited for; recover the group."""

    status = -10


class PeerError(EpxError):
    """EPX_ERR_PEER: another rank's route failed (route again), or it is gone (recover the group)."""

    status = -11


class MismatchError(EpxError, ValueError):
    """EPX_ERR_MISMATCH: ranks disagree; the text names the field and both values."""

    status = -20


class AbortedError(EpxError):
    """EPX_ERR_ABORTED: the group has ended; recover it."""

    status = -21


class FabricError(EpxError):
    """EPX_ERR_FABRIC: the fabric could not be opened or broke."""

    status = -22


class CorruptError(EpxError):
    """EPX_ERR_CORRUPT: a check found rows that changed or were never written."""

    status = -23


class FatalError(EpxError):
    """EPX_ERR_FATAL: the process cannot go on using the library."""

    status = -30


BY_STATUS = {
    kind.status: kind
    for kind in (
        ArgumentError,
        RoutingError,
        UnsupportedError,
        NoMemoryError,
        TimeoutError,
        PeerError,
        MismatchError,
        AbortedError,
        FabricError,
        CorruptError,
        FatalError,
    )
}


def error_of(status: int, text: str) -> EpxError:
    """The exception for a status of the library."""
    return BY_STATUS.get(status, EpxError)(text, status)
