/*
 * The two wires of `ragged` carry the same thing: same rows, same drops, sums equal where they can be and
 * within one step of the row type otherwise; what each wire sends over the network is counted by hand.
 * SPDX-License-Identifier: Apache-2.0
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/drive.h"

TestSuite(ragged_wires, .init = clean_environment);

enum { RANKS = 3, TOKENS = 12, WIRES = 3 };

/* One forward and one backward pass on a wire, and what came of it. */
typedef struct run {
    problem_t *problem;
    oracle_t *oracle;
    unsigned char *out[RANKS], *dx[RANKS];
    float *dweight[RANKS];
    epx_plan_stats_t stats[RANKS]; /* after the forward pass */
} run_t;

static void run_rank(rank_t *self)
{
    run_t *run = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    if (!session_open(&session, self, run->problem, NULL))
        return;
    epx_plan_create(session.group, 0, NULL, &plan);
    pass_t pass = {.session = &session, .plan = plan, .o = run->oracle, .schedule = PIPELINED};
    int ok =
        expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK) && pass_forward(&pass);
    run->stats[self->rank] = (epx_plan_stats_t)EPX_PLAN_STATS_INIT;
    epx_plan_stats(plan, &run->stats[self->rank], rank_stream());
    if (!ok || !pass_backward(&pass))
        epx_group_abort(session.group, "test failed");
    run->out[self->rank] = pass.out;
    run->dx[self->rank] = pass.dx;
    run->dweight[self->rank] = pass.dweight;
    epx_plan_destroy(&plan);
    session_close(&session);
}

/* Wire 0: assignment, 1: rank, 2: rank with indexed batches. */
static arm_t arm_of(int wire, int waves, epx_accept_t accept)
{
    static const char *const names[WIRES] = {"assignment", "rank", "indexed"};
    return (arm_t){.name = names[wire],
                   .transport = "ragged",
                   .fabric = "local",
                   .device = "host",
                   .kind = RAGGED,
                   .waves = waves,
                   .accept = accept,
                   .wire = wire ? EPX_WIRE_RANK : EPX_WIRE_ASSIGNMENT,
                   .batch = wire == 2 ? EPX_BATCH_INDEXED : EPX_BATCH_EXPANDED};
}

/* Positive terms only: then a sum is as large as its terms together, and rounding errors can be bounded by
 * it. The caller's experts e with e mod 4 >= 2 turn signs. */
static void make_positive(problem_t *p)
{
    for (int r = 0; r < p->ranks; r++) {
        for (int64_t i = 0; i < p->tokens_max * p->width; i++) {
            row_set(p->x[r], p->row_type, (size_t)i, fabsf(row_get(p->x[r], p->row_type, (size_t)i)));
            row_set(p->dout[r], p->row_type, (size_t)i, fabsf(row_get(p->dout[r], p->row_type, (size_t)i)));
        }
        for (int64_t a = 0; a < p->tokens_max * p->columns; a++)
            p->ids[r][a] -= p->ids[r][a] % 4 >= 2 ? 2 : 0;
    }
}

static void run_wire(run_t *run, int wire, int waves, epx_accept_t accept, epx_type_t type, values_t values)
{
    char text[200];
    arm_t arm = arm_of(wire, waves, accept);
    *run = (run_t){.problem = problem_new(&arm, RANKS, 8, 4, 37, TOKENS)};
    problem_t *p = run->problem;
    p->row_type = type;
    p->out_type = EPX_FP32; /* only the partial sums are rounded to the row type */
    p->values = values;
    p->cf = 0.7;
    problem_inputs(p, SKEWED, (int[]){TOKENS, 1, 7}, 5 + (uint64_t)waves);
    if (values == REAL)
        make_positive(p);
    run->oracle = oracle_of(p);
    world_note("%s %s", arm.name, problem_text(p, text, sizeof(text)));
    world_run(RANKS, run_rank, run);
}

static void run_free(run_t *run)
{
    for (int r = 0; r < RANKS; r++) {
        free(run->out[r]);
        free(run->dx[r]);
        free(run->dweight[r]);
    }
    oracle_free(run->oracle);
    problem_free(run->problem);
}

/* Half a step of a row type, relative to the value. */
static double half_step(epx_type_t type)
{
    return type == EPX_FP32 ? 0x1p-24 : type == EPX_BF16 ? 0x1p-8 : 0x1p-11;
}

/* All terms are positive. Each partial sum is off by at most half a step of itself, so all together by half a
 * step of the sum; the rest is fp32's own rounding, one half step for each of the terms and partial sums. */
static void expect_close(const run_t *a, const run_t *b, const char *what, unsigned char *const *x,
                         unsigned char *const *y)
{
    const problem_t *p = a->problem;
    double bound = half_step(p->row_type) + 2 * (2 * p->top_k + 2) * 0x1p-24;
    for (int r = 0; r < RANKS; r++) {
        for (int64_t i = 0; i < p->tokens[r] * p->width; i++) {
            double u = (double)((const float *)(const void *)x[r])[i],
                   v = (double)((const float *)(const void *)y[r])[i];
            cr_assert(fabs(u - v) <= bound * fmax(u, v), "%s[%d] of rank %d: %.9g on the wire %s, %.9g on %s",
                      what, (int)i, r, u, p->arm.name, v, b->problem->arm.name);
        }
    }
}

static void expect_equal(const run_t *a, const run_t *b, const char *what, const void *x, const void *y,
                         int r, size_t bytes)
{
    cr_assert_eq(memcmp(x, y, bytes), 0, "%s of rank %d differs on %s and %s", what, r, a->problem->arm.name,
                 b->problem->arm.name);
}

static void compare(const run_t *a, const run_t *b, values_t values)
{
    const problem_t *p = a->problem;
    for (int r = 0; r < RANKS; r++) {
        size_t tokens = (size_t)p->tokens[r], row = (size_t)p->width * sizeof(float);
        cr_assert_eq(a->stats[r].kept, b->stats[r].kept);
        cr_assert_eq(a->stats[r].dropped_sender, b->stats[r].dropped_sender);
        /* One dot for each assignment, in one order, wherever it is made. */
        expect_equal(a, b, "dweight", a->dweight[r], b->dweight[r], r,
                     tokens * (size_t)p->columns * sizeof(float));
        if (values == WHOLE) {
            expect_equal(a, b, "out", a->out[r], b->out[r], r, tokens * row);
            expect_equal(a, b, "dx", a->dx[r], b->dx[r], r, tokens * row);
        }
    }
    if (values == REAL) {
        expect_close(a, b, "out", a->out, b->out);
        expect_close(a, b, "dx", a->dx, b->dx);
    }
}

static void compare_wires(values_t values)
{
    for (int type = EPX_FP32; type <= EPX_FP16; type++) {
        for (int waves = 1; waves <= 3; waves++) {
            epx_accept_t accept = (epx_accept_t)(EPX_ACCEPT_PREFIX + waves % 3);
            run_t run[WIRES];
            for (int wire = 0; wire < WIRES; wire++)
                run_wire(&run[wire], wire, waves, accept, (epx_type_t)type, values);
            cr_assert_gt(run[0].stats[0].dropped_sender, 0, "the case drops nothing");
            compare(&run[0], &run[1], values);
            compare(&run[1], &run[2], WHOLE); /* the same wire: the same bits */
            for (int wire = 0; wire < WIRES; wire++)
                run_free(&run[wire]);
        }
    }
}

Test(ragged_wires, equal_for_whole_numbers) { compare_wires(WHOLE); }

Test(ragged_wires, within_one_step_otherwise) { compare_wires(REAL); }

/* Rows that rank r sends to others: kept assignments, or different (token, owner, wave). */
static int64_t rows_sent(const run_t *run, int r)
{
    const problem_t *p = run->problem;
    int64_t rows = 0;
    for (int64_t t = 0; t < p->tokens[r]; t++) {
        for (int k = 0; k < p->top_k; k++) {
            const seat_t *seat = oracle_seat(run->oracle, r, t, k);
            int seen = seat->fate != KEPT || seat->owner == r;
            for (int i = 0; i < k && p->arm.wire == EPX_WIRE_RANK; i++) {
                const seat_t *other = oracle_seat(run->oracle, r, t, i);
                seen |= other->fate == KEPT && other->owner == seat->owner && other->wave == seat->wave;
            }
            rows += !seen;
        }
    }
    return rows;
}

/* Kept assignments between other ranks and r's experts do not depend on the wire; rows do. */
Test(ragged_wires, payload_is_counted_by_rows_that_leave_a_rank)
{
    int64_t rows[WIRES] = {0};
    for (int wire = 0; wire < WIRES; wire++) {
        run_t run;
        run_wire(&run, wire, 2, EPX_ACCEPT_WATERFILL, EPX_BF16, WHOLE);
        int64_t all = 0, meta_sent = 0, meta_received = 0, came_home = 0, row_bytes = 2 * 37;
        for (int r = 0; r < RANKS; r++)
            all += rows_sent(&run, r);
        for (int r = 0; r < RANKS; r++) {
            const epx_plan_stats_t *stats = &run.stats[r];
            /* Sent: my rows, and one row back for each that came. */
            cr_assert_eq(stats->sent_bytes % row_bytes, 0);
            cr_assert_eq(stats->received_bytes, stats->sent_bytes, "rank %d: every row out brings one home",
                         r);
            came_home += stats->sent_bytes / row_bytes;
            cr_assert_geq(stats->sent_bytes / row_bytes, rows_sent(&run, r));
            meta_sent += stats->sent_meta_bytes;
            meta_received += stats->received_meta_bytes;
            if (wire == 0) /* counts [E], and with each row where it is from */
                cr_assert_geq(stats->sent_meta_bytes, 2 * 8 * 4);
        }
        cr_assert_eq(came_home, 2 * all, "%s: %d rows, not twice %d", run.problem->arm.name, (int)came_home,
                     (int)all);
        cr_assert_eq(meta_sent, meta_received);
        rows[wire] = all;
        run_free(&run);
    }
    cr_assert_lt(rows[1], rows[0]);
    cr_assert_eq(rows[1], rows[2]);
}

/* ---- indexed batches ------------------------------------------------------------------------------------------------ */

static void indexed_rank(rank_t *self)
{
    run_t *run = self->arg;
    const problem_t *p = run->problem;
    session_t session;
    epx_plan_h plan = NULL;
    wave_buffers_t wave;
    if (!session_open(&session, self, p, NULL))
        return;
    epx_plan_create(session.group, 0, NULL, &plan);
    pass_t pass = {.session = &session, .plan = plan, .o = run->oracle, .into = self->rank == 1};
    int ok = expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK);
    size_t row = problem_row_bytes(p);
    buffer_t out;
    buffer_new(&out, (size_t)p->tokens_max * (size_t)p->width * sizeof(float), sizeof(float));
    wave_new(&wave, &session);
    for (int w = 0; ok && w < epx_plan_waves(plan); w++) {
        epx_batch_t batch = wave_batch(&pass, &wave);
        poison(wave.rows.data, wave.rows.bytes);
        ok = expect_status(self, "epx_dispatch",
                           epx_dispatch(plan, w, p->x[self->rank], &batch, rank_stream()), EPX_OK);
        int64_t different = 0, wanted = 0, largest = -1;
        unsigned char *seen = calloc((size_t)batch.rows_max + 1, 1);
        for (int e = 0; ok && e < batch.local_experts; e++) {
            for (int64_t g = batch.expert_start[e]; g < batch.expert_start[e] + batch.expert_count[e]; g++) {
                int32_t at = batch.row_index[g];
                different += !seen[at];
                seen[at] = 1;
                largest = at > largest ? at : largest;
            }
        }
        for (int s = 0; s < p->ranks; s++) {
            for (int64_t t = 0; t < p->tokens[s]; t++) {
                int here = 0;
                for (int k = 0; k < p->top_k; k++) {
                    const seat_t *seat = oracle_seat(run->oracle, s, t, k);
                    here |= seat->fate == KEPT && seat->owner == self->rank && seat->wave == w;
                }
                wanted += here;
            }
        }
        free(seen);
        expect(self, different == wanted, "wave %d: %d different rows, not %d", w, (int)different,
               (int)wanted);
        /* In the caller's memory nothing but rows is written. */
        size_t used = (size_t)(largest + 1) * row;
        expect(self, !pass.into || is_poison(wave.rows.data + used, wave.rows.bytes - used),
               "wave %d: written too far", w);
        wave_expert(&pass, w, &batch, wave.y.data);
        ok = ok && expect_status(self, "epx_combine",
                                 epx_combine(plan, w, wave.y.data, out.data, rank_stream()), EPX_OK);
    }
    if (ok)
        pass_check_sum(&pass, "out", &out, run->oracle->out);
    else
        epx_group_abort(session.group, "test failed");
    buffer_free(&out, self, "out");
    wave_free(&wave, self);
    epx_plan_destroy(&plan);
    session_close(&session);
}

Test(ragged_wires, indexed_rows_stand_once_for_each_token_and_rank)
{
    for (int waves = 1; waves <= 3; waves++) {
        arm_t arm = arm_of(2, waves, EPX_ACCEPT_FAIR);
        run_t run = {.problem = problem_new(&arm, RANKS, 7, 4, 6, TOKENS)};
        run.problem->out_type = EPX_FP32;
        run.problem->row_align = waves;
        problem_inputs(run.problem, waves == 2 ? SAME_IN_TOKEN : SKEWED, (int[]){3, TOKENS, 8},
                       40 + (uint64_t)waves);
        run.oracle = oracle_of(run.problem);
        world_note("indexed C=%d", waves);
        world_run(RANKS, indexed_rank, &run);
        oracle_free(run.oracle);
        problem_free(run.problem);
    }
}
