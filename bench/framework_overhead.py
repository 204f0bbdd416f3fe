#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a call through JAX or PyTorch takes longer than the same call in C, in one process, with the same arrays.

One rank alone on one device: what is measured is the way to the library, not the exchange. Passes of route, dispatch
and combine are made one after the other: in C (bench/frameworks/calls.c, compiled here), through the framework, and
the wait comes behind the last. `added_us` is the difference of a whole pass's time divided by its calls; small shapes
show what the host adds, large ones what is left of it beside the device's work.

    python bench/framework_overhead.py                 # cuda where there is one, both frameworks
    python bench/framework_overhead.py --device host --rounds 50

Prints one line of JSON for each framework and shape.
"""
from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from ctypes import POINTER, Structure, byref, c_double, c_int64, c_void_p
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TREE / "bindings" / "python"))
EXPERTS, TOP_K = 64, 8
SHAPES = ((8, 64), (128, 7168), (4096, 7168))  # tokens, width


class Pass(Structure):
    _fields_ = [
        ("plan", c_void_p), ("tokens", c_int64), ("ids", c_void_p), ("weights", c_void_p), ("x", c_void_p),
        ("rows", c_void_p), ("start", c_void_p), ("count", c_void_p), ("y", c_void_p), ("out", c_void_p),
        ("stream", c_void_p),
    ]  # fmt: skip


class Times(Structure):
    _fields_ = [(name, c_double) for name in ("route", "dispatch", "combine", "issue", "whole")]


def compiled(folder: str) -> ctypes.CDLL:
    """calls.c as a library that uses the libepx of this process."""
    import epx._library  # noqa: F401 - loads it for all to see

    out = Path(folder) / "calls.so"
    command = [os.environ.get("CC") or shutil.which("cc") or "gcc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-shared", "-fPIC"]
    subprocess.run([*command, f"-I{TREE / 'include'}", str(TREE / "bench/frameworks/calls.c"), "-o", str(out)], check=True)
    calls = ctypes.CDLL(str(out))
    calls.epx_bench_passes.argtypes = [POINTER(Pass), c_int64, POINTER(Times)]
    return calls


def in_c(calls: ctypes.CDLL, plan, tokens: int, pointers, stream, rounds: int) -> dict:
    """The fastest of three runs, in microseconds of a pass."""
    from epx._library import check

    argument = Pass(plan.handle.value, tokens, *pointers, stream)
    best = None
    for repeat in range(4):
        times = Times()
        check(calls.epx_bench_passes(byref(argument), rounds if repeat else 3, byref(times)))
        if repeat and (best is None or times.whole < best["whole"]):
            best = {name: getattr(times, name) for name, _ in Times._fields_}
    return best


def best_of(run, rounds: int, wait) -> dict:
    """run(n) issues n passes, wait() waits for them."""
    best = None
    for repeat in range(4):
        n = rounds if repeat else 3
        begun = time.perf_counter()
        run(n)
        issued = time.perf_counter()
        wait()
        whole = time.perf_counter() - begun
        if repeat and (best is None or whole / n * 1e6 < best["whole"]):
            best = {"issue": (issued - begun) / n * 1e6, "whole": whole / n * 1e6}
    return best


def options_of(o: argparse.Namespace, tokens: int, width: int) -> dict:
    return {
        "experts": EXPERTS, "top_k": TOP_K, "width": width, "tokens_max": tokens, "row_type": o.row_type,
        "transport": o.transport, "device": o.device, "capacity_factor": "dropless", "waves": 1, "fabric": "local",
    }  # fmt: skip


def difference(in_c: dict, framework: dict, calls: int) -> dict:
    return {
        "c_us": {name: round(value, 2) for name, value in in_c.items()},
        "framework_us": {name: round(value, 2) for name, value in framework.items()},
        "added_us": round((framework["whole"] - in_c["whole"]) / calls, 2),
    }


# ---- PyTorch --------------------------------------------------------------------------------------------------------


def torch_tensors(o: argparse.Namespace, tokens: int, width: int):
    import torch

    device = "cuda" if o.device == "cuda" else "cpu"
    x = torch.randn(tokens, width, device=device).to(getattr(torch, o.row_type))
    ids = torch.rand(tokens, EXPERTS, device=device).topk(TOP_K, 1).indices.int()
    return x, ids, torch.rand(tokens, TOP_K, device=device)


def with_torch(o: argparse.Namespace, calls: ctypes.CDLL, tokens: int, width: int) -> dict:
    import epx
    import epx.torch
    import torch

    x, ids, weights = torch_tensors(o, tokens, width)
    with epx.Comm.threads(1)[0] as comm, epx.torch.Group(comm=comm, **options_of(o, tokens, width)) as group:
        stream = group.stream()
        rows = group.empty(group.rows, group.width, dtype=group.row_dtype).zero_()
        start, count = (group.empty(group.local_experts, dtype=torch.int64) for _ in range(2))
        out = torch.empty_like(x)
        plan = group.plan(1)
        pointers = [t.data_ptr() for t in (ids, weights, x, rows, start, count, rows, out)]
        base = in_c(calls, plan, tokens, pointers, stream, o.rounds)

        def passes(n: int) -> None:
            for _ in range(n):
                group.route(ids, weights)
                arrived, _, _ = group.dispatch(x)
                group.combine(arrived, out)

        wait = torch.cuda.synchronize if o.device == "cuda" else lambda: None
        found = best_of(passes, o.rounds, wait)
        each = {name: [] for name in ("route", "dispatch", "combine")}
        for _ in range(o.rounds):
            at = [time.perf_counter()]
            group.route(ids, weights)
            at.append(time.perf_counter())
            arrived, _, _ = group.dispatch(x)
            at.append(time.perf_counter())
            group.combine(arrived, out)
            at.append(time.perf_counter())
            for name, begun, ended in zip(each, at, at[1:]):
                each[name].append((ended - begun) * 1e6)
            wait()
        found.update({name: statistics.median(times) for name, times in each.items()})
        return difference(base, found, 3)


# ---- JAX ------------------------------------------------------------------------------------------------------------


def with_jax(o: argparse.Namespace, calls: ctypes.CDLL, tokens: int, width: int) -> dict:
    import epx
    import epx.jax
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, PartitionSpec as P

    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.standard_normal((tokens, width)), o.row_type)
    ids = jnp.asarray(np.argsort(rng.random((tokens, EXPERTS)), 1)[:, :TOP_K].astype(np.int32))
    weights = jnp.asarray(rng.random((tokens, TOP_K)), jnp.float32)
    mesh = Mesh(np.array(jax.devices()[:1]), ("ep",))
    with epx.jax.Group(mesh, "ep", **options_of(o, tokens, width)) as group:

        def one(n: int):
            """n passes behind each other in one program; nothing else is computed."""

            def body(x, ids, weights):
                token, total = jnp.zeros(1, jnp.int32), jnp.zeros_like(x)
                for _ in range(n):
                    plan, token = group.route(ids, weights, token)
                    rows, _, _, plan, token = group.dispatch(plan, x, token, 0)
                    total, plan, token = group.combine(plan, rows, total, token, 0)
                return total

            mapped = jax.shard_map(body, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
            return jax.jit(mapped)

        few, many = one(2), one(2 + o.chain)
        for program in (few, many):
            jax.block_until_ready(program(x, ids, weights))

        def time_of(program) -> float:
            best = float("inf")
            for _ in range(max(3, o.rounds // o.chain)):
                begun = time.perf_counter()
                jax.block_until_ready(program(x, ids, weights))
                best = min(best, time.perf_counter() - begun)
            return best * 1e6

        whole = (time_of(many) - time_of(few)) / o.chain
        member = group.members[0]
        rows = jnp.zeros((group.rows, width), o.row_type)
        start, count, out = jnp.zeros((group.local_experts, 2), jnp.int32), jnp.zeros((group.local_experts, 2), jnp.int32), x + 0
        arrays = jax.block_until_ready((ids, weights, x, rows, start, count, rows, out))
        with epx.Plan(member, 1) as plan:
            pointers = [a.unsafe_buffer_pointer() for a in arrays]
            base = in_c(calls, plan, tokens, pointers, None, o.rounds)
        return difference(base, {"whole": whole}, 3)


def main() -> int:
    parser = argparse.ArgumentParser(description="what calls through JAX and PyTorch take longer than in C")
    parser.add_argument("--device", choices=("cuda", "host"), default="cuda" if shutil.which("nvidia-smi") else "host")
    parser.add_argument("--framework", choices=("jax", "torch"), action="append", help="default: both")
    parser.add_argument("--transport", default="ragged")
    parser.add_argument("--row-type", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=300, help="passes of a measurement")
    parser.add_argument("--chain", type=int, default=30, help="passes in one program of JAX")
    parser.add_argument("--shape", type=lambda text: tuple(map(int, text.split("x"))), action="append", help="TOKENSxWIDTH")
    o = parser.parse_args()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("JAX_PLATFORMS", "cpu" if o.device == "host" else "cuda")
    with tempfile.TemporaryDirectory() as folder:
        calls = compiled(folder)
        for framework in o.framework or ("torch", "jax"):
            for tokens, width in o.shape or SHAPES:
                measure = with_torch if framework == "torch" else with_jax
                line = measure(o, calls, tokens, width)
                head = {"framework": framework, "device": o.device, "transport": o.transport, "tokens": tokens, "width": width}
                print(json.dumps({**head, **line}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
