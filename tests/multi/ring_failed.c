/*
 * ring: a route that fails on one lane while blocks are on their way on the other. SPDX-License-Identifier:
 * Apache-2.0
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>

#include <stdio.h>

#include "multi/ring_walk.h"

TestSuite(ring_failed, .init = clean_environment);

enum { TOP_K = 2, EXPERTS = 7, TOKENS_MAX = 6 };

typedef struct stage {
    problem_t *problem[2];
    oracle_t *oracle[2];
} stage_t;

/* Fails on `culprit`: by an id, or by a number of tokens, which the library itself refuses. */
static epx_status_t bad_route(rank_t *self, epx_plan_h plan, int culprit, int by_id)
{
    int32_t ids[(TOKENS_MAX + 1) * TOP_K] = {0};
    float weights[(TOKENS_MAX + 1) * TOP_K] = {0};
    epx_routing_t routing = EPX_ROUTING_INIT;
    routing.tokens = self->rank == culprit ? TOKENS_MAX + !by_id : 1 + self->rank % TOKENS_MAX;
    routing.ids = ids;
    routing.weights = weights;
    if (self->rank == culprit && by_id)
        ids[TOKENS_MAX * TOP_K - 1] = EXPERTS;
    self->at = "bad route";
    return epx_plan_route(plan, &routing, rank_stream());
}

static void check_failure(rank_t *self, epx_plan_h plan, int culprit, int by_id, epx_status_t status)
{
    char name[24];
    float x[1] = {0};
    epx_batch_t batch = EPX_BATCH_INIT;
    epx_status_t wanted = self->rank != culprit ? EPX_ERR_PEER : by_id ? EPX_ERR_ROUTING : EPX_ERR_ARG;
    snprintf(name, sizeof(name), "rank %d", culprit);
    expect_status(self, "bad route", status, wanted);
    expect_text(self, "bad route", name, NULL);
    expect_status(self, "dispatch of a dead plan", epx_dispatch(plan, 0, x, &batch, rank_stream()), wanted);
}

/* Lane 1 stops in the middle of a pass, lane 0's route fails, lane 1 goes on, lane 0 is routed well. */
static void failed_rank(rank_t *self)
{
    const stage_t *stage = self->arg;
    session_t session;
    walk_t walk;
    if (!session_open(&session, self, stage->problem[0], NULL))
        return;
    walk_new(&walk, &session, (const oracle_t *const *)stage->oracle, 2, 17 + (uint64_t)self->ranks,
             (sleepers_t){.rank = -1, .percent = 15, .ms = 2});
    walk_route(&walk, 0);
    walk_route(&walk, 1);
    int ok = walk_run(&walk, 1, 0);
    for (int round = 0; ok && round < 3 * self->ranks; round++) {
        int culprit = round % self->ranks, by_id = round % 2;
        walk.lane[0].held = 1;
        ok = walk_run(&walk, 1, 1 + 3 * round);
        check_failure(self, walk.lane[0].plan, culprit, by_id,
                      bad_route(self, walk.lane[0].plan, culprit, by_id));
        ok = ok && walk_run(&walk, 1, 0);
        walk.lane[0].held = 0;
        walk_route(&walk, 0);
        ok = ok && walk_run(&walk, 1, 0);
    }
    if (!ok)
        epx_group_abort(session.group, "test failed");
    walk_free(&walk);
    session_close(&session);
}

static const int sizes[] = {1, 2, 3, 5};

ParameterizedTestParameters(ring_failed, routes_beside_a_pass)
{
    return cr_make_param_array(const int, sizes, 4);
}

ParameterizedTest(const int *ranks, ring_failed, routes_beside_a_pass)
{
    stage_t stage;
    for (int i = 0; i < 2; i++) {
        stage.problem[i] = problem_new(arm_named("ring"), *ranks, EXPERTS, TOP_K, 5, TOKENS_MAX);
        problem_inputs(stage.problem[i], UNIFORM, NULL, 40 + (uint64_t)i);
        stage.oracle[i] = oracle_of(stage.problem[i]);
    }
    world_note("S = %d", *ranks);
    world_run(*ranks, failed_rank, &stage);
    for (int i = 0; i < 2; i++) {
        oracle_free(stage.oracle[i]);
        problem_free(stage.problem[i]);
    }
}
