# A small mixture-of-experts language model in PyTorch whose experts are reached through epx. SPDX-License-Identifier: Apache-2.0
"""Trains on the text of data/, over data-parallel x expert-parallel processes, the transport chosen by EPX_TRANSPORT:

    EPX_TRANSPORT=pooled_wave python examples/torch_moe.py --steps 20

Starts its own processes (ep x dp of them), or is one of those that torchrun has started. Rank 0 prints one line of JSON
for each step, with the names that epx-train uses: step, loss, tokens, step_ms, tokens_per_s, mfu, drop_fraction,
sender_drop_fraction, receiver_drop_fraction, transport, fabric, exchange_bytes_remote.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import epx.torch

TEXT = Path(__file__).resolve().parent.parent / "data" / "new-testament-kjv.txt"
VOCABULARY = 256  # bytes


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="trains a small MoE language model in PyTorch through epx")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--ep", type=int, default=2, help="expert-parallel ranks (processes) of a group")
    parser.add_argument("--dp", type=int, default=1, help="groups beside each other")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=128, help="width inside an expert")
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--top-k", type=int, default=2)
    parser.add_argument("--sequence", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4, help="sequences of each process")
    parser.add_argument("--rate", type=float, default=3e-3, help="of Adam")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--peak-flops", type=float, default=0, help="of all devices, for mfu; 0: measured here")
    parser.add_argument("--text", type=Path, default=TEXT)
    options = parser.parse_args()
    if options.experts % options.ep:
        parser.error(f"--experts {options.experts} is no multiple of --ep {options.ep}: every rank owns as many")
    if not options.text.is_file():
        parser.error(f"{options.text} is not there; name a text with --text")
    return options


# ---- the model ------------------------------------------------------------------------------------------------------


class Experts(torch.nn.Module):
    """All experts of a rank. `own`: which of the layer's."""

    def __init__(self, o: argparse.Namespace, own: List[int]) -> None:
        super().__init__()
        every_in = torch.randn(o.experts, o.width, o.hidden) * o.width**-0.5
        every_out = torch.randn(o.experts, o.hidden, o.width) * (o.hidden * 2 * o.layers) ** -0.5
        self.w_in, self.w_out = torch.nn.Parameter(every_in[own]), torch.nn.Parameter(every_out[own])

    def forward(self, rows: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        parts = torch.split(rows, sizes.tolist())
        silu = torch.nn.functional.silu
        return torch.cat([silu(part @ w_in) @ w_out for part, w_in, w_out in zip(parts, self.w_in, self.w_out)])


class Layer(torch.nn.Module):
    def __init__(self, o: argparse.Namespace, group: epx.torch.Group) -> None:
        super().__init__()
        self.group, self.top_k, self.experts_all, self.heads = group, o.top_k, o.experts, 4
        self.qkv = torch.nn.Linear(o.width, 3 * o.width, bias=False)
        self.mix = torch.nn.Linear(o.width, o.width, bias=False)
        self.router = torch.nn.Linear(o.width, o.experts, bias=False)
        self.experts = Experts(o, list(group.plain.info().local_experts))

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) * (d // self.heads) ** -0.5
        future = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(future, -1e9).softmax(-1) @ v
        return self.mix(mixed.transpose(1, 2).reshape(b, t, d))

    def moe(self, x: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        flat = x.reshape(-1, x.shape[-1])
        probability = self.router(flat).softmax(-1)
        weights, ids = probability.topk(self.top_k, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        params = self.experts.parameters()
        out, counts = epx.torch.moe_layer(self.group, self.experts, flat, ids, weights, params, with_counts=True)
        # Switch's auxiliary loss: it is least when all experts are chosen alike.
        load = torch.nn.functional.one_hot(ids, self.experts_all).float().mean((0, 1))
        return out.view(x.shape), counts, self.experts_all * (load * probability.mean(0)).sum()

    def forward(self, x: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = x + self.attention(norm(x))
        add, counts, uneven = self.moe(norm(x))
        return x + add, counts, uneven


def norm(x: torch.Tensor) -> torch.Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


class Model(torch.nn.Module):
    def __init__(self, o: argparse.Namespace, group: epx.torch.Group) -> None:
        super().__init__()
        self.embedding = torch.nn.Parameter(torch.randn(VOCABULARY, o.width) * 0.02)
        self.position = torch.nn.Parameter(torch.randn(o.sequence, o.width) * 0.02)
        self.layers = torch.nn.ModuleList([Layer(o, group) for _ in range(o.layers)])
        self.head = torch.nn.Linear(o.width, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """tokens [b, t + 1] -> what is minimised, the loss, counts."""
        x = self.embedding[tokens[:, :-1]] + self.position
        counts = torch.zeros(len(epx.torch.COUNTS), dtype=torch.int64, device=x.device)
        balance = x.new_zeros(())
        for layer in self.layers:
            x, more, uneven = layer(x)
            counts, balance = counts + more, balance + uneven
        logits = self.head(norm(x))
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))
        return loss + 0.01 * balance / len(self.layers), loss, counts


# ---- training -------------------------------------------------------------------------------------------------------


def reduce_gradients(model: Model, o: argparse.Namespace, across: Any) -> None:
    """Means over the processes that hold the same parameter; an expert's rank has summed over its own group."""
    for name, parameter in model.named_parameters():
        own = ".experts." in name
        gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        dist.all_reduce(gradient, group=across if own else dist.group.WORLD)
        parameter.grad = gradient / (o.ep * o.dp)


def flops_per_token(o: argparse.Namespace) -> float:
    """Useful operations of a training step: 3 times the forward pass, attention as a full square."""
    attention = 2 * o.width * 4 * o.width + 4 * o.sequence * o.width
    moe = 2 * o.width * o.experts + o.top_k * 4 * o.width * o.hidden
    return 3.0 * (o.layers * (attention + moe) + 2 * o.width * VOCABULARY)


def peak_flops(device: torch.device, processes: int) -> float:
    """What the devices do in large products, measured; processes on one processor share it."""
    a = torch.ones(1024, 1024, device=device)
    best = float("inf")
    for _ in range(5):
        begun = time.perf_counter()
        (a @ a).sum().item()
        best = min(best, time.perf_counter() - begun)
    return 2 * 1024**3 / best * (processes if device.type == "cuda" else 1)


def batch_of(text: torch.Tensor, o: argparse.Namespace, step: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000003 * o.seed + step)
    first = torch.randint(len(text) - o.sequence - 1, (o.ep * o.dp, o.batch), generator=generator)[rank]
    return torch.stack([text[i : i + o.sequence + 1] for i in first.tolist()]).long()


def make_groups(o: argparse.Namespace, rank: int) -> Tuple[Any, Any]:
    """The processes of this one's expert-parallel group, and those that own the same experts in other groups."""
    mine: List[Any] = [None, None]
    along = [[d * o.ep + e for e in range(o.ep)] for d in range(o.dp)]
    across = [[d * o.ep + e for d in range(o.dp)] for e in range(o.ep)]
    for which, sets in enumerate((along, across)):
        for ranks in sets:
            made = dist.new_group(ranks)
            if rank in ranks:
                mine[which] = made
    return mine[0], mine[1]


def line_of(o: argparse.Namespace, number: int, loss: float, seconds: float, counts: List[int], peak: float) -> Dict[str, Any]:
    count = dict(zip(epx.torch.COUNTS, counts))
    routed, tokens = max(count["routed"], 1), o.batch * o.sequence * o.ep * o.dp
    return {
        "step": number,
        "loss": loss,
        "tokens": tokens,
        "step_ms": seconds * 1e3,
        "tokens_per_s": tokens / seconds,
        "mfu": flops_per_token(o) * tokens / seconds / peak,
        "drop_fraction": (count["dropped_sender"] + count["dropped_receiver"]) / routed,
        "sender_drop_fraction": count["dropped_sender"] / routed,
        "receiver_drop_fraction": count["dropped_receiver"] / routed,
    }


def train(o: argparse.Namespace, rank: int) -> None:
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)) % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    torch.manual_seed(o.seed)
    along, across = make_groups(o, rank)
    group = epx.torch.Group(
        along, experts=o.experts, top_k=o.top_k, width=o.width, tokens_max=o.batch * o.sequence,
        name=f"torch_moe-{rank // o.ep}",
    )  # fmt: skip
    model = Model(o, group).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=o.rate, betas=(0.9, 0.99))
    text = torch.frombuffer(bytearray(o.text.read_bytes()), dtype=torch.uint8)
    peak = o.peak_flops or peak_flops(device, o.ep * o.dp)
    for number in range(1, o.steps + 1):
        tokens = batch_of(text, o, number, rank).to(device)
        begun = time.perf_counter()
        total, loss, counts = model(tokens)
        optimizer.zero_grad()
        total.backward()
        reduce_gradients(model, o, across)
        optimizer.step()
        loss = loss.detach() / (o.ep * o.dp)
        moved = torch.tensor([group.plain.info().exchange_bytes_remote], device=device)
        for value in (loss, counts, moved):
            dist.all_reduce(value)
        loss_now = float(loss)
        seconds = time.perf_counter() - begun
        group.plain.step()
        if rank == 0:
            line = line_of(o, number, loss_now, seconds, counts.tolist(), peak)
            line.update(transport=group.transport, fabric=group.fabric, exchange_bytes_remote=int(moved))
            print(json.dumps(line), flush=True)
    group.close()


def process(rank: int, o: argparse.Namespace) -> None:
    world = o.ep * o.dp
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", rank=rank, world_size=world)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // world))
    try:
        train(o, rank)
    finally:
        dist.destroy_process_group()


def main() -> int:
    o = arguments()
    if "RANK" in os.environ:  # one of torchrun's processes
        if int(os.environ["WORLD_SIZE"]) != o.ep * o.dp:
            print(f"torch_moe: {os.environ['WORLD_SIZE']} processes for --ep {o.ep} x --dp {o.dp}", file=sys.stderr)
            return 2
        process(int(os.environ["RANK"]), o)
        return 0
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]))
    mp.spawn(process, args=(o,), nprocs=o.ep * o.dp)
    return 0


if __name__ == "__main__":
    sys.exit(main())
