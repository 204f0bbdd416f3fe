# epx.torch against the same layer written densely in PyTorch. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, List, Tuple

import pytest

torch = pytest.importorskip("torch")
import epx  # noqa: E402
import epx.torch as et  # noqa: E402
from test_plain import together  # noqa: E402

RANKS, EXPERTS, TOP_K, WIDTH, HIDDEN = 3, 7, 2, 12, 20


@contextlib.contextmanager
def place_of(device: str) -> Iterator[Any]:
    """What a rank that is a thread needs: on a GPU a stream of its own, and backward passes on its own thread, since
    autograd has one thread for each GPU and ranks would wait for each other on it."""
    if device == "host":
        yield "cpu"
        return
    with torch.cuda.stream(torch.cuda.Stream()), torch.autograd.set_multithreading_enabled(False):
        yield "cuda"
        torch.cuda.synchronize()


def ranks_on(device: str, fn: Callable[[epx.Comm, Any], Any], ranks: int = RANKS) -> List[Any]:
    """fn(comm, where tensors go) of every rank."""

    def rank(comm: epx.Comm) -> Any:
        with place_of(device) as place:
            return fn(comm, place)

    return together(rank, ranks)


def problem(seed: int, rank: int) -> Tuple[Any, Any, Any]:
    """Tokens of one rank: a different number on each; -1 and the same expert twice among the ids."""
    g = torch.Generator().manual_seed(100 * seed + rank)
    tokens = (5, 0, 11)[rank]
    ids = torch.randint(-1, EXPERTS, (tokens, TOP_K), generator=g, dtype=torch.int32)
    return torch.randn(tokens, WIDTH, generator=g), ids, torch.rand(tokens, TOP_K, generator=g)


def all_params(seed: int) -> List[Any]:
    g = torch.Generator().manual_seed(seed)
    return [
        torch.randn(EXPERTS, WIDTH, HIDDEN, generator=g) / 4,
        torch.randn(EXPERTS, HIDDEN, WIDTH, generator=g) / 4,
    ]


def one_expert(x: Any, w_in: Any, w_out: Any) -> Any:
    return torch.nn.functional.silu(x @ w_in) @ w_out


def dense(x: Any, ids: Any, weights: Any, params: List[Any]) -> Any:
    out = torch.zeros_like(x)
    for t in range(x.shape[0]):
        for k in range(TOP_K):
            e = int(ids[t, k])
            if e >= 0:
                out[t] = out[t] + weights[t, k] * one_expert(x[t], params[0][e], params[1][e])
    return out


def loss_of(out: Any) -> Any:
    return (out * torch.cos(torch.arange(WIDTH, device=out.device))).sum() + (out**2).sum()


def expected(seed: int, layers: int) -> Tuple[List[Any], List[Any]]:
    """Of all ranks together: gradients of the parameters, and (out, dx, dweights) of each rank."""
    params = [p.requires_grad_() for p in all_params(seed)]
    each = []
    for rank in range(RANKS):
        x, ids, weights = problem(seed, rank)
        x, weights = x.requires_grad_(), weights.requires_grad_()
        out = x
        for _ in range(layers):
            out = out + dense(out, ids, weights, params) / 2
        loss_of(out).backward()
        # A rank without tokens has used no weight; its gradient is an empty array.
        each.append((out.detach(), x.grad, torch.zeros_like(weights) if weights.grad is None else weights.grad))
    return [p.grad for p in params], each


def run(comm: epx.Comm, place: str, transport: str, seed: int, layers: int) -> Tuple[Any, ...]:
    options = {"capacity_factor": "dropless", "transport": transport, "timeout_ms": 30000}
    options["device"] = "host" if place == "cpu" else place
    with et.Group(comm=comm, experts=EXPERTS, top_k=TOP_K, width=WIDTH, tokens_max=16, **options) as group:
        assert group.transport == transport
        own = list(group.plain.info().local_experts)
        params = [p[own].to(place).requires_grad_() for p in all_params(seed)]

        def experts(rows: Any, sizes: Any) -> Any:
            parts = torch.split(rows, sizes.tolist())
            return torch.cat([one_expert(part, params[0][e], params[1][e]) for e, part in enumerate(parts)])

        x, ids, weights = (t.to(place) for t in problem(seed, comm.rank))
        x, weights = x.requires_grad_(), weights.requires_grad_()
        out = x
        for _ in range(layers):
            add, counts = et.moe_layer(group, experts, out, ids, weights, params, with_counts=True)
            out = out + add / 2
        loss_of(out).backward()
        count = dict(zip(et.COUNTS, counts.tolist()))
        assert count["routed"] == int((ids >= 0).sum()) and count["skipped"] == int((ids < 0).sum())
        assert count["dropped_sender"] == count["dropped_receiver"] == 0
        answers = (out.detach().cpu(), x.grad.cpu(), weights.grad.cpu())
        return own, [p.grad.cpu() for p in params], *answers


@pytest.mark.parametrize("layers", [1, 3])
def test_values_and_gradients(transport: str, device: str, layers: int) -> None:
    params, each = expected(layers, layers)
    answers = ranks_on(device, lambda comm, place: run(comm, place, transport, layers, layers))
    close = {"rtol": 2e-5, "atol": 2e-5}
    for (own, gradients, *tensors), theirs in zip(answers, each):
        for ours, whole in zip(gradients, params):
            torch.testing.assert_close(ours, whole[own], **close)
        for ours, right in zip(tensors, theirs):
            torch.testing.assert_close(ours, right, **close)


def test_bad_tensors_are_refused_on_every_rank(device: str) -> None:
    def rank(comm: epx.Comm, place: str) -> None:
        ones = lambda *shape: torch.ones(*shape, device=place)  # noqa: E731
        with et.Group(comm=comm, experts=EXPERTS, top_k=TOP_K, width=WIDTH, tokens_max=16, device=device) as group:
            ids, weights = torch.zeros(4, TOP_K, dtype=torch.int64, device=place), ones(4, TOP_K)
            experts = lambda rows, sizes: rows  # noqa: E731
            for x, i, w, why in (
                (ones(4, 5), ids, weights, "x has shape"),
                (ones(4, WIDTH), ids[:, :1], weights, "ids has shape"),
                (ones(4, WIDTH), ids, weights.double(), "weights|float64"),
                (ones(4, WIDTH), ids.float(), weights, "int32 or int64"),
            ):
                with pytest.raises(epx.ArgumentError, match=why):
                    et.moe_layer(group, experts, x, i, w)
            with pytest.raises(epx.RoutingError, match="outside -1..6"):
                et.moe_layer(group, experts, ones(4, WIDTH), ids + EXPERTS, weights)
                # A GPU finds it out by itself: the next look at the plan tells.
                torch.cuda.synchronize()
                group.plan(0).stats(group.stream())
            if device == "cuda":  # what a look has told the next route may tell once more
                with contextlib.suppress(epx.RoutingError):
                    group.route(ids, weights)
            out = et.moe_layer(group, experts, ones(4, WIDTH), ids, weights)
            assert out.shape == (4, WIDTH)

    ranks_on(device, rank, 1)


def test_tensors_of_another_device_are_refused(device: str) -> None:
    def rank(comm: epx.Comm, place: str) -> None:
        with et.Group(comm=comm, experts=EXPERTS, top_k=TOP_K, width=WIDTH, tokens_max=16, device=device) as group:
            elsewhere = "meta" if device == "host" else "cpu"
            ids = torch.zeros(4, TOP_K, dtype=torch.int64, device=elsewhere)
            weights = torch.ones(4, TOP_K, device=elsewhere)
            with pytest.raises(epx.ArgumentError, match="is on .*; the group's device is"):
                et.moe_layer(group, lambda rows, sizes: rows, torch.ones(4, WIDTH, device=elsewhere), ids, weights)

    ranks_on(device, rank, 1)


def test_a_frozen_layer_keeps_nothing_back(device: str) -> None:
    def rank(comm: epx.Comm, place: str) -> None:
        with et.Group(
            comm=comm, experts=EXPERTS, top_k=TOP_K, width=WIDTH, tokens_max=16, device=device,
            capacity_factor="dropless",
        ) as group, torch.no_grad():  # fmt: skip
            x, ids, weights = (t.to(place) for t in problem(9, comm.rank))
            out = et.moe_layer(group, lambda rows, sizes: 2 * rows, x, ids, weights)
            assert not out.requires_grad
            torch.testing.assert_close(out, 2 * x * (weights * (ids >= 0)).sum(1, keepdim=True))

    ranks_on(device, rank)


def test_experts_that_raise_leave_the_lane_free(device: str) -> None:
    class BrokenBackward(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, rows: Any) -> Any:
            return rows * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            raise KeyError("on the way back")

    def broken(rows: Any, sizes: Any) -> Any:
        raise KeyError("on the way out")

    def rank(comm: epx.Comm, place: str) -> None:
        with et.Group(
            comm=comm, experts=EXPERTS, top_k=TOP_K, width=WIDTH, tokens_max=16, device=device,
            capacity_factor="dropless",
        ) as group:  # fmt: skip
            x, ids, weights = (t.to(place) for t in problem(11, comm.rank))
            expected = 2 * x * (weights * (ids >= 0)).sum(1, keepdim=True)
            for _turn in range(2):
                with pytest.raises(KeyError, match="on the way out"):
                    et.moe_layer(group, broken, x, ids, weights)
                torch.testing.assert_close(et.moe_layer(group, lambda rows, sizes: 2 * rows, x, ids, weights), expected)
                wanted = x.clone().requires_grad_()
                out = et.moe_layer(group, lambda rows, sizes: BrokenBackward.apply(rows), wanted, ids, weights)
                with pytest.raises(KeyError, match="on the way back"):
                    out.sum().backward()
            torch.testing.assert_close(et.moe_layer(group, lambda rows, sizes: 2 * rows, x, ids, weights), expected)

    ranks_on(device, rank)
