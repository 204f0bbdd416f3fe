#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The one table of bench/gpu.sh, from the logs that it has written: every figure that the exchange on GPUs must reach,
with its target, what was measured, the floor that it is held against, and whether it is reached.

    table.py FOLDER    prints the table; writes FOLDER/table.md and FOLDER/table.json

Nothing is made up where a measurement is missing: its line says why. predictions.json beside this program holds what was
expected of each line before it was measured on two H200.
"""
from __future__ import annotations

import json
import pathlib
import re
import sys
from dataclasses import dataclass
from typing import Any, Callable

# Published for two of these GPUs by NCCL EP's own bench: T = 4096, routing included; T = 128.
NCCL_EP_US = {"dispatch": 482.0, "combine": 280.0, "small dispatch": 44.0, "small combine": 52.0}
WIDTH_BYTES = 7168 * 2


class Missing(Exception):
    """A figure that cannot be had, and why."""


@dataclass
class Figure:
    """What one line came to. `value` is what the target is about."""

    value: float
    shown: str
    floor: str = "-"
    note: str = ""


class Logs:
    """The folder of one run."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.reports: dict[str, Any] = {}

    def text(self, name: str) -> str:
        path = self.folder / name
        return path.read_text(errors="replace") if path.exists() else ""

    def why(self, name: str) -> str:
        said = (self.text(name + ".why") or self.text(name + ".log")).strip().splitlines()
        return said[-1][:110] if said else "not run"

    def json(self, name: str) -> Any:
        if name not in self.reports:
            try:
                self.reports[name] = json.loads(self.text(name + ".json"))
            except json.JSONDecodeError:
                raise Missing(self.why(name)) from None
        return self.reports[name]

    def case(self, name: str, budget: int | None = None) -> Any:
        for case in self.json(name)["cases"]:
            if budget is None or case["sm_budget"] == budget:
                return case
        raise Missing(self.why(name))

    def op(self, name: str, op: str, budget: int | None = None) -> Any:
        for found in self.case(name, budget)["operations"]:
            if found["op"] == op:
                return found
        raise Missing(f"{name} has no {op}")

    def us(self, name: str, op: str, budget: int | None = None) -> float:
        return float(self.op(name, op, budget)["seconds"]["median"]) * 1e6

    def ranks(self, name: str) -> int:
        return int(self.json(name)["ranks"])

    def sent(self, name: str, op: str, budget: int | None = None) -> float:
        """Bytes that a rank sends to others in one pass, on average."""
        return float(self.op(name, op, budget)["remote_bytes"]) / self.ranks(name)

    def floors(self) -> dict[str, float]:
        """GB/s by name."""
        lines = re.findall(r"^(.*?)\s+([0-9.]+) GB/s$", self.text("floors.log"), re.M)
        return {name: float(rate) for name, rate in lines}

    def stores(self) -> float:
        """GB/s of plain peer stores, the best of the grids."""
        rates = [rate for name, rate in self.floors().items() if name.startswith("peer stores")]
        if not rates:
            raise Missing(self.why("floors") if not self.floors() else "one GPU: no peer to store to")
        return max(rates)

    def kernel(self, what: str) -> Any:
        for line in self.json("kernels"):
            if line["kernel"].strip().startswith(what):
                return line
        raise Missing(f"epx-kernels has no line '{what}'")


def link_share(logs: Logs, name: str, op: str, budget: int = 0) -> Figure:
    """The rate of an operation's payload over that of plain stores: the faster of the two that are measured of those, of
    as many bytes beside the operation, and of 256 MiB, the best of a sweep of grids."""
    case, time, sent = logs.case(name, budget), logs.us(name, op, budget), logs.sent(name, op, budget)
    link, note = case.get("link", {}), ""
    best = logs.stores()
    if link.get("peer_stores_s", 0) > 0:
        beside = link["bytes"] / link["peer_stores_s"] * 1e-9
        best = max(best, beside)
        if budget:
            note = f"{sent / time * 1e-3 / beside:.2f} of stores by as many multiprocessors ({beside:.0f} GB/s)"
    floor = sent / best * 1e-3
    return Figure(floor / time, f"{time:.0f} us, {sent / time * 1e-3:.0f} GB/s", f"{floor:.0f} us, {best:.0f} GB/s", note)


def payload_floor(logs: Logs, name: str) -> float:
    return logs.sent(name, "dispatch") / logs.stores() * 1e-3


def whole(logs: Logs, name: str, expanded: bool) -> Figure:
    time, floor = logs.us(name, "whole_dispatch"), payload_floor(logs, name)
    if expanded:
        written = logs.case(name)["kept"] / logs.ranks(name) * WIDTH_BYTES
        memory = written / logs.floors()["own fill, written"] * 1e-3
        floor = max(floor, memory) + 20
    return Figure(time / floor, f"{time:.0f} us", f"{floor:.0f} us")


def time_of(name: str, op: str) -> Callable[[Logs], Figure]:
    def line(logs: Logs) -> Figure:
        case = logs.json(name)
        time = logs.us(name, op)
        tail = ""
        if case["mode"] == "latency":
            tail = f"p99 {float(logs.op(name, op)['seconds']['p99']) * 1e6:.1f} us"
        return Figure(time, f"{time:.1f} us", "-", tail)

    return line


def against_nccl_ep(calls: str, op: str, theirs: str) -> Callable[[Logs], Figure]:
    def line(logs: Logs, name: str) -> Figure:
        time = logs.us(name, op)
        floor = payload_floor(logs, name)
        return Figure(time, f"{time:.0f} us", f"{floor:.0f} us", f"{time / NCCL_EP_US[theirs]:.2f} of NCCL EP's")

    return either(line, calls, min)


def against_torch(name: str) -> Callable[[Logs], Figure]:
    def line(logs: Logs) -> Figure:
        usual = logs.json("torch")
        theirs = usual["dispatch_us"] + usual["combine_us"]
        ours = logs.us(name, "whole_dispatch") + logs.us(name, "combine")
        return Figure(theirs / ours, f"{ours:.0f} us", "-",
                      f"PyTorch {usual['torch']}: {usual['dispatch_us']:.0f} + {usual['combine_us']:.0f} us")

    return line


def per_byte(name: str, op: str, which: str) -> Callable[[Logs], float]:
    """Microseconds per megabyte: of what the busiest link carries, or of all payload."""

    def value(logs: Logs) -> float:
        link = logs.case(name).get("link", {}).get("bytes", 0)
        bytes_ = link if which == "link" else logs.op(name, op)["payload_bytes"]
        if not bytes_:
            raise Missing(f"{name}: no bytes were counted")
        return logs.us(name, op) / bytes_ * 1e6

    return value


def ratio(name: str, base: str, op: str, which: str) -> Callable[[Logs], Figure]:
    def line(logs: Logs) -> Figure:
        ours, theirs = per_byte(name, op, which)(logs), per_byte(base, op, which)(logs)
        return Figure(ours / theirs, f"{ours:.2f} us/MB ({logs.us(name, op):.0f} us)", f"{theirs:.2f} us/MB")

    return line


def slowed(name: str, each: int) -> Callable[[Logs], Figure]:
    """24 multiprocessors of the product's GPU are taken, `each` by a rank. A program tells its product of those that are
    left, or does not, as it is better off; both are there, and what the product loses to no library at all."""

    def line(logs: Logs) -> Figure:
        case = logs.case(name, each)
        if case.get("beside", {}).get("told_s", 0) <= 0:
            raise Missing("no product was timed: " + logs.why(name))
        b = case["beside"]
        most = 100 * 24 / 132 + 3
        ways = sorted((100 * (b[way] / b["alone_s"] - 1), said) for way, said in (("told_s", "told"), ("with_s", "untold")))
        (less, which), (more, other) = ways
        note = f"{other} {more:.1f}%; a pass takes {b['pass_with_s'] / b['pass_alone_s']:.1f} times as long beside it"
        for said, words in (("told of 108 of 132 multiprocessors, alone", "told, alone"),
                            ("beside 24 that are held", "beside 24 that are only held"),
                            ("beside 24 that are held, told of the others", "told, beside 24 that are only held")):
            found = re.search(rf"^{said} +[0-9.]+ ms +(-?[0-9.]+)% slower", logs.text("product.log"), re.M)
            note += f"; {words} {found[1]}%" if found else ""
        return Figure(less - most, f"{less:.1f}% slower, {which}", f"at most {most:.1f}%", note)

    return line


def kernel_share(what: str) -> Callable[[Logs], Figure]:
    def line(logs: Logs) -> Figure:
        k = logs.kernel(what)
        return Figure(k["floor_us"] / k["us"], f"{k['us']:.0f} us", f"{k['floor_us']:.0f} us")

    return line


def expansion(logs: Logs) -> Figure:
    found, whole = kernel_share("against a fill of what")(logs), kernel_share("scatter, wire rows")(logs)
    return Figure(found.value, found.shown, found.floor, f"{whole.value:.2f} of the copy of what it reads and writes")


def routing(which: str) -> Callable[[Logs], Figure]:
    """The line 'both' behind the layout of that wire."""

    def line(logs: Logs) -> Figure:
        lines = logs.json("kernels")
        for i, k in enumerate(lines[:-1]):
            if k["kernel"].startswith(f"ragged_layout, {which} wire, T = 8192"):
                return Figure(lines[i + 1]["us"], f"{lines[i + 1]['us']:.1f} us")
        raise Missing(f"epx-kernels has no line of the {which} wire")

    return line


def either(figure: Callable[[Logs, str], Figure], calls: str, best: Callable[..., Figure]) -> Callable[[Logs], Figure]:
    """A figure of calls by the host, and the same from graphs: the better one counts, both are said."""

    def line(logs: Logs) -> Figure:
        found: dict[str, Figure] = {}
        for way, name in (("by calls", calls), ("from graphs", calls.replace("n-", "n-graph-", 1))):
            try:
                found[way] = figure(logs, name)
            except Missing:
                pass
        if not found:
            return figure(logs, calls)  # which says why there is none
        way = best(found, key=lambda way: found[way].value)
        one = found.pop(way)
        notes = [one.note] * bool(one.note) + [way] + [f"{other} {f.shown}" for other, f in found.items()]
        return Figure(one.value, one.shown, one.floor, "; ".join(notes))

    return line


def shared_whole(logs: Logs) -> Figure:
    """The floor is the device's copy of the rows. Said beside it: at that copy's rate, what must move if each token's row is
    read once."""
    time, floor = logs.us("l-ragged", "whole_dispatch"), logs.us("l-ragged", "device_copy")
    case, sent = logs.case("l-ragged"), logs.op("l-ragged", "dispatch")["payload_bytes"]
    least = floor * (sent + case["tokens"] * logs.ranks("l-ragged") * WIDTH_BYTES) / (2 * sent)
    more = time - floor
    return Figure(more, f"{time:.0f} us", f"{floor:.0f} us + 30 us",
                  f"{abs(more):.0f} us {'over' if more > 0 else 'under'} the copy of its rows; {time - least:.0f} us over "
                  f"{least:.0f} us, each row read once")


def shared_pooled(logs: Logs) -> Figure:
    """Uniform: every rank's area is as large, so what stays is one rank's share of what is sent."""
    ranks = logs.ranks("l-pooled")
    padded = logs.op("l-pooled", "dispatch")["remote_bytes"] * ranks / (ranks - 1)
    payload = logs.op("l-pooled", "device_copy")["payload_bytes"]
    floor = logs.us("l-pooled", "device_copy") * padded / payload
    time = logs.us("l-pooled", "dispatch")
    return Figure(floor / time, f"{time:.0f} us", f"{floor:.0f} us")


def jax_layer(logs: Logs) -> Figure:
    layer = logs.json("jax")
    if "ragged_all_to_all_us" not in layer or "epx_us" not in layer:
        raise Missing(str(layer.get("why", "bench/jax_layer.py gave no pair of times"))[:110])
    return Figure(layer["ragged_all_to_all_us"] / layer["epx_us"], f"{layer['epx_us']:.0f} us", "-",
                  f"jax.lax.ragged_all_to_all {layer['ragged_all_to_all_us']:.0f} us")


def added(framework: str) -> Callable[[Logs], Figure]:
    """One JSON object a line; what a call takes longer than the same in C."""

    def line(logs: Logs) -> Figure:
        found = [json.loads(text) for text in logs.text("frameworks.json").splitlines() if text.startswith("{")]
        mine = {d["tokens"]: d["added_us"] for d in found if d.get("framework") == framework and "added_us" in d}
        if 128 not in mine:
            raise Missing(logs.why("frameworks"))
        others = ", ".join(f"T = {t}: {us:.1f}" for t, us in sorted(mine.items()) if t != 128)
        return Figure(mine[128], f"{mine[128]:.1f} us", "-", others)

    return line


def tests(part: str, tests_of: str) -> Callable[[Logs], Figure]:
    """How many of a part's tests failed, by the sum that its log ends with."""

    def line(logs: Logs) -> Figure:
        found = re.findall(r"^(\d+) passed, (\d+) failed", logs.text(f"check-gpu/{part}.log"), re.M)
        if not found:
            raise Missing(logs.why("check"))
        passed, failed = (int(n) for n in found[-1])
        return Figure(failed + (passed == 0), f"{passed} passed, {failed} failed", "-", tests_of)

    return line


@dataclass
class Line:
    issue: str
    what: str
    target: str
    reached: Callable[[float], bool]
    figure: Callable[[Logs], Figure]
    unit: str = ""  # how the value is shown; "": the figure says it all


def at_least(least: float) -> Callable[[float], bool]:
    return lambda value: value >= least


def at_most(most: float) -> Callable[[float], bool]:
    return lambda value: value <= most


def share(issue: str, what: str, least: float, figure: Callable[[Logs], Figure]) -> Line:
    return Line(issue, what, f">= {least:.2f} of the floor", at_least(least), figure, "{:.2f}")


def limit(issue: str, what: str, most: float, figure: Callable[[Logs], Figure], words: str = "{:.0f} us",
          unit: str = "") -> Line:
    return Line(issue, what, "<= " + words.format(most), at_most(most), figure, unit)


TWO = [
    share("8", "indexed dispatch over peer stores, T = 4096", 0.95,
          either(lambda logs, name: link_share(logs, name, "dispatch"), "n-indexed-4096", max)),
    share("8", "indexed dispatch over peer stores, T = 8192", 0.95,
          either(lambda logs, name: link_share(logs, name, "dispatch"), "n-indexed-8192", max)),
    share("8", "combine over peer stores, T = 4096", 0.95,
          either(lambda logs, name: link_share(logs, name, "combine"), "n-indexed-4096", max)),
    share("8", "combine over peer stores, T = 8192", 0.95,
          either(lambda logs, name: link_share(logs, name, "combine"), "n-indexed-8192", max)),
    share("8", "indexed dispatch with 24 multiprocessors, T = 8192", 0.90,
          lambda logs: link_share(logs, "n-budget", "dispatch", 24)),
    share("8", "remote half of combine (until the sums are sent) with 24 multiprocessors", 0.90,
          lambda logs: link_share(logs, "n-budget", "combine_start", 24)),
    share("8", "pooled_wave dispatch (indexed) over peer stores, its padded bytes, T = 4096", 0.90,
          lambda logs: link_share(logs, "n-pooled", "dispatch")),
    share("8", "pooled_wave combine (indexed) over peer stores, its padded bytes, T = 4096", 0.90,
          lambda logs: link_share(logs, "n-pooled", "combine")),
    limit("8", "whole dispatch, indexed, T = 8192, over its payload floor", 1.15,
          either(lambda logs, name: whole(logs, name, False), "n-indexed-8192", min), "{:.2f}", "{:.2f}"),
    limit("8", "whole dispatch, expanded, T = 8192, over its floor + 20 us", 1.25,
          either(lambda logs, name: whole(logs, name, True), "n-expanded-8192", min), "{:.2f}", "{:.2f}"),
    limit("8", "T = 128 from graphs: dispatch, indexed", 22, time_of("n-small-indexed", "dispatch")),
    limit("8", "T = 128 from graphs: dispatch, expanded", 28, time_of("n-small-expanded", "dispatch")),
    limit("8", "T = 128 from graphs: combine", 26, time_of("n-small-indexed", "combine")),
    limit("8", "T = 4096: indexed dispatch, routing included", 217,
          against_nccl_ep("n-indexed-4096", "whole_dispatch", "dispatch")),
    limit("8", "T = 4096: combine", 210, against_nccl_ep("n-indexed-4096", "combine", "combine")),
    Line("8", "expanded dispatch + combine, T = 8192, against PyTorch", ">= 9 times faster", at_least(9),
         against_torch("n-expanded-8192"), "{:.1f} times"),
    Line("8", "indexed dispatch + combine, T = 8192, against PyTorch", ">= 11 times faster", at_least(11),
         against_torch("n-indexed-8192"), "{:.1f} times"),
    limit("8", "all tokens to one expert, per byte of the busiest link, over uniform", 1.2,
          ratio("n-one", "n-indexed-8192", "dispatch", "link"), "{:.1f}", "{:.2f}"),
    Line("8", "matrix product beside passes with 24 multiprocessors, a GPU each", "<= share + 3%",
         at_most(0), slowed("n-budget", 24)),
    Line("8", "MoE layer forward + backward, epx.jax against jax.lax.ragged_all_to_all", "faster", at_least(1), jax_layer,
         "{:.2f} times"),
    Line("8", "waits that are provoked end and name who is missing, replayed graphs too", "0 failed", at_most(0),
         tests("gpus", "tests over NCCL: threads, processes, graphs, waits")),
]
ONE = [
    share("4", "push of rows in random order (kernel) over the device's copy", 0.90,
          kernel_share("push, T * K rows in random")),
    share("4", "expansion, T = 8192, K = 8 (kernel), over its write floor", 0.90, expansion),
    share("4", "weighted combine (kernel) over its memory floor", 0.85, kernel_share("combine, K rows of a token")),
    share("4", "partial sums on the way home (kernel) over their memory floor", 0.85, kernel_share("ragged_return")),
    share("4", "pooled_wave dispatch (indexed), 2 virtual ranks, over the copy of its padded bytes", 0.90, shared_pooled),
    limit("4", "routing kernels, assignment wire, T = 8192, E = 256", 15, routing("assignment")),
    limit("4", "routing kernels, rank wire, T = 8192, E = 256", 15, routing("rank")),
    limit("4", "whole dispatch, 2 virtual ranks, over its memory floor", 30, shared_whole, "{:.0f} us more"),
    limit("4", "T = 128 from graphs, one rank alone: dispatch", 18, time_of("s-small", "dispatch")),
    limit("4", "T = 128 from graphs, one rank alone: combine", 18, time_of("s-small", "combine")),
    limit("4", "all tokens to one expert, 2 virtual ranks, per byte, over uniform", 1.2,
          ratio("l-one", "l-uniform", "dispatch", "payload"), "{:.1f}", "{:.2f}"),
    limit("4, 8", "EP8, 384 experts, virtual ranks, per byte, over EP2", 1.2, ratio("l-ep8", "l-ep2", "dispatch", "payload"),
          "{:.1f}", "{:.2f}"),
    limit("4, 8", "EP64, 384 experts, virtual ranks, per byte, over EP2", 1.2,
          ratio("l-ep64", "l-ep2", "dispatch", "payload"), "{:.1f}", "{:.2f}"),
    Line("4", "matrix product beside passes with 24 multiprocessors, 2 virtual ranks", "<= share + 3%",
         at_most(0), slowed("l-budget", 12)),
    limit("7", "a call through PyTorch over the same in C, T = 128, one GPU", 15, added("torch")),
    limit("7", "a call through JAX over the same in C, T = 128, one GPU", 15, added("jax")),
    Line("4", "conformance with virtual ranks", "0 failed", at_most(0), tests("conformance", "1 to 130 ranks on a GPU")),
    Line("4", "random shapes, ten thousand steps", "0 failed", at_most(0), tests("fuzz", "1, 2, 3, 8, 64 ranks")),
]
# Timed because nobody had; no target.
ALSO = [
    ("backward, 2 GPUs, T = 4096, expanded", "n-backward", ("dispatch", "combine", "combine_backward", "dispatch_backward")),
    ("pooled_wave, 2 GPUs, T = 4096, expanded", "n-pooled-expanded", ("route", "dispatch", "combine")),
    ("pooled_wave, 2 GPUs, T = 128 from graphs, indexed", "n-pooled-small", ("route", "dispatch", "combine")),
    ("ring, 2 GPUs, T = 4096", "n-ring", ("dispatch", "combine")),
    ("cold caches, 2 GPUs, T = 4096, indexed", "n-cold", ("route", "dispatch", "combine")),
    ("half of the assignments to 4 experts, 2 GPUs, T = 8192", "n-hot", ("dispatch", "combine")),
    ("two processes (mpirun), T = 4096, indexed", "n-mpirun", ("route", "dispatch", "combine")),
    ("backward, 2 virtual ranks, T = 4096", "l-backward", ("dispatch", "combine", "combine_backward", "dispatch_backward")),
    ("T = 128 from graphs, indexed: everything", "n-small-indexed", ("route", "dispatch", "whole_dispatch", "combine")),
    ("T = 128 from graphs, backward", "n-small-backward", ("combine_backward", "dispatch_backward")),
]


PREDICTED: dict[str, str] = json.loads((pathlib.Path(__file__).parent / "predictions.json").read_text())["lines"]


def judge(line: Line, logs: Logs) -> dict[str, Any]:
    row: dict[str, Any] = {"issue": line.issue, "what": line.what, "target": line.target,
                           "predicted": PREDICTED.get(line.what, "-")}
    none = {"verdict": "not measured", "measured": "-", "floor": "-", "value": None, "share": "-"}
    try:
        figure = line.figure(logs)
    except Missing as why:
        return row | none | {"note": str(why)}
    except (KeyError, TypeError, ZeroDivisionError) as what:
        return row | none | {"note": f"a log lacks {what}"}
    return row | {"verdict": "reached" if line.reached(figure.value) else "MISSED", "measured": figure.shown,
                  "floor": figure.floor, "value": figure.value, "note": figure.note,
                  "share": line.unit.format(figure.value) if line.unit else "-"}


def also(logs: Logs) -> list[dict[str, Any]]:
    rows = []
    for what, name, ops in ALSO:
        try:
            rows.append({"what": what, "us": {op: round(logs.us(name, op), 1) for op in ops}})
        except Missing as why:
            rows.append({"what": what, "us": {}, "note": str(why)})
    return rows


def budgets(logs: Logs) -> list[tuple[int, float, float]]:
    """Multiprocessors, GB/s of plain stores by as many blocks, GB/s of indexed dispatch."""
    try:
        cases = logs.json("n-sweep")["cases"]
    except Missing:
        return []
    rows = []
    for case in cases:
        time = next(o["seconds"]["median"] for o in case["operations"] if o["op"] == "dispatch")
        link = case.get("link", {})
        if link.get("peer_stores_s"):
            sent = next(o["remote_bytes"] for o in case["operations"] if o["op"] == "dispatch") / 2
            rows.append((case["sm_budget"], link["bytes"] / link["peer_stores_s"] * 1e-9, sent / time * 1e-9))
    return rows


WHERE = {"4": "one GPU", "4, 8": "one GPU", "7": "frameworks", "8": "two GPUs"}


def markdown(rows: list[dict[str, Any]], logs: Logs) -> str:
    text = ["| where | what | target | predicted | measured | floor | share or ratio | |",
            "|---|---|---|---|---|---|---|---|"]
    for r in rows:
        said = r["verdict"] + (f": {r['note']}" if r["note"] else "")
        cells = [WHERE[r["issue"]]] + [r[key] for key in ("what", "target", "predicted", "measured", "floor", "share")]
        text.append("| " + " | ".join(cells + [said]) + " |")
    text += ["", "Floors of this run:", ""]
    text += [f"* {name}: {rate:.0f} GB/s" for name, rate in logs.floors().items()]
    text += [f"* {line.strip()}" for line in logs.text("alltoall.log").splitlines() if "GB/s" in line]
    sweep = budgets(logs)
    if sweep:
        text += ["", "| multiprocessors | peer stores, GB/s | indexed dispatch, T = 8192, GB/s |", "|---|---|---|"]
        text += [f"| {n or 'all'} | {stores:.0f} | {ours:.0f} |" for n, stores, ours in sweep]
    text += ["", "| timed as well | median of the slowest rank |", "|---|---|"]
    for row in also(logs):
        times = ", ".join(f"{op} {us:.0f} us" for op, us in row["us"].items())
        text.append(f"| {row['what']} | {times or 'not measured: ' + row['note']} |")
    return "\n".join(text) + "\n"


def main() -> int:
    logs = Logs(pathlib.Path(sys.argv[1]))
    unknown = set(PREDICTED) - {line.what for line in TWO + ONE}
    if unknown:
        print(f"table.py: predictions of no line: {sorted(unknown)}", file=sys.stderr)
        return 1
    rows = [judge(line, logs) for line in TWO + ONE]
    text = markdown(rows, logs)
    (logs.folder / "table.md").write_text(text)
    (logs.folder / "table.json").write_text(json.dumps(
        {"lines": rows, "also": also(logs), "floors_gb_per_s": logs.floors()}, indent=2) + "\n")
    print(text, end="")
    count = {v: sum(r["verdict"] == v for r in rows) for v in ("reached", "MISSED", "not measured")}
    print(f"\n{count['reached']} reached, {count['MISSED']} missed, {count['not measured']} not measured")
    return 0


if __name__ == "__main__":
    sys.exit(main())
