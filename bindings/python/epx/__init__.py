# epx: expert-parallel exchange. SPDX-License-Identifier: Apache-2.0
"""Dispatch and combine of mixture-of-experts layers. This package holds no logic of its own: it calls libepx.

`Comm`, `Group` and `Plan` are the C API with arrays in place of pointers. `epx.jax` and `epx.torch` are the same for
programs of those frameworks.
"""

from ._library import library as _library
from .comm import Comm
from .errors import (
    AbortedError,
    ArgumentError,
    CorruptError,
    EpxError,
    FabricError,
    FatalError,
    MismatchError,
    NoMemoryError,
    PeerError,
    RoutingError,
    TimeoutError,
    UnsupportedError,
)
from .group import DROPLESS, Group, Info, Memory, Nccl, memory, nccl, use_device
from .plan import Batch, Plan, Stats

__version__: str = _library.epx_version().decode()

__all__ = [
    "AbortedError",
    "ArgumentError",
    "Batch",
    "Comm",
    "CorruptError",
    "DROPLESS",
    "EpxError",
    "FabricError",
    "FatalError",
    "Group",
    "Info",
    "Memory",
    "MismatchError",
    "Nccl",
    "NoMemoryError",
    "PeerError",
    "Plan",
    "RoutingError",
    "Stats",
    "TimeoutError",
    "UnsupportedError",
    "memory",
    "nccl",
    "use_device",
]
