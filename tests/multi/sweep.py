#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Faults that no scenario names: whatever the classifier says must not be a wrong name.

    sweep.py PROGRAM [--all] [--count N] [--seed N] [--jobs N] [--fabric NAME] [--kinds NAME,...] [--part I/N]

Every case is one run of epx-repro under EPX_FAULT. It comes out right (a rank that has a fault, under a name that the
fault may have, in an operation where it may show), unknown (UNKNOWN, SLOW or silence), or wrong. Exit code 1: something
was wrong. Kinds of case:

    alone     every action at every point, operation and rank, over all transports: one domain of four ranks, step 12
    varied    one fault at any step (the first and the last too), wave, peer, bit, with 1 to 3 domains of 2 to 5 ranks,
              with and without a backward pass
    pairs     two faults of "alone"
    mixed     two faults of "varied" in one job, as often as not in different domains
    crowd     three ranks late or slow at once, or one slow rank beside a lost signal
    across    a fault of the all-reduce between domains, beside none or one of a group
    recovery  a fault while the groups recover from a lost signal, or in the first calls after that
    quiet     delays below the budget, everywhere: there must be no verdict at all
    ends      (processes) one rank killed or gone, another stopped, slow or with a lost signal
"""
import argparse
import concurrent.futures
import itertools
import json
import os
import random
import subprocess
import sys

STEPS, STEP, WAVES = 24, 12, 2
TRANSPORTS = ("ragged", "pooled_wave", "ring")
LONG = "60000"

# What a fault may be called, by where it is and what it does. Names behind are also true of it: a rank that sleeps
# before its call is elsewhere; a word that went back was sent and has not been seen.
NAMES = {
    ("enqueue", "skip"): {"HOST_ABSENT"},
    ("enqueue", "delay:" + LONG): {"HOST_ABSENT"},
    ("enqueue", "stop"): {"HOST_ABSENT"},
    ("enqueue", "spin:" + LONG): {"STUCK_BEFORE_OP", "HOST_ABSENT"},
    ("begin", "delay:" + LONG): {"STREAM_BLOCKED"},
    ("begin", "stop"): {"STREAM_BLOCKED", "HOST_ABSENT"},
    ("begin", "spin:" + LONG): {"STUCK_BEFORE_OP"},
    ("put.pre", "delay:" + LONG): set(),
    ("put.pre", "duplicate"): set(),
    ("put.pre", "drop"): set(),
    ("put.post", "flip:3"): set(),
    ("put.post", "spin:" + LONG): set(),
    ("signal.pre", "drop"): {"SIGNAL_LOST"},
    ("signal.pre", "stale"): {"EPOCH_SKEW", "SIGNAL_LOST"},
    ("signal.pre", "flip:0"): {"EPOCH_SKEW", "SIGNAL_LOST"},
    ("signal.pre", "flip:30"): {"EPOCH_SKEW", "SIGNAL_LOST"},
    ("signal.pre", "duplicate"): set(),
    ("signal.pre", "delay:" + LONG): set(),
    ("signal.pre", "spin:" + LONG): set(),
    ("signal.pre", "reorder:200"): set(),
    ("signal.post", "delay:" + LONG): set(),
    ("signal.post", "stop"): set(),
    ("wait.pre", "delay:" + LONG): set(),
    ("wait.pre", "spin:" + LONG): set(),
    ("wait.pre", "stop"): set(),
    ("wait.pre", "skip"): {"EPOCH_SKEW"},
    ("exchange", "drop"): {"SIGNAL_LOST"},
    ("exchange", "skip"): {"SIGNAL_LOST", "DESYNC", "HOST_ABSENT"},
    ("exchange", "flip:9"): {"CORRUPT", "DESYNC"},
    ("exchange", "delay:" + LONG): set(),
    ("end", "delay:" + LONG): {"HOST_ABSENT"},
    ("end", "spin:" + LONG): {"HOST_ABSENT"},
    ("end", "stop"): {"HOST_ABSENT"},
}
# Of ranks that are processes.
ENDS = {
    ("enqueue", "kill"): {"HOST_ABSENT"},
    ("begin", "kill"): {"HOST_ABSENT"},
    ("signal.post", "kill"): {"HOST_ABSENT"},
    ("end", "exit"): {"HOST_ABSENT"},
    ("wait.pre", "kill"): {"HOST_ABSENT"},
}
# A stopped process is that wherever it stands.
ALSO_STOPPED = {"HOST_ABSENT"}
SIGNALS = ("signal.pre", "drop"), ("signal.pre", "stale")
LATE = ("enqueue", "delay:" + LONG), ("begin", "delay:" + LONG), ("begin", "spin:" + LONG), ("end", "delay:" + LONG)


class Layout:
    """A job, and the calls that each of its ranks makes in a step."""

    def __init__(self, fabric, transport, ranks=4, domains=1, backward=False, recover=False, seed=1, hang_ms=400):
        self.fabric, self.transport, self.ranks, self.domains = fabric, transport, ranks, domains
        self.backward, self.recover, self.seed, self.hang_ms = backward, recover, seed, hang_ms
        self.each = ranks // domains
        self.processes = fabric != "local"
        waves = self.each if transport == "ring" else WAVES
        self.calls = [("route", 0)]
        for wave in range(waves):
            self.calls += [("dispatch", wave), ("combine", wave)]
        for wave in range(waves if backward else 0):
            self.calls += [("combine_backward", wave), ("dispatch_backward", wave)]

    def options(self):
        options = ["--ranks", str(self.ranks), "--domains", str(self.domains), "--transport", self.transport,
                   "--fabric", self.fabric, "--seed", str(self.seed), "--json"]
        return options + ["--backward"] * self.backward + ["--recover"] * self.recover


class Fault:
    """One disturbed call of one rank: of call `call` (in the order of a step), of step `step`."""

    def __init__(self, layout, rank, call, at, do, peer=None, step=STEP, names=None):
        domain = rank // layout.each
        op, wave = layout.calls[call]
        self.ranks, self.domains, self.at, self.do = {rank}, layout.domains, at, do
        self.peer = None if peer is None else domain * layout.each + peer
        known = {**NAMES, **(ENDS if layout.processes else {})}
        generic = (at, do.split(":")[0] + ":0") if at == "exchange" and do.startswith("flip") else (at, do)
        self.names = set(names if names is not None else known.get((at, do), known.get(generic, set())))
        if do == "stop" and layout.processes:
            self.names |= ALSO_STOPPED
        if do.startswith("flip") and at == "exchange":
            # A count that was never sent is believed: rows that do not fit, or a process that ends by it.
            self.names |= {"CORRUPT", "DESYNC"} | ({"HOST_ABSENT"} if layout.processes else set())
        follows = layout.calls[(call + 1) % len(layout.calls)][0]
        self.ops = {op, follows, "all_reduce"} if call + 1 == len(layout.calls) else {op, follows}
        if layout.transport == "pooled_wave" and op == "route":
            self.ops |= {"dispatch"}
        if call + 1 == len(layout.calls):
            self.ops |= {"route", "dispatch"}
        seq = step * len(layout.calls) + call + 1
        to = "" if peer is None else f" peer={peer}"
        group = f"group=rack{domain} " if layout.domains > 1 else ""
        self.text = f"{group}rank={rank % layout.each} op={op} seq={seq}{to} at={at} do={do}"

    def explains(self, said):
        if said["culprit"] not in self.ranks or said["verdict"] not in self.names:
            return False
        if said["verdict"] in ("SIGNAL_LOST", "CORRUPT") and self.peer is not None and said["peer"] != self.peer:
            return False
        # Who is absent for good is missed by its own rack, or by the other racks where nobody of its own is left.
        ops = self.ops | ({"all_reduce"} if said["verdict"] == "HOST_ABSENT" and self.domains > 1 else set())
        # A count that was never sent may show, or end a process, in any call that follows; who has not waited is ahead
        # for as long as nobody makes it wait.
        anywhere = (self.at == "exchange" and self.do.startswith("flip")) or (self.at, self.do) == ("wait.pre", "skip")
        return said["op"] is None or said["op"] in ops or anywhere


class Plain(Fault):
    """A fault given by its text."""

    def __init__(self, ranks, text, names, ops=None):
        self.ranks, self.text, self.names, self.peer, self.ops = set(ranks), text, set(names), None, ops

    def explains(self, said):
        return said["culprit"] in self.ranks and said["verdict"] in self.names and \
            (self.ops is None or said["op"] in self.ops)


def needs_peer(at):
    return at.startswith(("put", "signal"))


def fits(at, do, op):
    """Whether a point is one of an operation's: routes alone exchange; the play's program knows no skipped call but a
    dispatch's."""
    if (op == "route") != (at == "exchange") and at not in ("enqueue", "begin", "end"):
        return False
    return (at, do) != ("enqueue", "skip") or op == "dispatch"


def points(layout):
    """What can be done where. Rows on their way are touched where fabrics load and store."""
    known = list(NAMES) + (list(ENDS) if layout.processes else [])
    return [(at, do) for at, do in known if not (layout.processes and (at.startswith("put") or "reorder" in do))]


def alone(dice, fabric, _count):
    for transport in TRANSPORTS:
        layout = Layout(fabric, transport)
        for (at, do), call, rank in itertools.product(points(layout), range(3), range(layout.ranks)):
            if fits(at, do, layout.calls[call][0]):
                yield layout, [Fault(layout, rank, call, at, do, (rank + 1) % 4 if needs_peer(at) else None)]


def any_layout(dice, fabric, **more):
    domains = dice.choice((1, 1, 2, 3)) if fabric == "local" else dice.choice((1, 1, 2))
    each = dice.choice((2, 3, 4, 5) if domains == 1 else (2, 3))
    transport = dice.choice(TRANSPORTS)
    return Layout(fabric, transport, domains * each, domains, dice.random() < 0.4, seed=dice.randrange(1, 1000), **more)


def any_fault(dice, layout, step, rank=None, choice=None):
    rank = dice.randrange(layout.ranks) if rank is None else rank
    while True:
        at, do = dice.choice(choice or points(layout))
        call = dice.randrange(len(layout.calls))
        if fits(at, do, layout.calls[call][0]):
            break
    peer = None
    if needs_peer(at):
        peer = dice.choice([p for p in range(layout.each) if p != rank % layout.each])
    names = None
    if do.startswith("flip"):
        bit = dice.randrange(48) if at == "signal.pre" else dice.randrange(512)
        names, do = NAMES.get((at, do)), f"flip:{bit}"
    return Fault(layout, rank, call, at, do, peer, step, names)


def any_step(dice):
    return dice.choice((0, 1, STEP, STEP, STEP, dice.randrange(2, STEPS - 1), STEPS - 1))


def varied(dice, fabric, count):
    for _ in range(count):
        step = any_step(dice)
        layout = any_layout(dice, fabric, hang_ms=200 if step == 0 else 400)
        yield layout, [any_fault(dice, layout, step)]


def pairs(dice, fabric, count):
    singles = list(alone(dice, fabric, 0))
    for _ in range(count):
        layout, one = dice.choice(singles)
        yield layout, one + dice.choice(singles)[1]


def mixed(dice, fabric, count):
    for _ in range(count):
        layout = any_layout(dice, fabric)
        step = dice.choice((1, STEP, STEPS - 2))
        first = any_fault(dice, layout, step)
        yield layout, [first, any_fault(dice, layout, step + dice.choice((0, 0, 1)))]


def crowd(dice, fabric, count):
    for number in range(count):
        layout = any_layout(dice, fabric)
        if layout.ranks < 4:
            layout = Layout(fabric, layout.transport, 5 if fabric == "local" else 4, seed=layout.seed)
        ranks = dice.sample(range(layout.ranks), 3)
        if number % 2 == 0:
            yield layout, [any_fault(dice, layout, STEP, rank, LATE) for rank in ranks]
        else:
            # Late by less than the budget, or twice as much.
            slow = f"delay:{dice.choice((150, 900))}"
            names = {"HOST_ABSENT", "STREAM_BLOCKED"} if slow == "delay:900" else set()
            at = dice.choice(("enqueue", "begin", "end"))
            call = dice.randrange(1, len(layout.calls))
            yield layout, [Fault(layout, ranks[0], call, at, slow, None, STEP, names),
                           any_fault(dice, layout, STEP, ranks[1], SIGNALS)]


def across(dice, fabric, count):
    if fabric != "local":
        return
    for number in range(count):
        domains = dice.choice((2, 3))
        layout = Layout(fabric, dice.choice(TRANSPORTS), domains * dice.choice((2, 3)), domains,
                        seed=dice.randrange(1, 1000))
        domain = dice.randrange(domains)
        at, do = dice.choice((("enqueue", "delay:" + LONG), ("enqueue", "spin:" + LONG), ("begin", "delay:" + LONG),
                              ("begin", "spin:" + LONG), ("end", "delay:" + LONG)))
        racks = range(domain * layout.each, (domain + 1) * layout.each)
        late = Plain(racks, f"group=comm rank={domain} op=allreduce seq={STEP + 1} at={at} do={do}", NAMES[at, do],
                     {"all_reduce", "route", "dispatch"})
        yield layout, [late] + ([any_fault(dice, layout, STEP + dice.choice((0, 1)))] if number % 2 else [])


def recovery(dice, fabric, count):
    if fabric != "local":
        return
    for number in range(count):
        layout = Layout(fabric, dice.choice(TRANSPORTS), dice.choice((3, 4)), recover=True, seed=dice.randrange(1, 1000))
        lost = Fault(layout, dice.randrange(layout.ranks), 1, "signal.pre", "drop", None)
        lost.text = lost.text.replace(" at=", f" peer={(min(lost.ranks) + 1) % layout.ranks} at=")
        again = STEP * len(layout.calls)
        rank = dice.randrange(layout.ranks)
        if number % 2 == 0:  # while memory is registered anew, whatever call the rank was in
            do = dice.choice(("delay:" + LONG, "spin:" + LONG, "stop", "drop"))
            text = "; ".join(f"rank={rank} at=register seq={again + i} do={do}" for i in (2, 3, 4))
            then = Plain({rank}, text, {"HOST_ABSENT", "STUCK_BEFORE_OP", "STREAM_BLOCKED"})
        else:  # the first calls after it: numbers go on counting
            at, do = dice.choice((*SIGNALS, *LATE))
            to = f" peer={(rank + 1) % layout.ranks}" if needs_peer(at) else ""
            text = "; ".join(f"rank={rank} op={op} seq={again + i}{to} at={at} do={do}"
                             for op, i in (("dispatch", 5), ("dispatch", 4), ("combine", 5), ("combine", 6)))
            then = Plain({rank}, text, NAMES[at, do])
        yield layout, [lost, then]


def quiet(dice, fabric, count):
    for _ in range(count):
        layout = any_layout(dice, fabric, hang_ms=1500)
        spec = "; ".join(f"at={at} do={do}:{dice.randrange(1, 60)} chance={dice.choice((0.01, 0.03))}"
                         for at in ("enqueue", "begin", "signal.pre", "wait.pre", "end") for do in ("delay", "spin"))
        yield layout, [Plain((), f"seed={dice.randrange(1, 1000)}; {spec}", ())]


def ends(dice, fabric, count):
    if fabric == "local":
        return
    for number in range(count):
        layout = any_layout(dice, fabric)
        if layout.ranks < 3:
            layout = Layout(fabric, layout.transport, 4, seed=layout.seed)
        one, other = dice.sample(range(layout.ranks), 2)
        second = ([("enqueue", "stop"), ("begin", "stop"), ("wait.pre", "stop")], LATE, SIGNALS)[number % 3]
        yield layout, [any_fault(dice, layout, STEP, one, list(ENDS)), any_fault(dice, layout, STEP, other, second)]


KINDS = {"alone": alone, "varied": varied, "pairs": pairs, "mixed": mixed, "crowd": crowd, "across": across,
         "recovery": recovery, "quiet": quiet, "ends": ends}


def play(program, kind, layout, faults):
    spec = "; ".join(f.text for f in faults)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("EPX_")}
    hang_ms = os.environ.get("EPX_HANG_MS", str(layout.hang_ms))
    environment.update(EPX_FAULT=spec, EPX_HANG_MS=hang_ms, EPX_TIMEOUT_MS="6000")
    where = f"{kind}: {' '.join(layout.options()[:-1])} EPX_FAULT='{spec}'"
    try:
        run = subprocess.run([program] + layout.options(), env=environment, capture_output=True, text=True, timeout=150)
        said = json.loads(run.stdout)
    except (subprocess.TimeoutExpired, json.JSONDecodeError) as problem:
        return "wrong", where, f"no answer: {problem}"
    what = f"{said['verdict']} rank {said['culprit']}, {said['op']}: {said['text']}"
    if said["verdict"] in ("none", "UNKNOWN", "none, then SLOW"):
        return "unknown", where, what
    return ("right" if any(f.explains(said) for f in faults) else "wrong"), where, what


def cases(asked):
    """The same for the same seed, whatever kinds are asked for."""
    for kind, make in KINDS.items():
        dice = random.Random(f"{asked.seed} {kind}")
        made = list(make(dice, asked.fabric, asked.count))
        if kind == "alone" and not asked.all:
            made = dice.sample(made, min(asked.count, len(made)))
        if kind in asked.kinds:
            yield from ((kind, layout, faults) for layout, faults in made)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--all", action="store_true", help="every fault of \"alone\"; the other kinds by --count")
    parser.add_argument("--count", type=int, default=24, help="how many cases of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--fabric", default="local")
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=list(KINDS))
    parser.add_argument("--part", default="1/1", help="I/N: the I-th of N parts of the cases")
    asked = parser.parse_args()
    part, parts = (int(n) for n in asked.part.split("/"))
    chosen = list(cases(asked))[part - 1::parts]
    counts = {kind: {"right": 0, "unknown": 0, "wrong": 0} for kind, _, _ in chosen}
    with concurrent.futures.ThreadPoolExecutor(asked.jobs) as pool:
        jobs = {pool.submit(play, asked.program, *case): case[0] for case in chosen}
        for job in concurrent.futures.as_completed(jobs):
            came, where, what = job.result()
            counts[jobs[job]][came] += 1
            if came == "wrong" or os.environ.get("SWEEP_VERBOSE"):
                print(f"{came}: {where}: {what}", flush=True)
    for kind, count in counts.items():
        print(f"{kind:9} {sum(count.values()):5} cases: {count['right']} right, {count['unknown']} unknown, "
              f"{count['wrong']} wrong")
    total = {came: sum(count[came] for count in counts.values()) for came in ("right", "unknown", "wrong")}
    print(f"seed {asked.seed}, fabric {asked.fabric}, part {asked.part}: {len(chosen)} cases: {total['right']} right, "
          f"{total['unknown']} unknown, {total['wrong']} wrong")
    return 1 if total["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
