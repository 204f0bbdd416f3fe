# A whole mixture-of-experts layer with its gradients. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterable, Iterator, List, Optional, Tuple

import torch

from ..errors import ArgumentError
from .group import Group
from .ops import COUNTS as _COUNTS

# Whether torch.compile traces now; PyTorch before 2.1 does not tell, and has the other way alone.
_is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)

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


@contextlib.contextmanager
def _whole_pass(group: Group, lane: int) -> Iterator[None]:
    """Where the experts raise in the middle of a pass the lane is free again for the next one."""
    try:
        yield
    except BaseException:
        group.abandon(lane)
        raise


class _Layer(torch.autograd.Function):
    """Waves ascend in both directions, so one function holds the whole layer and runs the experts' own backward."""

    @staticmethod
    def forward(
        ctx: Any, group: Group, expert_fn: ExpertFn, lane: int, x: Tensor, ids: Tensor, weights: Tensor, *params: Tensor
    ) -> Tuple[Tensor, Tensor]:
        plan, stream = group.plan(lane), group.stream()
        keeps = any(ctx.needs_input_grad)
        group.route(ids, weights, lane)
        out = group.empty(x.shape[0], group.width, dtype=group.out_dtype)
        waves: List[_Wave] = []
        with _whole_pass(group, lane):
            for wave in range(group.waves):
                rows, start, count = group.dispatch(x, wave, lane)
                _clean(rows, start, count)
                sizes = expert_sizes(start, group.rows)
                with torch.set_grad_enabled(keeps):
                    y = expert_fn(rows.requires_grad_(keeps), sizes)
                group.combine(y.detach(), out, wave, lane)
                waves.append(_Wave(rows, y))
        counts = group.empty(len(_COUNTS), dtype=torch.int64)
        plan.counts(counts, stream)
        if keeps:
            saved = group.empty(group.plan_bytes, dtype=torch.uint8)
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
        plan.load_whole(ctx.saved, ctx.tokens, stream)
        dout = dout.to(group.row_dtype).contiguous()
        dx = group.empty(ctx.tokens, group.width, dtype=group.out_dtype)
        dweights = group.empty(ctx.tokens, ctx.columns, dtype=torch.float32)
        totals: List[Optional[Tensor]] = [None] * len(ctx.params)
        with _whole_pass(group, ctx.lane):
            for wave, kept in enumerate(ctx.waves):
                dy, start, count = group.combine_backward(dout, kept.y.detach(), wave, ctx.lane)
                _clean(dy, start, count)
                wanted = [kept.rows, *(p for p in ctx.params if p.requires_grad)]
                found: Tuple[Optional[Tensor], ...] = (None,) * len(wanted)
                if kept.y.requires_grad:
                    found = torch.autograd.grad(kept.y, wanted, dy, allow_unused=True)
                dx_rows = found[0] if found[0] is not None else torch.zeros_like(dy)
                _add(totals, ctx.params, found[1:])
                group.dispatch_backward(dx_rows.contiguous(), dx, dweights, wave, ctx.lane)
        return (None, None, None, dx.to(ctx.x_dtype), None, dweights, *totals)


def _add(totals: List[Optional[Tensor]], params: Tuple[Tensor, ...], found: Tuple[Optional[Tensor], ...]) -> None:
    """Gradients of one wave onto those of the waves before; only of the parameters that want one."""
    more = iter(found)
    for i, parameter in enumerate(params):
        gradient = next(more) if parameter.requires_grad else None
        if gradient is not None:
            before = totals[i]
            totals[i] = gradient if before is None else before + gradient


# ---- under torch.compile --------------------------------------------------------------------------------------------


class _Traced(torch.autograd.Function):
    """The same layer of operators. The way back through the experts is made where it is needed: the compiler joins
    what it computes twice with what it has computed before."""

    @staticmethod
    def forward(
        ctx: Any, group: Group, expert_fn: Any, lane: int, x: Tensor, ids: Tensor, weights: Tensor, *params: Tensor
    ) -> Tuple[Tensor, Tensor]:
        call = torch.ops.epx
        token = call.route(ids, weights, group.key, lane)
        out = x.new_empty(x.shape[0], group.width, dtype=group.out_dtype)
        kept: List[Tensor] = []
        for wave in range(group.waves):
            rows, start, count, token = call.dispatch(x, token, group.key, lane, wave)
            rows = rows.masked_fill(~valid_rows(start, count, group.rows)[:, None], 0)
            sizes = expert_sizes(start, group.rows)
            y = expert_fn(rows, sizes, *params).contiguous()
            plan, counts, token = call.combine(y, out, token, group.key, lane, wave, True)
            kept += [rows, sizes, y]
        ctx.save_for_backward(plan, weights, *kept, *params)
        ctx.group, ctx.expert_fn, ctx.lane, ctx.x_dtype = group, expert_fn, lane, x.dtype
        ctx.mark_non_differentiable(counts)
        return out, counts

    @staticmethod
    def backward(ctx: Any, dout: Tensor, _counts: Any) -> Tuple[Any, ...]:
        call, group, lane, key = torch.ops.epx, ctx.group, ctx.lane, ctx.group.key
        plan, weights, *rest = ctx.saved_tensors
        kept, params = rest[: 3 * group.waves], rest[3 * group.waves :]
        dout = dout.to(group.row_dtype).contiguous()
        dx = dout.new_empty(dout.shape[0], group.width, dtype=group.out_dtype)
        dweights = weights.new_empty(weights.shape)
        token, totals = weights.new_empty(0), None
        for wave in range(group.waves):
            rows, sizes, y = kept[3 * wave : 3 * wave + 3]
            dy, start, count, token = call.combine_backward(dout, y, plan, token, key, lane, wave)
            dy = dy.masked_fill(~valid_rows(start, count, group.rows)[:, None], 0)
            way: Any = torch.func.vjp(lambda r, *p: ctx.expert_fn(r, sizes, *p).contiguous(), rows, *params)  # noqa: B023
            dx_rows, *found = way[1](dy)
            token = call.dispatch_backward(dx_rows.contiguous(), dx, dweights, token, key, lane, wave)
            totals = found if totals is None else [a + b for a, b in zip(totals, found)]
        return (None, None, None, dx.to(ctx.x_dtype), None, dweights, *(totals or []))


def _functional(expert_fn: ExpertFn, has_params: bool) -> Tuple[Any, List[Tensor]]:
    """expert_fn with its parameters as arguments, and these: a traced layer must know what it differentiates."""
    if isinstance(expert_fn, torch.nn.Module):
        named = dict(expert_fn.named_parameters())
        names = list(named)

        def call(rows: Tensor, sizes: Tensor, *params: Tensor) -> Tensor:
            answer: Tensor = torch.func.functional_call(expert_fn, dict(zip(names, params)), (rows, sizes))
            return answer

        return call, list(named.values())
    if has_params:
        raise ArgumentError("under torch.compile experts with parameters must be a torch.nn.Module")
    return expert_fn, []


def _traced_layer(
    group: Group, expert_fn: ExpertFn, lane: int, x: Tensor, ids: Tensor, weights: Tensor, has_params: bool
) -> Tuple[Tensor, Tensor]:
    call, params = _functional(expert_fn, has_params)
    out, counts = _Traced.apply(group, call, lane, x, ids, weights, *params)
    return out, counts


def moe_layer(
    group: Group, expert_fn: ExpertFn, x: Tensor, ids: Tensor, weights: Tensor, params: Iterable[Tensor] = (),
    lane: int = 0, with_counts: bool = False,
) -> Any:  # fmt: skip
    """This rank's part of a layer: out [T, width] = sum over kept k of weights[t, k] * expert(ids[t, k])(x[t]).

    x [T, width]; ids [T, K] int32 or int64, -1: none; weights [T, K] float32; params: what of expert_fn wants
    gradients (module.parameters()). Gradients for x, weights and params. All ranks call layers, and their backward
    passes, in the same order. with_counts: (out, int64 [6] in the order of epx.torch.COUNTS).

    Under torch.compile expert_fn must be a torch.nn.Module where it has parameters (all of them get gradients), and
    must compute the same each time: what it draws at random would be drawn again on the way back.
    """
    rows, ids, weights = x.to(group.row_dtype).contiguous(), ids.contiguous(), weights.contiguous()
    if _is_compiling():
        out, counts = _traced_layer(group, expert_fn, lane, rows, ids, weights, len(list(params)) > 0)
    else:
        out, counts = _Layer.apply(group, expert_fn, lane, rows, ids, weights, *params)
    return (out, counts) if with_counts else out
