/*
 * EPX_CHECK with pooled_wave: what is damaged on the way is found where it arrives, and the error says whose
 * it is. The tests reach into the segment between a start and its finish. SPDX-License-Identifier: Apache-2.0
 */
#include <criterion/criterion.h>
#include <string.h>

#include "core/group_state.h"
#include "pooled_wave/internal.h"
#include "support/drive.h"

TestSuite(pooled_checks, .init = clean_environment);

enum { RANKS = 3, VICTIM = 2, SENDER = 0 };

typedef enum damage {
    NONE,
    ROW_MISSING, /* the pattern stands where a row should be */
    ROW_CHANGED, /* one bit of a row */
    HEADER_MISSING,
    TAG_CHANGED,
    LEFT_OUT /* SENDER's computation does not write a row of VICTIM's */
} damage_t;

typedef struct stage {
    problem_t *problem;
    oracle_t *oracle;
    damage_t damage;
    epx_move_t move;       /* on which way */
    const char *words[4];  /* what VICTIM's error must say */
    const char *at_sender; /* what SENDER's must say, or NULL */
} stage_t;

static epx_pooled_wave_t view(const session_t *session, epx_plan_h plan, epx_move_t move)
{
    epx_pooled_wave_t w = epx_pooled_view(session->group->transport, &plan->base, move, 0, NULL);
    epx_pooled_find_places(&w);
    return w;
}

static void spoil(unsigned char *row, int64_t bytes, damage_t damage)
{
    uint16_t pattern = 0x7fff;
    if (damage == ROW_CHANGED) {
        row[bytes / 2] ^= 4;
        return;
    }
    for (int64_t i = 0; i + 2 <= bytes; i += 2)
        memcpy(row + i, &pattern, sizeof(pattern));
}

/* The first row, or the header, that came from SENDER. */
static void spoil_incoming(const epx_pooled_wave_t *w, damage_t damage)
{
    const epx_pooled_side_map_t *side = &w->pooled->map.side[w->side];
    unsigned char *header = epx_pooled_incoming(w, side->header);
    header += SENDER * w->pooled->dims.header_bytes;
    if (damage == HEADER_MISSING) {
        spoil(header, w->pooled->dims.header_bytes, damage);
        return;
    }
    int64_t row_bytes = w->pooled->transport.env.shape->row_bytes, q = 0;
    uint16_t tag = 0;
    for (;; q++) {
        memcpy(&tag, header + 16 + 2 * q, sizeof(tag));
        if (tag != 0)
            break;
    }
    if (damage == TAG_CHANGED) {
        tag = 999;
        memcpy(header + 16 + 2 * q, &tag, sizeof(tag));
        return;
    }
    unsigned char *rows = epx_pooled_incoming(w, side->rows);
    spoil(rows + (SENDER * w->pooled->dims.slab_rows + q) * row_bytes, row_bytes, damage);
}

/* VICTIM's first assignment of wave 0 that SENDER owns and keeps. */
static const seat_t *victims_seat(const stage_t *stage)
{
    const problem_t *p = stage->problem;
    for (int64_t a = 0; a < p->tokens[VICTIM] * p->columns; a++) {
        const seat_t *seat = &stage->oracle->seat[VICTIM][a];
        if (seat->fate == KEPT && seat->wave == 0 && seat->owner == SENDER)
            return seat;
    }
    return NULL;
}

static void spoil_home(const epx_pooled_wave_t *w, const stage_t *stage)
{
    const seat_t *seat = victims_seat(stage);
    int64_t row_bytes = w->pooled->transport.env.shape->row_bytes;
    int64_t h = w->place[seat->token * stage->problem->columns + seat->k] - w->lo;
    spoil((unsigned char *)epx_pooled_home(w, w->pooled->map.home_rows, row_bytes) + h * row_bytes, row_bytes,
          stage->damage);
}

/* After a start, before the finish. */
static void meet_damage(session_t *session, epx_plan_h plan, const stage_t *stage, epx_move_t move)
{
    rank_t *self = session->self;
    world_meet(self); /* all have sent */
    if (self->rank == VICTIM && stage->move == move && stage->damage != LEFT_OUT && stage->damage != NONE) {
        epx_pooled_wave_t w = view(session, plan, move);
        if (move == EPX_MOVE_DISPATCH || move == EPX_MOVE_COMBINE_BACKWARD)
            spoil_incoming(&w, stage->damage);
        else
            spoil_home(&w, stage);
    }
    world_meet(self);
}

/* Whether the pass ends here: an error where one is wanted, with the right words, or one that a peer's has
 * caused. */
static int ends(session_t *session, const stage_t *stage, epx_move_t move, epx_status_t status)
{
    rank_t *self = session->self;
    if (stage->move != move || stage->damage == NONE) {
        expect_status(self, epx_move_name(move), status, EPX_OK);
        world_meet(self); /* nobody is ended by what another does next */
        return status != EPX_OK;
    }
    /* The group of a rank that has left a row out ends at once: its peers hear of that, or see the row first.
     */
    if (self->rank == VICTIM && !(stage->damage == LEFT_OUT && status == EPX_ERR_PEER)) {
        expect_status(self, epx_move_name(move), status, EPX_ERR_CORRUPT);
        for (int i = 0; i < 4 && stage->words[i]; i++)
            expect_text(self, epx_move_name(move), stage->words[i], NULL);
    }
    return 1;
}

/* The rows that go home; SENDER leaves VICTIM's out. */
static void rows_home(session_t *session, const stage_t *stage, epx_move_t move, buffer_t *rows,
                      const epx_batch_t *batch)
{
    size_t row = problem_row_bytes(stage->problem);
    for (int e = 0; e < batch->local_experts; e++)
        for (int64_t i = batch->expert_start[e]; i < batch->expert_start[e] + batch->expert_count[e]; i++)
            memcpy(rows->data + (size_t)i * row, (const unsigned char *)batch->rows + (size_t)i * row, row);
    if (stage->damage == LEFT_OUT && stage->move == move && session->self->rank == SENDER)
        spoil(rows->data + (size_t)victims_seat(stage)->place * row, (int64_t)row, ROW_MISSING);
}

static epx_status_t start_home(session_t *session, const stage_t *stage, epx_move_t move, epx_status_t status)
{
    rank_t *self = session->self;
    if (stage->damage == LEFT_OUT && stage->move == move && self->rank == SENDER) {
        expect_status(self, epx_move_name(move), status, EPX_ERR_CORRUPT);
        expect_text(self, epx_move_name(move), stage->at_sender, "rank 2", NULL);
        return EPX_OK;
    }
    return status;
}

/* Wave 0 of a pass with one wave. */
static void one_wave(session_t *session, epx_plan_h plan, const stage_t *stage, buffer_t *rows, buffer_t *sum)
{
    const problem_t *p = stage->problem;
    int rank = session->self->rank;
    epx_batch_t batch = EPX_BATCH_INIT, dy = EPX_BATCH_INIT;
    epx_status_t status = epx_dispatch_start(plan, 0, p->x[rank], &batch, rank_stream());
    meet_damage(session, plan, stage, EPX_MOVE_DISPATCH);
    if (status == EPX_OK)
        status = epx_dispatch_finish(plan, 0, &batch, rank_stream());
    if (ends(session, stage, EPX_MOVE_DISPATCH, status))
        return;
    rows_home(session, stage, EPX_MOVE_COMBINE, rows, &batch);
    status =
        start_home(session, stage, EPX_MOVE_COMBINE, epx_combine_start(plan, 0, rows->data, rank_stream()));
    meet_damage(session, plan, stage, EPX_MOVE_COMBINE);
    if (status == EPX_OK)
        status = epx_combine_finish(plan, 0, sum->data, rank_stream());
    if (ends(session, stage, EPX_MOVE_COMBINE, status))
        return;
    status = epx_combine_backward_start(plan, 0, p->dout[rank], rank_stream());
    meet_damage(session, plan, stage, EPX_MOVE_COMBINE_BACKWARD);
    if (status == EPX_OK)
        status = epx_combine_backward_finish(plan, 0, rows->data, &dy, rank_stream());
    if (ends(session, stage, EPX_MOVE_COMBINE_BACKWARD, status))
        return;
    rows_home(session, stage, EPX_MOVE_DISPATCH_BACKWARD, rows, &dy);
    status = start_home(session, stage, EPX_MOVE_DISPATCH_BACKWARD,
                        epx_dispatch_backward_start(plan, 0, rows->data, rank_stream()));
    meet_damage(session, plan, stage, EPX_MOVE_DISPATCH_BACKWARD);
    if (status == EPX_OK)
        status = epx_dispatch_backward_finish(plan, 0, sum->data, NULL, rank_stream());
    ends(session, stage, EPX_MOVE_DISPATCH_BACKWARD, status);
}

static void stage_rank(rank_t *self)
{
    const stage_t *stage = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    buffer_t rows, sum;
    if (!session_open(&session, self, stage->problem, NULL))
        return;
    buffer_new(&rows, (size_t)session.info.batch_rows_max * problem_row_bytes(stage->problem), 4);
    buffer_new(&sum, (size_t)stage->problem->tokens_max * problem_row_bytes(stage->problem), 4);
    epx_plan_create(session.group, 0, NULL, &plan);
    expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK);
    one_wave(&session, plan, stage, &rows, &sum);
    epx_plan_destroy(&plan);
    buffer_free(&rows, self, "rows");
    buffer_free(&sum, self, "sum");
    session_close(&session);
}

static void run_stage(epx_check_t check, epx_backward_t backward, stage_t stage)
{
    stage.problem = problem_new(arm_named("pooled_wave_1"), RANKS, 7, 2, 5, 9);
    stage.problem->check = check;
    stage.problem->backward = backward;
    stage.problem->timeout_ms = 5000;
    problem_inputs(stage.problem, UNIFORM, (int[]){9, 9, 9}, 21);
    stage.oracle = oracle_of(stage.problem);
    cr_assert_not_null(victims_seat(&stage));
    world_note("damage %d in %s", stage.damage, epx_move_name(stage.move));
    if (stage.damage != NONE)
        world_may_warn();
    world_run(RANKS, stage_rank, &stage);
    oracle_free(stage.oracle);
    problem_free(stage.problem);
}

static const epx_backward_t backwards[] = {EPX_BACKWARD_KEPT, EPX_BACKWARD_RECOMPUTE};

Test(pooled_checks, nothing_is_wrong)
{
    for (int i = 0; i < 2; i++) {
        run_stage(EPX_CHECK_CANARY, backwards[i], (stage_t){.damage = NONE});
        run_stage(EPX_CHECK_FULL, backwards[i], (stage_t){.damage = NONE});
    }
}

Test(pooled_checks, what_never_arrived)
{
    for (int i = 0; i < 2; i++)
        for (int move = 0; move < EPX_MOVES; move += 2) /* dispatch, combine_backward */
            run_stage(EPX_CHECK_CANARY, backwards[i],
                      (stage_t){.damage = ROW_MISSING,
                                .move = (epx_move_t)move,
                                .words = {"from rank 0", "of expert", "row ", "the exchange left it"}});
}

Test(pooled_checks, what_never_came_home)
{
    for (int move = 1; move < EPX_MOVES; move += 2) /* combine, dispatch_backward */
        run_stage(EPX_CHECK_CANARY, EPX_BACKWARD_KEPT,
                  (stage_t){.damage = ROW_MISSING,
                            .move = (epx_move_t)move,
                            .words = {"at rank 0", "of expert", "never came home", "the exchange left it"}});
}

Test(pooled_checks, what_the_callers_computation_left_out)
{
    for (int move = 1; move < EPX_MOVES; move += 2)
        run_stage(EPX_CHECK_CANARY, EPX_BACKWARD_KEPT,
                  (stage_t){.damage = LEFT_OUT,
                            .move = (epx_move_t)move,
                            .words = {"at rank 0", "of expert", "caller's computation of that rank"},
                            .at_sender = "the caller's computation left it out"});
}

Test(pooled_checks, a_changed_bit)
{
    for (int i = 0; i < 2; i++)
        for (int move = 0; move < EPX_MOVES; move++)
            run_stage(
                EPX_CHECK_FULL, backwards[i],
                (stage_t){.damage = ROW_CHANGED,
                          .move = (epx_move_t)move,
                          .words = {"rank 0", "of expert", "another checksum", "the exchange left it"}});
}

Test(pooled_checks, a_damaged_header)
{
    for (int move = 0; move < EPX_MOVES; move += 2) {
        run_stage(EPX_CHECK_CANARY, EPX_BACKWARD_KEPT,
                  (stage_t){.damage = HEADER_MISSING,
                            .move = (epx_move_t)move,
                            .words = {"header from rank 0", "the exchange left it"}});
        run_stage(EPX_CHECK_CANARY, EPX_BACKWARD_KEPT,
                  (stage_t){.damage = TAG_CHANGED,
                            .move = (epx_move_t)move,
                            .words = {"header from rank 0", "999", "the exchange left it"}});
    }
}
