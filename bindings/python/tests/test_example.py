# The examples as a user runs them. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest

TREE = Path(__file__).resolve().parents[3]
SMALL = "--steps 3 --layers 1 --width 32 --hidden 32 --sequence 32 --batch 2".split()


@pytest.fixture(params=["jax", "torch"])
def framework(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param)
    return str(request.param)


def train(framework: str, **variables: str) -> List[Dict[str, Any]]:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", **variables}
    command = [sys.executable, str(TREE / "examples" / f"{framework}_moe.py"), *SMALL]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_losses_are_those_of_every_transport_without_drops(framework: str) -> None:
    transports = ("pooled_wave", "ragged", "ring")
    runs = {t: train(framework, EPX_TRANSPORT=t, EPX_CAPACITY_FACTOR="dropless") for t in transports}
    for transport, lines in runs.items():
        assert [line["step"] for line in lines] == [1, 2, 3]
        assert all(line["transport"] == transport and line["drop_fraction"] == 0 for line in lines)
        assert lines[-1]["exchange_bytes_remote"] > lines[0]["exchange_bytes_remote"] > 0
        for ours, theirs in zip(lines, runs["ragged"]):
            assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
    assert runs["ragged"][-1]["loss"] < runs["ragged"][0]["loss"]
    moved = {t: lines[-1]["exchange_bytes_remote"] for t, lines in runs.items()}
    assert len(set(moved.values())) == 3  # each moves its own bytes


def test_a_small_capacity_drops_and_says_so(framework: str) -> None:
    line = train(framework, EPX_TRANSPORT="ragged", EPX_CAPACITY_FACTOR="0.5")[0]
    assert 0 < line["sender_drop_fraction"] == line["drop_fraction"] < 1
