/*
 * NaN, Inf and strange weights reach the tokens they belong to, and no others. SPDX-License-Identifier:
 * Apache-2.0
 *
 * That rows outside the counted ones may hold NaN is part of every test here: drive.c poisons all buffers
 * before each call, and leaves every row of y and dx_rows that is not counted poisoned.
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/drive.h"
#include "support/memory.h"

TestSuite(values, .init = clean_environment);

static const epx_type_t row_types[] = {EPX_FP32, EPX_BF16, EPX_FP16};

/* Spoils one token's row, weight or gradient; the oracle knows the same inputs and says where it shows. */
static void spoil(problem_t *p, int rank, int token, int what, float value)
{
    for (int h = 0; what == 0 && h < p->width; h += 2)
        row_set(p->x[rank] + (size_t)token * problem_row_bytes(p), p->row_type, (size_t)h, value);
    if (what == 1)
        p->weights[rank][token * p->columns + p->top_k - 1] = value;
    for (int h = 0; what == 2 && h < p->width; h += 2)
        row_set(p->dout[rank] + (size_t)token * problem_row_bytes(p), p->row_type, (size_t)h, value);
}

/* Tokens that were not spoilt hold finite numbers: said of the oracle's result, which the library's is
 * compared with. */
static void only_there(const oracle_t *o, int rank, int token)
{
    const problem_t *p = o->p;
    for (int s = 0; s < p->ranks; s++) {
        for (int64_t i = 0; i < p->tokens[s] * p->width; i++) {
            int own = s == rank && i / p->width == token;
            int finite = isfinite(row_get(o->out[s], oracle_out_type(p), (size_t)i)) &&
                         isfinite(row_get(o->dx[s], oracle_out_type(p), (size_t)i));
            cr_assert(own || finite, "the oracle spreads a spoilt value");
        }
    }
}

ParameterizedTestParameters(values, nan_and_inf_stay_with_their_token) { return every_arm(); }

ParameterizedTest(int *arm, values, nan_and_inf_stay_with_their_token)
{
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int what = 0; what < 3; what++) {
        for (int i = 0; i < 3; i++) {
            problem_t *p = problem_new(&arms[*arm], 3, 7, 2, 5, 8);
            p->row_type = row_types[i];
            problem_inputs(p, UNIFORM, (int[]){8, 5, 8}, 70 + (uint64_t)i);
            spoil(p, 1, 3, what, bad[(what + i) % 3]);
            oracle_t *o = oracle_of(p);
            only_there(o, 1, 3);
            oracle_free(o);
            problem_check(p, (schedule_t)i);
        }
    }
}

ParameterizedTestParameters(values, case15_weights_of_any_kind) { return every_arm(); }

ParameterizedTest(int *arm, values, case15_weights_of_any_kind)
{
    const float weights[] = {0, -0.0f, -1.5f, 1e-40f, 1e30f, -1e-30f, 1.0000001f, 0.1f};
    problem_t *p = problem_new(&arms[*arm], 2, 5, 2, 4, 8);
    problem_inputs(p, UNIFORM, (int[]){8, 8}, 71);
    for (int r = 0; r < 2; r++) {
        for (int i = 0; i < 8 * p->columns; i++)
            p->weights[r][i] = weights[i % 8];
    }
    problem_check(p, SERIAL);
}

/* The largest finite values, subnormals and both zeros pass unharmed. */
ParameterizedTestParameters(values, extreme_rows) { return every_arm(); }

ParameterizedTest(int *arm, values, extreme_rows)
{
    const float rows[] = {0, -0.0f, 6e-8f, -6e-8f, 65504, -65504, 1, 1e-38f};
    for (int i = 0; i < 3; i++) {
        problem_t *p = problem_new(&arms[*arm], 2, 5, 2, 8, 8);
        p->row_type = row_types[i];
        problem_inputs(p, UNIFORM, (int[]){8, 8}, 71);
        for (int r = 0; r < 2; r++) {
            for (size_t h = 0; h < 64; h++) {
                row_set(p->x[r], p->row_type, h, rows[(h + h / 8) % 8]);
                row_set(p->dout[r], p->row_type, h, rows[(h + h / 8 + 3) % 8]);
            }
        }
        problem_check(p, SERIAL);
    }
}

/* The library's own memory starts as NaN and is NaN again wherever nothing came. */
static void poisoned_rank(rank_t *self)
{
    trial_t *trial = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    memory_t own;
    memory_new(&own);
    epx_group_config_t config = problem_config(trial->problem);
    config.allocator = &own.allocator;
    if (!session_open(&session, self, trial->problem, &config))
        return;
    world_meet(self);
    epx_plan_create(session.group, 0, NULL, &plan);
    pass_t pass = {.session = &session, .plan = plan, .o = trial->oracle};
    int ok = expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK);
    ok = ok && pass_forward(&pass) && pass_backward(&pass);
    if (ok)
        pass_stats(&pass);
    else
        epx_group_abort(session.group, "test failed");
    pass_free(&pass);
    epx_plan_destroy(&plan);
    session_close(&session);
    world_meet(self); /* peers may release my memory */
    memory_end(&own, "group");
}

ParameterizedTestParameters(values, case14_memory_full_of_nan) { return every_arm(); }

ParameterizedTest(int *arm, values, case14_memory_full_of_nan)
{
    static const pattern_t patterns[] = {UNIFORM, NOTHING, ONE_EXPERT, HOLES};
    for (size_t i = 0; i < 4; i++) {
        trial_t trial = {.problem = problem_new(&arms[*arm], 3, 7, 2, 5, 8)};
        trial.problem->aux_bytes = 3;
        problem_inputs(trial.problem, patterns[i], NULL, 90 + i);
        trial.oracle = oracle_of(trial.problem);
        world_note("%s, memory full of NaN, %s", arms[*arm].name, pattern_name(patterns[i]));
        world_run(3, poisoned_rank, &trial);
        oracle_free(trial.oracle);
        problem_free(trial.problem);
    }
}

/* canary and full change nothing of a good step, and find a row that the caller's computation left out. */
typedef struct left_out {
    problem_t *problem;
    oracle_t *oracle;
    int rank, wave; /* whose y misses a row */
    int64_t place;
} left_out_t;

/* The caller computes every row of its batch but one. */
static void compute_but_one(session_t *session, const left_out_t *l, int w, const epx_batch_t *batch,
                            unsigned char *y)
{
    size_t row = problem_row_bytes(l->problem);
    epx_batch_t here = batch_here(session, batch);
    for (int e = 0; e < session->info.local_experts; e++) {
        for (int64_t i = 0; i < here.expert_count[e]; i++) {
            int64_t place = here.expert_start[e] + i;
            if (session->self->rank != l->rank || w != l->wave || place != l->place)
                memset(y + (size_t)place * row, 1, row);
        }
    }
}

/* Peers of the rank that was caught may end with it, at any call. */
static int left_out_wave(session_t *session, epx_plan_h plan, const left_out_t *l, int w,
                         wave_buffers_t *wave, buffer_t *out)
{
    rank_t *self = session->self;
    int mine = self->rank == l->rank, last = w == l->wave;
    pass_t pass = {.session = session, .plan = plan, .o = l->oracle};
    epx_batch_t batch = wave_batch(&pass, wave);
    epx_status_t status = epx_dispatch(plan, w, l->problem->x[self->rank], &batch, rank_stream());
    if (status == EPX_OK)
        status = epx_check_poison(plan, w, wave->y.data, rank_stream());
    if (status != EPX_OK)
        return expect(self, !mine, "before the row is missed: %s", epx_last_error()) && 0;
    compute_but_one(session, l, w, &batch, wave->y.data);
    status = epx_combine(plan, w, wave->y.data, out->data, rank_stream());
    if (mine)
        expect_status(self, "epx_combine", status, last ? EPX_ERR_CORRUPT : EPX_OK);
    if (mine && last)
        expect_text(self, "epx_combine", "rank 1", "expert", "row", "caller", NULL);
    return !last && status == EPX_OK;
}

static void left_out_rank(rank_t *self)
{
    left_out_t *l = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    if (!session_open(&session, self, l->problem, NULL))
        return;
    epx_plan_create(session.group, 0, NULL, &plan);
    expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK);
    for (int w = 0, on = 1; on && w < epx_plan_waves(plan); w++) {
        wave_buffers_t wave;
        buffer_t out;
        wave_new(&wave, &session);
        buffer_new(&out, (size_t)l->problem->tokens_max * problem_row_bytes(l->problem), 4);
        on = left_out_wave(&session, plan, l, w, &wave, &out);
        buffer_free(&out, self, "out");
        wave_free(&wave, self);
    }
    world_meet(self);
    epx_plan_destroy(&plan);
    session_close(&session);
}

ParameterizedTestParameters(values, canary_finds_a_row_that_was_left_out) { return basic_arms(); }

ParameterizedTest(int *arm, values, canary_finds_a_row_that_was_left_out)
{
    left_out_t l = {.problem = problem_new(&arms[*arm], 3, 7, 2, 4, 8), .rank = -1};
    l.problem->check = EPX_CHECK_CANARY;
    l.problem->timeout_ms = 2000; /* peers of the corrupt rank may wait in vain */
    problem_inputs(l.problem, UNIFORM, (int[]){8, 8, 8}, 5);
    l.oracle = oracle_of(l.problem);
    for (int s = 0; s < 3; s++) {
        for (int64_t a = 0; a < 8 * l.problem->columns; a++) {
            const seat_t *seat = &l.oracle->seat[s][a];
            if (seat->fate == KEPT && seat->owner == 1 && s != 1 && l.rank < 0) {
                l.rank = seat->owner;
                l.wave = seat->wave;
                l.place = seat->place;
            }
        }
    }
    world_may_warn();
    world_run(3, left_out_rank, &l);
    oracle_free(l.oracle);
    problem_free(l.problem);
}

ParameterizedTestParameters(values, checks_change_nothing) { return every_arm(); }

ParameterizedTest(int *arm, values, checks_change_nothing)
{
    for (int i = 0; i < 6; i++) {
        problem_t *p = problem_new(&arms[*arm], 3, 7, 2, 5, 8);
        p->check = i % 2 ? EPX_CHECK_CANARY : EPX_CHECK_FULL;
        p->row_type = row_types[i / 2];
        p->aux_bytes = i == 3 ? 2 : 0;
        problem_inputs(p, i % 2 ? UNIFORM : HOLES, NULL, 15 + (uint64_t)i);
        problem_check(p, (schedule_t)(i % SCHEDULES));
    }
}
