# epx for JAX. SPDX-License-Identifier: Apache-2.0
"""Dispatch and combine of mixture-of-experts layers inside jit, shard_map, scan, remat and grad.

    mesh = jax.make_mesh((2, 4), ("dp", "ep"))
    group = epx.jax.Group(mesh, "ep", experts=64, top_k=8, width=1024, tokens_max=4096)

    def layer(x, ids, weights, params):          # inside shard_map over mesh
        return epx.jax.moe_layer(group, expert_fn, params, x, ids, weights)

`moe_layer` is a whole layer with its gradients. The calls below it (`Group.route`, `Group.dispatch`, ...) are the
library's, each an XLA custom call; plans are arrays, and a token that every call takes and gives keeps them in order.
The transport is chosen by EPX_TRANSPORT or the option `transport`.
"""

from .group import COUNTS, Group
from .layer import expert_sizes, moe_layer, valid_rows

__all__ = ["COUNTS", "Group", "expert_sizes", "moe_layer", "valid_rows"]
