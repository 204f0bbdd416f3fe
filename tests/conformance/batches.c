/*
 * Batches: who stands where, in whose memory, with what beside it; row types and widths.
 * SPDX-License-Identifier: Apache-2.0
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdlib.h>
#include <string.h>

#include "support/drive.h"

TestSuite(batches, .init = clean_environment);

static const epx_type_t row_types[] = {EPX_FP32, EPX_BF16, EPX_FP16};

ParameterizedTestParameters(batches, case08_widths_and_types) { return every_arm(); }

/* Widths that are no multiple of anything, and those of real models; odd widths of 16-bit rows are odd in
 * bytes/2. */
ParameterizedTest(int *arm, batches, case08_widths_and_types)
{
    static const int widths[] = {1, 3, 8, 31, 33, 100, 1024, 2880};
    for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++) {
        problem_t *p = problem_new(&arms[*arm], 2, 5, 2, widths[i], 6);
        p->row_type = row_types[i % 3];
        p->out_type = i % 2 ? EPX_FP32 : EPX_TYPE_DEFAULT;
        problem_inputs(p, UNIFORM, NULL, 200 + i);
        problem_check(p, (schedule_t)(i % SCHEDULES));
    }
    for (size_t i = 0; i < 6; i++) {
        problem_t *p = problem_new(&arms[*arm], 3, 4, 3, i < 3 ? 7 : 1, 5);
        p->row_type = row_types[i % 3];
        problem_inputs(p, SKEWED, NULL, 300 + i);
        problem_check(p, (schedule_t)(i % SCHEDULES));
    }
}

/* The widest rows of CASES.md: dispatch and combine only, few tokens. */
ParameterizedTestParameters(batches, case08_very_wide_rows) { return basic_arms(); }

ParameterizedTest(int *arm, batches, case08_very_wide_rows)
{
    static const int widths[] = {3584, 7168, 16384};
    for (size_t i = 0; i < 3; i++) {
        problem_t *p = problem_new(&arms[*arm], 2, 4, 2, widths[i], 3);
        p->row_type = EPX_BF16;
        problem_inputs(p, DISTINCT, (int[]){3, 2}, 200 + i);
        problem_check(p, PIPELINED);
    }
}

ParameterizedTestParameters(batches, row_align) { return every_arm(); }

ParameterizedTest(int *arm, batches, row_align)
{
    static const int aligns[] = {2, 3, 8, 16, 128};
    for (size_t i = 0; i < sizeof(aligns) / sizeof(aligns[0]); i++) {
        problem_t *p = problem_new(&arms[*arm], 2, 7, 2, 4, 12);
        p->row_align = aligns[i];
        problem_inputs(p, i % 2 ? SKEWED : UNIFORM, NULL, 20 + i);
        problem_check(p, (schedule_t)(i % SCHEDULES));
    }
}

ParameterizedTestParameters(batches, aux) { return every_arm(); }

ParameterizedTest(int *arm, batches, aux)
{
    static const int bytes[] = {1, 3, 4, 17, 64};
    for (size_t i = 0; i < sizeof(bytes) / sizeof(bytes[0]); i++) {
        problem_t *p = problem_new(&arms[*arm], 3, 5, 2, 3, 8);
        p->aux_bytes = bytes[i];
        p->row_type = row_types[i % 3];
        p->origin = i % 2 == 0;
        problem_inputs(p, HOLES, NULL, 20 + i);
        problem_check(p, (schedule_t)(i % SCHEDULES));
    }
}

/* A rank that gives no aux sends zeros, whatever stood there before; the others' aux still comes. */
typedef struct aux_case {
    problem_t *zeros, *bytes; /* equal but for aux: zeros everywhere, or on rank 1 only */
    oracle_t *oracle;
} aux_case_t;

static void no_aux_rank(rank_t *self)
{
    aux_case_t *c = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    if (!session_open(&session, self, c->zeros, NULL))
        return;
    epx_plan_create(session.group, 0, NULL, &plan);
    int ok = expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK);
    pass_t pass = {.session = &session, .plan = plan, .o = c->oracle};
    for (int i = 0; ok && i < 3; i++) {
        session_problem(&session, i == 1 ? c->bytes : c->zeros);
        pass.no_aux = i != 1 || self->rank == 1;
        ok = pass_forward(&pass);
    }
    pass_free(&pass);
    if (!ok)
        epx_group_abort(session.group, "test failed");
    epx_plan_destroy(&plan);
    session_close(&session);
}

static problem_t *aux_problem(const arm_t *arm, int first_zero)
{
    problem_t *p = problem_new(arm, 3, 5, 2, 3, 8);
    p->aux_bytes = 5;
    problem_inputs(p, UNIFORM, NULL, 4);
    for (int r = first_zero; r < 3; r += first_zero + 1)
        memset(p->aux[r], 0, 40);
    return p;
}

ParameterizedTestParameters(batches, no_aux_is_zeros) { return every_arm(); }

ParameterizedTest(int *arm, batches, no_aux_is_zeros)
{
    aux_case_t c = {.zeros = aux_problem(&arms[*arm], 0), .bytes = aux_problem(&arms[*arm], 1)};
    c.oracle = oracle_of(c.zeros);
    world_note("%s", arms[*arm].name);
    world_run(3, no_aux_rank, &c);
    oracle_free(c.oracle);
    problem_free(c.zeros);
    problem_free(c.bytes);
}

ParameterizedTestParameters(batches, into_the_callers_memory) { return every_arm(); }

ParameterizedTest(int *arm, batches, into_the_callers_memory)
{
    for (int i = 0; i < 6; i++) {
        problem_t *p = problem_new(&arms[*arm], 3, 7, 2, 5, 8);
        p->row_type = row_types[i % 3];
        p->row_align = i % 2 ? 4 : 1;
        p->in_caller = i / 3;
        problem_inputs(p, i % 2 ? SKEWED : UNIFORM, NULL, 50 + (uint64_t)i);
        oracle_t *o = oracle_of(p);
        trial_run(&(trial_t){.problem = p,
                             .oracle = o,
                             .schedule = (schedule_t)(i % SCHEDULES),
                             .into = 1,
                             .backward = 1,
                             .passes = 2});
        oracle_free(o);
        problem_free(p);
    }
}

ParameterizedTestParameters(batches, without_origin) { return every_arm(); }

ParameterizedTest(int *arm, batches, without_origin)
{
    problem_t *p = problem_new(&arms[*arm], 3, 7, 2, 5, 8);
    p->origin = 0;
    problem_inputs(p, UNIFORM, NULL, 8);
    problem_check(p, PIPELINED);
}

ParameterizedTestParameters(batches, depths_and_lanes) { return every_arm(); }

ParameterizedTest(int *arm, batches, depths_and_lanes)
{
    static const struct {
        int lanes, depth;
    } shapes[] = {{1, 1}, {1, 2}, {3, 1}, {2, 4}, {4, 3}};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        problem_t *p = problem_new(&arms[*arm], 3, 7, 2, 5, 8);
        p->lanes = shapes[i].lanes;
        p->depth = shapes[i].depth;
        problem_inputs(p, UNIFORM, NULL, 80 + i);
        oracle_t *o = oracle_of(p);
        trial_run(&(trial_t){
            .problem = p, .oracle = o, .schedule = (schedule_t)(i % SCHEDULES), .backward = 1, .passes = 3});
        oracle_free(o);
        problem_free(p);
    }
}

/* Only as much of a backward pass as was asked for; recompute keeps dy and a re-dispatched batch side by
 * side. */
static void recompute_rank(rank_t *self)
{
    trial_t *trial = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    if (!session_open(&session, self, trial->problem, NULL))
        return;
    epx_plan_create(session.group, 1, NULL, &plan);
    int ok = expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK);
    pass_t pass = {.session = &session, .plan = plan, .o = trial->oracle, .into = trial->into};
    for (int i = 0; ok && i < 4; i++) {
        pass.re_dispatch = 1 + i % 2;
        pass.no_dweight = i == 2;
        ok = (i == 3 || pass_forward(&pass)) && pass_backward(&pass);
    }
    if (!ok)
        epx_group_abort(session.group, "test failed");
    pass_free(&pass);
    epx_plan_destroy(&plan);
    session_close(&session);
}

ParameterizedTestParameters(batches, recompute) { return every_arm(); }

ParameterizedTest(int *arm, batches, recompute)
{
    for (int into = 0; into < 2; into++) {
        trial_t trial = {.problem = problem_new(&arms[*arm], 3, 7, 2, 5, 8), .into = into};
        trial.problem->backward = EPX_BACKWARD_RECOMPUTE;
        trial.problem->row_type = into ? EPX_BF16 : EPX_FP32;
        problem_inputs(trial.problem, UNIFORM, NULL, 31);
        trial.oracle = oracle_of(trial.problem);
        world_note("%s recompute into=%d", arms[*arm].name, into);
        world_run(3, recompute_rank, &trial);
        oracle_free(trial.oracle);
        problem_free(trial.problem);
    }
}

ParameterizedTestParameters(batches, forward_only) { return every_arm(); }

ParameterizedTest(int *arm, batches, forward_only)
{
    problem_t *p = problem_new(&arms[*arm], 3, 7, 2, 5, 8);
    p->backward = EPX_BACKWARD_NONE;
    problem_inputs(p, UNIFORM, NULL, 8);
    problem_check(p, SPLIT);
}
