# SPDX-License-Identifier: Apache-2.0
"""Four devices of JAX on one processor, and one transport for each run of a test."""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "highest")  # GPUs round products of float32 otherwise

import pytest  # noqa: E402

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

TRANSPORTS = ("pooled_wave", "ragged", "ring")


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["host", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    """Where PyTorch's tensors are: on the host, and on a GPU where there is one."""
    if request.param == "cuda" and (torch is None or not torch.cuda.is_available()):
        pytest.skip("PyTorch has no GPU here")
    return str(request.param)
