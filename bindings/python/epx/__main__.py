# python -m epx: what a program of this Python would get. SPDX-License-Identifier: Apache-2.0
"""Imports the frameworks that are there first, because the libnccl that they load is the one that counts."""

from __future__ import annotations

import importlib
import os
import sys

import epx
from epx._library import find


def _framework(name: str) -> str:
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        return f"no: {error}"
    return str(module.__version__)


def _binding(name: str) -> str:
    try:
        importlib.import_module(f"epx.{name}")
    except ImportError as error:
        return f"no: {error}"
    return "yes"


def main() -> int:
    lines = {"epx": f"{epx.__version__}, {os.path.realpath(find())}", "python": sys.version.split()[0]}
    for name in ("jax", "torch"):
        lines[name] = _framework(name)
        if not lines[name].startswith("no"):
            lines[f"epx.{name}"] = _binding(name)
    nccl = epx.nccl()
    lines["NCCL compiled for"] = nccl.compiled
    lines["NCCL loaded"] = f"{nccl.loaded}, {nccl.file}" if nccl.loaded else "none"
    if nccl.problem:
        lines["NCCL cannot be used"] = nccl.problem
    for name, value in sorted(os.environ.items()):
        if name.startswith("EPX_"):
            lines[name] = value
    print("\n".join(f"{name:20} {value}" for name, value in lines.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
