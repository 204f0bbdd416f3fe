# The structs of include/epx/{epx,comm,info}.h as ctypes sees them. SPDX-License-Identifier: Apache-2.0
"""A test compiles a C program that prints every size and offset, and compares it with this file."""

from __future__ import annotations

import ctypes
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint64,
    c_void_p,
)
from typing import TypeVar

MEMORY_ITEMS = 16

ALLGATHER = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_size_t)


class Bootstrap(Structure):
    _fields_ = [
        ("size_of_struct", c_size_t),
        ("context", c_void_p),
        ("rank", c_int32),
        ("size", c_int32),
        ("allgather", ALLGATHER),
    ]


class GroupConfig(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("ranks", c_int32),
        ("experts", c_int32),
        ("top_k", c_int32),
        ("width", c_int32),
        ("tokens_max", c_int32),
        ("row_type", c_int),
        ("out_type", c_int),
        ("owner", POINTER(c_int32)),
        ("aux_bytes", c_int32),
        ("row_align", c_int32),
        ("lanes", c_int32),
        ("depth", c_int32),
        ("backward", c_int),
        ("origin", c_int32),
        ("batch_in_caller", c_int32),
        ("virtual_ranks", c_int32),
        ("spill_choices", c_int32),
        ("transport", c_char_p),
        ("fabric", c_char_p),
        ("device", c_char_p),
        ("capacity_factor", c_double),
        ("sender_factor", c_double),
        ("waves", c_int32),
        ("accept", c_int),
        ("overflow", c_int),
        ("wire", c_int),
        ("batch", c_int),
        ("check", c_int),
        ("hang_ms", c_int64),
        ("timeout_ms", c_int64),
        ("allocator", c_void_p),
        ("recorder", c_void_p),
        ("sm_budget", c_int32),
    ]


class MemoryItem(Structure):
    _fields_ = [("name", c_char * 32), ("bytes", c_int64), ("device_memory", c_int32)]


class Memory(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("items", c_int32),
        ("item", MemoryItem * MEMORY_ITEMS),
        ("total_bytes", c_int64),
        ("device_bytes", c_int64),
        ("plan_bytes", c_int64),
        ("plan_handle_bytes", c_int64),
    ]


class GroupInfo(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("rank", c_int32),
        ("ranks", c_int32),
        ("experts", c_int32),
        ("top_k", c_int32),
        ("width", c_int32),
        ("tokens_max", c_int32),
        ("local_experts", c_int32),
        ("local_expert_ids", POINTER(c_int32)),
        ("batch_rows_max", c_int64),
        ("waves", c_int32),
        ("lanes", c_int32),
        ("depth", c_int32),
        ("virtual_ranks", c_int32),
        ("transport", c_char_p),
        ("fabric", c_char_p),
        ("device", c_char_p),
        ("generation", c_uint64),
        ("exchange_bytes_remote", c_int64),
        ("wire", c_int),
        ("owner", POINTER(c_int32)),
        ("stored_bytes_remote", c_int64),
        ("message_bytes_remote", c_int64),
        ("path", c_char_p),
    ]


class NcclInfo(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("compiled", c_char * 64),
        ("loaded", c_char * 24),
        ("file", c_char * 512),
        ("problem", c_char * 512),
    ]


class Routing(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("tokens", c_int64),
        ("tokens_device", c_void_p),
        ("ids", c_void_p),
        ("id_type", c_int),
        ("weights", c_void_p),
        ("weight_type", c_int),
    ]


class PlanStats(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("routed", c_int64),
        ("skipped", c_int64),
        ("kept", c_int64),
        ("spilled", c_int64),
        ("dropped_sender", c_int64),
        ("dropped_receiver", c_int64),
        ("sent_bytes", c_int64),
        ("received_bytes", c_int64),
        ("sent_meta_bytes", c_int64),
        ("received_meta_bytes", c_int64),
        ("wait_ns", c_int64),
        ("wait_peer", c_int32),
        ("tokens", c_int64),
    ]


class Batch(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("into_rows", c_void_p),
        ("into_start", c_void_p),
        ("into_count", c_void_p),
        ("aux", c_void_p),
        ("rows", c_void_p),
        ("expert_start", c_void_p),
        ("expert_count", c_void_p),
        ("local_experts", c_int32),
        ("rows_max", c_int64),
        ("row_index", c_void_p),
        ("origin", c_void_p),
        ("row_aux", c_void_p),
    ]


# Structs that begin with their size, by their C names.
SIZED = {
    "epx_group_config_t": GroupConfig,
    "epx_memory_t": Memory,
    "epx_group_info_t": GroupInfo,
    "epx_routing_t": Routing,
    "epx_plan_stats_t": PlanStats,
    "epx_batch_t": Batch,
    "epx_bootstrap_t": Bootstrap,
    "epx_nccl_info_t": NcclInfo,
}

Sized = TypeVar("Sized", bound=Structure)


# An EPX_*_INIT value of each kind: zeros, and the size in front.
_INITIAL: dict[type[Structure], bytes] = {}


def begin(kind: type[Sized]) -> Sized:
    """A new EPX_*_INIT value."""
    initial = _INITIAL.get(kind)
    if initial is None:
        value = kind()
        setattr(value, kind._fields_[0][0], ctypes.sizeof(kind))
        initial = _INITIAL[kind] = bytes(value)
    return kind.from_buffer_copy(initial)
