#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The exchange of an MoE layer as it is commonly written in PyTorch, timed as a yardstick for epx.

Every kept assignment travels as a row of its own: assignments are sorted by expert, their rows gathered, counts and
then rows sent with all_to_all_single, and on the way back added up per token. Needs one GPU for each rank; starts the
ranks itself.

Prints one line of JSON: medians of the slowest rank, in microseconds, and the rows that left a GPU.
"""
import argparse
import json
import socket
import statistics

import torch
import torch.distributed as dist
import torch.multiprocessing as processes


class Exchange:
    """One rank's layer with its routing."""

    def __init__(self, options, rank, ranks):
        self.ranks, self.experts, self.top_k = ranks, options.experts, options.top_k
        self.device = torch.device("cuda", rank)
        source = torch.Generator(device=self.device)
        source.manual_seed(1000 + rank)
        scores = torch.rand(options.tokens, options.experts, device=self.device, generator=source)
        self.ids = scores.topk(options.top_k, dim=1).indices
        self.weights = torch.rand(options.tokens, options.top_k, device=self.device, generator=source)
        self.x = torch.randn(options.tokens, options.width, device=self.device, dtype=torch.bfloat16, generator=source)

    def dispatch(self):
        flat = self.ids.flatten()
        self.order = torch.argsort(flat, stable=True)
        self.token = torch.div(self.order, self.top_k, rounding_mode="floor")
        rows = self.x.index_select(0, self.token)
        per_expert = torch.bincount(flat, minlength=self.experts)
        leaving = per_expert.view(self.ranks, -1).sum(dim=1)
        coming = torch.empty_like(leaving)
        dist.all_to_all_single(coming, leaving)
        self.leaving, self.coming = leaving.tolist(), coming.tolist()
        self.batch = rows.new_empty(sum(self.coming), rows.shape[1])
        dist.all_to_all_single(self.batch, rows, self.coming, self.leaving)

    def combine(self):
        home = self.batch.new_empty(self.order.numel(), self.batch.shape[1])
        dist.all_to_all_single(home, self.batch, self.leaving, self.coming)
        scaled = home.float() * self.weights.flatten().index_select(0, self.order).unsqueeze(1)
        total = torch.zeros(self.x.shape, device=self.device, dtype=torch.float32)
        total.index_add_(0, self.token, scaled)
        return total.to(torch.bfloat16)


def times_us(call, repeats, device):
    """Of the slowest rank, each repeat begun together."""
    times = []
    for repeat in range(repeats + 3):
        dist.barrier()
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        slowest = torch.tensor([begin.elapsed_time(end) * 1e3], device=device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        if repeat >= 3:
            times.append(slowest.item())
    return statistics.median(times)


def play(rank, ranks, port, options):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    exchange = Exchange(options, rank, ranks)
    dispatch = times_us(exchange.dispatch, options.repeats, exchange.device)
    combine = times_us(exchange.combine, options.repeats, exchange.device)
    if rank == 0:
        left = sum(rows for peer, rows in enumerate(exchange.leaving) if peer != rank)
        print(json.dumps({
            "torch": torch.__version__, "ranks": ranks, "tokens": options.tokens, "width": options.width,
            "top_k": options.top_k, "experts": options.experts, "dispatch_us": round(dispatch, 1),
            "combine_us": round(combine, 1), "remote_rows": left}))
    dist.destroy_process_group()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=0, help="one GPU each; 0: as many as there are")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--width", type=int, default=7168)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    ranks = options.ranks or torch.cuda.device_count()
    if ranks < 1 or ranks > torch.cuda.device_count():
        parser.error(f"{ranks} ranks need as many GPUs; here are {torch.cuda.device_count()}")
    if options.experts % ranks:
        parser.error("the number of experts must be a multiple of the ranks")
    processes.spawn(play, args=(ranks, free_port(), options), nprocs=ranks)


if __name__ == "__main__":
    main()
