/*
 * Failed routes of pooled_wave: its peers learn of them in a dispatch, so what matters is what else happens
 * on the lane before. SPDX-License-Identifier: Apache-2.0
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <string.h>

#include "support/drive.h"

TestSuite(pooled_routes, .init = clean_environment);

enum { RANKS = 3, CULPRIT = 1, PLANS_MAX = 40 };

typedef struct stage {
    problem_t *problem;
    oracle_t *oracle;
    int plans;
    const char *bad; /* one letter a plan: 'b' for a bad routing at the culprit */
    int backwards;   /* passes in the opposite order of the routes */
    int skips;       /* the culprit, who knows already, leaves the dead plan's dispatch out */
    int sleeper;     /* which rank is late */
} stage_t;

static epx_status_t bad_route(session_t *session, epx_plan_h plan)
{
    buffer_t ids, weights;
    epx_routing_t routing = session_routing(session, &ids, &weights);
    int32_t id = session->p->experts;
    memcpy(ids.data, &id, sizeof(id));
    session->self->at = "a bad epx_plan_route";
    epx_status_t status = epx_plan_route(plan, &routing, rank_stream());
    buffer_free(&ids, session->self, "ids");
    buffer_free(&weights, session->self, "weights");
    return status;
}

/* Routes well, or badly at the culprit; nobody waits for anybody. */
static void route(session_t *session, epx_plan_h plan, int bad)
{
    rank_t *self = session->self;
    if (bad && self->rank == CULPRIT)
        expect_status(self, "a bad route", bad_route(session, plan), EPX_ERR_ROUTING);
    else
        expect_status(self, "epx_plan_route", session_route(session, plan), EPX_OK);
}

/* The first dispatch of a plan whose route failed at the culprit. */
static void dead_dispatch(session_t *session, epx_plan_h plan)
{
    rank_t *self = session->self;
    epx_batch_t batch = EPX_BATCH_INIT;
    self->at = "epx_dispatch of a dead plan";
    epx_status_t status = epx_dispatch(plan, 0, session->p->x[self->rank], &batch, rank_stream());
    expect_status(self, "epx_dispatch", status, self->rank == CULPRIT ? EPX_ERR_ROUTING : EPX_ERR_PEER);
    if (self->rank != CULPRIT)
        expect_text(self, "epx_dispatch", "rank 1", NULL);
}

static int leaves_out(const rank_t *self, const stage_t *stage)
{
    return stage->skips && self->rank == CULPRIT;
}

static void good_pass(session_t *session, epx_plan_h plan, const stage_t *stage)
{
    pass_t pass = {.session = session, .plan = plan, .o = stage->oracle};
    if (pass_forward(&pass) && pass_backward(&pass))
        pass_stats(&pass);
    pass_free(&pass);
}

static void nap(rank_t *self, const stage_t *stage)
{
    if (self->rank == stage->sleeper)
        sleep_ms(3);
}

static void end_stage(session_t *session)
{
    if (failures())
        epx_group_abort(session->group, "test failed");
    session_close(session);
}

/* All plans of one lane are routed ahead, then each has its pass; then the bad ones are routed well. */
static void ahead_rank(rank_t *self)
{
    const stage_t *stage = self->arg;
    session_t session;
    epx_plan_h plan[PLANS_MAX] = {0};
    if (!session_open(&session, self, stage->problem, NULL))
        return;
    for (int i = 0; i < stage->plans; i++)
        expect_status(self, "epx_plan_create", epx_plan_create(session.group, 0, NULL, &plan[i]), EPX_OK);
    for (int round = 0; round < 2 && !failures(); round++) {
        nap(self, stage);
        for (int i = 0; i < stage->plans; i++)
            route(&session, plan[i], stage->bad[i] == 'b');
        nap(self, stage);
        for (int i = 0; i < stage->plans && !failures(); i++) {
            int which = stage->backwards ? stage->plans - 1 - i : i;
            if (stage->bad[which] == 'b' && leaves_out(self, stage))
                continue;
            if (stage->bad[which] == 'b')
                dead_dispatch(&session, plan[which]);
            else
                good_pass(&session, plan[which], stage);
        }
        for (int i = 0; i < stage->plans && !failures(); i++) {
            if (stage->bad[i] != 'b')
                continue;
            route(&session, plan[i], 0);
            good_pass(&session, plan[i], stage);
        }
    }
    for (int i = 0; i < stage->plans; i++)
        epx_plan_destroy(&plan[i]);
    end_stage(&session);
}

static void run_stage(stage_t *stage, rank_fn fn)
{
    stage->problem = problem_new(arm_named("pooled_wave"), RANKS, 7, 2, 5, 9);
    problem_inputs(stage->problem, UNIFORM, (int[]){9, 7, 9}, 5);
    stage->oracle = oracle_of(stage->problem);
    for (stage->sleeper = 0; stage->sleeper < RANKS; stage->sleeper++) {
        world_note("rank %d sleeps", stage->sleeper);
        world_run(RANKS, fn, stage);
    }
    oracle_free(stage->oracle);
    problem_free(stage->problem);
}

Test(pooled_routes, plans_of_a_lane_do_not_take_each_other_for_failed)
{
    static const char *const patterns[] = {"ggb", "gbg", "bgg", "bb", "gbgbg", "bgbb", "bbbgb"};
    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
        for (int way = 0; way < 4; way++) {
            stage_t stage = {.plans = (int)strlen(patterns[i]),
                             .bad = patterns[i],
                             .backwards = way & 1,
                             .skips = way >> 1};
            run_stage(&stage, ahead_rank);
        }
    }
}

/* More routes ahead than a lane has rows of failure words: plans 1 and 33 share theirs. */
Test(pooled_routes, a_good_plan_shares_its_failure_words_with_a_bad_one)
{
    static const char pattern[] = "gggggggggggggggggggggggggggggggggbg";
    stage_t stage = {.plans = (int)sizeof(pattern) - 1, .bad = pattern};
    run_stage(&stage, ahead_rank);
}

/* Nobody dispatches in between: the ranks were told of the failure by other means, or route twice anyway. */
static void twice_rank(rank_t *self)
{
    const stage_t *stage = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    if (!session_open(&session, self, stage->problem, NULL))
        return;
    epx_plan_create(session.group, 0, NULL, &plan);
    for (int i = 0; stage->bad[i]; i++) {
        route(&session, plan, stage->bad[i] == 'b');
        nap(self, stage);
    }
    route(&session, plan, 0);
    good_pass(&session, plan, stage);
    epx_plan_destroy(&plan);
    end_stage(&session);
}

Test(pooled_routes, a_plan_is_routed_again_and_nobody_has_dispatched)
{
    static const char *const patterns[] = {"b", "bb", "g", "gb", "bgg", "gbb"};
    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
        stage_t stage = {.bad = patterns[i]};
        run_stage(&stage, twice_rank);
    }
}

/* The culprit throws its plan away where the others see their dispatch fail; all make a new one. */
static void anew_rank(rank_t *self)
{
    const stage_t *stage = self->arg;
    session_t session;
    if (!session_open(&session, self, stage->problem, NULL))
        return;
    for (int round = 0; round < 3 && !failures(); round++) {
        epx_plan_h plan = NULL;
        epx_plan_create(session.group, 0, NULL, &plan);
        nap(self, stage);
        route(&session, plan, 1);
        if (self->rank != CULPRIT)
            dead_dispatch(&session, plan);
        epx_plan_destroy(&plan);
        epx_plan_create(session.group, 0, NULL, &plan);
        nap(self, stage);
        route(&session, plan, 0);
        good_pass(&session, plan, stage);
        epx_plan_destroy(&plan);
    }
    end_stage(&session);
}

Test(pooled_routes, a_dead_plan_is_thrown_away_and_made_anew)
{
    stage_t stage = {.plans = 1};
    run_stage(&stage, anew_rank);
}

/* Starts ahead of finishes: two waves have been started when the first finish sees the failure. */
static void split_rank(rank_t *self)
{
    const stage_t *stage = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    if (!session_open(&session, self, stage->problem, NULL))
        return;
    epx_plan_create(session.group, 0, NULL, &plan);
    for (int round = 0; round < 3 && !failures(); round++) {
        epx_batch_t batch = EPX_BATCH_INIT;
        const unsigned char *x = stage->problem->x[self->rank];
        route(&session, plan, 1);
        nap(self, stage);
        if (self->rank != CULPRIT) {
            self->at = "epx_dispatch_start";
            expect_status(self, "start 0", epx_dispatch_start(plan, 0, x, &batch, rank_stream()), EPX_OK);
            expect_status(self, "start 1", epx_dispatch_start(plan, 1, x, &batch, rank_stream()), EPX_OK);
            self->at = "epx_dispatch_finish";
            expect_status(self, "finish 0", epx_dispatch_finish(plan, 0, &batch, rank_stream()),
                          EPX_ERR_PEER);
            expect_status(self, "finish 1", epx_dispatch_finish(plan, 1, &batch, rank_stream()),
                          EPX_ERR_PEER);
        } else {
            expect_status(self, "start 0", epx_dispatch_start(plan, 0, x, &batch, rank_stream()),
                          EPX_ERR_ROUTING);
        }
        route(&session, plan, 0);
        good_pass(&session, plan, stage);
    }
    epx_plan_destroy(&plan);
    end_stage(&session);
}

Test(pooled_routes, two_waves_are_started_when_the_failure_is_seen)
{
    stage_t stage = {.plans = 1};
    run_stage(&stage, split_rank);
}
