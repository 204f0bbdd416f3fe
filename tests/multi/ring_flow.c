/*
 * ring: no order of calls and no slow rank stops it or changes what it computes.
 * SPDX-License-Identifier: Apache-2.0
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>

#include <stdlib.h>
#include <string.h>

#include "multi/ring_walk.h"

TestSuite(ring_flow, .init = clean_environment);

/* One group of several lanes, each with a routing of its own. */
typedef struct flow {
    problem_t *problem[WALK_LANES];
    oracle_t *oracle[WALK_LANES];
    int lanes;
    uint64_t seed;
    sleepers_t sleepers;
} flow_t;

static const int sizes[] = {1, 2, 3, 5, 8};
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

/* T of each rank: some have none, some are full. */
static void choose_tokens(dice_t *dice, const problem_t *p, int *tokens)
{
    for (int r = 0; r < p->ranks; r++) {
        int64_t kind = dice_range(dice, 0, 3);
        tokens[r] = kind == 0 ? 0 : kind == 1 ? p->tokens_max : (int)dice_range(dice, 0, p->tokens_max);
    }
}

static void flow_inputs(flow_t *flow, dice_t *dice)
{
    int tokens[16];
    for (int i = 0; i < flow->lanes; i++) {
        choose_tokens(dice, flow->problem[i], tokens);
        problem_inputs(flow->problem[i], (pattern_t)dice_range(dice, 0, PATTERNS - 1), tokens,
                       dice_bits(dice) >> 1);
        flow->oracle[i] = oracle_of(flow->problem[i]);
    }
}

static void flow_free(flow_t *flow)
{
    for (int i = 0; i < flow->lanes; i++) {
        oracle_free(flow->oracle[i]);
        problem_free(flow->problem[i]);
    }
}

/* Opens the group and routes every lane. */
static int enter(walk_t *walk, session_t *session, rank_t *self, const flow_t *flow)
{
    if (!session_open(session, self, flow->problem[0], NULL))
        return 0;
    walk_new(walk, session, (const oracle_t *const *)flow->oracle, flow->lanes, flow->seed, flow->sleepers);
    for (int i = 0; i < flow->lanes; i++)
        walk_route(walk, i);
    return 1;
}

static void leave(walk_t *walk, session_t *session, int ok)
{
    if (!ok)
        epx_group_abort(session->group, "test failed");
    walk_free(walk);
    session_close(session);
}

/* ---- a rank sleeps at every point ------------------------------------------------------------------------------- */

enum { EVERY = 7 };

static void every_point_rank(rank_t *self)
{
    const flow_t *flow = self->arg;
    session_t session;
    walk_t walk;
    if (!enter(&walk, &session, self, flow))
        return;
    int ok = 1;
    for (int phase = 0; ok && phase < EVERY; phase++) {
        for (int sleeper = 0; ok && sleeper < self->ranks; sleeper++) {
            walk.calls = 0;
            walk.sleepers = (sleepers_t){.rank = sleeper, .every = EVERY, .phase = phase, .ms = 2};
            ok = walk_run(&walk, 1, 0);
        }
    }
    leave(&walk, &session, ok);
}

ParameterizedTestParameters(ring_flow, a_rank_sleeps_at_every_point)
{
    return cr_make_param_array(const int, sizes, SIZES);
}

ParameterizedTest(const int *ranks, ring_flow, a_rank_sleeps_at_every_point)
{
    flow_t flow = {.lanes = 1, .seed = (uint64_t)*ranks, .sleepers = {.rank = -1}};
    dice_t dice = {(uint64_t)*ranks};
    flow.problem[0] = problem_new(arm_named("ring"), *ranks, 7, 2, 5, 6);
    flow_inputs(&flow, &dice);
    world_note("S = %d", *ranks);
    world_run(*ranks, every_point_rank, &flow);
    flow_free(&flow);
}

/* ---- any order, any shape ---------------------------------------------------------------------------------------- */

static void any_order_rank(rank_t *self)
{
    const flow_t *flow = self->arg;
    session_t session;
    walk_t walk;
    if (!enter(&walk, &session, self, flow))
        return;
    leave(&walk, &session, walk_run(&walk, 3, 0));
}

/* A group of random shape; the lanes differ in their inputs alone. */
static void flow_random(flow_t *flow, uint64_t seed)
{
    static const char *const arm_names[] = {"ring", "ring_waterfill", "ring_fair", "ring_dropless"};
    static const epx_type_t types[] = {EPX_FP32, EPX_BF16, EPX_FP16};
    dice_t dice = {seed};
    *flow = (flow_t){.seed = seed, .sleepers = {.rank = -1, .percent = 8, .ms = 2}};
    flow->lanes = (int)dice_range(&dice, 1, WALK_LANES);
    const arm_t *arm = arm_named(arm_names[dice_range(&dice, 0, 3)]);
    int ranks = sizes[dice_range(&dice, 0, SIZES - 1)], experts = (int)dice_range(&dice, 1, 12);
    int top_k = (int)dice_range(&dice, 1, experts < 4 ? experts : 4);
    int width = (int)dice_range(&dice, 1, 9), tokens_max = (int)dice_range(&dice, 1, 9);
    int depth = (int)dice_range(&dice, 1, WALK_DEPTH), splits = (int)dice_range(&dice, 1, 3);
    int aux_bytes = (int)dice_range(&dice, 0, 9), row_align = (int)dice_range(&dice, 1, 4);
    epx_type_t row_type = types[dice_range(&dice, 0, 2)];
    epx_type_t out_type = dice_range(&dice, 0, 1) ? EPX_FP32 : row_type;
    epx_backward_t backward = (epx_backward_t)dice_range(&dice, EPX_BACKWARD_NONE, EPX_BACKWARD_RECOMPUTE);
    epx_check_t check = (epx_check_t)dice_range(&dice, EPX_CHECK_OFF, EPX_CHECK_FULL);
    int scatter = (int)dice_range(&dice, 0, 1), in_caller = dice_range(&dice, 0, 4) == 0;
    for (int i = 0; i < flow->lanes; i++) {
        problem_t *p = problem_new(arm, ranks, experts, top_k, width, tokens_max);
        p->lanes = flow->lanes;
        p->depth = depth;
        p->splits = splits;
        p->aux_bytes = aux_bytes;
        p->row_align = row_align;
        p->row_type = row_type;
        p->out_type = out_type;
        p->backward = backward;
        p->check = check;
        p->in_caller = in_caller;
        p->values = REAL;
        if (scatter)
            problem_scatter_owners(p, seed);
        flow->problem[i] = p;
    }
    flow_inputs(flow, &dice);
}

ParameterizedTestParameters(ring_flow, any_order_of_calls)
{
    static int seeds[24];
    for (int i = 0; i < 24; i++)
        seeds[i] = i + 1;
    return cr_make_param_array(int, seeds, 24);
}

ParameterizedTest(int *seed, ring_flow, any_order_of_calls)
{
    char text[200];
    flow_t flow;
    for (int i = 0; i < 4; i++) {
        flow_random(&flow, (uint64_t)*seed * 10 + (uint64_t)i);
        world_note("%s, lanes %d, depth %d, flow seed %d", problem_text(flow.problem[0], text, sizeof(text)),
                   flow.lanes, flow.problem[0]->depth, *seed * 10 + i);
        world_run(flow.problem[0]->ranks, any_order_rank, &flow);
        flow_free(&flow);
    }
}

/* ---- passes that are left ---------------------------------------------------------------------------------------- */

/* Lane 0 is left after `point` calls, wherever it stands, while lane 1 goes on; its next plan is routed, or
 * comes from bytes without any meeting of the ranks. */
static void abandon_rank(rank_t *self)
{
    const flow_t *flow = self->arg;
    session_t session;
    walk_t walk;
    if (!enter(&walk, &session, self, flow))
        return;
    size_t bytes = epx_plan_bytes(session.group);
    void *memory = aligned_alloc(256, bytes);
    memcpy(memory, epx_plan_memory(walk.lane[0].plan), bytes);
    int ok = 1;
    for (int point = 0; ok && point < 40; point++) {
        ok = walk_run(&walk, 1, point);
        walk_abandon(&walk, 0);
        if (point % 3 == 0)
            walk_route(&walk, 0);
        else
            walk_attach(&walk, 0, memory);
        ok = ok && walk_run(&walk, 1, 0);
    }
    leave(&walk, &session, ok);
    free(memory);
}

ParameterizedTestParameters(ring_flow, passes_are_left_anywhere)
{
    return cr_make_param_array(const int, sizes, SIZES - 1);
}

ParameterizedTest(const int *ranks, ring_flow, passes_are_left_anywhere)
{
    for (int recompute = 0; recompute < 2; recompute++) {
        flow_t flow = {
            .lanes = 2, .seed = 70 + (uint64_t)*ranks, .sleepers = {.rank = -1, .percent = 10, .ms = 2}};
        dice_t dice = {90 + (uint64_t)*ranks};
        for (int i = 0; i < 2; i++) {
            flow.problem[i] = problem_new(arm_named("ring"), *ranks, 7, 2, 5, 6);
            flow.problem[i]->backward = recompute ? EPX_BACKWARD_RECOMPUTE : EPX_BACKWARD_KEPT;
        }
        flow_inputs(&flow, &dice);
        world_note("S = %d, recompute %d", *ranks, recompute);
        world_run(*ranks, abandon_rank, &flow);
        flow_free(&flow);
    }
}

/* ---- starts ------------------------------------------------------------------------------------------------------ */

enum { SLEEP_MS = 600 };

/* Rank 1 comes late to a pass; the others' starts are back long before it comes. */
static void late_rank(rank_t *self)
{
    const flow_t *flow = self->arg;
    session_t session;
    walk_t walk;
    if (!enter(&walk, &session, self, flow))
        return;
    const problem_t *p = flow->problem[0];
    int ok = 1;
    for (int pass = 0; ok && pass < 2; pass++) {
        epx_batch_t batch = EPX_BATCH_INIT;
        world_meet(self);
        if (self->rank == 1)
            sleep_ms(SLEEP_MS);
        int64_t begin = now_ms();
        ok &= expect_status(self, "epx_dispatch_start",
                            epx_dispatch_start(walk.lane[0].plan, 0, p->x[self->rank], &batch, rank_stream()),
                            EPX_OK);
        ok &= expect(self, now_ms() - begin < SLEEP_MS / 2, "the start took %d ms", (int)(now_ms() - begin));
        ok &= expect_status(self, "epx_dispatch_finish",
                            epx_dispatch_finish(walk.lane[0].plan, 0, &batch, rank_stream()), EPX_OK);
        walk_abandon(&walk, 0);
        walk_route(&walk, 0);
        ok = ok && walk_run(&walk, 1, 0);
    }
    leave(&walk, &session, ok);
}

Test(ring_flow, a_start_waits_for_nobody_who_is_late)
{
    flow_t flow = {.lanes = 1, .seed = 5, .sleepers = {.rank = -1}};
    dice_t dice = {5};
    flow.problem[0] = problem_new(arm_named("ring"), 3, 7, 2, 5, 6);
    flow_inputs(&flow, &dice);
    world_run(3, late_rank, &flow);
    flow_free(&flow);
}
