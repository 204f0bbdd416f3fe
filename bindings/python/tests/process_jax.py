# One of four processes with a JAX device each: two expert-parallel groups of two beside data parallelism, against the
# same layer written densely. Run by test_processes.py. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import sys

os.environ["XLA_FLAGS"] = ""  # one device
import jax  # noqa: E402

RANK, RANKS, PORT = int(os.environ["EPX_RANK"]), int(os.environ["EPX_WORLD_SIZE"]), os.environ["TEST_PORT"]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{PORT}", RANKS, RANK)

import epx.jax as ej  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import test_jax as tj  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P  # noqa: E402

ROWS = P(("dp", "ep"))


def whole(mesh: Mesh, value: object, spec: P) -> jax.Array:
    """An array over all processes, of what every process knows as a whole."""
    array = np.asarray(value)
    return jax.make_array_from_callback(array.shape, NamedSharding(mesh, spec), lambda index: array[index])


def main() -> int:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("dp", "ep"))
    params, x, wr = tj.inputs(11, RANKS)
    args = (tuple(whole(mesh, p, P("ep")) for p in params), whole(mesh, x, ROWS), whole(mesh, wr, P()))
    with ej.Group(mesh, "ep", **tj.options(os.environ["TEST_TRANSPORT"])) as group:
        assert group.ranks == 2 and len(group.members) == 1
        layers = tj.stack(tj.layer_of(group), True)
        ours = tj.measure(tj.sharded(group, mesh, layers, ROWS))(*args)
        right = tj.measure(tj.stack(tj.reference, False))(params, x, wr)
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(right)):
            b = np.asarray(b)
            for shard in a.addressable_shards:
                np.testing.assert_allclose(shard.data, b[shard.index], rtol=5e-5, atol=5e-5 * np.abs(b).max())
        info = group.members[0].info()
        line = {"rank": RANK, "ep_rank": info.rank, "fabric": info.fabric, "transport": info.transport, "path": info.path}
        print(json.dumps({**line, "bytes": info.exchange_bytes_remote}))
    jnp.zeros(1).block_until_ready()
    jax.distributed.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
