# The library's calls as operators of PyTorch. SPDX-License-Identifier: Apache-2.0
"""torch.ops.epx.*: what torch.compile sees of a layer. A program that is traced meets opaque operators with shapes
that are known in advance, so nothing breaks its graph. `moe_layer` uses them while it is traced, and gives them their
gradients; outside of that it calls the library without a detour.

A group is named by its `key`. Every operator takes a token, an empty tensor, and most give one: the calls of a lane
stay in the order of their tokens, whatever a compiler moves. Buffers that a call adds to are written in place.

    route              ids, weights                  -> token
    dispatch           x, token, wave                -> rows [R, width], start [El], count [El], token
    combine            y, out!, token, wave, keep    -> plan, counts, token; plan and counts are empty before the last
                                                        wave, plan without keep too
    combine_backward   dout, y, plan, token, wave    -> dy [R, width], start, count, token; wave 0 loads the plan
    dispatch_backward  dx_rows, dx!, dweights!, token, wave -> token
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, List, Tuple

import torch

from ..errors import ArgumentError

if TYPE_CHECKING:
    from .group import Group

Tensor = torch.Tensor

# The numbers of a pass, in order.
COUNTS = ("routed", "skipped", "kept", "spilled", "dropped_sender", "dropped_receiver")

_SCHEMAS = (
    "route(Tensor ids, Tensor weights, str group, int lane) -> Tensor",
    "dispatch(Tensor x, Tensor token, str group, int lane, int wave) -> (Tensor, Tensor, Tensor, Tensor)",
    "combine(Tensor y, Tensor(a!) out, Tensor token, str group, int lane, int wave, bool keep)"
    " -> (Tensor, Tensor, Tensor)",
    "combine_backward(Tensor dout, Tensor y, Tensor plan, Tensor token, str group, int lane, int wave)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    "dispatch_backward(Tensor dx_rows, Tensor(a!) dx, Tensor(b!) dweights, Tensor token, str group, int lane,"
    " int wave) -> Tensor",
)

_groups: "weakref.WeakValueDictionary[str, Group]" = weakref.WeakValueDictionary()
_made = 0


def name(group: "Group") -> str:
    """A key for a new group, by which operators find it."""
    global _made
    _made += 1
    key = f"{group.plain.name}-{_made}"
    _groups[key] = group
    return key


def _find(key: str) -> "Group":
    group = _groups.get(key)
    if group is None:
        raise ArgumentError(f"there is no epx.torch.Group {key!r} any more; keep it while programs use it")
    return group


# ---- what they do ---------------------------------------------------------------------------------------------------


def _token(like: Tensor) -> Tensor:
    return like.new_empty(0)


def _batch(group: "Group") -> Tuple[Tensor, Tensor, Tensor]:
    """Room for a batch; what an operator gives may not share memory."""
    counts = [group.empty(group.local_experts, dtype=torch.int64) for _ in range(2)]
    return group.empty(group.rows, group.width, dtype=group.row_dtype), counts[0], counts[1]


def _route(ids: Tensor, weights: Tensor, key: str, lane: int) -> Tensor:
    group = _find(key)
    group.plan(lane).route(ids, weights, group.stream())
    return _token(weights)


def _dispatch(x: Tensor, token: Tensor, key: str, lane: int, wave: int) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    group = _find(key)
    rows, start, count = _batch(group)
    group.plan(lane).dispatch(wave, x, (rows, start, count), stream=group.stream())
    return rows, start, count, _token(token)


def _combine(
    y: Tensor, out: Tensor, token: Tensor, key: str, lane: int, wave: int, keep: bool
) -> Tuple[Tensor, Tensor, Tensor]:
    group = _find(key)
    plan, stream = group.plan(lane), group.stream()
    plan.combine(wave, y, out, stream)
    last = wave == group.waves - 1
    counts = group.empty(len(COUNTS) if last else 0, dtype=torch.int64)
    saved = group.empty(group.plan_bytes if last and keep else 0, dtype=torch.uint8)
    if last:
        plan.counts(counts, stream)
    if last and keep:
        plan.save(saved, stream)
    return saved, counts, _token(token)


def _combine_backward(
    dout: Tensor, y: Tensor, plan: Tensor, token: Tensor, key: str, lane: int, wave: int
) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    group = _find(key)
    work, stream = group.plan(lane), group.stream()
    if wave == 0:
        work.load_whole(plan, dout.shape[0], stream)
    dy, start, count = _batch(group)
    work.combine_backward(wave, dout, y, (dy, start, count), stream)
    return dy, start, count, _token(token)


def _dispatch_backward(
    dx_rows: Tensor, dx: Tensor, dweights: Tensor, token: Tensor, key: str, lane: int, wave: int
) -> Tensor:
    group = _find(key)
    group.plan(lane).dispatch_backward(wave, dx_rows, dx, dweights, group.stream())
    return _token(token)


# ---- what shapes come out, for programs that are traced -------------------------------------------------------------


def _traced_batch(key: str, like: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    group = _find(key)
    counts = [like.new_empty(group.local_experts, dtype=torch.int64) for _ in range(2)]
    return like.new_empty(group.rows, group.width, dtype=group.row_dtype), counts[0], counts[1]


def _traced_route(ids: Tensor, weights: Tensor, key: str, lane: int) -> Tensor:
    return _token(weights)


def _traced_dispatch(x: Tensor, token: Tensor, key: str, lane: int, wave: int) -> Tuple[Tensor, ...]:
    return (*_traced_batch(key, x), _token(token))


def _traced_combine(
    y: Tensor, out: Tensor, token: Tensor, key: str, lane: int, wave: int, keep: bool
) -> Tuple[Tensor, ...]:
    group = _find(key)
    last = wave == group.waves - 1
    saved = y.new_empty(group.plan_bytes if last and keep else 0, dtype=torch.uint8)
    return saved, y.new_empty(len(COUNTS) if last else 0, dtype=torch.int64), _token(token)


def _traced_combine_backward(
    dout: Tensor, y: Tensor, plan: Tensor, token: Tensor, key: str, lane: int, wave: int
) -> Tuple[Tensor, ...]:
    return (*_traced_batch(key, dout), _token(token))


def _traced_dispatch_backward(
    dx_rows: Tensor, dx: Tensor, dweights: Tensor, token: Tensor, key: str, lane: int, wave: int
) -> Tensor:
    return _token(token)


def _register() -> List[Any]:
    library: Any = torch.library.Library("epx", "DEF")  # type: ignore[no-untyped-call,unused-ignore]
    for schema in _SCHEMAS:
        call = schema.split("(")[0]
        library.define(schema)
        for where in ("CPU", "CUDA"):
            library.impl(call, globals()[f"_{call}"], where)
        library.impl(call, globals()[f"_traced_{call}"], "Meta")
    return [library]


_keep = _register()
