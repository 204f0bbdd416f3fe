# The examples as a user runs them. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest
from epx._library import find

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


def what_ran(folder: Path) -> Any:
    """What epx-info says of the statistics that a run has written."""
    program = Path(find()).resolve().parents[1] / "bin" / "epx-info"
    if not program.is_file():
        pytest.skip(f"{program} is not there")
    command = [str(program), "--stats", str(folder), "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["ran"]


def test_losses_are_those_of_every_transport_without_drops(framework: str, tmp_path: Path) -> None:
    transports = ("pooled_wave", "ragged", "ring")
    runs = {
        t: train(framework, EPX_TRANSPORT=t, EPX_CAPACITY_FACTOR="dropless", EPX_STATS=str(tmp_path / t))
        for t in transports
    }
    for transport, lines in runs.items():
        ran = what_ran(tmp_path / transport)
        assert len(ran) == {"jax": 4, "torch": 2}[framework] and {one["transport"] for one in ran} == {transport}
        assert all(one["steps"] == 3 and one["drop_fraction"] == 0 for one in ran)
        assert sum(one["sent_bytes"] for one in ran) == lines[-1]["exchange_bytes_remote"]
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


def test_the_comparison_runs_examples_as_its_arms(framework: str, tmp_path: Path) -> None:
    """epx-ab starts them, and reads what they print and what the library writes."""
    program = Path(find()).resolve().parents[1] / "bin" / "epx-ab"
    if not program.is_file() or framework != "jax":
        pytest.skip("one framework is enough" if program.is_file() else f"{program} is not there")
    example = f"{sys.executable} {TREE / 'examples' / 'jax_moe.py'} {' '.join(SMALL)} --steps 4"
    arms = [f"--arm={t}=EPX_TRANSPORT={t} {example}" for t in ("ragged", "ring")]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    command = [str(program), *arms, "--pairs", "1", "--json", str(tmp_path / "ab.json")]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert ran.returncode in (0, 3), ran.stderr + ran.stdout  # 3: one pair decides nothing
    found = json.loads((tmp_path / "ab.json").read_text(encoding="utf-8"))
    assert [arm["name"] for arm in found["arms"]] == ["ragged", "ring"]
    held = {guard["name"]: guard["state"] for guard in found["guards"]}
    assert held["accounting"] == held["bytes"] == held["fallback"] == held["window"] == "passed"
    drops = next(v for v in found["verdicts"] if v["quantity"] == "drops")
    assert drops["exact"] and [arm["transport"] for arm in found["arms"]] == ["ragged", "ring"]
