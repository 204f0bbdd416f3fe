#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Faults that no scenario names, one and two at a time: whatever the classifier says must not be a wrong name.

    sweep.py PROGRAM [--all] [--count N] [--seed N] [--jobs N] [--fabric NAME]

Every case is one run of epx-repro under EPX_FAULT. It comes out right (a rank that has a fault, under a name that
the fault may have), unknown (UNKNOWN, SLOW or silence), or wrong. Exit code 1: something was wrong.
"""
import argparse
import concurrent.futures
import itertools
import json
import os
import random
import subprocess
import sys

RANKS, STEP, WAVES = 4, 12, 2
TRANSPORTS = ("ragged", "pooled_wave", "ring")

# What a fault may be called, by where it is and what it does. Names behind are also true of it: a rank that sleeps
# before its call is elsewhere; a word that went back was sent and has not been seen.
NAMES = {
    ("enqueue", "skip"): {"HOST_ABSENT"},
    ("enqueue", "delay:60000"): {"HOST_ABSENT"},
    ("enqueue", "stop"): {"HOST_ABSENT"},
    ("enqueue", "spin:60000"): {"STUCK_BEFORE_OP", "HOST_ABSENT"},
    ("begin", "delay:60000"): {"STREAM_BLOCKED"},
    ("begin", "stop"): {"STREAM_BLOCKED", "HOST_ABSENT"},
    ("begin", "spin:60000"): {"STUCK_BEFORE_OP"},
    ("put.pre", "delay:60000"): set(),
    ("put.pre", "duplicate"): set(),
    ("put.pre", "drop"): set(),
    ("put.post", "flip:3"): set(),
    ("put.post", "spin:60000"): set(),
    ("signal.pre", "drop"): {"SIGNAL_LOST"},
    ("signal.pre", "stale"): {"EPOCH_SKEW", "SIGNAL_LOST"},
    ("signal.pre", "flip:0"): {"EPOCH_SKEW", "SIGNAL_LOST"},
    ("signal.pre", "flip:30"): {"EPOCH_SKEW", "SIGNAL_LOST"},
    ("signal.pre", "duplicate"): set(),
    ("signal.pre", "delay:60000"): set(),
    ("signal.pre", "spin:60000"): set(),
    ("signal.pre", "reorder:200"): set(),
    ("signal.post", "delay:60000"): set(),
    ("signal.post", "stop"): set(),
    ("wait.pre", "delay:60000"): set(),
    ("wait.pre", "spin:60000"): set(),
    ("wait.pre", "stop"): set(),
    ("wait.pre", "skip"): {"EPOCH_SKEW"},
    ("exchange", "drop"): {"SIGNAL_LOST"},
    ("exchange", "skip"): {"SIGNAL_LOST", "DESYNC", "HOST_ABSENT"},
    ("exchange", "flip:9"): {"CORRUPT", "DESYNC"},
    ("exchange", "delay:60000"): set(),
    ("end", "delay:60000"): {"HOST_ABSENT"},
    ("end", "spin:60000"): {"HOST_ABSENT"},
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
ALSO_STOPPED = {"HOST_ABSENT"}  # a stopped process is that wherever it stands


class Fault:
    def __init__(self, rank, op, at, do, peer=None, processes=False):
        self.rank, self.op, self.at, self.do, self.peer = rank, op, at, do, peer
        self.names = set((ENDS if (at, do) in ENDS else NAMES)[at, do])
        if do == "stop" and processes:
            self.names |= ALSO_STOPPED
        if do.startswith("flip") and at == "exchange" and processes:
            self.names |= {"HOST_ABSENT"}  # a process that believes such a count may end by it

    def text(self, waves):
        first = STEP * (1 + 2 * waves) + 1
        seq = {"route": first, "dispatch": first + 1, "combine": first + 2}[self.op]
        peer = "" if self.peer is None else f" peer={self.peer}"
        return f"rank={self.rank} op={self.op} seq={seq}{peer} at={self.at} do={self.do}"


def singles(fabric):
    processes = fabric != "local"
    for at, do in list(NAMES) + (list(ENDS) if processes else []):
        for op in ("route", "dispatch", "combine"):
            if (op == "route") != (at == "exchange") and at not in ("enqueue", "begin", "end"):
                continue
            if at == "enqueue" and do == "skip" and op != "dispatch":
                continue  # the program of the play does not expect it
            for rank in range(RANKS):
                peer = (rank + 1) % RANKS if at.startswith(("put", "signal")) else None
                yield Fault(rank, op, at, do, peer, processes)


def play(program, fabric, transport, faults):
    waves = RANKS if transport == "ring" else WAVES
    spec = "; ".join(f.text(waves) for f in faults)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("EPX_")}
    environment.update(EPX_FAULT=spec, EPX_HANG_MS=os.environ.get("EPX_HANG_MS", "400"), EPX_TIMEOUT_MS="6000")
    command = [program, "--ranks", str(RANKS), "--transport", transport, "--fabric", fabric, "--json"]
    try:
        run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150)
        said = json.loads(run.stdout)
    except (subprocess.TimeoutExpired, json.JSONDecodeError) as problem:
        return "wrong", transport, spec, f"no answer: {problem}"
    verdict, culprit = said["verdict"], said["culprit"]
    what = f"{verdict} rank {culprit}, {said['op']}: {said['text']}"
    if verdict in ("none", "UNKNOWN", "none, then SLOW"):
        return "unknown", transport, spec, what
    right = any(culprit == f.rank and verdict in f.names for f in faults)
    return ("right" if right else "wrong"), transport, spec, what


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--all", action="store_true", help="every fault, rank and transport; pairs beside, by --count")
    parser.add_argument("--count", type=int, default=24, help="how many single faults, and how many pairs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--fabric", default="local")
    asked = parser.parse_args()
    dice = random.Random(asked.seed)
    single = [(t, (f,)) for t, f in itertools.product(TRANSPORTS, singles(asked.fabric))]
    pairs = []
    while len(pairs) < asked.count:
        transport, one = dice.choice(single)
        other = dice.choice(single)[1]
        pairs.append((transport, one + other))
    if not asked.all:
        single = dice.sample(single, min(asked.count, len(single)))
    counts = {"right": 0, "unknown": 0, "wrong": 0}
    with concurrent.futures.ThreadPoolExecutor(asked.jobs) as pool:
        jobs = [pool.submit(play, asked.program, asked.fabric, t, f) for t, f in single + pairs]
        for job in concurrent.futures.as_completed(jobs):
            came, transport, spec, what = job.result()
            counts[came] += 1
            if came == "wrong" or os.environ.get("SWEEP_VERBOSE"):
                print(f"{came}: --transport {transport} --fabric {asked.fabric} EPX_FAULT='{spec}': {what}", flush=True)
    print(f"seed {asked.seed}, fabric {asked.fabric}: {len(single)} faults alone and {len(pairs)} pairs: "
          f"{counts['right']} right, {counts['unknown']} unknown, {counts['wrong']} wrong")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
