# A class with the call shapes of DeepEP's Buffer, over epx. SPDX-License-Identifier: Apache-2.0
"""For jobs that are written for that class: they run by importing it from here.

What that class does in terms of epx: every rank is one expert, a token goes once to each rank that owns one of its
experts, and nothing is weighted on the way. So rows travel in a group with as many experts as ranks, and the ids and
weights that go with them in a second one. Nothing is dropped. What has no meaning here is a clear error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

import torch

from .. import group as _plain
from ..arrays import type_code
from ..comm import Comm, MAX
from ..errors import ArgumentError, UnsupportedError
from ..group import configure
from ..plan import Plan
from .group import _comm_of

Tensor = torch.Tensor


class EventHandle:
    """A point of the current stream. On the host it has always been reached."""

    def __init__(self) -> None:
        self.event: Optional[Any] = None
        if torch.cuda.is_available():
            self.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.event.record()

    def current_stream_wait(self) -> None:
        if self.event is not None:
            torch.cuda.current_stream().wait_event(self.event)


class EventOverlap:
    """A point that work may wait for: what came before it has run behind `current_stream_wait`. extra_tensors are kept
    as long as it."""

    def __init__(self, event: Optional[EventHandle] = None, extra_tensors: Optional[Tuple[Tensor, ...]] = None) -> None:
        self.event, self.extra_tensors = event, extra_tensors

    def current_stream_wait(self) -> None:
        if self.event is not None:
            self.event.current_stream_wait()

    def __enter__(self) -> "EventOverlap":
        return self

    def __exit__(self, *_: object) -> None:
        self.current_stream_wait()


@dataclass
class Config:
    """Sizes that the other class asks for in advance, and how much it sends at a time. epx takes its memory when it
    sees the first tokens, and reads num_sms alone."""

    num_sms: int = 0
    num_max_nvl_chunked_send_tokens: int = 0
    num_max_nvl_chunked_recv_tokens: int = 0
    num_max_rdma_chunked_send_tokens: int = 0
    num_max_rdma_chunked_recv_tokens: int = 0

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        return 0

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        return 0


@dataclass
class Handle:
    """A layout: which token goes to which ranks. It may be used again for other rows of the same tokens."""

    rows_plan: Plan
    meta_plan: Plan
    tokens: int
    columns: int
    dtype: torch.dtype
    by_wave: List[int]  # rows that come, of each wave

    @property
    def received(self) -> int:
        return sum(self.by_wave)

    def close(self) -> None:
        self.rows_plan.close()
        self.meta_plan.close()

    def __del__(self) -> None:
        self.close()


def _refuse(**given: Any) -> None:
    for name, value in given.items():
        if value:
            raise UnsupportedError(f"{name}={value!r} has no meaning for epx; leave it out")


def _room(tokens: int) -> int:
    """Some more than now, so that routing that changes does not grow the group again and again."""
    return max(256, (tokens + tokens // 4 + 255) // 256 * 256)


# Calls of the other class that mean nothing here, and what to do instead.
_NO_LOW_LATENCY = "every dispatch of epx is made for low latency where rows are few: use dispatch and combine"
_ABSENT = {
    "low_latency_dispatch": _NO_LOW_LATENCY,
    "low_latency_combine": _NO_LOW_LATENCY,
    "clean_low_latency_buffer": _NO_LOW_LATENCY,
    "get_next_low_latency_combine_buffer": _NO_LOW_LATENCY,
    "low_latency_update_mask_buffer": "a rank that is lost ends the group: recover it without that rank",
    "low_latency_query_mask_buffer": "a rank that is lost ends the group: recover it without that rank",
    "low_latency_clean_mask_buffer": "a rank that is lost ends the group: recover it without that rank",
    "get_local_buffer_tensor": "rows land in tensors of PyTorch; nobody needs to see the memory between ranks",
    "intranode_dispatch": "call dispatch, which takes whatever path there is",
    "intranode_combine": "call combine, which takes whatever path there is",
    "internode_dispatch": "call dispatch, which takes whatever path there is",
    "internode_combine": "call combine, which takes whatever path there is",
}


class Buffer:
    """One process's rank. `group`: a process group, or an epx.Comm. tokens_max: the most tokens of a rank in a call;
    None: a quarter more than the first call brings on any rank."""

    num_sms = 0

    def __init__(
        self, group: Any, num_nvl_bytes: int = 0, num_rdma_bytes: int = 0, low_latency_mode: bool = False,
        num_qps_per_rank: int = 0, allow_nvlink_for_low_latency_mode: bool = True, allow_mnnvl: bool = False,
        use_fabric: bool = False, explicitly_destroy: bool = False, enable_shrink: bool = False, comm: Any = None,
        tokens_max: Optional[int] = None, **options: Any,
    ) -> None:  # fmt: skip
        _refuse(low_latency_mode=low_latency_mode, enable_shrink=enable_shrink, comm=comm)
        configure(options)  # a name that is no option is told now, not with the first tokens
        self.group, self.num_nvl_bytes, self.num_rdma_bytes = group, num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode, self.explicitly_destroy = False, explicitly_destroy
        self.comm = group if isinstance(group, Comm) else _comm_of(group)
        self.rank, self.group_size = self.comm.rank, self.comm.size
        self.tokens_max = tokens_max
        self._device = options.setdefault("device", "cuda" if torch.cuda.is_available() else "host")
        self._options = {**options, "capacity_factor": "dropless", "batch_in_caller": True}
        self._groups: Dict[Tuple[int, int], _plain.Group] = {}
        self._open: Optional[Handle] = None

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """Multiprocessors that kernels which move rows may fill, of buffers that are made afterwards."""
        Buffer.num_sms = new_num_sms

    def __getattr__(self, name: str) -> Any:
        if name in _ABSENT:
            raise UnsupportedError(f"Buffer.{name} has no meaning for epx: {_ABSENT[name]}")
        raise AttributeError(f"Buffer has no {name}")

    @staticmethod
    def capture() -> EventOverlap:
        return EventOverlap(EventHandle())

    @staticmethod
    def get_comm_stream() -> Any:
        """Rows move on the current stream."""
        return torch.cuda.current_stream()

    @staticmethod
    def is_sm90_compiled() -> bool:
        return True

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        return 0

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        return Config(Buffer.num_sms)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        return Config(Buffer.num_sms)

    # ---- groups ---------------------------------------------------------------------------------------------------

    def _stream(self) -> Optional[int]:
        return None if self._device == "host" else int(torch.cuda.current_stream().cuda_stream)

    def _agree_on_tokens(self, tokens: int) -> None:
        """Collective where the most is not known yet."""
        if self.tokens_max is None:
            self.tokens_max = _room(int(self.comm.allreduce([float(tokens)], MAX)[0]))
        if tokens > self.tokens_max:
            raise ArgumentError(
                f"rank {self.rank} has {tokens} tokens and this Buffer was made for {self.tokens_max}; make it with "
                "tokens_max= the most that any rank will have"
            )

    def _group(self, width: int, dtype: torch.dtype) -> _plain.Group:
        key = (width, type_code(dtype))
        if key not in self._groups:
            if self._device == "cuda":
                _plain.use_device("cuda", torch.cuda.current_device())
            options = {**self._options, **({"sm_budget": Buffer.num_sms} if Buffer.num_sms else {})}
            options.update(experts=self.group_size, top_k=self.group_size, width=width, row_type=dtype)
            options.update(tokens_max=self.tokens_max, name=f"buffer-{width}")
            self._groups[key] = self._open_group(options)
        return self._groups[key]

    def _open_group(self, options: Dict[str, Any]) -> _plain.Group:
        """One wave, except where a transport has its own number: all waves of a pass are in flight together."""
        try:
            return _plain.Group(self.comm, waves=1, **options)
        except UnsupportedError:
            return _plain.Group(self.comm, depth=self.group_size, **options)

    def _empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="cpu" if self._device == "host" else "cuda")

    # ---- layout ---------------------------------------------------------------------------------------------------

    def get_dispatch_layout(
        self, topk_idx: Tensor, num_experts: int, previous_event: Optional[EventOverlap] = None,
        async_finish: bool = False, allocate_on_comm_stream: bool = False,
    ) -> Tuple[Tensor, None, Tensor, Tensor, EventOverlap]:  # fmt: skip
        """tokens for each rank [ranks] and each expert [num_experts] int32, and bool [T, ranks]: who goes where."""
        if num_experts % self.group_size:
            raise UnsupportedError(f"{num_experts} experts over {self.group_size} ranks: every rank must own as many")
        if previous_event is not None:
            previous_event.current_stream_wait()
        local = num_experts // self.group_size
        chosen = torch.zeros(topk_idx.shape[0], num_experts + 1, dtype=torch.bool, device=topk_idx.device)
        chosen.scatter_(1, torch.where(topk_idx < 0, num_experts, topk_idx).long(), True)
        chosen = chosen[:, :num_experts]
        in_rank = chosen.view(-1, self.group_size, local).any(2)
        per_rank, per_expert = in_rank.sum(0, dtype=torch.int32), chosen.sum(0, dtype=torch.int32)
        return per_rank, None, per_expert, in_rank, self.capture()

    # ---- dispatch -------------------------------------------------------------------------------------------------

    def _route(self, in_rank: Tensor, width: int, dtype: torch.dtype, columns: int) -> Handle:
        tokens = in_rank.shape[0]
        self._agree_on_tokens(tokens)
        everyone = torch.arange(self.group_size, dtype=torch.int32, device=in_rank.device)
        ids = torch.where(in_rank, everyone, -1).contiguous().int()
        ones = torch.ones(ids.shape, dtype=torch.float32, device=in_rank.device)
        plans = [Plan(group) for group in (self._group(width, dtype), self._group(2 * columns, torch.float32))]
        for plan in plans:
            plan.route(ids, ones, self._stream())
        return Handle(plans[0], plans[1], tokens, columns, dtype, [])

    def _receive(self, plan: Plan, x: Tensor, by_wave: List[int]) -> Tensor:
        """The first half of a pass: the rows that came. by_wave: how many in each wave, filled where it is empty."""
        rows_max, known, parts = plan.group.info().batch_rows_max, len(by_wave) > 0, []
        for wave in range(plan.waves):
            rows = self._empty(rows_max, x.shape[1], dtype=x.dtype)
            start, count = (self._empty(1, dtype=torch.int64) for _ in range(2))
            batch = plan.dispatch(wave, x.contiguous(), (rows, start, count), stream=self._stream())
            if not known:
                by_wave.append(batch.counts(self._stream())[1][0])
            parts.append(rows[: by_wave[wave]])
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _send_back(self, plan: Plan, rows: Tensor, tokens: int, by_wave: List[int]) -> Tensor:
        """The second half: sums of `rows` [received, width] at their tokens."""
        width, first = rows.shape[1], 0
        out = self._empty(tokens, width, dtype=rows.dtype)
        for wave, count in enumerate(by_wave):
            whole = self._empty(plan.group.info().batch_rows_max, width, dtype=rows.dtype)
            whole[:count] = rows[first : first + count]
            plan.combine(wave, whole, out, self._stream())
            first += count
        return out

    # A dispatch begins a pass and the combine with the same handle ends it, as jobs call them: in turn. A dispatch
    # that no combine has followed is ended before the next call, by every rank alike.

    def _end_open_pass(self) -> None:
        handle, self._open = self._open, None
        if handle is not None:
            rows = self._empty(handle.received, handle.rows_plan.group.info().width, dtype=handle.dtype).zero_()
            self._send_back(handle.rows_plan, rows, handle.tokens, handle.by_wave)

    def dispatch(
        self, x: Any, handle: Optional[Handle] = None, num_tokens_per_rank: Optional[Tensor] = None,
        num_tokens_per_rdma_rank: Optional[Tensor] = None, is_token_in_rank: Optional[Tensor] = None,
        num_tokens_per_expert: Optional[Tensor] = None, topk_idx: Optional[Tensor] = None,
        topk_weights: Optional[Tensor] = None, expert_alignment: int = 1, num_worst_tokens: int = 0,
        config: Optional[Config] = None, previous_event: Optional[EventOverlap] = None, async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> Tuple[Any, Optional[Tensor], Optional[Tensor], List[int], Handle, EventOverlap]:  # fmt: skip
        """x [T, width] to the ranks of is_token_in_rank -> rows that came (with ragged by rank and token), their ids (of this rank's experts, -1 for
        others), their weights, tokens for each expert of this rank, the handle, an event. With a handle: as then."""
        _refuse(num_worst_tokens=num_worst_tokens)
        if isinstance(x, tuple):
            raise UnsupportedError("rows with scales (FP8) are not supported; give bfloat16, float16 or float32 rows")
        if previous_event is not None:
            previous_event.current_stream_wait()
        self._end_open_pass()
        if handle is not None:
            rows = self._receive(handle.rows_plan, x, handle.by_wave)
            self._open = handle
            return rows, None, None, [], handle, self.capture()
        if is_token_in_rank is None or topk_idx is None or topk_weights is None or num_tokens_per_expert is None:
            raise ArgumentError(
                "the first dispatch needs is_token_in_rank, num_tokens_per_expert (get_dispatch_layout), topk_idx and "
                "topk_weights; later ones the handle"
            )
        columns, local = topk_idx.shape[1], num_tokens_per_expert.shape[0] // self.group_size
        handle = self._route(is_token_in_rank, x.shape[1], x.dtype, columns)
        rows = self._receive(handle.rows_plan, x, handle.by_wave)
        self._open = handle
        ids, weights = self._receive_choices(handle, topk_idx, topk_weights, local)
        each = [int((ids == e).sum()) for e in range(local)]
        each = [(n + expert_alignment - 1) // expert_alignment * expert_alignment for n in each]
        return rows, ids, weights, each, handle, self.capture()

    def _receive_choices(
        self, handle: Handle, topk_idx: Tensor, topk_weights: Tensor, local: int
    ) -> Tuple[Tensor, Tensor]:
        """Ids travel as the bits of numbers, beside the weights."""
        meta = torch.cat([topk_idx.int().view(torch.float32), topk_weights.float()], 1)
        rows = self._receive(handle.meta_plan, meta, handle.by_wave)
        self._send_back(handle.meta_plan, torch.zeros_like(rows), handle.tokens, handle.by_wave)
        ids = rows[:, : handle.columns].contiguous().view(torch.int32) - self.rank * local
        weights = rows[:, handle.columns :]
        here = (ids >= 0) & (ids < local)
        return torch.where(here, ids, -1).to(topk_idx.dtype), torch.where(here, weights, 0.0)

    # ---- combine --------------------------------------------------------------------------------------------------

    def _return(self, plan: Plan, rows: Tensor, handle: Handle, is_open: bool) -> Tensor:
        """Sums of `rows` at their tokens. Where no pass is open one is made, whose first half brings nothing that is
        wanted."""
        if not is_open:
            self._receive(plan, self._empty(handle.tokens, rows.shape[1], dtype=rows.dtype).zero_(), handle.by_wave)
        return self._send_back(plan, rows, handle.tokens, handle.by_wave)

    def combine(
        self, x: Tensor, handle: Handle, topk_weights: Optional[Tensor] = None, bias: Any = None,
        config: Optional[Config] = None, previous_event: Optional[EventOverlap] = None, async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor], EventOverlap]:  # fmt: skip
        """x [received, width] back: sums over the ranks of each token [T, width], and of topk_weights likewise."""
        _refuse(bias=bias)
        if previous_event is not None:
            previous_event.current_stream_wait()
        if x.shape[0] != handle.received:
            raise ArgumentError(f"x has {x.shape[0]} rows; {handle.received} came with this handle")
        is_open = self._open is handle
        if is_open:
            self._open = None
        else:
            self._end_open_pass()
        out = self._return(handle.rows_plan, x.to(handle.dtype), handle, is_open)
        weights = None
        if topk_weights is not None:
            meta = torch.cat([torch.zeros_like(topk_weights), topk_weights], 1).float()
            weights = self._return(handle.meta_plan, meta, handle, False)[:, handle.columns :]
        return out, weights, self.capture()

    def close(self) -> None:
        self._open = None
        for group in self._groups.values():
            group.close()
        self._groups.clear()

    destroy = close
