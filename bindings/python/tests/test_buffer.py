# epx.torch.Buffer as jobs written for DeepEP's class use it. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any, List, Tuple

import pytest

torch = pytest.importorskip("torch")
import epx  # noqa: E402
import epx.torch as et  # noqa: E402
from test_plain import together  # noqa: E402
from test_torch import ranks_on  # noqa: E402

RANKS, EXPERTS, TOP_K, WIDTH = 3, 6, 2, 8
LOCAL = EXPERTS // RANKS


def problem(rank: int, seed: int = 0) -> Tuple[Any, Any, Any]:
    g = torch.Generator().manual_seed(10 * seed + rank)
    tokens = (6, 0, 9)[rank]
    ids = torch.stack([torch.randperm(EXPERTS, generator=g)[:TOP_K] for _ in range(tokens)]) if tokens else None
    ids = torch.empty(0, TOP_K, dtype=torch.int64) if ids is None else ids
    ids[torch.rand(ids.shape, generator=g) < 0.2] = -1
    return torch.randn(tokens, WIDTH, generator=g), ids, torch.rand(tokens, TOP_K, generator=g)


def arrivals(rank: int) -> List[Tuple[int, int]]:
    """(rank, token) of the rows that come to a rank, in order: once each, whatever the number of experts there."""
    return [
        (source, t)
        for source in range(RANKS)
        for t, ids in enumerate(problem(source)[1].tolist())
        if any(e >= 0 and e // LOCAL == rank for e in ids)
    ]


def test_dispatch_and_combine(transport: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPX_TRANSPORT", transport)

    def rank(comm: epx.Comm, place: str) -> None:
        buffer = et.Buffer(comm, device=device, timeout_ms=30000)
        x, ids, weights = (t.to(place) for t in problem(comm.rank))
        per_rank, _, per_expert, in_rank, event = buffer.get_dispatch_layout(ids, EXPERTS)
        assert per_rank.tolist() == in_rank.sum(0).tolist()
        assert per_expert.tolist() == [int((ids == e).sum()) for e in range(EXPERTS)]
        rows, came, came_weights, each, handle, event = buffer.dispatch(
            x, topk_idx=ids, topk_weights=weights, is_token_in_rank=in_rank, num_tokens_per_rank=per_rank,
            num_tokens_per_expert=per_expert,
        )  # fmt: skip
        event.current_stream_wait()
        wanted = arrivals(comm.rank)
        assert rows.shape[0] == len(wanted) and rows.device.type == place
        found, came_here, weights_here = rows.cpu(), came.cpu(), came_weights.cpu()
        if transport != "ragged":  # in the transport's own order: find each by its content
            order = [next(i for i in range(len(wanted)) if torch.equal(found[i], problem(s)[0][t])) for s, t in wanted]
            assert sorted(order) == list(range(len(wanted)))
        for i, (source, t) in zip(order if transport != "ragged" else range(len(wanted)), wanted):
            there, their_ids, their_weights = problem(source)
            assert torch.equal(found[i], there[t])
            here = their_ids[t] // LOCAL == comm.rank
            here &= their_ids[t] >= 0
            assert torch.equal(came_here[i], torch.where(here, their_ids[t] - comm.rank * LOCAL, -1))
            assert torch.equal(weights_here[i], torch.where(here, their_weights[t], 0.0))
        assert each == [int((came == e).sum()) for e in range(LOCAL)]
        # Each rank answers with (rank + 1) times the row: sums over the ranks that a token went to.
        back, back_weights, _ = buffer.combine((comm.rank + 1) * rows, handle, topk_weights=came_weights)
        factor = (in_rank * torch.arange(1, RANKS + 1, device=place)).sum(1, keepdim=True)
        torch.testing.assert_close(back, factor * x)
        torch.testing.assert_close(back_weights, torch.where(ids >= 0, weights, 0.0))
        # The same layout for other rows, twice without a combine in between, then a combine on its own.
        for _ in range(2):
            again = buffer.dispatch(2 * x, handle=handle)[0]
            assert torch.equal(again, 2 * rows)
        back = buffer.combine(rows, handle)[0]
        torch.testing.assert_close(back, in_rank.sum(1, keepdim=True) * x)
        back = buffer.combine(rows, handle)[0]
        torch.testing.assert_close(back, in_rank.sum(1, keepdim=True) * x)
        buffer.close()

    ranks_on(device, rank)


class Dispatch(torch.autograd.Function):
    """As a trainer's dispatcher has it: the backward pass of one call is the other."""

    @staticmethod
    def forward(ctx: Any, buffer: et.Buffer, x: Any, ids: Any, weights: Any) -> Any:
        per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(ids, EXPERTS)
        rows, came, came_weights, _, handle, _ = buffer.dispatch(
            x, topk_idx=ids, topk_weights=weights, is_token_in_rank=in_rank, num_tokens_per_rank=per_rank,
            num_tokens_per_expert=per_expert,
        )  # fmt: skip
        ctx.buffer, ctx.handle = buffer, handle
        ctx.mark_non_differentiable(came)
        return rows, came, came_weights, handle

    @staticmethod
    def backward(ctx: Any, drows: Any, _came: Any, dweights: Any, _handle: Any) -> Any:
        dx, dprobs, _ = ctx.buffer.combine(drows.contiguous(), ctx.handle, topk_weights=dweights.contiguous())
        return None, dx, None, dprobs


class Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, buffer: et.Buffer, rows: Any, handle: et.Handle) -> Any:
        ctx.buffer, ctx.handle = buffer, handle
        return buffer.combine(rows, handle)[0]

    @staticmethod
    def backward(ctx: Any, dout: Any) -> Any:
        return None, ctx.buffer.dispatch(dout.contiguous(), handle=ctx.handle)[0], None


def layer(buffer: et.Buffer, x: Any, ids: Any, weights: Any, scale: Any) -> Any:
    """Expert e multiplies by scale[e], a parameter of the rank that owns it."""
    rows, came, came_weights, handle = Dispatch.apply(buffer, x, ids, weights)
    factor = (came_weights * torch.where(came >= 0, scale[came.clamp(min=0)], 0.0)).sum(1, keepdim=True)
    return Combine.apply(buffer, rows * factor, handle)


def test_two_layers_with_gradients(device: str) -> None:
    scales = torch.linspace(0.5, 1.5, EXPERTS)

    def dense(x: Any, ids: Any, weights: Any, scale: Any) -> Any:
        return x * (weights * torch.where(ids >= 0, scale[ids.clamp(min=0)], 0.0)).sum(1, keepdim=True)

    whole = scales.clone().requires_grad_()
    right = []
    for r in range(RANKS):
        x, ids, weights = problem(r)
        x, weights = x.requires_grad_(), weights.requires_grad_()
        out = dense(x + dense(x, ids, weights, whole), ids, weights, whole)
        (out**2).sum().backward()
        right.append((out.detach(), x.grad, weights.grad))

    def rank(comm: epx.Comm, place: str) -> None:
        buffer = et.Buffer(comm, device=device, tokens_max=16, timeout_ms=30000)
        own = scales[comm.rank * LOCAL : (comm.rank + 1) * LOCAL].to(place, copy=True).requires_grad_()
        x, ids, weights = (t.to(place) for t in problem(comm.rank))
        x, weights = x.requires_grad_(), weights.requires_grad_()
        out = layer(buffer, x + layer(buffer, x, ids, weights, own), ids, weights, own)
        (out**2).sum().backward()
        for ours, theirs in zip((out.detach(), x.grad, weights.grad), right[comm.rank]):
            ours = ours.cpu()
            torch.testing.assert_close(ours, theirs if theirs is not None else torch.zeros_like(ours))
        torch.testing.assert_close(own.grad.cpu(), whole.grad[comm.rank * LOCAL : (comm.rank + 1) * LOCAL])
        buffer.close()

    ranks_on(device, rank)


def test_what_has_no_meaning_is_refused() -> None:
    def rank(comm: epx.Comm) -> None:
        with pytest.raises(epx.UnsupportedError, match="low_latency_mode"):
            et.Buffer(comm, low_latency_mode=True)
        buffer = et.Buffer(comm, device="host", tokens_max=4)
        x, ids, weights = torch.ones(4, WIDTH), torch.zeros(4, TOP_K, dtype=torch.int64), torch.ones(4, TOP_K)
        with pytest.raises(epx.UnsupportedError, match="FP8"):
            buffer.dispatch((x, x))
        with pytest.raises(epx.UnsupportedError, match="num_worst_tokens"):
            buffer.dispatch(x, num_worst_tokens=9)
        with pytest.raises(epx.ArgumentError, match="first dispatch needs"):
            buffer.dispatch(x)
        _, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(torch.zeros(9, TOP_K, dtype=torch.int64), EXPERTS)
        with pytest.raises(epx.ArgumentError, match="made for 4"):
            buffer.dispatch(
                torch.ones(9, WIDTH), topk_idx=ids, topk_weights=weights, is_token_in_rank=in_rank,
                num_tokens_per_expert=per_expert,
            )  # fmt: skip
        buffer.close()

    together(rank, 1)


def test_uneven_experts_are_refused() -> None:
    def rank(comm: epx.Comm) -> None:
        buffer = et.Buffer(comm, device="host")
        with pytest.raises(epx.UnsupportedError, match="own as many"):
            buffer.get_dispatch_layout(torch.zeros(1, TOP_K, dtype=torch.int64), EXPERTS + 1)

    together(rank, RANKS)
