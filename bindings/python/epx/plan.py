# Plans, batches and the data calls. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
from ctypes import c_int64, c_void_p
from dataclasses import dataclass
from typing import Any, List, Optional, Tuple

from . import _structs as s
from ._library import check, library
from .arrays import FP32, INT32, INT64, address, type_code, view
from .errors import ArgumentError
from .group import Group

# Looked up once.
_dispatch, _combine_backward = library.epx_dispatch, library.epx_combine_backward


@dataclass(frozen=True)
class Stats:
    """What became of the last routing, this rank's share: epx_plan_stats_t."""

    routed: int
    skipped: int
    kept: int
    spilled: int
    dropped_sender: int
    dropped_receiver: int
    sent_bytes: int
    received_bytes: int
    sent_meta_bytes: int
    received_meta_bytes: int
    wait_ns: int
    wait_peer: int
    tokens: int


class Batch:
    """Rows that arrived for this rank's experts in one wave. They lie in the arrays given to dispatch, or in the
    library's own memory, which is then valid until the wave's combine."""

    def __init__(self, plan: "Plan", batch: s.Batch, into: Tuple[Any, Any, Any]) -> None:
        self._plan, self._c, self.into = plan, batch, into

    @property
    def rows_address(self) -> int:
        """Address of the rows, [rows_max, width] of the row type, on the group's device."""
        return int(self._c.rows or 0)

    @property
    def rows_max(self) -> int:
        return int(self._c.rows_max)

    def counts(self, stream: Optional[int] = None) -> Tuple[List[int], List[int]]:
        """First row and number of rows of each local expert, on the host. Synchronises the stream."""
        local = max(int(self._c.local_experts), 1)
        start, count = (c_int64 * local)(), (c_int64 * local)()
        check(library.epx_batch_counts(self._plan.handle, ctypes.byref(self._c), start, count, stream))
        return list(start)[: self._c.local_experts], list(count)[: self._c.local_experts]

    def rows(self) -> Any:
        """The rows as a numpy array without a copy (device host; float32 and float16; bfloat16 with ml_dtypes)."""
        import numpy

        group = self._plan.group
        info = group.info()
        if info.device != "host":
            raise ArgumentError(f"rows are on {info.device}; give dispatch arrays of yours and read those")
        kind: Any = {1: "float32", 3: "float16"}.get(group.row_type)
        if kind is None:
            import ml_dtypes

            kind = ml_dtypes.bfloat16
        dtype = numpy.dtype(kind)
        count = self.rows_max * info.width
        if count == 0 or not self.rows_address:
            return numpy.empty((0, info.width), dtype)
        raw = (ctypes.c_char * (count * dtype.itemsize)).from_address(self.rows_address)
        return numpy.frombuffer(raw, dtype, count).reshape(self.rows_max, info.width)


class Plan:
    """One routing decision. The calls are those of include/epx/epx.h, with arrays instead of pointers; streams are
    integers (a cudaStream_t), or None for the host and the default stream. Collective calls are made by all ranks
    of the group in the same order."""

    def __init__(self, group: Group, lane: int = 0, memory: Any = None, attach: bool = False) -> None:
        self.group = group
        self._handle = c_void_p()
        self._memory = memory
        at = view(memory, "memory").address if memory is not None and not isinstance(memory, int) else memory
        make = library.epx_plan_attach if attach else library.epx_plan_create
        check(make(group.handle, lane, at, ctypes.byref(self._handle)))
        info = group.info()
        self._device, self._width, self._local = info.device, info.width, len(info.local_experts)
        self._rows_max, self._tokens_max = info.batch_rows_max, info.tokens_max
        self._tokens = 0
        self._batch = s.begin(s.Batch)

    @classmethod
    def attach(cls, group: Group, memory: Any, lane: int = 0) -> "Plan":
        """A plan over bytes that a plan of an equal group has routed."""
        return cls(group, lane, memory, attach=True)

    @property
    def handle(self) -> c_void_p:
        if not self._handle.value:
            raise ArgumentError("the plan is closed")
        return self._handle

    @property
    def waves(self) -> int:
        waves = int(library.epx_plan_waves(self.handle))
        check(min(waves, 0))
        return waves

    @property
    def memory_address(self) -> int:
        return int(library.epx_plan_memory(self.handle) or 0)

    def route(self, ids: Any, weights: Any, stream: Optional[int] = None) -> None:
        """ids [T, K + X] int32 or int64, -1: none; weights [T, K + X] float32. Collective."""
        kind = type_code(ids.dtype) if hasattr(ids, "data_ptr") else view(ids, "ids").type
        if kind not in (INT32, INT64):
            raise ArgumentError("ids must hold int32 or int64")
        columns = self.group.columns
        routing = s.begin(s.Routing)
        routing.ids = address(ids, "ids", self._device, kind, (None, columns))
        tokens = ids.shape[0]
        routing.weights = address(weights, "weights", self._device, FP32, (tokens, columns))
        routing.id_type, routing.tokens = kind, tokens
        self._tokens = tokens
        check(library.epx_plan_route(self.handle, ctypes.byref(routing), stream))

    def save(self, copy: Any, stream: Optional[int] = None) -> None:
        """Writes the plan's bytes to an array of group.plan_bytes bytes on the group's device."""
        check(library.epx_plan_save(self.handle, self._bytes_at(copy, "copy"), stream))

    def load(self, copy: Any, tokens: int, stream: Optional[int] = None) -> None:
        """Becomes the plan that such an array holds, of a routing of `tokens` tokens. Synchronises the stream."""
        check(library.epx_plan_load(self.handle, self._bytes_at(copy, "copy"), stream))
        self._tokens = tokens

    def load_whole(self, copy: Any, tokens: int, stream: Optional[int] = None) -> None:
        """As load, of bytes that save wrote behind a whole first pass of a route of `tokens` tokens: waits for nothing
        where the library need not look at them."""
        check(library.epx_plan_load_whole(self.handle, self._bytes_at(copy, "copy"), tokens, stream))
        self._tokens = tokens

    def _bytes_at(self, array: Any, what: str) -> int:
        pointer = getattr(array, "data_ptr", None)
        interface = getattr(array, "__cuda_array_interface__", None) or getattr(array, "__array_interface__", None)
        if pointer is None and interface is None:
            raise ArgumentError(f"{what} is a {type(array).__name__}, which tells no address")
        size = int(array.numel() * array.element_size() if pointer is not None else array.nbytes)
        if size < self.group.plan_bytes:
            raise ArgumentError(f"{what} has {size} bytes; a plan of this group has {self.group.plan_bytes}")
        return int(pointer()) if pointer is not None else int(interface["data"][0])  # type: ignore[index]

    def counts(self, into: Any, stream: Optional[int] = None) -> None:
        """Writes routed, skipped, kept, spilled, dropped_sender, dropped_receiver to an int64 array [6] on the
        group's device, in stream order."""
        check(library.epx_plan_counts(self.handle, address(into, "into", self._device, INT64, (6,)), stream))

    def stats(self, stream: Optional[int] = None) -> Stats:
        """Complete after the first pass's last dispatch. Synchronises the stream."""
        c = s.begin(s.PlanStats)
        check(library.epx_plan_stats(self.handle, ctypes.byref(c), stream))
        return Stats(**{name: int(getattr(c, name)) for name in Stats.__dataclass_fields__})

    def begin_batch(self, rows: int, start: int, count: int) -> s.Batch:
        """A batch into memory of the caller, by addresses that need no look."""
        batch = self._batch
        batch.into_rows, batch.into_start, batch.into_count = rows, start, count
        return batch

    def dispatch_into(self, wave: int, x: Any, rows: int, start: int, count: int, stream: Optional[int]) -> None:
        """As dispatch, into room of the right size by address."""
        at = self._tokens_in(x, "x", self.group.row_type)
        batch = self.begin_batch(rows, start, count)
        check(_dispatch(self._handle, wave, at, ctypes.byref(batch), stream))

    def combine_backward_into(
        self, wave: int, dout: Any, y: Any, rows: int, start: int, count: int, stream: Optional[int]
    ) -> None:
        """As combine_backward, into room of the right size by address."""
        at = self._tokens_in(dout, "dout", self.group.row_type)
        batch = self.begin_batch(rows, start, count)
        check(_combine_backward(self._handle, wave, at, self._rows_in(y, "y"), ctypes.byref(batch), stream))

    def _begin_batch(self, into: Optional[Tuple[Any, Any, Any]]) -> s.Batch:
        batch = s.begin(s.Batch)
        if into is not None:
            rows, start, count = into
            batch.into_rows = self._rows_in(rows, "into rows")
            batch.into_start = address(start, "into start", self._device, INT64, (self._local,))
            batch.into_count = address(count, "into count", self._device, INT64, (self._local,))
        return batch

    def _tokens_in(self, array: Any, what: str, type_: int) -> Optional[int]:
        return address(array, what, self._device, type_, (self._tokens, self._width))

    def _rows_in(self, array: Any, what: str) -> Optional[int]:
        at = address(array, what, self._device, self.group.row_type, (None, self._width))
        if array is not None and array.shape[0] < self._rows_max:
            raise ArgumentError(f"{what} has {array.shape[0]} rows; it needs {self._rows_max}")
        return at

    def dispatch(
        self, wave: int, x: Any, into: Optional[Tuple[Any, Any, Any]] = None, aux: Any = None,
        stream: Optional[int] = None,
    ) -> Batch:  # fmt: skip
        """x [T, width] of the row type. into: (rows [batch_rows_max, width], start, count [local experts] int64)."""
        batch = self._begin_batch(into)
        if aux is not None:
            batch.aux = view(aux, "aux").address
        at = self._tokens_in(x, "x", self.group.row_type)
        check(library.epx_dispatch(self.handle, wave, at, ctypes.byref(batch), stream))
        return Batch(self, batch, into or (None, None, None))

    def combine(self, wave: int, y: Any, out: Any, stream: Optional[int] = None) -> None:
        """y [batch_rows_max, width] of the row type; out [T, width] of the out type, complete after the last wave."""
        rows = self._rows_in(y, "y")
        at = self._tokens_in(out, "out", self.group.out_type)
        check(library.epx_combine(self.handle, wave, rows, at, stream))

    def combine_backward(
        self, wave: int, dout: Any, y: Any, into: Optional[Tuple[Any, Any, Any]] = None,
        stream: Optional[int] = None,
    ) -> Batch:  # fmt: skip
        """dout [T, width], y as given to combine; the batch holds weight * dout."""
        batch = self._begin_batch(into)
        at = self._tokens_in(dout, "dout", self.group.row_type)
        rows = self._rows_in(y, "y")
        check(library.epx_combine_backward(self.handle, wave, at, rows, ctypes.byref(batch), stream))
        return Batch(self, batch, into or (None, None, None))

    def dispatch_backward(
        self, wave: int, dx_rows: Any, dx: Any, dweight: Any = None, stream: Optional[int] = None
    ) -> None:
        """dx [T, width] of the out type, dweight [T, K + X] float32: complete after the last wave."""
        rows = self._rows_in(dx_rows, "dx_rows")
        at = self._tokens_in(dx, "dx", self.group.out_type)
        weights = address(dweight, "dweight", self._device, FP32, (self._tokens, self.group.columns))
        check(library.epx_dispatch_backward(self.handle, wave, rows, at, weights, stream))

    def close(self) -> None:
        if self._handle.value:
            library.epx_plan_destroy(ctypes.byref(self._handle))

    def __enter__(self) -> "Plan":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
