# epx.torch under torch.compile: one graph, and the values and gradients of the same program without it.
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any, List

import pytest

torch = pytest.importorskip("torch")
if not hasattr(torch, "compiler"):
    pytest.skip(f"PyTorch {torch.__version__} has no torch.compiler; 2.1 has", allow_module_level=True)

import epx  # noqa: E402
import epx.torch as et  # noqa: E402
from test_plain import together  # noqa: E402

EXPERTS, TOP_K, WIDTH, HIDDEN, TOKENS = 4, 2, 8, 12, 10


class Experts(torch.nn.Module):
    """Experts whose sizes stay on the device: each row looks up its own expert."""

    def __init__(self, local: int, place: str) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(5)
        self.w_in = torch.nn.Parameter((torch.randn(local, WIDTH, HIDDEN, generator=g) / 3).to(place))
        self.w_out = torch.nn.Parameter((torch.randn(local, HIDDEN, WIDTH, generator=g) / 3).to(place))

    def forward(self, rows: Any, sizes: Any) -> Any:
        at = torch.arange(rows.shape[0], device=rows.device)
        mine = (at[:, None] >= sizes.cumsum(0)[None, :]).sum(1).clamp(max=sizes.shape[0] - 1)
        hidden = torch.nn.functional.silu(torch.einsum("rw,rwh->rh", rows, self.w_in[mine]))
        return torch.einsum("rh,rhw->rw", hidden, self.w_out[mine])


class Model(torch.nn.Module):
    """Two layers that share a lane, with a router each and something to compile around them."""

    def __init__(self, group: et.Group, place: str) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(6)
        self.group = group
        self.routers = torch.nn.ParameterList([torch.randn(WIDTH, EXPERTS, generator=g).to(place) for _ in range(2)])
        self.experts = torch.nn.ModuleList([Experts(group.local_experts, place) for _ in range(2)])

    def forward(self, x: Any) -> Any:
        totals = []
        for router, experts in zip(self.routers, self.experts):
            weights, ids = (torch.tanh(x) @ router).softmax(-1).topk(TOP_K, -1)
            add, counts = et.moe_layer(
                self.group, experts, x, ids, weights, experts.parameters(), with_counts=True
            )  # fmt: skip
            x = x + add
            totals.append(counts)
        return x, torch.stack(totals)


def answers(call: Any, model: Model, place: str) -> List[Any]:
    x = torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(7)).to(place).requires_grad_()
    out, counts = call(x)
    (out**2).sum().backward()
    found = [out.detach(), counts, x.grad, *(p.grad for p in model.parameters())]
    model.zero_grad(set_to_none=True)
    return found


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_one_graph_with_the_same_values(transport: str, device: str, backend: str) -> None:
    if backend == "inductor" and transport != "pooled_wave":
        pytest.skip("what the backend generates does not depend on the transport")
    if backend == "inductor" and device == "host" and torch.cuda.is_available():
        pytest.skip("the backend is tried on the GPU here")

    def rank(comm: epx.Comm) -> None:
        place = "cpu" if device == "host" else "cuda"
        options = {"capacity_factor": "dropless", "transport": transport, "device": device, "timeout_ms": 60000}
        with et.Group(comm=comm, experts=EXPERTS, top_k=TOP_K, width=WIDTH, tokens_max=16, **options) as group:
            model = Model(group, place)
            right = answers(model, model, place)
            torch._dynamo.reset()
            compiled = torch.compile(model, fullgraph=True, backend=backend)
            before = group.plain.info().exchange_bytes_remote
            for _ in range(2):
                for ours, theirs in zip(answers(compiled, model, place), right):
                    torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-4)
            assert group.plain.info().exchange_bytes_remote >= before
            assert right[1][:, 0].tolist() == [TOKENS * TOP_K] * 2

    together(rank, 1, seconds=240)  # a compiler is at work


def test_experts_with_parameters_must_be_a_module() -> None:
    def rank(comm: epx.Comm) -> None:
        with et.Group(comm=comm, experts=EXPERTS, top_k=TOP_K, width=WIDTH, tokens_max=16, device="host") as group:
            scale = torch.nn.Parameter(torch.ones(()))

            def layer(x: Any, ids: Any, weights: Any) -> Any:
                return et.moe_layer(group, lambda rows, sizes: scale * rows, x, ids, weights, [scale])

            ids, weights = torch.zeros(4, TOP_K, dtype=torch.int64), torch.ones(4, TOP_K)
            with pytest.raises(Exception, match="must be a torch.nn.Module"):
                torch.compile(layer, fullgraph=True, backend="aot_eager")(torch.ones(4, WIDTH), ids, weights)

    together(rank, 1)


def test_operators_are_as_they_are_declared() -> None:
    """PyTorch's own look at an operator: its schema is kept, and what a trace sees is what comes."""

    def rank(comm: epx.Comm) -> None:
        with et.Group(comm=comm, experts=EXPERTS, top_k=TOP_K, width=WIDTH, tokens_max=16, device="host") as group:
            ids, weights = torch.zeros(4, TOP_K, dtype=torch.int64), torch.ones(4, TOP_K)
            tests = ("test_schema", "test_faketensor")
            torch.library.opcheck(torch.ops.epx.route.default, (ids, weights, group.key, 0), test_utils=tests)

    together(rank, 1)
