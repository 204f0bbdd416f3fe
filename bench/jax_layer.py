#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One mixture-of-experts layer, forward and backward, in JAX: through epx.jax, and written with
jax.lax.ragged_all_to_all, in one process over all GPUs that there are.

Both arms get the same tokens, routing, experts and room for rows. The other arm sorts by expert, gathers the counts of
all ranks, sends a slice for each expert and unsorts what comes home, as programs do that use the primitive. Experts are
one pair of matrices for all experts of a rank, so that grouped products do not hide what is compared; `exchange_us` is
the same layer with experts that multiply by 2.

On one GPU there is nobody to exchange with: epx alone, with --virtual-ranks for its accept rules. On a processor
(JAX_PLATFORMS=cpu) the times mean nothing, the check does: losses and gradients of both arms are compared first.

    python bench/jax_layer.py [--json]
    EPX_TRANSPORT=pooled_wave python bench/jax_layer.py --tokens 8192
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bindings" / "python"))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="a layer through epx.jax against jax.lax.ragged_all_to_all")
    parser.add_argument("--ranks", type=int, default=0, help="devices; 0: all")
    parser.add_argument("--tokens", type=int, default=4096, help="of each rank")
    parser.add_argument("--width", type=int, default=7168)
    parser.add_argument("--hidden", type=int, default=1024, help="width inside an expert")
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--row-type", default="bfloat16")
    parser.add_argument("--transport", default="ragged", help="EPX_TRANSPORT wins")
    parser.add_argument("--fabric", default="auto")
    parser.add_argument("--waves", type=int, default=1)
    parser.add_argument("--capacity-factor", type=float, default=1.25, help="room for rows, of both arms")
    parser.add_argument("--virtual-ranks", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


OPTIONS = arguments()
if os.environ.get("JAX_PLATFORMS") == "cpu":
    devices = f"--xla_force_host_platform_device_count={OPTIONS.ranks or 2}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {devices}"
os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.6")  # epx takes its own memory

import epx  # noqa: E402
import epx.jax  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P  # noqa: E402

ROWS = P("ep")


def products(params, rows, sizes):
    return jax.nn.silu(rows @ params[0]) @ params[1]


def doubling(params, rows, sizes):
    return rows * 2


def through_epx(group, experts):
    return lambda params, x, ids, weights: epx.jax.moe_layer(group, experts, params, x, ids, weights)


def through_all_to_all(ranks: int, room: int, experts):
    """The layer of programs that use the primitive."""

    def layer(params, x, ids, weights):
        tokens, top_k = ids.shape
        all_experts, me = OPTIONS.experts, jax.lax.axis_index("ep")
        local = all_experts // ranks
        order = jnp.argsort(ids.ravel(), stable=True)
        sent = x[order // top_k]
        mine = jnp.bincount(ids.ravel(), length=all_experts).astype(jnp.int32)
        counts = jax.lax.all_gather(mine, "ep")  # [ranks, experts]
        first = jnp.cumsum(counts, 1) - counts  # where a rank's rows of an expert begin among what it sends
        total = counts.sum(0).reshape(ranks, local)
        begin = (jnp.cumsum(total, 1) - total).reshape(-1)  # where an expert's rows begin at its owner
        place = begin + jnp.cumsum(counts, 0) - counts  # [ranks, experts]: where those of a rank begin there

        def own(table):  # [ranks, local]: of this rank's experts
            return jax.lax.dynamic_slice_in_dim(table, me * local, local, 1).ravel()

        out_of = (first[me], mine, place[me], own(counts))
        home = (own(place), own(counts), own(first), mine)
        buffer = jnp.zeros((room, x.shape[1]), x.dtype)
        rows = jax.lax.ragged_all_to_all(sent, buffer, *out_of, axis_name="ep")
        y = experts(params, rows, total[me])
        back = jax.lax.ragged_all_to_all(y, jnp.zeros_like(sent), *home, axis_name="ep")
        inverse = jnp.zeros_like(order).at[order].set(jnp.arange(order.shape[0]))
        chosen = back[inverse].reshape(tokens, top_k, -1).astype(jnp.float32)
        return jnp.einsum("tkh,tk->th", chosen, weights).astype(x.dtype)

    return layer


def step_of(mesh: Mesh, layer):
    """(params, x, ids, weights, dout) -> out and the gradients of params, x and weights."""

    def one(params, x, ids, weights, dout):
        out, back = jax.vjp(lambda p, r, w: layer(p, r, ids, w), params, x, weights)
        return out, back(dout)

    specs = ((ROWS, ROWS), ROWS, ROWS, ROWS, ROWS)
    outs = (ROWS, ((ROWS, ROWS), ROWS, ROWS))
    return jax.jit(jax.shard_map(one, mesh=mesh, in_specs=specs, out_specs=outs, check_vma=False))


def inputs(o: argparse.Namespace, mesh: Mesh, ranks: int):
    rng = np.random.default_rng(1)
    tokens = ranks * o.tokens
    ids = np.argsort(rng.random((tokens, o.experts), np.float32), 1)[:, : o.top_k].astype(np.int32)
    weights = rng.random((tokens, o.top_k), np.float32)
    place = NamedSharding(mesh, ROWS)
    key = jax.random.split(jax.random.key(1), 4)
    normal = lambda k, *shape: jax.jit(  # noqa: E731
        lambda: jax.random.normal(k, shape, jnp.float32).astype(o.row_type), out_shardings=place
    )()
    params = (
        normal(key[0], ranks * o.width, o.hidden) * o.width**-0.5,
        normal(key[1], ranks * o.hidden, o.width) * o.hidden**-0.5,
    )
    x, dout = normal(key[2], tokens, o.width), normal(key[3], tokens, o.width)
    return params, x, jax.device_put(ids, place), jax.device_put(weights, place), dout


def time_us(step, arguments, repeats: int) -> float:
    for _ in range(3):
        jax.block_until_ready(step(*arguments))
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        jax.block_until_ready(step(*arguments))
        times.append((time.perf_counter() - begun) * 1e6)
    return round(statistics.median(times), 1)


def difference(ours, theirs) -> float:
    """The largest difference, as a share of the largest value, of any array."""
    worst = 0.0
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs)):
        a, b = a.astype(jnp.float32), b.astype(jnp.float32)
        worst = max(worst, float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b))))
    return worst


def main() -> int:
    o = OPTIONS
    ranks = o.ranks or len(jax.devices())
    mesh = Mesh(np.array(jax.devices()[:ranks]), ("ep",))
    arguments = inputs(o, mesh, ranks)
    line = {
        "ranks": ranks, "tokens": o.tokens, "width": o.width, "hidden": o.hidden, "experts": o.experts, "top_k": o.top_k,
        "row_type": o.row_type, "jax": jax.__version__, "device": jax.devices()[0].device_kind,
    }  # fmt: skip
    fabric = {} if o.fabric == "auto" else {"fabric": o.fabric}
    with epx.jax.Group(
        mesh, "ep", experts=o.experts, top_k=o.top_k, width=o.width, tokens_max=o.tokens, row_type=o.row_type,
        transport=o.transport, waves=o.waves, capacity_factor=o.capacity_factor, virtual_ranks=o.virtual_ranks, **fabric,
    ) as group:  # fmt: skip
        line.update(transport=group.transport, fabric=group.fabric, rows=group.rows)
        ours = {"": step_of(mesh, through_epx(group, products)), "exchange_": step_of(mesh, through_epx(group, doubling))}
        line["epx_us"] = time_us(ours[""], arguments, o.repeats)
        line["epx_exchange_us"] = time_us(ours["exchange_"], arguments, o.repeats)
        line["exchange_bytes_remote"] = sum(member.info().exchange_bytes_remote for member in group.members)
        if ranks == 1:
            line["why"] = "one GPU: epx alone"
        else:
            other = {n: step_of(mesh, through_all_to_all(ranks, group.rows, e)) for n, e in (("", products), ("exchange_", doubling))}
            if not o.no_check:
                line["difference"] = difference(ours[""](*arguments), other[""](*arguments))
            line["ragged_all_to_all_us"] = time_us(other[""], arguments, o.repeats)
            line["ragged_all_to_all_exchange_us"] = time_us(other["exchange_"], arguments, o.repeats)
        for member in group.members:
            member.check()
    if o.json:
        print(json.dumps(line))
    else:
        print("\n".join(f"{name:32}{value}" for name, value in line.items()))
    return 1 if line.get("difference", 0) > 0.05 else 0


if __name__ == "__main__":
    sys.exit(main())
