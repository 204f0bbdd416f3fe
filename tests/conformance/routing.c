/*
 * Every line of the table "what a router may hand in" that ends in a full, correct step. Lines that end in an
 * error are in failed_route.c. SPDX-License-Identifier: Apache-2.0
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <string.h>

#include "support/drive.h"

TestSuite(routing, .init = clean_environment);

/* A shape with uneven experts for each number of ranks. */
static problem_t *small(const arm_t *arm, int ranks, int experts, int top_k)
{
    problem_t *p = problem_new(arm, ranks, experts, top_k, 5, 9);
    p->out_type = EPX_FP32;
    return p;
}

ParameterizedTestParameters(routing, every_pattern) { return every_arm(); }

ParameterizedTest(int *arm, routing, every_pattern)
{
    static const struct {
        int ranks, experts, top_k;
    } shapes[] = {{1, 3, 2}, {2, 5, 3}, {3, 7, 2}, {4, 6, 3}, {4, 2, 2}};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        for (int pattern = 0; pattern < PATTERNS; pattern++) {
            problem_t *p = small(&arms[*arm], shapes[i].ranks, shapes[i].experts, shapes[i].top_k);
            problem_inputs(p, (pattern_t)pattern, NULL, 100 * i + (uint64_t)pattern);
            problem_check(p, (schedule_t)((i + (size_t)pattern) % SCHEDULES));
        }
    }
}

ParameterizedTestParameters(routing, no_tokens_on_some_or_all_ranks) { return every_arm(); }

ParameterizedTest(int *arm, routing, no_tokens_on_some_or_all_ranks)
{
    static const int tokens[][3] = {{0, 0, 0}, {0, 9, 4}, {5, 0, 0}, {9, 9, 0}, {0, 0, 1}};
    for (size_t i = 0; i < sizeof(tokens) / sizeof(tokens[0]); i++) {
        problem_t *p = small(&arms[*arm], 3, 7, 2);
        problem_inputs(p, UNIFORM, tokens[i], 7 + i);
        problem_check(p, (schedule_t)(i % SCHEDULES));
    }
}

ParameterizedTestParameters(routing, wide_ids) { return every_arm(); }

ParameterizedTest(int *arm, routing, wide_ids)
{
    problem_t *p = small(&arms[*arm], 2, 6, 2);
    p->id_type = EPX_INT64;
    problem_inputs(p, HOLES, NULL, 3);
    problem_check(p, SERIAL);
}

/* Several steps of one group, each with its own oracle: nothing of an earlier, larger step may show. */
typedef struct steps {
    problem_t *problem[8];
    oracle_t *oracle[8];
    int count;
} steps_t;

static void steps_rank(rank_t *self)
{
    const steps_t *steps = self->arg;
    session_t session;
    epx_plan_h plan[2] = {NULL, NULL};
    if (!session_open(&session, self, steps->problem[0], NULL))
        return;
    int ok = 1;
    for (int i = 0; i < 2; i++)
        ok &=
            expect_status(self, "epx_plan_create", epx_plan_create(session.group, i, NULL, &plan[i]), EPX_OK);
    for (int i = 0; ok && i < steps->count; i++) {
        session_problem(&session, steps->problem[i]);
        pass_t pass = {.session = &session, .plan = plan[i % 3 == 2], .o = steps->oracle[i], .into = i & 1};
        pass.schedule = (schedule_t)(i % SCHEDULES);
        ok = expect_status(self, "epx_plan_route", session_route(&session, pass.plan), EPX_OK);
        ok = ok && pass_forward(&pass) && pass_backward(&pass);
        if (ok)
            pass_stats(&pass);
        pass_free(&pass);
    }
    if (!ok)
        epx_group_abort(session.group, "test failed");
    epx_plan_destroy(&plan[0]);
    epx_plan_destroy(&plan[1]);
    session_close(&session);
}

ParameterizedTestParameters(routing, tokens_differ_between_steps) { return every_arm(); }

ParameterizedTest(int *arm, routing, tokens_differ_between_steps)
{
    static const int tokens[8][3] = {{9, 9, 9}, {1, 0, 2}, {9, 1, 9}, {0, 0, 0},
                                     {0, 9, 0}, {3, 2, 1}, {1, 1, 1}, {9, 9, 9}};
    static const pattern_t patterns[8] = {ONE_RANK,  UNIFORM, HOLES,    UNIFORM,
                                          NEXT_RANK, NOTHING, OWN_RANK, ONE_EXPERT};
    steps_t steps = {.count = 8};
    for (int i = 0; i < steps.count; i++) {
        steps.problem[i] = small(&arms[*arm], 3, 7, 2);
        problem_inputs(steps.problem[i], patterns[i], tokens[i], 40 + (uint64_t)i);
        steps.oracle[i] = oracle_of(steps.problem[i]);
    }
    world_note("%s, eight steps", arms[*arm].name);
    world_run(3, steps_rank, &steps);
    for (int i = 0; i < steps.count; i++) {
        oracle_free(steps.oracle[i]);
        problem_free(steps.problem[i]);
    }
}

/* T as a device scalar: the field `tokens` is ignored. */
static void tokens_device_rank(rank_t *self)
{
    trial_t *trial = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    buffer_t ids, weights;
    if (!session_open(&session, self, trial->problem, NULL))
        return;
    epx_plan_create(session.group, 0, NULL, &plan);
    epx_routing_t routing = session_routing(&session, &ids, &weights);
    int64_t *tokens = both_new(sizeof(*tokens));
    *tokens = routing.tokens;
    routing.tokens = -77;
    routing.tokens_device = tokens;
    pass_t pass = {.session = &session, .plan = plan, .o = trial->oracle};
    if (expect_status(self, "epx_plan_route", epx_plan_route(plan, &routing, rank_stream()), EPX_OK) &&
        pass_forward(&pass)) {
        pass_stats(&pass);
        pass_backward(&pass);
    }
    both_free(tokens);
    buffer_free(&ids, self, "ids");
    buffer_free(&weights, self, "weights");
    pass_free(&pass);
    epx_plan_destroy(&plan);
    session_close(&session);
}

ParameterizedTestParameters(routing, tokens_on_the_device) { return basic_arms(); }

ParameterizedTest(int *arm, routing, tokens_on_the_device)
{
    trial_t trial = {.problem = small(&arms[*arm], 3, 7, 2)};
    problem_inputs(trial.problem, UNIFORM, (int[]){4, 9, 0}, 12);
    trial.oracle = oracle_of(trial.problem);
    world_run(3, tokens_device_rank, &trial);
    oracle_free(trial.oracle);
    problem_free(trial.problem);
}

/* Without any id or token a caller may have no memory to point at. */
static void null_inputs_rank(rank_t *self)
{
    trial_t *trial = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    if (!session_open(&session, self, trial->problem, NULL))
        return;
    epx_plan_create(session.group, 0, NULL, &plan);
    epx_routing_t routing = EPX_ROUTING_INIT;
    expect_status(self, "epx_plan_route with T = 0 and no arrays",
                  epx_plan_route(plan, &routing, rank_stream()), EPX_OK);
    for (int w = 0; w < epx_plan_waves(plan) && !failures(); w++) {
        epx_batch_t batch = EPX_BATCH_INIT;
        char y[4096];
        expect_status(self, "epx_dispatch of no tokens", epx_dispatch(plan, w, NULL, &batch, rank_stream()),
                      EPX_OK);
        expect_status(self, "epx_combine of no tokens", epx_combine(plan, w, y, NULL, rank_stream()), EPX_OK);
    }
    epx_plan_destroy(&plan);
    session_close(&session);
}

ParameterizedTestParameters(routing, no_tokens_and_no_arrays) { return basic_arms(); }

ParameterizedTest(int *arm, routing, no_tokens_and_no_arrays)
{
    trial_t trial = {.problem = problem_new(&arms[*arm], 2, 2, 1, 4, 4)};
    problem_inputs(trial.problem, UNIFORM, (int[]){0, 0}, 12);
    world_run(2, null_inputs_rank, &trial);
    problem_free(trial.problem);
}

ParameterizedTestParameters(routing, owner_tables) { return every_arm(); }

ParameterizedTest(int *arm, routing, owner_tables)
{
    for (uint64_t seed = 1; seed <= 6; seed++) {
        problem_t *p = small(&arms[*arm], 2 + (int)seed % 3, 3 + (int)seed, 2);
        problem_scatter_owners(p, seed);
        problem_inputs(p, seed % 2 ? UNIFORM : SKEWED, NULL, seed);
        problem_check(p, (schedule_t)(seed % SCHEDULES));
    }
}

ParameterizedTestParameters(routing, virtual_ranks) { return every_arm(); }

/* The rules decide as if there were m ranks in each; rows move between the real ones. */
ParameterizedTest(int *arm, routing, virtual_ranks)
{
    static const struct {
        int ranks, splits, experts;
    } shapes[] = {{1, 4, 6}, {2, 2, 7}, {3, 4, 8}, {2, 8, 5}};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        problem_t *p = small(&arms[*arm], shapes[i].ranks, shapes[i].experts, 2);
        p->splits = shapes[i].splits;
        problem_inputs(p, i % 2 ? SKEWED : UNIFORM, NULL, 60 + i);
        problem_check(p, (schedule_t)(i % SCHEDULES));
    }
}
