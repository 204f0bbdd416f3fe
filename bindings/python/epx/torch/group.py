# Groups of ranks that are PyTorch processes. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import torch

from .. import group as _plain
from ..arrays import TYPE_NAMES
from ..comm import Comm
from ..errors import UnsupportedError
from ..plan import Plan
from . import ops

Tensor = torch.Tensor

# The current stream without an object around it; PyTorch before 2 has no such function.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def _comm_of(process_group: Any) -> Comm:
    """A comm on a process group's own all-gather, whatever its backend."""
    distributed = torch.distributed
    group = process_group if process_group is not None else distributed.group.WORLD
    size, rank = distributed.get_world_size(group), distributed.get_rank(group)
    device = "cuda" if distributed.get_backend(group) == "nccl" else "cpu"

    def allgather(data: bytes) -> bytes:
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)
        everyone = [torch.empty_like(mine) for _ in range(size)]
        distributed.all_gather(everyone, mine, group=group)
        return b"".join(bytes(part.cpu().numpy().tobytes()) for part in everyone)

    return Comm.from_allgather(rank, size, allgather)


class Group:
    """This process's rank of an expert-parallel group. Opening is collective.

    process_group: who takes part; None: the default process group where torch.distributed is initialised, else this
    process alone. comm: an epx.Comm instead of it. Options are those of epx.Group; `device` is "cuda" where PyTorch
    has a GPU, else "host".
    """

    def __init__(self, process_group: Any = None, comm: Optional[Comm] = None, **options: Any) -> None:
        options.setdefault("device", "cuda" if torch.cuda.is_available() else "host")
        options.setdefault("name", "torch")
        options["batch_in_caller"] = True
        if options.get("origin") or options.get("aux_bytes") or options.get("batch") == "indexed":
            raise UnsupportedError("epx.torch hands over expanded batches without origin and aux")
        self._own_comm: Optional[Comm] = None
        if comm is None:
            there = torch.distributed.is_available() and torch.distributed.is_initialized()
            comm = self._own_comm = _comm_of(process_group) if there else Comm.threads(1)[0]
        if options["device"] == "cuda":
            _plain.use_device("cuda", torch.cuda.current_device())
        self.plain = _plain.Group(comm, **options)
        info = self.plain.info()
        if info.waves == 0:
            self.close()
            raise UnsupportedError("EPX_OVERFLOW=extra_wave: epx.torch runs a fixed number of waves")
        self.rank, self.ranks, self.experts, self.top_k = info.rank, info.ranks, info.experts, info.top_k
        self.width, self.waves, self.rows, self.local_experts = (
            info.width, info.waves, info.batch_rows_max, len(info.local_experts),
        )  # fmt: skip
        self.transport, self.fabric, self.device = info.transport, info.fabric, info.device
        self.row_dtype: torch.dtype = getattr(torch, TYPE_NAMES[self.plain.row_type])
        self.out_dtype: torch.dtype = getattr(torch, TYPE_NAMES[self.plain.out_type])
        self.torch_device = torch.device("cpu" if info.device == "host" else f"cuda:{torch.cuda.current_device()}")
        self._batch_shape, self._counts_shape = (self.rows, self.width), (2, self.local_experts)
        self._count_bytes = 8 * self.local_experts
        self._index = self.torch_device.index or 0
        self._plans: Dict[int, Plan] = {}
        self.plan_bytes = self.plain.plan_bytes
        self.key = ops.name(self)

    def plan(self, lane: int) -> Plan:
        """The plan at work on a lane."""
        plan = self._plans.get(lane)
        if plan is None:
            plan = self._plans[lane] = Plan(self.plain, lane)
        return plan

    def abandon(self, lane: int = 0) -> None:
        """Gives up the pass that is in flight on a lane, if there is one: the next route begins a new one. All ranks
        must do so; one that goes on waits for this one, and its time-out names it."""
        plan = self._plans.pop(lane, None)
        if plan is not None:
            plan.close()

    def stream(self) -> Optional[int]:
        """The current stream, as the library wants it."""
        if self.device == "host":
            return None
        if _raw_stream is not None:
            return int(_raw_stream(self._index))
        return int(torch.cuda.current_stream(self.torch_device).cuda_stream)

    # The calls of a pass, as include/epx/epx.h has them, to the current stream; gradients are moe_layer's. A lane has
    # one plan at work: the last one that was routed.

    def route(self, ids: Tensor, weights: Tensor, lane: int = 0) -> None:
        """ids [T, K] int32 or int64 (-1: none), weights [T, K] float32."""
        self.plan(lane).route(ids, weights, self.stream())

    def dispatch(self, x: Tensor, wave: int = 0, lane: int = 0) -> Tuple[Tensor, Tensor, Tensor]:
        """x [T, width] of the row type -> rows [R, width], first row [El] and number of rows [El] of each expert."""
        rows, counts, at = self._room()
        self.plan(lane).dispatch_into(wave, x, rows.data_ptr(), at, at + self._count_bytes, self.stream())
        start, count = counts.unbind(0)
        return rows, start, count

    def combine(self, y: Tensor, out: Tensor, wave: int = 0, lane: int = 0) -> None:
        """y [R, width] of the row type; out [T, width] of the out type, complete after the last wave."""
        self.plan(lane).combine(wave, y, out, self.stream())

    def combine_backward(self, dout: Tensor, y: Tensor, wave: int = 0, lane: int = 0) -> Tuple[Tensor, Tensor, Tensor]:
        """dout [T, width], y as given to combine -> rows of weight * dout, start, count."""
        rows, counts, at = self._room()
        plan = self.plan(lane)
        plan.combine_backward_into(wave, dout, y, rows.data_ptr(), at, at + self._count_bytes, self.stream())
        start, count = counts.unbind(0)
        return rows, start, count

    def dispatch_backward(self, dx_rows: Tensor, dx: Tensor, dweights: Tensor, wave: int = 0, lane: int = 0) -> None:
        """dx_rows [R, width]; dx [T, width] of the out type and dweights [T, K] complete after the last wave."""
        self.plan(lane).dispatch_backward(wave, dx_rows, dx, dweights, self.stream())

    def _room(self) -> Tuple[Tensor, Tensor, int]:
        """For a batch: rows, counts [2, El], and these counts' address."""
        where = self.torch_device
        rows = torch.empty(self._batch_shape, dtype=self.row_dtype, device=where)
        counts = torch.empty(self._counts_shape, dtype=torch.int64, device=where)
        return rows, counts, counts.data_ptr()

    def empty(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=self.torch_device)

    def close(self) -> None:
        for plan in getattr(self, "_plans", {}).values():
            plan.close()
        self.plain.close()
        if self._own_comm is not None:
            self._own_comm.close()

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
