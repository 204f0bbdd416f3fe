/* Every scenario is a row. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "tools/repro/repro.h"

#define IS(kind) (1u << EPX_VERDICT_##kind)

static int has_marker(const play_t *play, const outcome_t *outcome)
{
    (void)play;
    return strcmp(outcome->marker, "attention") == 0 || strcmp(outcome->marker, "expert gemm") == 0;
}

static int was_slow(const play_t *play, const outcome_t *outcome)
{
    (void)play;
    return outcome->slow;
}

/* Half of the ranks stand for the circle: any of them may be named. */
static int is_circle(const play_t *play, const outcome_t *outcome)
{
    (void)play;
    return outcome->verdict[0] != '\0';
}

static int within_two_seconds(const play_t *play, const outcome_t *outcome)
{
    (void)play;
    return outcome->detect_ms >= 0 && outcome->detect_ms <= 2000;
}

const scenario_t scenarios[] = {
    {.name = "host-absent",
     .fault = "a rank leaves a dispatch out and goes on to something else",
     .expected = "HOST_ABSENT",
     .verdicts = IS(HOST_ABSENT),
     .op = "dispatch",
     .spec = "rank={rank} group={group} op=dispatch seq={seq} at=enqueue do=skip"},
    {.name = "host-stopped",
     .fault = "a rank's process is stopped (SIGSTOP) in an operation",
     .expected = "HOST_ABSENT",
     .verdicts = IS(HOST_ABSENT),
     .spec = "rank={rank} op=allreduce seq={comm} at=enqueue do=stop",
     .spec_group = "rank={rank} group={group} op=dispatch seq={seq} at=enqueue do=stop",
     .processes = 1},
    {.name = "host-exited",
     .fault = "a rank's process exits",
     .expected = "HOST_ABSENT",
     .verdicts = IS(HOST_ABSENT),
     .spec = "rank={rank} op=allreduce seq={comm} at=enqueue do=exit",
     .spec_group = "rank={rank} group={group} op=dispatch seq={seq} at=enqueue do=exit",
     .processes = 1},
    {.name = "stuck-before-op",
     .fault = "a rank's device is busy with something else before the operation",
     .expected = "STUCK_BEFORE_OP",
     .verdicts = IS(STUCK_BEFORE_OP),
     .op = "dispatch",
     .spec = "rank={rank} group={group} op=dispatch seq={seq} at=begin do=spin:600000",
     .right = has_marker},
    {.name = "stream-blocked",
     .fault = "a rank's operation was enqueued and does not begin, while its device is idle",
     .expected = "STREAM_BLOCKED",
     .verdicts = IS(STREAM_BLOCKED),
     .op = "dispatch",
     .spec = "rank={rank} group={group} op=dispatch seq={seq} at=begin do=delay:600000"},
    {.name = "slow-host",
     .fault = "a rank is late with signs of life, in warm-up and in steady state",
     .expected = "none, then SLOW",
     .act = act_slow_host,
     .right = was_slow},
    {.name = "zero-tokens",
     .fault = "a rank has no tokens and returns early",
     .expected = "HOST_ABSENT",
     .verdicts = IS(HOST_ABSENT),
     .act = act_zero_tokens},
    {.name = "zero-signal",
     .fault = "a sender leaves out the signal for a peer that gets nothing",
     .expected = "SIGNAL_LOST",
     .verdicts = IS(SIGNAL_LOST),
     .op = "dispatch",
     .spec = "rank={rank} group={group} op=dispatch seq={seq} peer={peer} at=signal.pre do=drop",
     .idle_peer = 1,
     .names_peer = 1},
    {.name = "one-short",
     .fault = "one signal is lost",
     .expected = "SIGNAL_LOST",
     .verdicts = IS(SIGNAL_LOST),
     .op = "dispatch",
     .spec = "rank={rank} group={group} op=dispatch seq={seq} peer={peer} at=signal.pre do=drop",
     .names_peer = 1},
    {.name = "signal-before-data",
     .fault = "a signal overtakes its data",
     .expected = "CORRUPT",
     .verdicts = IS(CORRUPT),
     .op = "dispatch",
     .spec = "rank={rank} group={group} op=dispatch seq={seq} peer={peer} at=signal.pre do=reorder:200",
     .check = "full",
     .host_rows = 1,
     .names_peer = 1},
    {.name = "unwritten-output",
     .fault = "rows of a receive buffer are never written",
     .expected = "CORRUPT",
     .verdicts = IS(CORRUPT),
     .op = "dispatch",
     .spec = "rank={rank} group={group} op=dispatch seq={seq} peer={peer} at=put.pre do=drop",
     .check = "canary",
     .host_rows = 1,
     .names_peer = 1},
    {.name = "stale-epoch",
     .fault = "a slot's word is set to an old epoch after many operations",
     .expected = "EPOCH_SKEW",
     .verdicts = IS(EPOCH_SKEW),
     .op = "dispatch",
     .spec = "rank={rank} group={group} op=dispatch seq={seq} peer={peer} at=signal.pre do=stale"},
    {.name = "shape-mismatch",
     .fault = "one rank differs in T_max, K, type or waves",
     .expected = "MISMATCH",
     .op = "open",
     .alone = alone_shape_mismatch},
    {.name = "call-desync",
     .fault = "one rank calls another kind of operation",
     .expected = "DESYNC",
     .verdicts = IS(DESYNC),
     .act = act_desync,
     .by_most = 1},
    {.name = "two-graphs",
     .fault = "two recorded orders of calls alternate, one rank plays the other one",
     .expected = "DESYNC",
     .verdicts = IS(DESYNC),
     .act = act_two_graphs,
     .by_most = 1},
    {.name = "pause",
     .fault = "a long checkpoint, announced; a recompilation, unannounced",
     .expected = "none",
     .act = act_pause},
    {.name = "failed-route",
     .fault = "one rank has an id out of range",
     .expected = "none",
     .act = act_failed_route},
    {.name = "version-skew",
     .fault = "compiled and loaded library differ",
     .expected = "MISMATCH",
     .cannot =
         "fabric nccl or ucx alone load a library of their own, and this machine has none to be skewed"},
    {.name = "double-window",
     .fault = "the same memory is registered twice, overlapping",
     .expected = "REFUSED",
     .op = "register",
     .alone = alone_double_window},
    {.name = "mixed-order",
     .fault = "two groups, called in opposite order on half of the ranks",
     .expected = "DEADLOCK",
     .verdicts = IS(DEADLOCK),
     .act = act_mixed_order,
     .two_groups = 1,
     .nobody = 1,
     .right = is_circle},
    {.name = "not-resident",
     .fault = "a grid of the program's own does not fit beside a hog",
     .expected = "NOT_RESIDENT",
     .verdicts = IS(NOT_RESIDENT),
     .op = "grid",
     .act = act_not_resident,
     .right = is_one_short},
    {.name = "pool-empty",
     .fault = "a rank waits for a pool of its program that nobody fills",
     .expected = "RESOURCE",
     .verdicts = IS(RESOURCE),
     .act = act_pool_empty,
     .right = is_of_the_pool},
    {.name = "too-many-ranks",
     .fault = "more ranks than a compiled bound",
     .expected = "REFUSED",
     .cannot = "no fabric of this build has a compiled bound on ranks"},
    {.name = "rank-killed",
     .fault = "SIGKILL in an operation",
     .expected = "HOST_ABSENT",
     .verdicts = IS(HOST_ABSENT),
     .spec = "rank={rank} op=allreduce seq={comm} at=begin do=kill",
     .spec_group = "rank={rank} group={group} op=dispatch seq={seq} at=begin do=kill",
     .processes = 1,
     .right = within_two_seconds},
    {.name = "rack-behind",
     .fault = "one rank of one domain stalls, the others stop in the next cross-domain all-reduce",
     .expected = "STUCK_BEFORE_OP",
     .verdicts = IS(STUCK_BEFORE_OP),
     .op = "dispatch",
     .spec = "rank={rank} group={group} op=dispatch seq={seq} at=begin do=spin:600000",
     .domains = 2},
    {.name = "link-flap",
     .fault = "a port goes down and comes back, what was on its way is lost",
     .expected = "LINK",
     .verdicts = IS(LINK),
     .spec = "rank={rank} group={group} op=dispatch seq={seq} peer={peer} at=signal.pre do=drop",
     .act = act_link_flap,
     .links = 1},
    {.name = "link-cascade",
     .fault = "one origin error, many downstream errors in any order",
     .expected = "LINK",
     .verdicts = IS(LINK),
     .spec = "rank={rank} group={group} op=dispatch seq={seq} peer={peer} at=signal.pre do=drop",
     .act = act_link_cascade,
     .links = 1},
    {.name = "link-recovering",
     .fault = "the recovery counter of a link still rises",
     .expected = "none",
     .act = act_link_recovering,
     .links = 1,
     .right = links_were_recovering},
    {.name = "clean-soak",
     .fault = "none: random skew and checkpoint-like pauses",
     .expected = "none",
     .act = act_soak,
     .is_clean = 1},
};

const int32_t scenarios_count = sizeof(scenarios) / sizeof(scenarios[0]);

const char *scenario_cannot(const scenario_t *scenario, const settings_t *settings)
{
    if (scenario->cannot != NULL)
        return scenario->cannot;
    if (scenario->host_rows && play_on_device(settings))
        return "rows are touched on their way, which needs device host";
    return NULL;
}

const scenario_t *scenario_named(const char *name)
{
    for (int32_t i = 0; i < scenarios_count; i++)
        if (strcmp(scenarios[i].name, name) == 0)
            return &scenarios[i];
    return NULL;
}
