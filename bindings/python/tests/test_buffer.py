# epx.torch.Buffer as jobs written for DeepEP's class use it. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any, List, Tuple

import pytest

torch = pytest.importorskip("torch")
import epx  # noqa: E402
import epx.torch as et  # noqa: E402
from epx.torch.utils import EventHandle, EventOverlap  # noqa: E402
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
    """As Megatron-LM's flex dispatcher has it, call by call: a buffer for the group, made again where sizes ask for it;
    events made, handed on and waited for; the backward pass of one call is the other."""

    @staticmethod
    def forward(ctx: Any, jobs: "Job", x: Any, ids: Any, weights: Any) -> Any:
        previous = EventOverlap(EventHandle()) if jobs.asynchronous else None
        buffer, flags = jobs.buffer(x), {"async_finish": jobs.asynchronous, "allocate_on_comm_stream": jobs.asynchronous}
        per_rank, per_rdma_rank, per_expert, in_rank, event = buffer.get_dispatch_layout(
            ids, EXPERTS, previous_event=previous, **flags
        )
        rows, came, came_weights, each, handle, after = buffer.dispatch(
            x, topk_idx=ids, topk_weights=weights, num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_rdma_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
            previous_event=event, **flags,
        )  # fmt: skip
        if jobs.asynchronous:
            after.current_stream_wait()
        ctx.jobs, ctx.handle, ctx.flags = jobs, handle, flags
        return rows, came, came_weights, torch.tensor(each), handle

    @staticmethod
    def backward(ctx: Any, drows: Any, _came: Any, dweights: Any, _each: Any, _handle: Any) -> Any:
        previous = EventOverlap(EventHandle()) if ctx.jobs.asynchronous else None
        dx, dprobs, after = ctx.jobs.buffer(drows).combine(
            drows.contiguous(), ctx.handle, topk_weights=dweights.float(), previous_event=previous, **ctx.flags
        )
        if ctx.jobs.asynchronous:
            after.current_stream_wait()
        return None, dx, None, dprobs


class Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, jobs: "Job", rows: Any, handle: et.Handle) -> Any:
        previous = EventOverlap(EventHandle()) if jobs.asynchronous else None
        flags = {"async_finish": jobs.asynchronous, "allocate_on_comm_stream": jobs.asynchronous}
        out, _, after = jobs.buffer(rows).combine(rows, handle=handle, previous_event=previous, **flags)
        if jobs.asynchronous:
            after.current_stream_wait()
        ctx.jobs, ctx.handle, ctx.flags = jobs, handle, flags
        return out, None

    @staticmethod
    def backward(ctx: Any, dout: Any, _nothing: Any = None) -> Any:
        previous = EventOverlap(EventHandle()) if ctx.jobs.asynchronous else None
        drows, _, _, _, _, after = ctx.jobs.buffer(dout).dispatch(
            dout.contiguous(), handle=ctx.handle, previous_event=previous, **ctx.flags
        )
        if ctx.jobs.asynchronous:
            after.current_stream_wait()
        return None, drows, None


class Job:
    """What a trainer keeps: its group, and the buffer of it."""

    def __init__(self, group: Any, device: str, asynchronous: bool) -> None:
        self.group, self.device, self.asynchronous, self.made = group, device, asynchronous, 0
        self._buffer: Any = None

    def buffer(self, x: Any) -> et.Buffer:
        nvl_bytes = rdma_bytes = 0
        hidden_bytes = x.size(1) * max(x.element_size(), 2)
        for config in (et.Buffer.get_dispatch_config(RANKS), et.Buffer.get_combine_config(RANKS)):
            nvl_bytes = max(config.get_nvl_buffer_size_hint(hidden_bytes, RANKS), nvl_bytes)
            rdma_bytes = max(config.get_rdma_buffer_size_hint(hidden_bytes, RANKS), rdma_bytes)
        old = self._buffer
        if (
            old is None or old.group != self.group or old.num_nvl_bytes < nvl_bytes or old.num_rdma_bytes < rdma_bytes
        ):  # fmt: skip
            self.made += 1
            self._buffer = et.Buffer(self.group, nvl_bytes, rdma_bytes, device=self.device, tokens_max=16, timeout_ms=30000)
        return self._buffer  # type: ignore[no-any-return]


def layer(job: Job, x: Any, ids: Any, weights: Any, scale: Any) -> Any:
    """Expert e multiplies by scale[e], a parameter of the rank that owns it."""
    rows, came, came_weights, each, handle = Dispatch.apply(job, x, ids, weights)
    assert each.tolist() == [int((came == e).sum()) for e in range(LOCAL)]
    factor = (came_weights * torch.where(came >= 0, scale[came.clamp(min=0)], 0.0)).sum(1, keepdim=True)
    return Combine.apply(job, rows * factor, handle)[0]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_two_layers_with_gradients(device: str, asynchronous: bool) -> None:
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
        job = Job(comm, device, asynchronous)
        own = scales[comm.rank * LOCAL : (comm.rank + 1) * LOCAL].to(place, copy=True).requires_grad_()
        x, ids, weights = (t.to(place) for t in problem(comm.rank))
        x, weights = x.requires_grad_(), weights.requires_grad_()
        out = layer(job, x + layer(job, x, ids, weights, own), ids, weights, own)
        (out**2).sum().backward()
        for ours, theirs in zip((out.detach(), x.grad, weights.grad), right[comm.rank]):
            ours = ours.cpu()
            torch.testing.assert_close(ours, theirs if theirs is not None else torch.zeros_like(ours))
        torch.testing.assert_close(own.grad.cpu(), whole.grad[comm.rank * LOCAL : (comm.rank + 1) * LOCAL])
        assert job.made == 1
        job.buffer(x).close()

    ranks_on(device, rank)


def test_what_has_no_meaning_is_refused() -> None:
    def rank(comm: epx.Comm) -> None:
        for given in ("low_latency_mode", "enable_shrink"):
            with pytest.raises(epx.UnsupportedError, match=given):
                et.Buffer(comm, **{given: True})
        with pytest.raises(epx.ArgumentError, match="no option of a group"):
            et.Buffer(comm, no_such_option=1)
        buffer = et.Buffer(comm, device="host", tokens_max=4)
        x, ids, weights = torch.ones(4, WIDTH), torch.zeros(4, TOP_K, dtype=torch.int64), torch.ones(4, TOP_K)
        with pytest.raises(epx.UnsupportedError, match="FP8"):
            buffer.dispatch((x, x))
        with pytest.raises(epx.UnsupportedError, match="num_worst_tokens"):
            buffer.dispatch(x, num_worst_tokens=9)
        for call in ("low_latency_dispatch", "low_latency_combine", "internode_dispatch", "get_local_buffer_tensor"):
            with pytest.raises(epx.UnsupportedError, match=f"{call} has no meaning for epx: .*"):
                getattr(buffer, call)(x)
        with pytest.raises(AttributeError, match="has no nonsense"):
            buffer.nonsense  # noqa: B018
        assert et.Buffer.get_low_latency_rdma_size_hint(128, 7168, 8, 64) == 0
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
