# Finds libepx and declares its functions. SPDX-License-Identifier: Apache-2.0
"""One library for each process. Where it is looked for, in this order: the variable EPX_LIBRARY (a file), the
build folder of the tree that this package was installed from or lies in, then the system's own search."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path

from . import _structs as s
from .errors import error_of

# The functions that the package calls: result type, argument types.
_HANDLE = POINTER(c_void_p)
_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "epx_version": (c_char_p, []),
    "epx_status_name": (c_char_p, [c_int]),
    "epx_last_error": (c_char_p, []),
    "epx_device_use": (c_int, [c_char_p, c_int32]),
    "epx_comm_world": (c_int, [_HANDLE]),
    "epx_comm_threads": (c_int, [c_int32, _HANDLE]),
    "epx_comm_from_bootstrap": (c_int, [POINTER(s.Bootstrap), _HANDLE]),
    "epx_comm_destroy": (None, [_HANDLE]),
    "epx_comm_rank": (c_int32, [c_void_p]),
    "epx_comm_size": (c_int32, [c_void_p]),
    "epx_comm_split": (c_int, [c_void_p, c_int32, c_int32, _HANDLE]),
    "epx_comm_allreduce": (c_int, [c_void_p, c_void_p, c_int64, c_int, c_int]),
    "epx_comm_allgather": (c_int, [c_void_p, c_void_p, c_void_p, c_size_t]),
    "epx_comm_barrier": (c_int, [c_void_p]),
    "epx_comm_abort": (None, [c_void_p]),
    "epx_comm_set_timeout": (None, [c_void_p, c_int64]),
    "epx_group_open": (c_int, [c_void_p, POINTER(s.GroupConfig), _HANDLE]),
    "epx_group_close": (None, [_HANDLE]),
    "epx_group_memory": (c_int, [POINTER(s.GroupConfig), POINTER(s.Memory)]),
    "epx_group_info": (c_int, [c_void_p, POINTER(s.GroupInfo)]),
    "epx_group_check": (c_int, [c_void_p]),
    "epx_group_abort": (None, [c_void_p, c_char_p]),
    "epx_group_recover": (c_int, [c_void_p, POINTER(s.GroupConfig)]),
    "epx_nccl_describe": (c_int, [POINTER(s.NcclInfo)]),
    "epx_step": (c_int, [c_void_p]),
    "epx_step_discard": (c_int, [c_void_p]),
    "epx_plan_bytes": (c_size_t, [c_void_p]),
    "epx_plan_create": (c_int, [c_void_p, c_int32, c_void_p, _HANDLE]),
    "epx_plan_attach": (c_int, [c_void_p, c_int32, c_void_p, _HANDLE]),
    "epx_plan_destroy": (None, [_HANDLE]),
    "epx_plan_save": (c_int, [c_void_p, c_void_p, c_void_p]),
    "epx_plan_load": (c_int, [c_void_p, c_void_p, c_void_p]),
    "epx_plan_load_whole": (c_int, [c_void_p, c_void_p, c_int64, c_void_p]),
    "epx_plan_counts": (c_int, [c_void_p, c_void_p, c_void_p]),
    "epx_plan_waves": (c_int32, [c_void_p]),
    "epx_plan_memory": (c_void_p, [c_void_p]),
    "epx_plan_route": (c_int, [c_void_p, POINTER(s.Routing), c_void_p]),
    "epx_plan_stats": (c_int, [c_void_p, POINTER(s.PlanStats), c_void_p]),
    "epx_dispatch": (c_int, [c_void_p, c_int32, c_void_p, POINTER(s.Batch), c_void_p]),
    "epx_dispatch_start": (c_int, [c_void_p, c_int32, c_void_p, POINTER(s.Batch), c_void_p]),
    "epx_dispatch_finish": (c_int, [c_void_p, c_int32, POINTER(s.Batch), c_void_p]),
    "epx_combine": (c_int, [c_void_p, c_int32, c_void_p, c_void_p, c_void_p]),
    "epx_combine_start": (c_int, [c_void_p, c_int32, c_void_p, c_void_p]),
    "epx_combine_finish": (c_int, [c_void_p, c_int32, c_void_p, c_void_p]),
    "epx_combine_backward": (c_int, [c_void_p, c_int32, c_void_p, c_void_p, POINTER(s.Batch), c_void_p]),
    "epx_dispatch_backward": (c_int, [c_void_p, c_int32, c_void_p, c_void_p, c_void_p, c_void_p]),
    "epx_batch_counts": (c_int, [c_void_p, POINTER(s.Batch), c_void_p, c_void_p, c_void_p]),
}


def _tree_folders() -> list[Path]:
    """Build folders of trees that this package may belong to."""
    here = Path(__file__).resolve().parent
    trees = [here.parents[2]]
    note = here / "tree.txt"
    if note.is_file():
        trees.append(Path(note.read_text(encoding="utf-8").strip()))
    return [tree / "build" / "lib" for tree in trees if (tree / "include" / "epx" / "epx.h").is_file()]


def _candidates(stem: str) -> list[str]:
    names = [str(folder / f"lib{stem}.so") for folder in _tree_folders()]
    found = ctypes.util.find_library(stem)
    return names + ([found] if found else [])


def find(stem: str = "epx") -> str:
    """The file of libSTEM.so, or its name where the system finds it; ImportError says what to do."""
    asked = os.environ.get("EPX_LIBRARY")
    if asked:
        file = Path(asked) if stem == "epx" else Path(asked).with_name(f"lib{stem}.so")
        if not file.is_file():
            raise ImportError(f"EPX_LIBRARY names {asked}; there is no file {file}")
        return str(file)
    tried = _candidates(stem)
    for name in tried:
        if "/" not in name or Path(name).is_file():
            return name
    raise ImportError(
        f"lib{stem}.so was not found (tried {', '.join(tried) or 'the system'}): run `make` in the tree of epx, "
        "or `make install`, or name the library's file in EPX_LIBRARY"
    )


def load(stem: str = "epx", mode: int = ctypes.DEFAULT_MODE) -> ctypes.CDLL:
    name = find(stem)
    try:
        return ctypes.CDLL(name, mode=mode)
    except OSError as error:
        raise ImportError(f"{name} cannot be loaded: {error}") from error


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name, None)
        if function is None:
            raise ImportError(f"{library._name} is no library of this version: it lacks {name}")
        function.restype = result
        function.argtypes = arguments
    return library


# Global, so that libepx_jax.so finds the same library and not a second one.
library = _declared(load(mode=ctypes.RTLD_GLOBAL))


def check(status: int) -> None:
    """Raises the exception of a status that is an error."""
    if status != 0:
        text = library.epx_last_error().decode(errors="replace")
        raise error_of(status, text or library.epx_status_name(status).decode())
