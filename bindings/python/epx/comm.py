# Ranks and their small collectives. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
from ctypes import c_void_p
from typing import Any, Callable, List, Optional

from . import _structs as s
from ._library import check, library

SUM, MAX, MIN = 0, 1, 2

# Gathers `bytes` of every rank, in rank order.
Allgather = Callable[[bytes], bytes]


class Comm:
    """An ordered set of ranks (include/epx/comm.h). Collective calls are made by all ranks alike."""

    def __init__(self, handle: int, keep: object = None) -> None:
        self._handle = c_void_p(handle)
        self._keep = keep

    @classmethod
    def world(cls) -> "Comm":
        """This process's place in its job by its launcher's variables; one rank alone without a launcher."""
        handle = c_void_p()
        check(library.epx_comm_world(ctypes.byref(handle)))
        return cls(handle.value or 0)

    @classmethod
    def threads(cls, ranks: int) -> List["Comm"]:
        """The comms of `ranks` threads of this process; thread r uses the r-th."""
        handles = (c_void_p * max(ranks, 1))()
        check(library.epx_comm_threads(ranks, handles))
        return [cls(handles[r] or 0) for r in range(ranks)]

    @classmethod
    def from_allgather(cls, rank: int, size: int, allgather: Allgather) -> "Comm":
        """A comm on the caller's own all-gather. Collective."""

        def gather(_context: Any, send: int, receive: int, count: int) -> int:
            try:
                everyone = allgather(ctypes.string_at(send, count))
                if len(everyone) != count * size:
                    return -1
                ctypes.memmove(receive, everyone, len(everyone))
                return 0
            except Exception:  # noqa: BLE001 - it must not cross the C frames; the library names the rank
                return -1

        bootstrap = s.begin(s.Bootstrap)
        bootstrap.rank, bootstrap.size = rank, size
        bootstrap.allgather = s.ALLGATHER(gather)
        handle = c_void_p()
        check(library.epx_comm_from_bootstrap(ctypes.byref(bootstrap), ctypes.byref(handle)))
        return cls(handle.value or 0, bootstrap)

    @property
    def handle(self) -> c_void_p:
        return self._handle

    @property
    def rank(self) -> int:
        return int(library.epx_comm_rank(self._handle))

    @property
    def size(self) -> int:
        return int(library.epx_comm_size(self._handle))

    def split(self, colour: int, key: int = 0) -> Optional["Comm"]:
        """The ranks with the same colour; None for a negative one. Collective."""
        part = c_void_p()
        check(library.epx_comm_split(self._handle, colour, key, ctypes.byref(part)))
        return Comm(part.value, self) if part.value else None

    def barrier(self) -> None:
        check(library.epx_comm_barrier(self._handle))

    def allgather(self, data: bytes) -> bytes:
        """The same number of bytes of every rank, in rank order. Collective."""
        send = ctypes.create_string_buffer(data, max(len(data), 1))
        receive = ctypes.create_string_buffer(max(len(data) * self.size, 1))
        check(library.epx_comm_allgather(self._handle, send, receive, len(data)))
        return receive.raw[: len(data) * self.size]

    def allreduce(self, values: List[float], how: int = SUM) -> List[float]:
        """Element by element over the ranks, in rank order, in double precision. Collective."""
        numbers = (ctypes.c_double * max(len(values), 1))(*values)
        check(library.epx_comm_allreduce(self._handle, numbers, len(values), 1, how))
        return list(numbers)[: len(values)]

    def abort(self) -> None:
        """Ends every wait on this comm, here and at the peers. Any thread."""
        library.epx_comm_abort(self._handle)

    def close(self) -> None:
        if self._handle.value:
            library.epx_comm_destroy(ctypes.byref(self._handle))
        self._keep = None

    def __enter__(self) -> "Comm":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
