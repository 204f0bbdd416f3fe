/*
 * What a plan of pooled_wave learns and keeps: kept bits, extra waves, statistics. SPDX-License-Identifier:
 * Apache-2.0
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "support/drive.h"

TestSuite(pooled_plans, .init = clean_environment);

enum { RANKS = 3 };

/* An arm with both gates tight, so that all three fates happen. */
static problem_t *tight_problem(const char *arm, int splits, uint64_t seed)
{
    problem_t *p = problem_new(arm_named(arm), RANKS, 7, 3, 6, 24);
    p->splits = splits;
    p->cf = 0.8;
    p->cs = 0.9;
    problem_inputs(p, SKEWED, (int[]){24, 20, 23}, seed);
    return p;
}

static int count_fate(const oracle_t *o, fate_t fate)
{
    int count = 0;
    for (int s = 0; s < o->p->ranks; s++)
        for (int64_t a = 0; a < o->p->tokens[s] * o->p->columns; a++)
            count += o->seat[s][a].fate == fate;
    return count;
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

typedef struct copies {
    problem_t *problem;
    oracle_t *oracle;
} copies_t;

static epx_plan_h attach_copy(session_t *session, epx_plan_h plan, int lane, void **memory_p)
{
    size_t bytes = epx_plan_bytes(session->group);
    epx_plan_h copy = NULL;
    *memory_p = aligned_alloc(256, bytes);
    memcpy(*memory_p, epx_plan_memory(plan), bytes);
    expect_status(session->self, "epx_plan_attach", epx_plan_attach(session->group, lane, *memory_p, &copy),
                  EPX_OK);
    return copy;
}

static void drop_copy(epx_plan_h *plan, void *memory)
{
    epx_plan_destroy(plan);
    free(memory);
}

/* Bytes that were copied too early: no backward pass, and an error that says why; a forward pass teaches
 * them. */
static void too_early(session_t *session, epx_plan_h copy, const oracle_t *o)
{
    rank_t *self = session->self;
    wave_buffers_t wave;
    wave_new(&wave, session);
    epx_batch_t batch = EPX_BATCH_INIT;
    pass_t pass = {.session = session, .plan = copy, .o = o};
    self->at = "epx_combine_backward too early";
    expect_status(
        self, "epx_combine_backward of bytes copied too early",
        epx_combine_backward(copy, 0, session->p->dout[self->rank], wave.y.data, &batch, rank_stream()),
        EPX_ERR_ARG);
    expect_text(self, "epx_combine_backward", "forward pass", "kept", NULL);
    wave_free(&wave, self);
    if (pass_forward(&pass)) {
        pass_stats(&pass);
        pass_backward(&pass);
    }
    pass_free(&pass);
}

static void copies_rank(rank_t *self)
{
    const copies_t *c = self->arg;
    session_t session;
    epx_plan_h plan = NULL, early, middle = NULL, late;
    void *memory[3] = {NULL, NULL, NULL};
    if (!session_open(&session, self, c->problem, NULL))
        return;
    epx_plan_create(session.group, 0, NULL, &plan);
    expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK);
    early = attach_copy(&session, plan, 1, &memory[0]);

    /* One forward pass by hand, with a copy between the dispatch and the combine of the last wave. */
    pass_t pass = {.session = &session, .plan = plan, .o = c->oracle};
    buffer_t out;
    buffer_new(&out, (size_t)c->problem->tokens_max * problem_row_bytes(c->problem), 4);
    int waves = epx_plan_waves(plan);
    for (int w = 0; w < waves && !failures(); w++) {
        wave_buffers_t wave;
        wave_new(&wave, &session);
        epx_batch_t batch = wave_batch(&pass, &wave);
        calls(self, "epx_dispatch", w);
        expect_status(self, "epx_dispatch",
                      epx_dispatch(plan, w, c->problem->x[self->rank], &batch, rank_stream()), EPX_OK);
        wave_expert(&pass, w, &batch, wave.y.data);
        if (w == waves - 1)
            middle = attach_copy(&session, plan, 1, &memory[1]);
        calls(self, "epx_combine", w);
        expect_status(self, "epx_combine", epx_combine(plan, w, wave.y.data, out.data, rank_stream()),
                      EPX_OK);
        wave_free(&wave, self);
    }
    pass_check_sum(&pass, "out", &out, c->oracle->out);
    buffer_free(&out, self, "out");
    late = attach_copy(&session, plan, 0, &memory[2]);

    if (!failures())
        too_early(&session, early, c->oracle);
    if (!failures())
        too_early(&session, middle, c->oracle);
    /* The bytes copied behind the last combine know all, on any lane, and when the first plan is gone. */
    epx_plan_destroy(&plan);
    pass.plan = late;
    if (!failures() && pass_backward(&pass))
        pass_stats(&pass);
    pass_free(&pass);
    if (failures())
        epx_group_abort(session.group, "test failed");
    drop_copy(&early, memory[0]);
    drop_copy(&middle, memory[1]);
    drop_copy(&late, memory[2]);
    session_close(&session);
}

Test(pooled_plans, copied_bytes_know_what_the_first_pass_has_taught_until_then)
{
    static const char *const names[] = {"pooled_wave", "pooled_wave_spill", "pooled_wave_extra",
                                        "pooled_wave_dropless"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        copies_t c = {.problem = tight_problem(names[i], 1, 11)};
        c.oracle = oracle_of(c.problem);
        world_note("%s", names[i]);
        world_run(RANKS, copies_rank, &c);
        oracle_free(c.oracle);
        problem_free(c.problem);
    }
}

/* ---- what was refused ---------------------------------------------------------------------------------------------- */

/* Every slot of the lane carries NaN in a first pass; what a second plan is refused must not bring any of it
 * home. */
static void refused_rank(rank_t *self)
{
    const copies_t *c = self->arg;
    session_t session;
    epx_plan_h plan[2] = {NULL, NULL};
    if (!session_open(&session, self, c->problem, NULL))
        return;
    size_t row = problem_row_bytes(c->problem);
    unsigned char *x = malloc((size_t)c->problem->tokens_max * row);
    float *sum = malloc((size_t)c->problem->tokens_max * row);
    for (size_t i = 0; i < (size_t)c->problem->tokens_max * (size_t)c->problem->width; i++)
        row_set(x, EPX_FP32, i, __builtin_nanf(""));
    for (int i = 0; i < 2; i++) {
        epx_plan_create(session.group, 0, NULL, &plan[i]);
        expect_status(self, "epx_plan_route", session_route(&session, plan[i]), EPX_OK);
    }
    for (int w = 0; w < epx_plan_waves(plan[0]) && !failures(); w++) {
        epx_batch_t batch = EPX_BATCH_INIT;
        calls(self, "a pass of NaN", w);
        expect_status(self, "epx_dispatch", epx_dispatch(plan[0], w, x, &batch, rank_stream()), EPX_OK);
        expect_status(self, "epx_combine", epx_combine(plan[0], w, batch.rows, sum, rank_stream()), EPX_OK);
    }
    pass_t pass = {.session = &session, .plan = plan[1], .o = c->oracle};
    if (!failures() && pass_forward(&pass))
        pass_backward(&pass);
    pass_free(&pass);
    if (failures())
        epx_group_abort(session.group, "test failed");
    epx_plan_destroy(&plan[0]);
    epx_plan_destroy(&plan[1]);
    free(x);
    free(sum);
    session_close(&session);
}

Test(pooled_plans, a_refused_slot_is_skipped_and_not_multiplied_by_zero)
{
    copies_t c = {.problem = tight_problem("pooled_wave", 1, 12)};
    c.oracle = oracle_of(c.problem);
    cr_assert(count_fate(c.oracle, REFUSED_RECEIVER) > 0 && count_fate(c.oracle, REFUSED) > 0,
              "gates are not tight");
    world_run(RANKS, refused_rank, &c);
    oracle_free(c.oracle);
    problem_free(c.problem);
}

/* ---- spill, extra_wave ----------------------------------------------------------------------------------------------- */

Test(pooled_plans, spill_takes_other_choices)
{
    for (int splits = 1; splits <= 4; splits++) {
        problem_t *p = tight_problem("pooled_wave_spill", splits, 13);
        oracle_t *o = oracle_of(p);
        cr_assert(count_fate(o, REPLACED) > 0, "nothing spills");
        trial_run(&(trial_t){.problem = p, .oracle = o, .backward = 1, .passes = 2});
        oracle_free(o);
        problem_free(p);
    }
}

/* One plan, routings of many and of few waves in turn: its bytes and address stay, and so do its neighbours'
 * passes. */
typedef struct growth {
    problem_t *problem[3];
    oracle_t *oracle[3];
} growth_t;

static void growth_rank(rank_t *self)
{
    const growth_t *g = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    if (!session_open(&session, self, g->problem[0], NULL))
        return;
    size_t bytes = epx_plan_bytes(session.group);
    epx_plan_create(session.group, 1, NULL, &plan);
    expect(self, epx_plan_waves(plan) == 0, "epx_plan_waves is %d before any route", epx_plan_waves(plan));
    for (int i = 0; i < 9 && !failures(); i++) {
        session_problem(&session, g->problem[i % 3]);
        expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK);
        expect(self, epx_plan_bytes(session.group) == bytes, "a plan's bytes have grown");
        pass_t pass = {.session = &session,
                       .plan = plan,
                       .o = g->oracle[i % 3],
                       .schedule = (schedule_t)(i % SCHEDULES)};
        if (pass_forward(&pass) && pass_backward(&pass))
            pass_stats(&pass);
        pass_free(&pass);
    }
    if (failures())
        epx_group_abort(session.group, "test failed");
    epx_plan_destroy(&plan);
    session_close(&session);
}

Test(pooled_plans, extra_waves_come_and_go_in_one_plan)
{
    static const pattern_t patterns[] = {ONE_EXPERT, NOTHING, SKEWED};
    for (int splits = 1; splits <= 3; splits++) {
        growth_t g;
        for (int i = 0; i < 3; i++) {
            g.problem[i] = problem_new(arm_named("pooled_wave_extra"), RANKS, 7, 3, 6, 24);
            g.problem[i]->splits = splits;
            g.problem[i]->cf = g.problem[i]->cs = 0.5;
            problem_inputs(g.problem[i], patterns[i], (int[]){24, 0, 17}, 14);
            g.oracle[i] = oracle_of(g.problem[i]);
        }
        cr_assert_gt(g.oracle[0]->waves, 6);
        cr_assert_eq(g.oracle[1]->waves, 1);
        world_run(RANKS, growth_rank, &g);
        for (int i = 0; i < 3; i++) {
            oracle_free(g.oracle[i]);
            problem_free(g.problem[i]);
        }
    }
}

/* ---- statistics -------------------------------------------------------------------------------------------------------- */

typedef struct tally {
    problem_t *problem;
    oracle_t *oracle;
    epx_plan_stats_t stats[RANKS];
} tally_t;

static void tally_rank(rank_t *self)
{
    tally_t *t = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    if (!session_open(&session, self, t->problem, NULL))
        return;
    epx_plan_create(session.group, 0, NULL, &plan);
    expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK);
    pass_t pass = {.session = &session, .plan = plan, .o = t->oracle};
    pass_forward(&pass);
    t->stats[self->rank] = (epx_plan_stats_t)EPX_PLAN_STATS_INIT;
    expect_status(self, "epx_plan_stats", epx_plan_stats(plan, &t->stats[self->rank], rank_stream()), EPX_OK);
    int64_t kept = t->stats[self->rank].kept;
    pass_forward(&pass);
    pass_free(&pass);
    epx_plan_stats_t again = EPX_PLAN_STATS_INIT;
    expect_status(self, "epx_plan_stats", epx_plan_stats(plan, &again, rank_stream()), EPX_OK);
    expect(self, again.kept == kept, "a second pass has counted again");
    expect(self, again.sent_bytes == 2 * t->stats[self->rank].sent_bytes, "bytes are those of all passes");
    if (failures())
        epx_group_abort(session.group, "test failed");
    epx_plan_destroy(&plan);
    session_close(&session);
}

Test(pooled_plans, statistics_add_up_over_the_group)
{
    static const char *const names[] = {"pooled_wave", "pooled_wave_1", "pooled_wave_spill",
                                        "pooled_wave_extra", "pooled_wave_dropless"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        for (int splits = 1; splits <= 5; splits += 2) {
            tally_t t = {.problem = tight_problem(names[i], splits, 15)};
            epx_plan_stats_t sum = {0};
            t.oracle = oracle_of(t.problem);
            world_note("%s, %d virtual ranks each", names[i], splits);
            world_run(RANKS, tally_rank, &t);
            for (int r = 0; r < RANKS; r++) {
                sum.routed += t.stats[r].routed;
                sum.skipped += t.stats[r].skipped;
                sum.kept += t.stats[r].kept;
                sum.dropped_sender += t.stats[r].dropped_sender;
                sum.dropped_receiver += t.stats[r].dropped_receiver;
                sum.sent_bytes += t.stats[r].sent_bytes - t.stats[r].received_bytes;
                sum.sent_meta_bytes += t.stats[r].sent_meta_bytes - t.stats[r].received_meta_bytes;
            }
            cr_expect_eq(sum.routed + sum.skipped, (24 + 20 + 23) * 3);
            cr_expect_eq(sum.routed, sum.kept + sum.dropped_sender + sum.dropped_receiver);
            cr_expect(sum.sent_bytes == 0 && sum.sent_meta_bytes == 0, "what is sent is what is received");
            oracle_free(t.oracle);
            problem_free(t.problem);
        }
    }
}
