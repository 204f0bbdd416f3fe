# A whole mixture-of-experts layer with its gradients. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from functools import partial
from typing import Any, Callable, List, Tuple

import jax
import jax.numpy as jnp

from .group import Array, Group

# expert_fn(params, rows [R, width], sizes [El]) -> y [R, width]: rows of local expert e are the sizes[e] rows behind
# those of the experts before it, as jax.lax.ragged_dot counts them.
ExpertFn = Callable[[Any, Array, Array], Array]


def valid_rows(start: Array, count: Array, rows: int) -> Array:
    """bool [rows]: which rows of a batch hold anything."""
    at = jnp.arange(rows, dtype=jnp.int32)[:, None]
    return jnp.any((at >= start) & (at < start + count), axis=1)


def expert_sizes(start: Array, rows: int) -> Array:
    """int32 [El], sums to `rows`: from each expert's first row to the next one's, gaps included."""
    ends = jnp.concatenate([start[1:], jnp.full((1,), rows, jnp.int32)])
    first = start.at[0].set(0) if start.shape[0] else start
    return ends - first


def _clean(rows: Array, start: Array, count: Array) -> Array:
    """Rows outside the counted ones are nobody's and may hold anything, NaN too: zero them."""
    return jnp.where(valid_rows(start, count, rows.shape[0])[:, None], rows, 0)


def _forward(
    group: Group, expert_fn: ExpertFn, lane: int, params: Any, x: Array, ids: Array, weights: Array
) -> Tuple[Array, Array, Array, List[Any]]:
    """out, plan (complete: behind the last combine), token, and of each wave y and the way back through the experts."""
    plan, token = group.route(ids, weights, jnp.zeros((1,), jnp.int32), lane)
    out = jnp.zeros((x.shape[0], group.width), group.out_dtype)
    waves = []
    for wave in range(group.waves):
        rows, start, count, plan, token = group.dispatch(plan, x, token, wave, lane)
        rows = _clean(rows, start, count)
        sizes = expert_sizes(start, group.rows)
        y, back = jax.vjp(lambda p, r: expert_fn(p, r, sizes), params, rows)  # noqa: B023 - used in this turn
        out, plan, token = group.combine(plan, y, out, token, wave, lane)
        waves.append((y, back))
    return out, plan, token, waves


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _layer(
    group: Group, expert_fn: ExpertFn, lane: int, params: Any, x: Array, ids: Array, weights: Array
) -> Tuple[Array, Array]:
    out, plan, token, _ = _forward(group, expert_fn, lane, params, x, ids, weights)
    return _with_counts(group, lane, out, plan, token)


def _with_counts(group: Group, lane: int, out: Array, plan: Array, token: Array) -> Tuple[Array, Array]:
    """Nothing that needs `out`, the next layer's route for one, comes before the counts have been read."""
    counts, _ = group.counts(plan, token, lane)
    out, counts = jax.lax.optimization_barrier((out, counts))  # type: ignore[no-untyped-call]
    return out, counts


def _layer_fwd(
    group: Group, expert_fn: ExpertFn, lane: int, params: Any, x: Array, ids: Array, weights: Array
) -> Tuple[Tuple[Array, Array], Any]:
    out, plan, token, waves = _forward(group, expert_fn, lane, params, x, ids, weights)
    return _with_counts(group, lane, out, plan, token), (plan, waves, x, ids, weights)


def _add(a: Any, b: Any) -> Any:
    return jax.tree.map(jnp.add, a, b)


def _layer_bwd(group: Group, expert_fn: ExpertFn, lane: int, kept: Any, cotangent: Any) -> Tuple[Any, ...]:
    plan, waves, x, ids, weights = kept
    dout = cotangent[0].astype(group.row_dtype)
    token = jnp.zeros((1,), jnp.int32)
    dx = jnp.zeros((x.shape[0], group.width), group.out_dtype)
    dweights = jnp.zeros(weights.shape, jnp.float32)
    dparams: Any = None
    for wave, (y, back) in enumerate(waves):
        dy, start, count, token = group.combine_backward(plan, dout, y, token, wave, lane)
        dp, dx_rows = back(_clean(dy, start, count))
        dparams = dp if dparams is None else _add(dparams, dp)
        dx, dweights, token = group.dispatch_backward(plan, dx_rows, dx, dweights, token, wave, lane)
    no_gradient = jnp.zeros(ids.shape, jax.dtypes.float0)
    return dparams, dx.astype(x.dtype), no_gradient, dweights


_layer.defvjp(_layer_fwd, _layer_bwd)


def moe_layer(
    group: Group, expert_fn: ExpertFn, params: Any, x: Array, ids: Array, weights: Array, lane: int = 0,
    with_counts: bool = False,
) -> Any:  # fmt: skip
    """One rank's part of a layer, inside shard_map over the group's mesh (check_vma=False).

    x [T, width] tokens of this rank; ids [T, K] int32, weights [T, K] float32 their experts; params: of this rank's
    experts, passed to expert_fn. out [T, width] = sum over kept k of weights[t, k] * expert(ids[t, k])(x[t]), with
    gradients for params, x and weights. with_counts: (out, int32 [6] in the order of epx.jax.COUNTS).

    Layers that run one after the other may share a lane; layers without an order between them need a group each.
    """
    out, counts = _layer(group, expert_fn, lane, params, x.astype(group.row_dtype), ids, weights)
    return (out, counts) if with_counts else out
