/*
 * What a device does with many or aligned rows alone, at small shapes: rows are used as they come, last sums
 * are made while the rest travels, and a row that goes to many places is read once. SPDX-License-Identifier:
 * Apache-2.0
 *
 * The library's device stands aside for a copy of it, to which any size is large enough; so ranks that share
 * one GPU do it too. Who calls what is counted, so that a test of this file looks at what it says.
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <epx/kernels_ragged.h>

#include "device/registry.h"
#include "support/drive.h"

static epx_device_ops_t ops;
static epx_kernels_t kernels;
static epx_flow_limits_t limits;

/* Starts of this rank's. */
static _Thread_local int flows, homes;

static epx_status_t counted_flow(const epx_k_ragged_flow_t *args, epx_stream_t stream)
{
    flows += !args->here;
    return test_device()->kernels->ragged_flow(args, stream);
}

static epx_status_t counted_home(const epx_k_ragged_home_t *args, epx_stream_t stream)
{
    homes += !args->here;
    return test_device()->kernels->ragged_home(args, stream);
}

static void all_is_large(void)
{
    clean_environment();
    ops = *test_device();
    kernels = *ops.kernels;
    limits = (epx_flow_limits_t){.align = kernels.flow_limits->align};
    kernels.ragged_flow = counted_flow;
    kernels.ragged_home = counted_home;
    kernels.flow_limits = &limits;
    ops.kernels = &kernels;
    epx_device_stand_in(test_device_name(), &ops);
}

static void as_it_was(void) { epx_device_stand_in(test_device_name(), test_device()); }

TestSuite(large, .init = all_is_large, .fini = as_it_was);

/* Whether kernels of this run store into the memory of other ranks. */
static int reaches(void)
{
    const char *fabric = getenv("TEST_FABRIC");
    return !ranks_are_processes() && (fabric == NULL || (strcmp(fabric, "nccl") == 0 && !over_sends()));
}

typedef struct large {
    problem_t *problem;
    oracle_t *oracle;
} large_t;

static void play(rank_t *self)
{
    const large_t *l = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    flows = homes = 0;
    if (!session_open(&session, self, l->problem, NULL))
        return;
    expect_status(self, "epx_plan_create", epx_plan_create(session.group, 0, NULL, &plan), EPX_OK);
    for (int round = 0; round <= SCHEDULES && !failures(); round++) {
        pass_t pass = {.session = &session,
                       .plan = plan,
                       .o = l->oracle,
                       .schedule = (schedule_t)(round % SCHEDULES),
                       .into = round % 2};
        int ok = expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK);
        if (!ok || !pass_forward(&pass) || !pass_backward(&pass))
            epx_group_abort(session.group, "test failed");
        pass_free(&pass);
    }
    const arm_t *arm = &l->problem->arm;
    int by_rank = reaches() && arm->wire == EPX_WIRE_RANK;
    if (!failures()) {
        expect(self, !by_rank || flows > 0, "no rows were used as they came");
        expect(self, !by_rank || arm->waves > 1 || homes > 0, "no sums were made while others travelled");
    }
    epx_plan_destroy(&plan);
    session_close(&session);
}

typedef struct shape {
    int ranks, experts, top_k, width, tokens;
    pattern_t pattern;
} shape_t;

/* More tokens than there are streams of sums; rows of several pieces; ranks that nobody asks; few of all. */
static const shape_t shapes[] = {{2, 6, 2, 8, 1200, UNIFORM},
                                 {3, 7, 3, 2000, 33, UNIFORM},
                                 {5, 9, 4, 24, 60, SKEWED},
                                 {3, 5, 2, 40, 50, NEXT_RANK},
                                 {3, 6, 2, 16, 9, HOLES}};
enum { SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

static void try_shape(const shape_t *shape, arm_t arm, epx_type_t type, uint64_t seed)
{
    char text[200];
    large_t l = {
        .problem = problem_new(&arm, shape->ranks, shape->experts, shape->top_k, shape->width, shape->tokens),
        .oracle = NULL};
    l.problem->row_type = type;
    l.problem->aligned = 16;
    int tokens[8];
    for (int r = 0; r < shape->ranks; r++)
        tokens[r] = shape->tokens - r * shape->tokens / 9;
    problem_inputs(l.problem, shape->pattern, tokens, seed);
    l.oracle = oracle_of(l.problem);
    world_note("%s", problem_text(l.problem, text, sizeof(text)));
    world_run(shape->ranks, play, &l);
    oracle_free(l.oracle);
    problem_free(l.problem);
}

/* One wave, where sums are made while others travel; two; and a row for each assignment. */
static void try_arm(const char *name, int waves)
{
    arm_t arm = *arm_named(name);
    arm.waves = waves;
    for (int i = 0; i < SHAPES; i++)
        try_shape(&shapes[i], arm, (epx_type_t)(EPX_FP32 + (i + waves) % 3), 40 + (uint64_t)i);
}

Test(large, sums_are_made_while_others_travel) { try_arm("ragged_rank_dropless", 1); }
Test(large, sums_are_made_while_others_travel_and_rows_are_dropped) { try_arm("ragged_rank_fair", 1); }
Test(large, rows_are_used_as_they_come) { try_arm("ragged_rank", 2); }
Test(large, a_row_for_many_places_is_read_once) { try_arm("ragged_dropless", 1); }
Test(large, a_row_for_many_places_is_read_once_in_each_wave) { try_arm("ragged", 2); }
