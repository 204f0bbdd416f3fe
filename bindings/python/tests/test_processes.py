# Ranks that are processes: two expert-parallel groups of two beside data parallelism. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import epx
import pytest

HERE = Path(__file__).resolve().parent
RANKS = 4


def free_ports(count: int) -> List[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def has_fabric_of_processes() -> bool:
    """Whether this build opens groups of processes."""
    try:
        epx.memory(ranks=2, experts=2, top_k=1, width=1, tokens_max=1, fabric="ucx", device="host")
        return True
    except epx.UnsupportedError:
        return False


def run_processes(script: str, **variables: str) -> List[Dict[str, Any]]:
    """The JSON that each process prints last; all of them must end well."""
    root, port = free_ports(2)
    environment = {
        **os.environ, "EPX_WORLD_SIZE": str(RANKS), "EPX_ROOT": f"127.0.0.1:{root}", "TEST_PORT": str(port),
        "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", "EPX_TIMEOUT_MS": "60000", **variables,
    }  # fmt: skip
    processes = [
        subprocess.Popen(
            [sys.executable, str(HERE / script)], env={**environment, "EPX_RANK": str(r)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for r in range(RANKS)
    ]  # fmt: skip
    try:
        told = [process.communicate(timeout=240) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * RANKS, "\n".join(err[-1500:] for _, err in told)
    return [json.loads(out.splitlines()[-1]) for out, _ in told]


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_two_groups_of_two_processes(framework: str) -> None:
    pytest.importorskip(framework)
    if not has_fabric_of_processes():
        pytest.skip("this build has no fabric for processes: epx-info -f says why")
    transport = {"jax": "pooled_wave", "torch": "ragged"}[framework]
    lines = run_processes(f"process_{framework}.py", TEST_TRANSPORT=transport)
    assert [line["ep_rank"] for line in lines] == [0, 1, 0, 1]
    assert {(line["fabric"], line["transport"]) for line in lines} == {("ucx", transport)}
    assert all(line["bytes"] > 0 and line["path"] == lines[0]["path"] for line in lines)


def test_a_bad_route_is_everybodys_exception() -> None:
    """A process with a bad id gets its own error, its peer one that names it, and both go on."""
    pytest.importorskip("torch")
    if not has_fabric_of_processes():
        pytest.skip("this build has no fabric for processes: epx-info -f says why")
    lines = run_processes("process_errors.py")
    assert [line["error"] for line in lines] == ["RoutingError", "PeerError", "RoutingError", "PeerError"]
    assert all("rank 0" in line["text"] and line["went_on"] for line in lines)
