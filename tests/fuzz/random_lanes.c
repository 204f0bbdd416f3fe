/*
 * Several lanes in flight, their starts and finishes in any order that the rules allow, the same on all
 * ranks. SPDX-License-Identifier: Apache-2.0
 *
 * Each lane makes forward and backward passes of its own plan. At every step the dice pick a lane, and one of
 * the calls that this lane may make next: starting a further wave where depth allows, finishing one,
 * combining one.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "support/drive.h"

TestSuite(random_lanes, .init = clean_environment);

enum { LANES = 3, DEPTH_MAX = 4, PASSES = 4 };

typedef struct board {
    problem_t *problem[LANES];
    oracle_t *oracle[LANES];
    uint64_t seed;
} board_t;

/* One lane's pass: of each wave, first the out move (dispatch or combine_backward), then the home move. */
typedef struct lane {
    const problem_t *p;
    const oracle_t *o;
    epx_plan_h plan;
    pass_t pass;
    int backward, waves, passes;
    int out_started, out_finished, home_started, home_finished;
    wave_buffers_t wave[DEPTH_MAX];
    buffer_t home[DEPTH_MAX], sum, dweight;
    epx_batch_t batch[DEPTH_MAX];
} lane_t;

static float *floats(buffer_t *buffer) { return (float *)(void *)buffer->data; }

static void lane_new(lane_t *l, session_t *session, const board_t *board, int lane)
{
    *l = (lane_t){.p = board->problem[lane], .o = board->oracle[lane]};
    session_problem(session, l->p);
    expect_status(session->self, "epx_plan_create", epx_plan_create(session->group, lane, NULL, &l->plan),
                  EPX_OK);
    l->pass = (pass_t){.session = session, .plan = l->plan, .o = l->o, .into = lane == 1};
    for (int i = 0; i < DEPTH_MAX; i++) {
        wave_new(&l->wave[i], session);
        buffer_new(&l->home[i], l->wave[i].y.bytes, 4);
    }
    epx_type_t type = oracle_out_type(l->p);
    buffer_new(&l->sum, (size_t)l->p->tokens_max * (size_t)l->p->width * type_size(type), type_size(type));
    buffer_new(&l->dweight, (size_t)l->p->tokens_max * (size_t)l->p->columns * 4, 4);
}

static void lane_free(lane_t *l, rank_t *self)
{
    for (int i = 0; i < DEPTH_MAX; i++) {
        wave_free(&l->wave[i], self);
        buffer_free(&l->home[i], self, "home rows");
    }
    buffer_free(&l->sum, self, "out or dx");
    buffer_free(&l->dweight, self, "dweight");
    epx_plan_destroy(&l->plan);
}

static int fine(session_t *session, const char *call, epx_status_t status)
{
    return expect_status(session->self, call, status, EPX_OK);
}

static int start_out(session_t *session, lane_t *l)
{
    int w = l->out_started++, rank = session->self->rank;
    epx_batch_t *batch = &l->batch[w % DEPTH_MAX];
    *batch = wave_batch(&l->pass, &l->wave[w % DEPTH_MAX]);
    calls(session->self, "start out", w);
    if (l->backward)
        return fine(session, "epx_combine_backward_start",
                    epx_combine_backward_start(l->plan, w, l->p->dout[rank], rank_stream()));
    return fine(session, "epx_dispatch_start",
                epx_dispatch_start(l->plan, w, l->p->x[rank], batch, rank_stream()));
}

/* y of a backward wave: what the oracle's experts made. */
static void fill_y(session_t *session, lane_t *l, int w, buffer_t *y)
{
    size_t bytes = problem_row_bytes(l->p);
    poison(y->data, y->bytes);
    for (int s = 0; s < l->p->ranks; s++) {
        for (int64_t a = 0; a < l->p->tokens[s] * l->p->columns; a++) {
            const seat_t *seat = &l->o->seat[s][a];
            if (seat->fate == KEPT && seat->wave == w && seat->owner == session->self->rank)
                memcpy(y->data + (size_t)seat->place * bytes, l->o->y[s] + (size_t)a * bytes, bytes);
        }
    }
}

static int finish_out(session_t *session, lane_t *l)
{
    int w = l->out_finished++, ok;
    epx_batch_t *batch = &l->batch[w % DEPTH_MAX];
    wave_buffers_t *wave = &l->wave[w % DEPTH_MAX];
    calls(session->self, "finish out", w);
    if (l->backward) {
        fill_y(session, l, w, &wave->y);
        ok = fine(session, "epx_combine_backward_finish",
                  epx_combine_backward_finish(l->plan, w, wave->y.data, batch, rank_stream()));
    } else {
        ok = fine(session, "epx_dispatch_finish", epx_dispatch_finish(l->plan, w, batch, rank_stream()));
    }
    if (ok)
        wave_check(&l->pass, w, batch, l->backward);
    return ok;
}

static int start_home(session_t *session, lane_t *l)
{
    int w = l->home_started++;
    buffer_t *home = &l->home[w % DEPTH_MAX];
    poison(home->data, home->bytes);
    wave_check(&l->pass, w, &l->batch[w % DEPTH_MAX], l->backward); /* still there */
    calls(session->self, "start home", w);
    if (l->backward) {
        wave_expert_backward(&l->pass, w, &l->batch[w % DEPTH_MAX], home->data);
        return fine(session, "epx_dispatch_backward_start",
                    epx_dispatch_backward_start(l->plan, w, home->data, rank_stream()));
    }
    wave_expert(&l->pass, w, &l->batch[w % DEPTH_MAX], home->data);
    return fine(session, "epx_combine_start", epx_combine_start(l->plan, w, home->data, rank_stream()));
}

static int finish_home(session_t *session, lane_t *l)
{
    int w = l->home_finished++, ok;
    calls(session->self, "finish home", w);
    if (l->backward)
        ok = fine(session, "epx_dispatch_backward_finish",
                  epx_dispatch_backward_finish(l->plan, w, l->sum.data, floats(&l->dweight), rank_stream()));
    else
        ok = fine(session, "epx_combine_finish", epx_combine_finish(l->plan, w, l->sum.data, rank_stream()));
    if (ok && w + 1 == l->waves) {
        pass_check_sum(&l->pass, l->backward ? "dx" : "out", &l->sum, l->backward ? l->o->dx : l->o->out);
        if (l->backward)
            pass_check_dweight(&l->pass, &l->dweight);
        poison(l->sum.data, l->sum.bytes);
        poison(l->dweight.data, l->dweight.bytes);
        l->out_started = l->out_finished = l->home_started = l->home_finished = 0;
        l->passes++;
        l->waves = 0;
    }
    return ok;
}

/* Makes one call of this lane that the rules allow; every choice depends on the dice and the call order
 * alone. */
static int move(session_t *session, lane_t *l, dice_t *dice)
{
    session_problem(session, l->p);
    if (l->waves == 0) {
        l->backward = l->passes > 0 && dice_range(dice, 0, 1);
        if (l->passes == 0 || dice_range(dice, 0, 3) == 0) {
            if (!fine(session, "epx_plan_route", session_route(session, l->plan)))
                return 0;
            l->backward = 0; /* kept bits are learnt in a forward pass */
        }
        l->waves = epx_plan_waves(l->plan);
        return expect(session->self, l->waves == l->o->waves, "%d waves, not %d", l->waves, l->o->waves);
    }
    int (*able[4])(session_t *, lane_t *), count = 0;
    if (l->out_started < l->waves && l->out_started - l->home_finished < session->info.depth)
        able[count++] = start_out;
    if (l->out_finished < l->out_started)
        able[count++] = finish_out;
    if (l->home_started < l->out_finished)
        able[count++] = start_home;
    if (l->home_finished < l->home_started)
        able[count++] = finish_home;
    return able[dice_range(dice, 0, count - 1)](session, l);
}

static void board_rank(rank_t *self)
{
    const board_t *board = self->arg;
    dice_t dice = {board->seed};
    session_t session;
    lane_t lane[LANES];
    if (!session_open(&session, self, board->problem[0], NULL))
        return;
    for (int i = 0; i < LANES; i++)
        lane_new(&lane[i], &session, board, i);
    int ok = 1, left = LANES;
    while (ok && left > 0) {
        lane_t *l = &lane[dice_range(&dice, 0, LANES - 1)];
        if (l->passes < PASSES)
            ok = move(&session, l, &dice);
        left = 0;
        for (int i = 0; i < LANES; i++)
            left += lane[i].passes < PASSES;
    }
    if (!ok)
        epx_group_abort(session.group, "test failed");
    for (int i = 0; i < LANES; i++)
        lane_free(&lane[i], self);
    session_close(&session);
}

static void play(const arm_t *arm, uint64_t seed)
{
    board_t board = {.seed = seed};
    for (int i = 0; i < LANES; i++) {
        board.problem[i] = problem_new(arm, 2 + (int)seed % 3, 7, 2, 3, 6);
        board.problem[i]->lanes = LANES;
        board.problem[i]->depth = 1 + (int)seed % DEPTH_MAX;
        if (arm->kind != RING)
            board.problem[i]->arm.waves = 4;
        problem_inputs(board.problem[i], (pattern_t)(i == 2 ? SKEWED : UNIFORM), NULL,
                       seed * 10 + (uint64_t)i);
        board.oracle[i] = oracle_of(board.problem[i]);
    }
    world_note("%s, seed %d", arm->name, (int)seed);
    world_run(board.problem[0]->ranks, board_rank, &board);
    for (int i = 0; i < LANES; i++) {
        oracle_free(board.oracle[i]);
        problem_free(board.problem[i]);
    }
}

Test(random_lanes, starts_and_finishes_in_any_order)
{
    for (int arm = 0; arm < arms_count; arm++) {
        for (uint64_t seed = 1; seed <= 8; seed++)
            play(&arms[arm], seed);
    }
}
