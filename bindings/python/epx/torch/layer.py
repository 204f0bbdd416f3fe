# A whole mixture-of-experts layer with its gradients. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any, Callable, Iterable, List, Optional, Tuple

import torch

from .group import Group

COUNTS = ("routed", "skipped", "kept", "spilled", "dropped_sender", "dropped_receiver")

Tensor = torch.Tensor
# expert_fn(rows [R, width], sizes [El] int64) -> y [R, width]: rows of local expert e are the sizes[e] rows behind
# those of the experts before it. It uses its parameters as any module does.
ExpertFn = Callable[[Tensor, Tensor], Tensor]


def valid_rows(start: Tensor, count: Tensor, rows: int) -> Tensor:
    """bool [rows]: which rows of a batch hold anything."""
    at = torch.arange(rows, device=start.device)[:, None]
    return ((at >= start) & (at < start + count)).any(1)


def expert_sizes(start: Tensor, rows: int) -> Tensor:
    """int64 [El], sums to `rows`: from each expert's first row to the next one's, gaps included."""
    if start.numel() == 0:
        return start
    first = start.clone()
    first[0] = 0
    return torch.cat([first[1:], first.new_full((1,), rows)]) - first


class _Wave:
    """What one wave keeps for the way back."""

    def __init__(self, rows: Tensor, y: Tensor) -> None:
        self.rows, self.y = rows, y


def _clean(rows: Tensor, start: Tensor, count: Tensor) -> Tensor:
    """Rows outside the counted ones are nobody's and may hold anything, NaN too: zero them."""
    return rows.masked_fill_(~valid_rows(start, count, rows.shape[0])[:, None], 0)


def _batch(group: Group) -> Tuple[Tensor, Tensor, Tensor]:
    counts = [group.empty(group.local_experts, dtype=torch.int64) for _ in range(2)]
    return group.empty(group.rows, group.width, dtype=group.row_dtype), counts[0], counts[1]


class _Layer(torch.autograd.Function):
    """Waves ascend in both directions, so one function holds the whole layer and runs the experts' own backward."""

    @staticmethod
    def forward(
        ctx: Any, group: Group, expert_fn: ExpertFn, lane: int, x: Tensor, ids: Tensor, weights: Tensor, *params: Tensor
    ) -> Tuple[Tensor, Tensor]:
        plan, stream = group.plan(lane), group.stream()
        keeps = any(ctx.needs_input_grad)
        plan.route(ids, weights, stream)
        out = group.empty(x.shape[0], group.width, dtype=group.out_dtype)
        waves: List[_Wave] = []
        for wave in range(group.waves):
            rows, start, count = _batch(group)
            plan.dispatch(wave, x, (rows, start, count), stream=stream)
            _clean(rows, start, count)
            sizes = expert_sizes(start, group.rows)
            with torch.set_grad_enabled(keeps):
                y = expert_fn(rows.requires_grad_(keeps), sizes)
            plan.combine(wave, y.detach(), out, stream)
            waves.append(_Wave(rows, y))
        counts = group.empty(len(COUNTS), dtype=torch.int64)
        plan.counts(counts, stream)
        if keeps:
            saved = group.empty(group.plain.plan_bytes, dtype=torch.uint8)
            plan.save(saved, stream)
            ctx.group, ctx.lane, ctx.saved, ctx.waves = group, lane, saved, waves
            ctx.tokens, ctx.x_dtype, ctx.columns, ctx.params = x.shape[0], x.dtype, weights.shape[1], params
        ctx.mark_non_differentiable(counts)
        return out, counts

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: Tensor, _counts: Optional[Tensor]) -> Tuple[Any, ...]:
        group: Group = ctx.group
        plan, stream = group.plan(ctx.lane), group.stream()
        plan.load(ctx.saved, ctx.tokens, stream)
        dout = dout.to(group.row_dtype).contiguous()
        dx = group.empty(ctx.tokens, group.width, dtype=group.out_dtype)
        dweights = group.empty(ctx.tokens, ctx.columns, dtype=torch.float32)
        totals: List[Optional[Tensor]] = [None] * len(ctx.params)
        for wave, kept in enumerate(ctx.waves):
            dy, start, count = _batch(group)
            plan.combine_backward(wave, dout, kept.y.detach(), (dy, start, count), stream)
            _clean(dy, start, count)
            wanted = [kept.rows, *(p for p in ctx.params if p.requires_grad)]
            found: Tuple[Optional[Tensor], ...] = (None,) * len(wanted)
            if kept.y.requires_grad:
                found = torch.autograd.grad(kept.y, wanted, dy, allow_unused=True)
            dx_rows = found[0] if found[0] is not None else torch.zeros_like(dy)
            _add(totals, ctx.params, found[1:])
            plan.dispatch_backward(wave, dx_rows.contiguous(), dx, dweights, stream)
        return (None, None, None, dx.to(ctx.x_dtype), None, dweights, *totals)


def _add(totals: List[Optional[Tensor]], params: Tuple[Tensor, ...], found: Tuple[Optional[Tensor], ...]) -> None:
    """Gradients of one wave onto those of the waves before; only of the parameters that want one."""
    more = iter(found)
    for i, parameter in enumerate(params):
        gradient = next(more) if parameter.requires_grad else None
        if gradient is not None:
            before = totals[i]
            totals[i] = gradient if before is None else before + gradient


def moe_layer(
    group: Group, expert_fn: ExpertFn, x: Tensor, ids: Tensor, weights: Tensor, params: Iterable[Tensor] = (),
    lane: int = 0, with_counts: bool = False,
) -> Any:  # fmt: skip
    """This rank's part of a layer: out [T, width] = sum over kept k of weights[t, k] * expert(ids[t, k])(x[t]).

    x [T, width]; ids [T, K] int32 or int64, -1: none; weights [T, K] float32; params: what of expert_fn wants
    gradients (module.parameters()). Gradients for x, weights and params. All ranks call layers, and their backward
    passes, in the same order. with_counts: (out, int64 [6] in the order of epx.torch.COUNTS).
    """
    rows = x.to(group.row_dtype).contiguous()
    out, counts = _Layer.apply(
        group, expert_fn, lane, rows, ids.contiguous(), weights.contiguous(), *params
    )
    return (out, counts) if with_counts else out
