# epx.jax against the same layer written densely in JAX. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from functools import partial
from typing import Any, Iterator, Tuple

import pytest

jax = pytest.importorskip("jax")
import epx  # noqa: E402
import epx.jax as ej  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, PartitionSpec as P  # noqa: E402

EXPERTS, TOP_K, WIDTH, HIDDEN, TOKENS = 8, 3, 16, 24, 10
ROWS = P("ep")
RANKS = min(4, len(jax.devices()))  # four of a processor, or the GPUs that there are


def mesh_of(*shape: int) -> Mesh:
    names = ("ep",) if len(shape) == 1 else ("dp", "ep")
    return Mesh(np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape), names)


@pytest.fixture
def group(transport: str) -> Iterator[ej.Group]:
    with ej.Group(mesh_of(RANKS), "ep", **options(transport)) as opened:
        yield opened


def options(transport: str, **more: Any) -> dict[str, Any]:
    return {
        "experts": EXPERTS, "top_k": TOP_K, "width": WIDTH, "tokens_max": TOKENS, "transport": transport,
        "capacity_factor": "dropless", "timeout_ms": 20000, **more,
    }  # fmt: skip


def expert(params: Any, rows: Any, sizes: Any) -> Any:
    return jax.lax.ragged_dot(jax.nn.silu(jax.lax.ragged_dot(rows, params[0], sizes)), params[1], sizes)


def router(x: Any, wr: Any) -> Tuple[Any, Any]:
    weights, ids = jax.lax.top_k(jax.nn.softmax(x @ wr), TOP_K)
    return ids.astype(jnp.int32), weights


def dense(params: Any, x: Any, ids: Any, weights: Any) -> Any:
    """Every expert on every token; what was not chosen is not looked at. -1 chooses nothing."""
    hidden = jax.nn.silu(jnp.einsum("th,ehf->tef", x, params[0]))
    y = jnp.einsum("tef,efh->teh", hidden, params[1])
    chosen = jnp.take_along_axis(y, jnp.maximum(ids, 0)[:, :, None], axis=1)
    return jnp.sum(chosen * (weights * (ids >= 0))[:, :, None], axis=1)


def inputs(seed: int, ranks: int) -> Tuple[Any, Any, Any]:
    keys = jax.random.split(jax.random.key(seed), 4)
    params = (
        jax.random.normal(keys[0], (EXPERTS, WIDTH, HIDDEN)) / 4,
        jax.random.normal(keys[1], (EXPERTS, HIDDEN, WIDTH)) / 4,
    )
    return params, jax.random.normal(keys[2], (ranks * TOKENS, WIDTH)), jax.random.normal(keys[3], (WIDTH, EXPERTS))


def sharded(group: ej.Group, mesh: Mesh, fn: Any, rows: P = ROWS) -> Any:
    """fn(params, x, wr) of one rank, over the mesh."""
    specs = ((ROWS, ROWS), rows, P())
    return jax.shard_map(fn, mesh=mesh, in_specs=specs, out_specs=rows, check_vma=False)


def measure(fn: Any) -> Any:
    """A number that depends on every element of what fn gives, and its gradients."""

    def loss(*args: Any) -> Any:
        out = fn(*args)
        return jnp.sum(out * jnp.cos(jnp.arange(WIDTH))) + jnp.sum(out**2)

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))


def same(ours: Any, theirs: Any) -> None:
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs)):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5 * float(jnp.max(jnp.abs(b))))


def layer_of(group: ej.Group) -> Any:
    return lambda params, x, wr: ej.moe_layer(group, expert, params, x, *router(x, wr))


def reference(params: Any, x: Any, wr: Any) -> Any:
    return dense(params, x, *router(x, wr))


def test_values_and_gradients(group: ej.Group) -> None:
    args = inputs(1, RANKS)
    same(measure(sharded(group, mesh_of(RANKS), layer_of(group)))(*args), measure(reference)(*args))


def test_skipped_and_repeated_ids(group: ej.Group) -> None:
    params, x, _ = inputs(2, RANKS)
    rng = np.random.default_rng(2)
    ids = rng.integers(-1, EXPERTS, (RANKS * TOKENS, TOP_K), dtype=np.int32)
    ids[0], ids[1] = -1, 3
    weights = jnp.asarray(rng.standard_normal(ids.shape), jnp.float32)

    def ours(params: Any, x: Any, weights: Any) -> Any:
        fn = lambda p, r, i, w: ej.moe_layer(group, expert, p, r, i, w)  # noqa: E731
        specs = ((ROWS, ROWS), ROWS, ROWS, ROWS)
        mapped = jax.shard_map(fn, mesh=mesh_of(RANKS), in_specs=specs, out_specs=ROWS, check_vma=False)
        return mapped(params, x, jnp.asarray(ids), weights)

    same(measure(ours)(params, x, weights), measure(lambda p, r, w: dense(p, r, jnp.asarray(ids), w))(params, x, weights))


def stack(group_layer: Any, checkpoint: bool) -> Any:
    """Three layers in a scan, with residual connections."""

    def whole(params: Any, x: Any, wr: Any) -> Any:
        def body(h: Any, scale: Any) -> Tuple[Any, None]:
            step = lambda p, h, w: h + scale * group_layer(p, h, w)  # noqa: E731
            return (jax.checkpoint(step) if checkpoint else step)(params, h, wr), None

        return jax.lax.scan(body, x, jnp.asarray([0.5, 0.25, 0.125]))[0]

    return whole


@pytest.mark.parametrize("checkpoint", [False, True], ids=["kept", "remat"])
def test_scan_over_layers(group: ej.Group, checkpoint: bool) -> None:
    args = inputs(3, RANKS)
    ours = sharded(group, mesh_of(RANKS), stack(layer_of(group), checkpoint))
    same(measure(ours)(*args), measure(stack(reference, False))(*args))


@pytest.mark.skipif(RANKS < 4, reason="needs four devices")
def test_two_groups_beside_data_parallelism(transport: str) -> None:
    mesh, rows = mesh_of(2, 2), P(("dp", "ep"))
    args = inputs(4, 4)
    with ej.Group(mesh, "ep", **options(transport)) as group:
        assert group.ranks == 2 and len(group.members) == 4
        same(measure(sharded(group, mesh, layer_of(group), rows))(*args), measure(reference)(*args))


def test_start_and_done_are_dispatch_and_combine(transport: str) -> None:
    params, x, wr = inputs(5, RANKS)

    def whole(group: ej.Group, params: Any, x: Any, wr: Any) -> Any:
        ids, weights = router(x, wr)
        plan, token = group.route(ids, weights, jnp.zeros(1, jnp.int32))
        total = jnp.zeros_like(x)
        for wave in range(group.waves):
            token = group.dispatch_start(plan, x, token, wave)
            rows, start, count, plan, token = group.dispatch_done(plan, x, token, wave)
            valid = ej.valid_rows(start, count, group.rows)[:, None]
            y = expert(params, jnp.where(valid, rows, 0), ej.expert_sizes(start, group.rows))
            token = group.combine_start(plan, y, token, wave)
            total, plan, token = group.combine_done(plan, y, total, token, wave)
        return total

    with ej.Group(mesh_of(RANKS), "ep", **options(transport, batch_in_caller=False)) as group:
        ours = jax.jit(sharded(group, mesh_of(RANKS), partial(whole, group)))(params, x, wr)
        np.testing.assert_allclose(ours, reference(params, x, wr), rtol=2e-5, atol=2e-5)
    with ej.Group(mesh_of(RANKS), "ep", **options(transport)) as group, pytest.raises(epx.ArgumentError, match="False"):
        group.dispatch_start(jnp.zeros(group.plan_bytes, jnp.uint8), x, jnp.zeros(1, jnp.int32), 0)


@pytest.mark.skipif(RANKS < 4, reason="one rank alone has room for two experts' rows")
def test_counts(transport: str) -> None:
    params, x, _ = inputs(6, RANKS)
    rng = np.random.default_rng(6)
    ids = np.where(rng.random((RANKS * TOKENS, TOP_K)) < 0.2, -1, rng.integers(0, 2, (RANKS * TOKENS, TOP_K))).astype(np.int32)
    weights = jnp.ones(ids.shape, jnp.float32)
    with ej.Group(mesh_of(RANKS), "ep", **options(transport, capacity_factor=1.0)) as group:

        def fn(p: Any, r: Any, i: Any, w: Any) -> Any:
            return ej.moe_layer(group, expert, p, r, i, w, with_counts=True)[1][None]

        specs = ((ROWS, ROWS), ROWS, ROWS, ROWS)
        mapped = jax.shard_map(fn, mesh=mesh_of(RANKS), in_specs=specs, out_specs=ROWS, check_vma=False)
        counts = dict(zip(ej.COUNTS, np.asarray(jax.jit(mapped)(params, x, jnp.asarray(ids), weights)).sum(0)))
    assert counts["routed"] == (ids >= 0).sum() and counts["skipped"] == (ids < 0).sum()
    assert counts["kept"] + counts["dropped_sender"] + counts["dropped_receiver"] == counts["routed"]
    assert counts["dropped_sender"] + counts["dropped_receiver"] > 0  # two experts of eight cannot take all


def test_bytes_are_moved_by_the_transport_of_the_variable(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPX_TRANSPORT", transport)
    args = inputs(7, RANKS)
    other = "ragged" if transport != "ragged" else "ring"
    with ej.Group(mesh_of(RANKS), "ep", **options(other)) as group:
        assert group.transport == transport
        before = [member.info().exchange_bytes_remote for member in group.members]
        jax.block_until_ready(jax.jit(sharded(group, mesh_of(RANKS), layer_of(group)))(*args))
        after = [member.info().exchange_bytes_remote for member in group.members]
        assert all(b > a for a, b in zip(before, after)) or RANKS == 1
        for info in (member.info() for member in group.members):
            assert info.path.startswith("stores") and info.message_bytes_remote == 0
            assert info.stored_bytes_remote == info.exchange_bytes_remote


def test_errors(group: ej.Group) -> None:
    params, x, wr = inputs(8, RANKS)
    token = jnp.zeros(1, jnp.int32)
    ids, weights = router(x[:TOKENS], wr)
    with pytest.raises(epx.ArgumentError, match="must both be"):
        group.route(ids[:, :2], weights[:, :2], token)
    with pytest.raises(epx.ArgumentError, match="float32"):
        group.route(ids, weights.astype(jnp.bfloat16), token)
    with pytest.raises(epx.ArgumentError, match="at most"):
        group.route(jnp.zeros((TOKENS + 1, TOP_K), jnp.int32), jnp.zeros((TOKENS + 1, TOP_K)), token)
    with pytest.raises(epx.ArgumentError, match="x is"):
        group.dispatch(jnp.zeros(group.plan_bytes, jnp.uint8), x[:, :5], token, 0)

    def bad(params: Any, x: Any, wr: Any) -> Any:
        ids, weights = router(x, wr)
        return ej.moe_layer(group, expert, params, x, ids + EXPERTS, weights)

    # A call says so where the host sees the ids; on a GPU the step may be over before anybody knows.
    kinds = (jax.errors.JaxRuntimeError, epx.EpxError) if group.device == "cuda" else jax.errors.JaxRuntimeError
    with pytest.raises(kinds, match="outside -1..7|route of rank"):
        jax.block_until_ready(jax.jit(sharded(group, mesh_of(RANKS), bad))(params, x, wr))
        group.check()
    # A failed route loses nothing: the next one is good.
    same(measure(sharded(group, mesh_of(RANKS), layer_of(group)))(params, x, wr), measure(reference)(params, x, wr))


def test_refusals() -> None:
    with pytest.raises(epx.ArgumentError, match="no axis"):
        ej.Group(mesh_of(RANKS), "tp", **options("ragged"))
    if RANKS == 4:
        with pytest.raises(epx.UnsupportedError, match="own as many"):
            ej.Group(mesh_of(4), "ep", **options("ragged", experts=6))
    with pytest.raises(epx.UnsupportedError, match="extra_wave"):
        ej.Group(mesh_of(RANKS), "ep", **options("pooled_wave", overflow="extra_wave"))
    with pytest.raises(epx.EpxError):
        ej.Group(mesh_of(RANKS), "ep", **options("no_such_transport"))
