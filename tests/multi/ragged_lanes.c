/*
 * Plans of `ragged` side by side: passes of two lanes interleaved in every way that the rules allow, and
 * routes that fail on one lane while the other has rows in flight and a peer sleeps. SPDX-License-Identifier:
 * Apache-2.0
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/drive.h"

TestSuite(ragged_lanes, .init = clean_environment);

enum { RANKS = 3, LANES = 2 };

typedef struct stage {
    problem_t *problem[LANES]; /* one shape, different steps */
    oracle_t *oracle[LANES];
    int failing; /* the rank whose routes fail, or -1 */
} stage_t;

/* A pass of one lane, call by call. */
typedef struct lane {
    session_t *session;
    const problem_t *problem;
    epx_plan_h plan;
    pass_t pass;
    wave_buffers_t wave[2];
    buffer_t dx_rows, sum, dweight;
    epx_batch_t batch[2];
    int ok;
} lane_t;

static void lane_open(lane_t *lane, session_t *session, const stage_t *stage, int i)
{
    const problem_t *p = stage->problem[i];
    *lane = (lane_t){.session = session, .problem = p, .ok = 1};
    epx_plan_create(session->group, i, NULL, &lane->plan);
    lane->pass = (pass_t){.session = session, .plan = lane->plan, .o = stage->oracle[i]};
    for (int w = 0; w < 2; w++)
        wave_new(&lane->wave[w], session);
    buffer_new(&lane->dx_rows, lane->wave[0].y.bytes, 4);
    buffer_new(&lane->sum, (size_t)p->tokens_max * (size_t)p->width * 4, 4);
    buffer_new(&lane->dweight, (size_t)p->tokens_max * (size_t)p->columns * 4, 4);
}

static void lane_close(lane_t *lane)
{
    rank_t *self = lane->session->self;
    for (int w = 0; w < 2; w++)
        wave_free(&lane->wave[w], self);
    buffer_free(&lane->dx_rows, self, "dx_rows");
    buffer_free(&lane->sum, self, "sum");
    buffer_free(&lane->dweight, self, "dweight");
    epx_plan_destroy(&lane->plan);
}

static int made(lane_t *lane, const char *call, epx_status_t status)
{
    lane->ok = lane->ok && expect_status(lane->session->self, call, status, EPX_OK);
    return lane->ok;
}

static void lane_route(lane_t *lane)
{
    session_problem(lane->session, lane->problem);
    made(lane, "epx_plan_route", session_route(lane->session, lane->plan));
}

static void lane_dispatch(lane_t *lane, int w)
{
    session_problem(lane->session, lane->problem);
    epx_batch_t *batch = &lane->batch[w % 2];
    *batch = wave_batch(&lane->pass, &lane->wave[w % 2]);
    calls(lane->session->self, "epx_dispatch", w);
    if (lane->ok)
        made(lane, "epx_dispatch",
             epx_dispatch(lane->plan, w, lane->problem->x[lane->session->self->rank], batch, rank_stream()));
}

static void lane_combine(lane_t *lane, int w)
{
    session_problem(lane->session, lane->problem);
    if (!lane->ok)
        return;
    wave_check(&lane->pass, w, &lane->batch[w % 2], 0);
    poison(lane->wave[w % 2].y.data, lane->wave[w % 2].y.bytes);
    wave_expert(&lane->pass, w, &lane->batch[w % 2], lane->wave[w % 2].y.data);
    calls(lane->session->self, "epx_combine", w);
    made(lane, "epx_combine",
         epx_combine(lane->plan, w, lane->wave[w % 2].y.data, lane->sum.data, rank_stream()));
}

/* The caller's y of this wave, as the oracle has it. */
static void fill_y(lane_t *lane, int w)
{
    const problem_t *p = lane->problem;
    const oracle_t *o = lane->pass.o;
    size_t bytes = problem_row_bytes(p);
    for (int s = 0; s < p->ranks; s++) {
        for (int64_t a = 0; a < p->tokens[s] * p->columns; a++) {
            const seat_t *seat = &o->seat[s][a];
            if (seat->fate == KEPT && seat->wave == w && seat->owner == lane->session->self->rank)
                memcpy(lane->wave[w % 2].y.data + (size_t)seat->place * bytes, o->y[s] + (size_t)a * bytes,
                       bytes);
        }
    }
}

static void lane_gradients_out(lane_t *lane, int w)
{
    session_problem(lane->session, lane->problem);
    epx_batch_t *dy = &lane->batch[w % 2];
    *dy = wave_batch(&lane->pass, &lane->wave[w % 2]);
    fill_y(lane, w);
    calls(lane->session->self, "epx_combine_backward", w);
    if (lane->ok)
        made(lane, "epx_combine_backward",
             epx_combine_backward(lane->plan, w, lane->problem->dout[lane->session->self->rank],
                                  lane->wave[w % 2].y.data, dy, rank_stream()));
}

static void lane_gradients_home(lane_t *lane, int w)
{
    session_problem(lane->session, lane->problem);
    if (!lane->ok)
        return;
    wave_check(&lane->pass, w, &lane->batch[w % 2], 1);
    wave_expert_backward(&lane->pass, w, &lane->batch[w % 2], lane->dx_rows.data);
    calls(lane->session->self, "epx_dispatch_backward", w);
    made(lane, "epx_dispatch_backward",
         epx_dispatch_backward(lane->plan, w, lane->dx_rows.data, lane->sum.data,
                               (float *)(void *)lane->dweight.data, rank_stream()));
}

static void lane_sum(lane_t *lane, int backward)
{
    session_problem(lane->session, lane->problem);
    if (!lane->ok)
        return;
    pass_check_sum(&lane->pass, backward ? "dx" : "out", &lane->sum,
                   backward ? lane->pass.o->dx : lane->pass.o->out);
    if (backward)
        pass_check_dweight(&lane->pass, &lane->dweight);
}

static stage_t stage_of(int i)
{
    arm_t arm = {.name = "ragged",
                 .transport = "ragged",
                 .fabric = "local",
                 .device = "host",
                 .kind = RAGGED,
                 .waves = 1 + i % 3,
                 .accept = (epx_accept_t)(EPX_ACCEPT_PREFIX + i % 3),
                 .wire = i % 2 ? EPX_WIRE_RANK : EPX_WIRE_ASSIGNMENT,
                 .batch = i % 4 == 3 ? EPX_BATCH_INDEXED : EPX_BATCH_EXPANDED};
    stage_t stage = {.failing = -1};
    for (int lane = 0; lane < LANES; lane++) {
        problem_t *p = problem_new(&arm, RANKS, 7, 3, 6, 9);
        p->check = i % 5 == 4 ? EPX_CHECK_FULL : EPX_CHECK_OFF;
        problem_inputs(p, lane ? SKEWED : UNIFORM, lane ? (int[]){9, 2, 5} : (int[]){0, 9, 7},
                       10 * (uint64_t)i + (uint64_t)lane);
        stage.problem[lane] = p;
        stage.oracle[lane] = oracle_of(p);
    }
    return stage;
}

static void stage_free(stage_t *stage)
{
    for (int lane = 0; lane < LANES; lane++) {
        oracle_free(stage->oracle[lane]);
        problem_free(stage->problem[lane]);
    }
}

/* ---- forward on one lane, backward on the other -------------------------------------------------------------------- */

static void interleaved_rank(rank_t *self)
{
    const stage_t *stage = self->arg;
    session_t session;
    lane_t lane[LANES];
    if (!session_open(&session, self, stage->problem[0], NULL))
        return;
    for (int i = 0; i < LANES; i++) {
        lane_open(&lane[i], &session, stage, i);
        lane_route(&lane[i]);
    }
    int waves = epx_plan_waves(lane[0].plan);
    lane_t *a = &lane[0], *b = &lane[1];
    for (int round = 0; a->ok && b->ok && round < 4; round++) {
        for (int w = 0; w < waves; w++) {
            lane_dispatch(a, w);
            lane_gradients_out(b, w);
            if (w + 1 < waves && round % 2) {
                /* Two waves of lane b in flight beside one of lane a. */
                lane_gradients_out(b, w + 1);
                lane_combine(a, w);
                lane_gradients_home(b, w);
                lane_dispatch(a, w + 1);
                lane_gradients_home(b, w + 1);
                lane_combine(a, w + 1);
                w++;
                continue;
            }
            lane_gradients_home(b, w);
            lane_combine(a, w);
        }
        lane_sum(a, 0);
        lane_sum(b, 1);
        lane_t *other = a;
        a = b;
        b = other;
    }
    if (!lane[0].ok || !lane[1].ok)
        epx_group_abort(session.group, "test failed");
    for (int i = 0; i < LANES; i++)
        lane_close(&lane[i]);
    session_close(&session);
}

Test(ragged_lanes, forward_and_backward_of_two_lanes_interleaved)
{
    for (int i = 0; i < 10; i++) {
        stage_t stage = stage_of(i);
        world_note("stage %d", i);
        world_run(RANKS, interleaved_rank, &stage);
        stage_free(&stage);
    }
}

/* ---- failed routes ----------------------------------------------------------------------------------------------------- */

static epx_status_t bad_route(lane_t *lane)
{
    static const int32_t ids[] = {0, 0, 7};
    static const float weights[] = {1, 1, 1};
    epx_routing_t routing = EPX_ROUTING_INIT;
    routing.tokens = 1;
    routing.ids = ids;
    routing.weights = weights;
    calls(lane->session->self, "a bad epx_plan_route", 0);
    return epx_plan_route(lane->plan, &routing, rank_stream());
}

/* The culprit's routes fail and he goes on at once; another rank sleeps before each of its own. */
static void fail_often(lane_t *lane, const stage_t *stage, int times)
{
    rank_t *self = lane->session->self;
    session_problem(lane->session, lane->problem);
    for (int i = 0; i < times; i++) {
        if (self->rank == stage->failing) {
            expect_status(self, "a route with id E", bad_route(lane), EPX_ERR_ROUTING);
            expect_text(self, "a route with id E", "token 0", "k 2", "expert id 7", NULL);
            continue;
        }
        if (self->rank == (stage->failing + 1) % RANKS)
            sleep_ms(3);
        char culprit[16];
        snprintf(culprit, sizeof(culprit), "rank %d", stage->failing);
        expect_status(self, "a route that fails elsewhere", session_route(lane->session, lane->plan),
                      EPX_ERR_PEER);
        expect_text(self, "a route that fails elsewhere", culprit, NULL);
    }
}

static void failing_rank(rank_t *self)
{
    const stage_t *stage = self->arg;
    session_t session;
    lane_t lane[LANES];
    if (!session_open(&session, self, stage->problem[0], NULL))
        return;
    for (int i = 0; i < LANES; i++)
        lane_open(&lane[i], &session, stage, i);
    lane_route(&lane[0]);
    int waves = epx_plan_waves(lane[0].plan);
    for (int round = 0; lane[0].ok && lane[1].ok && round < 3; round++) {
        for (int w = 0; w < waves; w++) {
            lane_dispatch(&lane[0], w);
            fail_often(&lane[1], stage, 1 + (w + round) % 3);
            lane_combine(&lane[0], w);
        }
        lane_sum(&lane[0], 0);
        lane_route(&lane[1]);
        for (int w = 0; w < waves; w++) {
            lane_dispatch(&lane[1], w);
            lane_combine(&lane[1], w);
        }
        lane_sum(&lane[1], 0);
        for (int w = 0; w < waves; w++) {
            lane_gradients_out(&lane[1], w);
            lane_gradients_home(&lane[1], w);
        }
        lane_sum(&lane[1], 1);
        /* The plan of the other lane routes again after failures of its own. */
        fail_often(&lane[0], stage, 2);
        lane_route(&lane[0]);
    }
    if (!lane[0].ok || !lane[1].ok)
        epx_group_abort(session.group, "test failed");
    for (int i = 0; i < LANES; i++)
        lane_close(&lane[i]);
    session_close(&session);
}

Test(ragged_lanes, case25_failed_routes_beside_rows_in_flight)
{
    for (int i = 0; i < 8; i++) {
        stage_t stage = stage_of(i);
        stage.failing = i % RANKS;
        world_note("stage %d, rank %d fails", i, stage.failing);
        world_run(RANKS, failing_rank, &stage);
        stage_free(&stage);
    }
}
