# The custom calls of libepx_jax. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_void_p

import jax

from .._library import load

CALLS = (
    "route",
    "dispatch",
    "dispatch_start",
    "dispatch_done",
    "combine",
    "combine_start",
    "combine_done",
    "combine_backward",
    "dispatch_backward",
    "counts",
)


def _load() -> ctypes.CDLL:
    try:
        handlers = load("epx_jax")
    except ImportError as error:
        raise ImportError(
            f"{error}; libepx_jax.so is built where `make` finds jaxlib: `make all PYTHON=...` with the interpreter that "
            "has JAX, and `epx-info` says what was found"
        ) from error
    handlers.epx_jax_table_add.restype = c_int64
    handlers.epx_jax_table_add.argtypes = [c_int32, POINTER(c_int32), POINTER(c_void_p)]
    handlers.epx_jax_table_remove.restype = None
    handlers.epx_jax_table_remove.argtypes = [c_int64]
    handlers.epx_jax_table_error.restype = c_char_p
    handlers.epx_jax_table_error.argtypes = []
    return handlers


library = _load()

for _name in CALLS:
    for _platform in ("cpu", "CUDA"):
        jax.ffi.register_ffi_target(
            f"epx_jax_{_name}",
            jax.ffi.pycapsule(getattr(library, f"epx_jax_{_name}")),  # type: ignore[no-untyped-call]
            platform=_platform,
        )
