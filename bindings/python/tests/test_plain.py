# Comm, Group and Plan on threads and numpy arrays. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any, Callable, List

import epx
import numpy as np
import pytest

RANKS, EXPERTS, TOP_K, WIDTH = 3, 7, 2, 5


def together(fn: Callable[[epx.Comm], Any], ranks: int = RANKS, seconds: float = 60) -> List[Any]:
    """fn on every rank, each a thread; raises what rank 0 or the lowest raised."""
    comms = epx.Comm.threads(ranks)
    answers: List[Any] = [None] * ranks
    errors: List[Any] = [None] * ranks

    def run(r: int) -> None:
        try:
            answers[r] = fn(comms[r])
        except Exception as error:  # noqa: BLE001
            errors[r] = error

    threads = [threading.Thread(target=run, args=(r,)) for r in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
        assert not thread.is_alive()
    for comm in comms:
        comm.close()
    for error in errors:
        if error is not None:
            raise error
    return answers


def group(comm: epx.Comm, **more: Any) -> epx.Group:
    return epx.Group(
        comm, experts=EXPERTS, top_k=TOP_K, width=WIDTH, tokens_max=20, capacity_factor="dropless", **more
    )


def test_a_pass_forward_and_backward(transport: str) -> None:
    def rank(comm: epx.Comm) -> None:
        rng = np.random.default_rng(comm.rank)
        tokens = 4 + 5 * comm.rank
        ids = rng.integers(-1, EXPERTS, (tokens, TOP_K), dtype=np.int64)
        weights = rng.standard_normal((tokens, TOP_K)).astype(np.float32)
        x = rng.standard_normal((tokens, WIDTH)).astype(np.float32)
        dout = rng.standard_normal((tokens, WIDTH)).astype(np.float32)
        out, dx, dweight = np.empty_like(x), np.empty_like(x), np.empty_like(weights)
        with group(comm, transport=transport) as g, epx.Plan(g) as plan:
            own = np.asarray(g.info().local_experts, np.float32) + 1
            plan.route(ids, weights)
            kept = []
            for wave in range(plan.waves):
                batch = plan.dispatch(wave, x)
                y = np.zeros((batch.rows_max, WIDTH), np.float32)
                for e, (first, count) in enumerate(zip(*batch.counts())):
                    y[first : first + count] = own[e] * batch.rows()[first : first + count]
                kept.append(y)
                plan.combine(wave, y, out)
            for wave in range(plan.waves):
                dy = plan.combine_backward(wave, dout, kept[wave])
                rows = np.zeros((dy.rows_max, WIDTH), np.float32)
                for e, (first, count) in enumerate(zip(*dy.counts())):
                    rows[first : first + count] = own[e] * dy.rows()[first : first + count]
                plan.dispatch_backward(wave, rows, dx, dweight)
            stats = plan.stats()
        # Expert e multiplies by e + 1.
        scale = (ids + 1).astype(np.float32)
        np.testing.assert_allclose(out, ((weights * scale).sum(1)[:, None]) * x, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(dx, ((weights * scale).sum(1)[:, None]) * dout, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(dweight, scale * (x * dout).sum(1)[:, None], rtol=1e-4, atol=1e-4)
        assert stats.routed == (ids >= 0).sum() and stats.skipped == (ids < 0).sum() and stats.tokens == tokens

    together(rank)


def test_collectives_and_a_bootstrap_of_the_callers() -> None:
    def rank(comm: epx.Comm) -> None:
        assert comm.allgather(bytes([comm.rank])) == bytes(range(RANKS))
        assert comm.allreduce([1.0, comm.rank]) == [RANKS, sum(range(RANKS))]
        part = comm.split(comm.rank % 2)
        assert part is not None and part.size == (2 if comm.rank % 2 == 0 else 1)
        assert comm.split(-1) is None
        part.close()
        own = epx.Comm.from_allgather(comm.rank, comm.size, comm.allgather)
        assert own.rank == comm.rank and own.allreduce([2.0]) == [2.0 * RANKS]
        own.close()

    together(rank)


def test_what_python_gives_wrongly() -> None:
    def rank(comm: epx.Comm) -> None:
        with pytest.raises(epx.ArgumentError, match="no option of a group"):
            epx.Group(comm, expert=3)
        with pytest.raises(epx.ArgumentError, match="it can be prefix"):
            group(comm, accept="first")
        with pytest.raises(epx.ArgumentError):
            epx.Group(comm, experts=0, top_k=1, width=1, tokens_max=1)
        for wrong, why in (
            ({"hang_ms": 2**63}, "hang_ms is 9223372036854775808; it must fit"),
            ({"depth": 2**32 + 2}, "depth is 4294967298; it must fit"),
            ({"depth": 2.5}, "depth is 2.5; it must be a whole number"),
            ({"depth": "2"}, "depth is '2'; it must be a whole number"),
            ({"sender_factor": "much"}, "sender_factor is 'much'; it can be a number or 'dropless'"),
            ({"owner": [0, 0, 0, 0, 0, 0, 0.5]}, "a rank of owner is 0.5"),
        ):
            with pytest.raises(epx.ArgumentError, match=why):
                group(comm, **wrong)
        with group(comm) as g, epx.Plan(g) as plan:
            ids, weights = np.zeros((4, TOP_K), np.int32), np.ones((4, TOP_K), np.float32)
            x = np.ones((4, WIDTH), np.float32)
            for bad, why in (
                (lambda: plan.route(ids.astype(np.int16), weights), "epx knows"),
                (lambda: plan.route(ids[:, :1].copy(), weights), "must be"),
                (lambda: plan.route(ids, weights.astype(np.float64)), "float32|knows"),
                (lambda: plan.route(np.zeros((TOP_K, 4), np.int32).T, weights), "not contiguous"),
                (lambda: plan.route([[0, 1]], weights), "tells no address"),
            ):
                with pytest.raises(epx.ArgumentError, match=why):
                    bad()
            plan.route(ids, weights)
            with pytest.raises(epx.ArgumentError, match="shape"):
                plan.dispatch(0, x[:, :2].copy())
            with pytest.raises(epx.ArgumentError, match="needs"):
                plan.combine(0, x, x)
        with pytest.raises(epx.ArgumentError, match="closed"):
            plan.dispatch(0, x)

    together(rank)


def test_errors_of_the_library_have_its_text() -> None:
    def rank(comm: epx.Comm) -> None:
        with group(comm) as g, epx.Plan(g) as plan:
            ids, weights = np.zeros((4, TOP_K), np.int32), np.ones((4, TOP_K), np.float32)
            if comm.rank == 1:
                ids[2, 1] = EXPERTS
                with pytest.raises(epx.RoutingError, match="rank 1, token 2, k 1: expert id 7"):
                    plan.route(ids, weights)
            else:
                with pytest.raises(epx.PeerError, match="rank 1"):
                    plan.route(ids, weights)

    together(rank)


def test_the_device_of_a_thread() -> None:
    epx.use_device("host", 0)
    with pytest.raises(epx.ArgumentError, match="0 to 0"):
        epx.use_device("host", 1)
    with pytest.raises(epx.ArgumentError, match="no device"):
        epx.use_device("tpu", 0)


def test_memory_before_anything_is_opened() -> None:
    small = epx.memory(ranks=2, experts=4, top_k=1, width=8, tokens_max=16)
    large = epx.memory(ranks=2, experts=4, top_k=1, width=800, tokens_max=16)
    assert sum(small.items.values()) == small.total_bytes < large.total_bytes


def test_a_missing_library_is_an_import_error(tmp_path: Any) -> None:
    environment = {**os.environ, "EPX_LIBRARY": str(tmp_path / "libepx.so")}
    ran = subprocess.run([sys.executable, "-c", "import epx"], env=environment, capture_output=True, text=True)
    assert ran.returncode != 0 and "ImportError: EPX_LIBRARY names" in ran.stderr


def test_memory_of_a_group_and_the_nccl_of_the_process() -> None:
    def rank(comm: epx.Comm) -> None:
        with group(comm, transport="ring") as g:
            taken = g.memory()
            assert taken.total_bytes == sum(taken.items.values()) >= taken.device_bytes > 0
            assert g.info().path == "stores in one process"

    together(rank)
    nccl = epx.nccl()
    assert nccl.compiled and (nccl.file != "") == (nccl.loaded != "")
    assert nccl.problem if not nccl.loaded else nccl.loaded[0] in "23456789"


def test_the_module_tells_what_there_is() -> None:
    command = [sys.executable, "-m", "epx"]
    ran = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "EPX_TRANSPORT": "ring"}, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert "EPX_TRANSPORT        ring" in ran.stdout and "NCCL loaded" in ran.stdout
