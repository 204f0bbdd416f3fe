#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training runs that lose a transport, and whether their losses are those of undisturbed runs.

    failover.py PROGRAM [--all] [--from NAME] [--to NAME] [--where PLACE] [--step N] [--shape EPxDP] [--processes]

One signal is lost in step N of a run with the one transport, which goes on with the other (EPX_ON_HANG=failover). From
that step on its losses and gradient norms must be, digit for digit, those of a run with the other transport from the same
parameters: N steps of the first transport, read back from a checkpoint. Ranks are threads, or processes over fabric ucx.
--all: all ordered pairs, both shapes, on threads and on processes, in a step's way there and back and in the first step.
"""
import argparse
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile

TRANSPORTS = ("pooled_wave", "ragged", "ring")
LAYERS, MORE = 2, 3
SMALL = ("--layers 2 --width 32 --heads 4 --head-width 8 --sequence 32 --experts 8 --top-k 2 --expert-width 16 --latent 16 "
         "--shared-width 16 --batch 2 --warmup 2 --peak-flops 1e11").split()


def waves(transport, ep):
    return {"pooled_wave": 3, "ragged": 2, "ring": ep}[transport]


def operation(transport, ep, step, where):
    """Number and name of the operation whose signal is lost: the first dispatch, or the first on the way back that sends."""
    there = LAYERS * (1 + 2 * waves(transport, ep))
    first = step * LAYERS * (1 + 4 * waves(transport, ep))
    return (first + 2, "dispatch") if where == "forward" else (first + there + 2, "dispatch_backward")


def root():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return "127.0.0.1:%d" % s.getsockname()[1]


class Run:
    def __init__(self, case, program, folder):
        self.case, self.program, self.folder = case, program, folder

    def __call__(self, arguments, **variables):
        """All ranks of one run; (worst exit code, standard error)."""
        case = self.case
        command = [self.program, *SMALL, "--ep", str(case.ep), "--replicas", str(case.dp), *arguments]
        env = {k: v for k, v in os.environ.items() if not k.startswith("EPX_")}
        env.update(variables, UCX_LOG_LEVEL="fatal", UCX_HANDLE_ERRORS="none")
        ranks = [{}]
        if case.processes:
            meet = root()
            ranks = [{"EPX_RANK": str(r), "EPX_WORLD_SIZE": str(case.ep * case.dp), "EPX_ROOT": meet}
                     for r in range(case.ep * case.dp)]
        children = [subprocess.Popen(command, env={**env, **rank}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                    for rank in ranks]
        said, worst = "", 0
        for child in children:
            try:
                said += child.communicate(timeout=60)[1]
            except subprocess.TimeoutExpired:
                child.kill()
                said += child.communicate()[1] + "did not end\n"
            worst = worst or child.returncode
        return worst, said

    def losses(self, name):
        """{step: (loss, gradient norm, transport)} of a file of metrics."""
        try:
            with open(os.path.join(self.folder, name), encoding="utf-8") as lines:
                rows = [json.loads(line) for line in lines]
        except OSError:
            return {}
        return {row["step"]: (row["loss"], row["grad_norm"], row["transport"]) for row in rows}


def play(case, program):
    """What is wrong, or None."""
    folder = tempfile.mkdtemp(prefix="epx-failover-", dir="/dev/shm")
    run = Run(case, program, folder)
    steps = str(case.step + MORE)
    sequence, op = operation(case.begin, case.ep, case.step, case.where)
    rule = "group=experts%d rank=1 op=%s seq=%d at=signal.pre do=drop" % (case.dp - 1, op, sequence)
    # The first step is warm-up, where budgets are twenty times longer.
    code, said = run(["--steps", steps, "--metrics", folder + "/failover"], EPX_TRANSPORT=case.begin,
                     EPX_ON_HANG="failover:" + case.to, EPX_HANG_MS="1000" if case.step > 0 else "500", EPX_FAULT=rule,
                     EPX_RECORD=folder + "/records")
    restore = []
    if case.step > 0:
        # Ended in the step behind, which the checkpoint's schedules have to be of.
        behind = case.step * LAYERS * (1 + 4 * waves(case.begin, case.ep)) + 1
        run(["--steps", steps, "--checkpoint", folder + "/checkpoint", "--save-every", str(case.step)], EPX_TRANSPORT=case.begin,
            EPX_RECORD="off", EPX_TIMEOUT_MS="5000", EPX_FAULT="rank=0 seq=%d at=enqueue do=exit" % behind)
        restore = ["--restore", folder + "/checkpoint"]
    run(["--steps", steps, "--metrics", folder + "/undisturbed", *restore], EPX_TRANSPORT=case.to, EPX_RECORD="off")
    got, wanted = run.losses("failover"), run.losses("undisturbed")
    tail = {step: row for step, row in got.items() if step >= case.step}
    shutil.rmtree(folder, ignore_errors=True)
    if code != 0:
        return "exit code %d\n%s" % (code, said)
    if said.count(" is stuck: SIGNAL_LOST(") != 1 or said.count("is done again") != 1:
        return "not one report and one fail-over\n%s" % said
    if len(wanted) != MORE or tail != wanted:
        return "%s\nis not\n%s" % (tail, wanted)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--from", dest="begin", choices=TRANSPORTS, default="ragged")
    parser.add_argument("--to", choices=TRANSPORTS, default="pooled_wave")
    parser.add_argument("--where", choices=("forward", "backward"), default="forward")
    parser.add_argument("--step", type=int, default=2)
    parser.add_argument("--shape", default="2x2")
    parser.add_argument("--processes", action="store_true")
    args = parser.parse_args()
    cases = []
    if args.all:
        for processes, (ep, dp), (begin, to), (where, step) in itertools.product(
                (False, True), ((4, 1), (2, 2)), itertools.permutations(TRANSPORTS, 2),
                (("forward", 2), ("backward", 2), ("forward", 0))):
            cases.append(argparse.Namespace(begin=begin, to=to, where=where, step=step, ep=ep, dp=dp, processes=processes))
    else:
        ep, dp = map(int, args.shape.split("x"))
        cases.append(argparse.Namespace(begin=args.begin, to=args.to, where=args.where, step=args.step, ep=ep, dp=dp,
                                        processes=args.processes))
    good = 0
    for case in cases:
        wrong = play(case, args.program)
        good += wrong is None
        print("%s -> %s, %s in step %d, EP %d x DP %d, %s: %s" % (
            case.begin, case.to, case.where, case.step, case.ep, case.dp, "processes" if case.processes else "threads",
            "equal" if wrong is None else wrong), flush=True)
    print("%d of %d runs went on with the losses of undisturbed ones" % (good, len(cases)))
    return good != len(cases)


sys.exit(main())
