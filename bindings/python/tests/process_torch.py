# One of four PyTorch processes: two expert-parallel groups of two beside data parallelism, against the same layer
# written densely. Run by test_processes.py. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import sys
from typing import Any, Callable, Tuple

import epx.torch as et
import torch
import torch.distributed as dist

RANK, RANKS = int(os.environ["EPX_RANK"]), int(os.environ["EPX_WORLD_SIZE"])
EXPERTS, TOP_K, WIDTH, HIDDEN, TOKENS, LAYERS = 4, 2, 8, 12, 9, 2
Tensor = torch.Tensor


class Experts(torch.nn.Module):
    def __init__(self, w_in: Tensor, w_out: Tensor) -> None:
        super().__init__()
        self.w_in, self.w_out = torch.nn.Parameter(w_in), torch.nn.Parameter(w_out)

    def forward(self, rows: Tensor, sizes: Tensor) -> Tensor:
        at = torch.arange(rows.shape[0])
        mine = (at[:, None] >= sizes.cumsum(0)[None, :]).sum(1).clamp(max=sizes.shape[0] - 1)
        hidden = torch.nn.functional.silu(torch.einsum("rw,rwh->rh", rows, self.w_in[mine]))
        return torch.einsum("rh,rhw->rw", hidden, self.w_out[mine])


def dense(experts: Experts, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    hidden = torch.nn.functional.silu(torch.einsum("tw,ewh->teh", x, experts.w_in))
    y = torch.einsum("teh,ehw->tew", hidden, experts.w_out)
    return (y.gather(1, ids[:, :, None].expand(-1, -1, WIDTH)) * weights[:, :, None]).sum(1)


def problem(rank: int) -> Tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(rank)
    tokens = TOKENS + 3 * rank
    ids = torch.rand(tokens, EXPERTS, generator=g).topk(TOP_K, 1).indices
    return torch.randn(tokens, WIDTH, generator=g), ids, torch.rand(tokens, TOP_K, generator=g)


def run(layer: Callable[..., Tensor], rank: int) -> Tuple[Tensor, ...]:
    x, ids, weights = problem(rank)
    x, weights = x.requires_grad_(), weights.requires_grad_()
    out = x
    for _ in range(LAYERS):
        out = out + layer(out, ids, weights)
    (out**2).sum().backward()
    return out.detach(), x.grad, weights.grad  # type: ignore[return-value]


def check(group: et.Group, along: Any) -> None:
    g = torch.Generator().manual_seed(99)
    w_in, w_out = torch.randn(EXPERTS, WIDTH, HIDDEN, generator=g) / 3, torch.randn(EXPERTS, HIDDEN, WIDTH, generator=g) / 3
    own = list(group.plain.info().local_experts)
    experts = Experts(w_in[own], w_out[own])
    layer: Any = lambda x, ids, weights: et.moe_layer(group, experts, x, ids, weights, experts.parameters())  # noqa: E731
    if os.environ.get("TEST_COMPILE"):
        layer = torch.compile(layer, fullgraph=True, backend="aot_eager")
    ours = run(layer, RANK)
    every = Experts(w_in.clone(), w_out.clone())
    first = RANK // 2 * 2
    both = [run(lambda x, ids, weights: dense(every, x, ids, weights), rank) for rank in (first, first + 1)]
    for a, b in zip(ours, both[RANK - first]):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    # Tokens of both ranks of the group have gone through an expert.
    for a, b in ((experts.w_in, every.w_in), (experts.w_out, every.w_out)):
        torch.testing.assert_close(a.grad, b.grad[own], rtol=1e-4, atol=1e-4)  # type: ignore[index]
        # and those of the other group come in by the program's own all-reduce
        dist.all_reduce(a.grad, group=along)


def main() -> int:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{os.environ['TEST_PORT']}", rank=RANK, world_size=RANKS)
    mine = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])][RANK // 2]
    across = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])][RANK % 2]
    options = {"experts": EXPERTS, "top_k": TOP_K, "width": WIDTH, "tokens_max": 32, "device": "host"}
    with et.Group(mine, transport=os.environ["TEST_TRANSPORT"], capacity_factor="dropless", **options) as group:
        assert group.ranks == 2 and group.rank == RANK % 2
        check(group, across)
        info = group.plain.info()
        line = {"rank": RANK, "ep_rank": info.rank, "fabric": info.fabric, "transport": info.transport, "path": info.path}
        print(json.dumps({**line, "bytes": info.exchange_bytes_remote}))
        dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
