# epx for PyTorch. SPDX-License-Identifier: Apache-2.0
"""Dispatch and combine of mixture-of-experts layers with autograd.

    group = epx.torch.Group(experts=64, top_k=8, width=1024, tokens_max=4096)     # of the default process group
    out = epx.torch.moe_layer(group, experts, x, ids, weights, params=experts.parameters())

`Buffer` is a class with the call shapes of DeepEP's, for jobs that are written for it.

Under torch.compile a layer is operators (torch.ops.epx, epx.torch.ops), which break no graph.

The transport is chosen by EPX_TRANSPORT or the option `transport`. Calls go to the current stream.
"""

from .buffer import Buffer, Config, EventHandle, EventOverlap, Handle
from .group import Group
from .layer import expert_sizes, moe_layer, valid_rows
from .ops import COUNTS

__all__ = [
    "Buffer",
    "COUNTS",
    "Config",
    "EventHandle",
    "EventOverlap",
    "Group",
    "Handle",
    "expert_sizes",
    "moe_layer",
    "valid_rows",
]
