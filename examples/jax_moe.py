# A small mixture-of-experts language model in JAX whose experts are reached through epx. SPDX-License-Identifier: Apache-2.0
"""Trains on the text of data/, over data-parallel x expert-parallel devices, the transport chosen by EPX_TRANSPORT:

    EPX_TRANSPORT=pooled_wave python examples/jax_moe.py --steps 20

Prints one line of JSON for each step, with the names that epx-train uses: step, loss, tokens, step_ms, tokens_per_s,
mfu, drop_fraction, sender_drop_fraction, receiver_drop_fraction, transport, fabric, exchange_bytes_remote.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Dict, Tuple

TEXT = Path(__file__).resolve().parent.parent / "data" / "new-testament-kjv.txt"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="trains a small MoE language model in JAX through epx")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--ep", type=int, default=2, help="expert-parallel ranks (devices) of a group")
    parser.add_argument("--dp", type=int, default=2, help="groups beside each other")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=128, help="width inside an expert")
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--top-k", type=int, default=2)
    parser.add_argument("--sequence", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4, help="sequences of each device")
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


OPTIONS = arguments()
if os.environ.get("JAX_PLATFORMS", "") == "cpu":  # as many devices of this processor as the mesh needs
    count = f"--xla_force_host_platform_device_count={OPTIONS.ep * OPTIONS.dp}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {count}"

import epx.jax  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P  # noqa: E402

Params = Dict[str, Any]
VOCABULARY = 256  # bytes
EVERYWHERE, BATCH = P(), P(("dp", "ep"))


# ---- the model ------------------------------------------------------------------------------------------------------


def specs(params: Params) -> Params:
    """Experts lie on the rank that owns them, the same in every group; all else is everywhere."""
    return {name: P(None, "ep") if name.startswith("expert") else EVERYWHERE for name in params}


def initial(o: argparse.Namespace) -> Params:
    rng = np.random.default_rng(o.seed)

    def normal(*shape: int, scale: float) -> Any:
        return jnp.asarray(rng.standard_normal(shape) * scale, jnp.float32)

    d, f, n, e = o.width, o.hidden, o.layers, o.experts
    return {
        "embedding": normal(VOCABULARY, d, scale=0.02),
        "position": normal(o.sequence, d, scale=0.02),
        "qkv": normal(n, d, 3 * d, scale=d**-0.5),
        "mix": normal(n, d, d, scale=d**-0.5 / (2 * n) ** 0.5),
        "router": normal(n, d, e, scale=d**-0.5),
        "expert_in": normal(n, e, d, f, scale=d**-0.5),
        "expert_out": normal(n, e, f, d, scale=f**-0.5 / (2 * n) ** 0.5),
        "head": normal(d, VOCABULARY, scale=d**-0.5),
    }


def norm(x: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def attention(x: Any, qkv: Any, mix: Any, heads: int = 4) -> Any:
    b, t, d = x.shape
    q, k, v = jnp.moveaxis((x @ qkv).reshape(b, t, 3, heads, d // heads), 2, 0)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (d // heads) ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(b, t, d) @ mix


def experts(params: Tuple[Any, Any], rows: Any, sizes: Any) -> Any:
    """All experts of a rank at once: rows of an expert stand together."""
    return jax.lax.ragged_dot(jax.nn.silu(jax.lax.ragged_dot(rows, params[0], sizes)), params[1], sizes)


def moe(group: epx.jax.Group, x: Any, layer: Params) -> Tuple[Any, Any, Any]:
    b, t, d = x.shape
    flat = x.reshape(b * t, d)
    probability = jax.nn.softmax(flat @ layer["router"])
    weights, ids = jax.lax.top_k(probability, OPTIONS.top_k)
    weights = weights / jnp.sum(weights, -1, keepdims=True)
    own = (layer["expert_in"], layer["expert_out"])
    out, counts = epx.jax.moe_layer(group, experts, own, flat, ids.astype(jnp.int32), weights, with_counts=True)
    # Switch's auxiliary loss: it is least when all experts are chosen alike.
    load = jnp.mean(jax.nn.one_hot(ids, OPTIONS.experts), (0, 1))
    balance = OPTIONS.experts * jnp.sum(load * jnp.mean(probability, 0))
    return out.reshape(b, t, d), counts, balance


def loss_of(group: epx.jax.Group, params: Params, tokens: Any) -> Tuple[Any, Tuple[Any, Any]]:
    """Of this device's sequences [b, t + 1]: what is minimised, and (loss, counts)."""
    x = params["embedding"][tokens[:, :-1]] + params["position"]
    counts, balance = jnp.zeros(len(epx.jax.COUNTS), jnp.int32), 0.0
    for i in range(OPTIONS.layers):
        layer = {name: value[i] for name, value in params.items() if value.ndim > 2}
        x = x + attention(norm(x), layer["qkv"], layer["mix"])
        add, more, uneven = moe(group, norm(x), layer)
        x, counts, balance = x + add, counts + more, balance + uneven
    logits = jax.nn.log_softmax(norm(x) @ params["head"])
    loss = -jnp.mean(jnp.take_along_axis(logits, tokens[:, 1:, None], -1))
    return loss + 0.01 * balance / OPTIONS.layers, (loss, counts)


# ---- training -------------------------------------------------------------------------------------------------------


def reduce_gradients(gradients: Params) -> Params:
    """Means over the devices that hold the same parameter; an expert's rank has summed over its own group."""
    ep = jax.lax.psum(1, "ep")
    return {
        name: jax.lax.pmean(g / ep if name.startswith("expert") else jax.lax.pmean(g, "ep"), "dp")
        for name, g in gradients.items()
    }


def adam(params: Params, gradients: Params, m: Params, v: Params, step: Any) -> Tuple[Params, Params, Params]:
    b1, b2 = 0.9, 0.99
    m = jax.tree.map(lambda a, g: b1 * a + (1 - b1) * g, m, gradients)
    v = jax.tree.map(lambda a, g: b2 * a + (1 - b2) * g * g, v, gradients)

    def move(p: Any, a: Any, b: Any) -> Any:
        return p - OPTIONS.rate * (a / (1 - b1**step)) / (jnp.sqrt(b / (1 - b2**step)) + 1e-8)

    return jax.tree.map(move, params, m, v), m, v


def make_step(group: epx.jax.Group, mesh: Mesh, placed: Params) -> Any:
    def step(params: Params, m: Params, v: Params, number: Any, tokens: Any) -> Any:
        gradient = jax.value_and_grad(lambda p: loss_of(group, p, tokens), has_aux=True)
        (_, (loss, counts)), gradients = gradient(params)
        params, m, v = adam(params, reduce_gradients(gradients), m, v, number)
        return params, m, v, jax.lax.pmean(loss, ("dp", "ep")), jax.lax.psum(counts, ("dp", "ep"))

    state = (placed, placed, placed)
    mapped = jax.shard_map(
        step, mesh=mesh, in_specs=(*state, P(), BATCH), out_specs=(*state, P(), P()), check_vma=False
    )
    return jax.jit(mapped, donate_argnums=(0, 1, 2))


def flops_per_token(o: argparse.Namespace) -> float:
    """Useful operations of a training step: 3 times the forward pass, attention as a full square."""
    attention_flops = 2 * o.width * 4 * o.width + 4 * o.sequence * o.width
    moe_flops = 2 * o.width * o.experts + o.top_k * 4 * o.width * o.hidden
    return 3.0 * (o.layers * (attention_flops + moe_flops) + 2 * o.width * VOCABULARY)


def peak_flops() -> float:
    """What the devices do in large products, measured: all of this process's together."""
    a = jnp.ones((1024, 1024), jnp.float32)
    product = jax.jit(lambda a: a @ a)
    product(a).block_until_ready()
    best = float("inf")
    for _ in range(5):
        begun = time.perf_counter()
        product(a).block_until_ready()
        best = min(best, time.perf_counter() - begun)
    one = 2 * 1024**3 / best
    return one * (1 if jax.devices()[0].platform == "cpu" else OPTIONS.ep * OPTIONS.dp)


def batches(o: argparse.Namespace) -> Any:
    text = np.frombuffer(o.text.read_bytes(), np.uint8)
    rng = np.random.default_rng(o.seed + 1)
    while True:
        first = rng.integers(0, len(text) - o.sequence - 1, o.batch * o.ep * o.dp)
        yield np.stack([text[i : i + o.sequence + 1] for i in first]).astype(np.int32)


def main() -> int:
    o = OPTIONS
    devices = jax.devices()
    if len(devices) < o.ep * o.dp:
        print(
            f"jax_moe: {o.ep * o.dp} devices are needed and JAX has {len(devices)}; set JAX_PLATFORMS=cpu to use as many "
            "of this processor, or choose --ep and --dp",
            file=sys.stderr,
        )
        return 2
    mesh = Mesh(np.array(devices[: o.ep * o.dp]).reshape(o.dp, o.ep), ("dp", "ep"))
    group = epx.jax.Group(
        mesh, "ep", experts=o.experts, top_k=o.top_k, width=o.width, tokens_max=o.batch * o.sequence, name="jax_moe"
    )
    params = initial(o)
    placed = specs(params)
    put = {name: NamedSharding(mesh, placed[name]) for name in params}
    params = jax.device_put(params, put)
    zeros = lambda: jax.device_put(jax.tree.map(jnp.zeros_like, params), put)  # noqa: E731
    m, v = zeros(), zeros()
    step, data = make_step(group, mesh, placed), batches(o)
    peak = o.peak_flops or peak_flops()
    tokens_of_step = o.batch * o.sequence * o.ep * o.dp
    for number in range(1, o.steps + 1):
        tokens = jax.device_put(next(data), NamedSharding(mesh, BATCH))
        begun = time.perf_counter()
        params, m, v, loss, counts = step(params, m, v, jnp.float32(number), tokens)
        loss = float(loss)
        seconds = time.perf_counter() - begun
        count = dict(zip(epx.jax.COUNTS, map(int, counts)))
        routed = max(count["routed"], 1)
        for member in group.members:
            member.step()
        line = {
            "step": number,
            "loss": loss,
            "tokens": tokens_of_step,
            "step_ms": seconds * 1e3,
            "tokens_per_s": tokens_of_step / seconds,
            "mfu": flops_per_token(o) * tokens_of_step / seconds / peak,
            "drop_fraction": (count["dropped_sender"] + count["dropped_receiver"]) / routed,
            "sender_drop_fraction": count["dropped_sender"] / routed,
            "receiver_drop_fraction": count["dropped_receiver"] / routed,
            "transport": group.transport,
            "fabric": group.fabric,
            "exchange_bytes_remote": sum(member.info().exchange_bytes_remote for member in group.members),
        }
        print(json.dumps(line), flush=True)
    group.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
