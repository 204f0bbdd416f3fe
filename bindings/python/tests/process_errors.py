# One of four processes, two groups of two: rank 0 of each routes to an expert that does not exist. Run by
# test_processes.py. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import sys

import epx
import epx.torch as et
import torch

RANK = int(os.environ["EPX_RANK"])


def main() -> int:
    with epx.Comm.world() as world:
        part = world.split(RANK // 2, RANK)
        assert part is not None
        with et.Group(comm=part, experts=4, top_k=2, width=8, tokens_max=8, device="host", capacity_factor="dropless") as group:
            ids, weights, x = torch.tensor([[0, 3]] * 8), torch.full((8, 2), 0.5), torch.ones(8, 8)
            double = lambda rows, sizes: 2 * rows  # noqa: E731
            kind, text = "none", ""
            try:
                et.moe_layer(group, double, x, ids + (4 if part.rank == 0 else 0), weights)
            except epx.EpxError as error:
                kind, text = type(error).__name__, str(error)
            options = {"atol": 0, "rtol": 0}
            out = et.moe_layer(group, double, x, ids[:2].repeat(4, 1) if part.rank else ids, weights)
            torch.testing.assert_close(out, 2 * x, **options)
            print(json.dumps({"error": kind, "text": text, "went_on": True}))
            world.barrier()
    return 0


if __name__ == "__main__":
    sys.exit(main())
