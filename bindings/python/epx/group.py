# Groups: the ranks of one expert-parallel domain. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
import operator
from ctypes import c_int32, c_void_p
from dataclasses import dataclass
from typing import Any, Dict, List, Sequence, Tuple, Union

from . import _structs as s
from ._library import check, library
from .arrays import TYPE_NAMES, type_code
from .comm import Comm
from .errors import ArgumentError

DROPLESS = -1.0

# Names of the C enumerations, by field of the configuration.
CHOICES: Dict[str, Sequence[str]] = {
    "backward": ("default", "none", "kept", "recompute"),
    "accept": ("default", "prefix", "waterfill", "fair"),
    "overflow": ("default", "drop", "spill", "extra_wave"),
    "wire": ("default", "auto", "assignment", "rank"),
    "batch": ("default", "expanded", "indexed"),
    "check": ("default", "off", "canary", "full"),
}
_NUMBERS = {
    "experts", "top_k", "width", "tokens_max", "aux_bytes", "row_align", "lanes", "depth", "virtual_ranks",
    "spill_choices", "waves", "hang_ms", "timeout_ms", "ranks", "sm_budget",
}  # fmt: skip
_REALS = {"capacity_factor", "sender_factor"}
_TEXTS = {"name", "transport", "fabric", "device"}
_FLAGS = {"origin", "batch_in_caller"}
_TYPES = {"row_type", "out_type"}

Option = Union[int, float, str, bool, None, Sequence[int], Any]


def _whole(name: str, value: Any, bits: int = 32) -> int:
    """A whole number that the C structure can hold: ctypes would cut a larger one in silence."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{name} is {value!r}; it must be a whole number") from None
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise ArgumentError(f"{name} is {number}; it must fit in {bits} bits")
    return number


def _real(name: str, value: Any) -> float:
    if value == "dropless":
        return DROPLESS
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ArgumentError(f"{name} is {value!r}; it can be a number or 'dropless'") from None


def _set(config: s.GroupConfig, keep: List[object], name: str, value: Option) -> None:
    if value is None:
        return
    if name in CHOICES:
        names = CHOICES[name]
        if value not in names:
            raise ArgumentError(f"{name} is {value!r}; it can be {', '.join(names[1:])}")
        setattr(config, name, names.index(str(value)))
    elif name in _NUMBERS:
        setattr(config, name, _whole(name, value, 64 if name.endswith("_ms") else 32))
    elif name in _FLAGS:
        setattr(config, name, 1 if value else 0)
    elif name in _TYPES:
        setattr(config, name, type_code(value))
    elif name in _REALS:
        setattr(config, name, _real(name, value))
    elif name in _TEXTS:
        setattr(config, name, str(value).encode())
    elif name == "owner":
        ranks = [_whole("a rank of owner", rank) for rank in value]  # type: ignore[union-attr]
        table = (c_int32 * len(ranks))(*ranks)
        keep.append(table)
        config.owner = table
    else:
        known = sorted([*CHOICES, *_NUMBERS, *_REALS, *_TEXTS, *_FLAGS, *_TYPES, "owner"])
        raise ArgumentError(f"{name} is no option of a group; there are {', '.join(known)}")


def configure(options: Dict[str, Option]) -> Tuple[s.GroupConfig, List[object]]:
    """The C configuration of some options, and what must be kept alive with it."""
    config = s.begin(s.GroupConfig)
    keep: List[object] = []
    for name, value in options.items():
        _set(config, keep, name, value)
    owner = options.get("owner")
    if owner is not None and len(owner) != config.experts:  # type: ignore[arg-type]
        raise ArgumentError(f"owner names {len(owner)} experts; the group has {config.experts}")  # type: ignore[arg-type]
    return config, keep


@dataclass(frozen=True)
class Memory:
    """Bytes of one group on one rank, before anything is opened."""

    items: Dict[str, int]
    total_bytes: int
    device_bytes: int
    plan_bytes: int


def memory(**options: Option) -> Memory:
    """What opening such a group would take (give `ranks` too). Pure."""
    config, _keep = configure(options)
    answer = s.begin(s.Memory)
    check(library.epx_group_memory(ctypes.byref(config), ctypes.byref(answer)))
    return _memory_of(answer)


def _memory_of(answer: s.Memory) -> Memory:
    items = {answer.item[i].name.decode(): int(answer.item[i].bytes) for i in range(answer.items)}
    return Memory(items, int(answer.total_bytes), int(answer.device_bytes), int(answer.plan_bytes))


@dataclass(frozen=True)
class Info:
    """What a group became: epx_group_info_t."""

    rank: int
    ranks: int
    experts: int
    top_k: int
    width: int
    tokens_max: int
    local_experts: Tuple[int, ...]
    batch_rows_max: int
    waves: int
    lanes: int
    depth: int
    virtual_ranks: int
    transport: str
    fabric: str
    device: str
    generation: int
    exchange_bytes_remote: int
    wire: str
    owner: Tuple[int, ...]
    stored_bytes_remote: int
    message_bytes_remote: int
    path: str


@dataclass(frozen=True)
class Nccl:
    """epx_nccl_info_t: what the library was compiled for and which libnccl this process has; "" where there is none."""

    compiled: str
    loaded: str
    file: str
    problem: str


def nccl() -> Nccl:
    """The libnccl that fabric nccl takes in this process: a framework's where it has loaded one before."""
    c = s.begin(s.NcclInfo)
    check(library.epx_nccl_describe(ctypes.byref(c)))
    return Nccl(*(getattr(c, name).decode() for name in ("compiled", "loaded", "file", "problem")))


def use_device(device: str, index: int) -> None:
    """Groups opened on this thread from now on use number `index` of "cuda" (or "host", which has one)."""
    check(library.epx_device_use(device.encode(), index))


class Group:
    """The ranks of one expert-parallel domain. Opening is collective over `comm`.

    Options are the fields of epx_group_config_t by name (include/epx/epx.h): experts, top_k, width and tokens_max
    must be given; row_type is a type or its name; capacity_factor may be "dropless". Variables of the environment
    (EPX_TRANSPORT, ...) win over them.
    """

    def __init__(self, comm: Comm, **options: Option) -> None:
        config, keep = configure(options)
        self._handle = c_void_p()
        self._comm = comm
        self._keep = keep
        check(library.epx_group_open(comm.handle, ctypes.byref(config), ctypes.byref(self._handle)))
        self._config = config
        self.row_type = int(config.row_type) or 1
        self.out_type = int(config.out_type) or self.row_type
        self.name = str(options.get("name") or "group")
        self.columns = int(config.top_k) + int(config.spill_choices)
        self.aux_bytes = int(config.aux_bytes)

    @property
    def handle(self) -> c_void_p:
        if not self._handle.value:
            raise ArgumentError("the group is closed")
        return self._handle

    def info(self) -> Info:
        c = s.begin(s.GroupInfo)
        check(library.epx_group_info(self.handle, ctypes.byref(c)))
        return Info(
            rank=c.rank,
            ranks=c.ranks,
            experts=c.experts,
            top_k=c.top_k,
            width=c.width,
            tokens_max=c.tokens_max,
            local_experts=tuple(c.local_expert_ids[i] for i in range(c.local_experts)),
            batch_rows_max=c.batch_rows_max,
            waves=c.waves,
            lanes=c.lanes,
            depth=c.depth,
            virtual_ranks=c.virtual_ranks,
            transport=c.transport.decode(),
            fabric=c.fabric.decode(),
            device=c.device.decode(),
            generation=c.generation,
            exchange_bytes_remote=c.exchange_bytes_remote,
            wire=CHOICES["wire"][c.wire],
            owner=tuple(c.owner[e] for e in range(c.experts)),
            stored_bytes_remote=c.stored_bytes_remote,
            message_bytes_remote=c.message_bytes_remote,
            path=c.path.decode(),
        )

    def memory(self) -> Memory:
        """What this group takes, outside of a framework's pool of memory."""
        self._config.ranks = self.info().ranks
        answer = s.begin(s.Memory)
        check(library.epx_group_memory(ctypes.byref(self._config), ctypes.byref(answer)))
        return _memory_of(answer)

    @property
    def plan_bytes(self) -> int:
        """Device bytes of a plan."""
        return int(library.epx_plan_bytes(self.handle))

    def check(self) -> None:
        """Raises the group's sticky error, if it has ended."""
        check(library.epx_group_check(self.handle))

    def abort(self, reason: str = "") -> None:
        """Ends every wait of the group. Any thread."""
        library.epx_group_abort(self.handle, reason.encode() or None)

    def recover(self, **options: Option) -> None:
        """Makes a failed group usable again; options: a new configuration. Collective over the survivors."""
        config, keep = configure(options) if options else (None, [])
        check(library.epx_group_recover(self.handle, ctypes.byref(config) if config else None))
        if config is not None:
            self._config, self._keep = config, keep

    def step(self) -> None:
        """Cuts a step for EPX_STATS."""
        check(library.epx_step(self.handle))

    def step_discard(self) -> None:
        """Cuts without a line: what has passed since the last cut counts in no step."""
        check(library.epx_step_discard(self.handle))

    def close(self) -> None:
        """Waits for nobody; plans that still exist become handles of nothing."""
        if self._handle.value:
            library.epx_group_close(ctypes.byref(self._handle))

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if not self._handle.value:
            return "<epx.Group, closed>"
        i = self.info()
        return (
            f"<epx.Group rank {i.rank} of {i.ranks}, {i.experts} experts, top-{i.top_k}, rows of {i.width} "
            f"{TYPE_NAMES[self.row_type]}, {i.transport} over {i.fabric} on {i.device}>"
        )


__all__ = ["DROPLESS", "Group", "Info", "Memory", "Nccl", "configure", "memory", "nccl", "use_device"]
