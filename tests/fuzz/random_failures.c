/*
 * Random routes, some of them bad, on several plans and lanes: a good one after a bad one is always right.
 * SPDX-License-Identifier: Apache-2.0
 *
 * The oracle of this file is a word per plan: dead or alive. Each round one plan is routed, by some ranks
 * wrongly; then the plan makes a pass, or fails on every rank; other plans of the lane make passes in
 * between.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "support/drive.h"
#include "support/pieces.h"

TestSuite(random_failures, .init = clean_environment);

enum { RANKS = 3, PLANS = 4, ROUNDS = 24 };

typedef struct game {
    problem_t *problem;
    oracle_t *oracle;
    uint64_t seed;
} game_t;

static int counts_first(const problem_t *p)
{
    return p->arm.kind != POOLED_WAVE || p->arm.overflow == EPX_OVERFLOW_EXTRA_WAVE || !words_are_one_sided();
}

/* Whether bad ids are found by the device, after the call: every route gives EPX_OK then. */
static int found_later(const problem_t *p)
{
    return !on_host() && !(p->arm.kind == POOLED_WAVE && counts_first(p));
}

/* Routes badly or well; says what came. */
static epx_status_t route(session_t *session, epx_plan_h plan, int bad)
{
    buffer_t ids, weights;
    epx_routing_t routing = session_routing(session, &ids, &weights);
    int32_t id = session->p->experts;
    if (bad)
        memcpy(ids.data + 4, &id, sizeof(id));
    session->self->at = bad ? "a bad epx_plan_route" : "epx_plan_route";
    epx_status_t status = epx_plan_route(plan, &routing, rank_stream());
    buffer_free(&ids, session->self, "ids");
    buffer_free(&weights, session->self, "weights");
    return status;
}

/* The first dispatch of a plan whose route failed somewhere: nobody is left waiting. */
static void dead_dispatch(session_t *session, epx_plan_h plan, int bad)
{
    epx_batch_t batch = EPX_BATCH_INIT;
    session->self->at = "epx_dispatch of a dead plan";
    epx_status_t status = epx_dispatch(plan, 0, session->p->x[session->self->rank], &batch, rank_stream());
    expect_status(session->self, "epx_dispatch of a dead plan", status, bad ? EPX_ERR_ROUTING : EPX_ERR_PEER);
}

static int pass_of(session_t *session, epx_plan_h plan, const oracle_t *o, int schedule)
{
    pass_t pass = {.session = session, .plan = plan, .o = o, .schedule = (schedule_t)schedule};
    int ok = pass_forward(&pass) && pass_backward(&pass);
    pass_free(&pass);
    return ok;
}

static int play_round(session_t *session, const game_t *game, dice_t *dice, epx_plan_h *plan, int *alive)
{
    rank_t *self = session->self;
    int i = (int)dice_range(dice, 0, PLANS - 1), who = (int)dice_range(dice, 0, 3 * RANKS), bad[RANKS],
        any = 0;
    for (int r = 0; r < RANKS; r++)
        any |= bad[r] = who == r || (who == RANKS && dice_range(dice, 0, 1));
    int nap = (int)dice_range(dice, 0, RANKS + 2); /* one rank may be late */
    if (nap == self->rank)
        sleep_ms(2);
    epx_status_t status = route(session, plan[i], bad[self->rank]);
    int later = found_later(session->p);
    epx_status_t wanted = later                             ? EPX_OK
                          : bad[self->rank]                 ? EPX_ERR_ROUTING
                          : any && counts_first(session->p) ? EPX_ERR_PEER
                                                            : EPX_OK;
    if (!expect_status(self, "epx_plan_route", status, wanted))
        return 0;
    alive[i] = !any;
    if (nap == RANKS && self->rank == 0)
        sleep_ms(2);
    /* Another plan of any lane in between, when it is alive. */
    int other = (int)dice_range(dice, 0, PLANS - 1);
    if (other != i && alive[other] &&
        !pass_of(session, plan[other], game->oracle, (int)dice_range(dice, 0, 2)))
        return 0;
    if (any) {
        /* Who was told of its own failure may leave the dead plan alone; others learn of it by a dispatch. */
        int leaves_it = (int)dice_range(dice, 0, 1);
        if (later || !(bad[self->rank] && leaves_it))
            dead_dispatch(session, plan[i], bad[self->rank]);
        return 1;
    }
    return dice_range(dice, 0, 3) == 0 ||
           pass_of(session, plan[i], game->oracle, (int)dice_range(dice, 0, 2));
}

static void game_rank(rank_t *self)
{
    const game_t *game = self->arg;
    dice_t dice = {game->seed};
    session_t session;
    epx_plan_h plan[PLANS] = {0};
    int alive[PLANS] = {0}, ok = 1;
    if (!session_open(&session, self, game->problem, NULL))
        return;
    for (int i = 0; i < PLANS; i++)
        ok &= expect_status(self, "epx_plan_create", epx_plan_create(session.group, i % 2, NULL, &plan[i]),
                            EPX_OK);
    for (int round = 0; ok && round < ROUNDS; round++)
        ok = play_round(&session, game, &dice, plan, alive);
    if (!ok)
        epx_group_abort(session.group, "test failed");
    for (int i = 0; i < PLANS; i++)
        epx_plan_destroy(&plan[i]);
    session_close(&session);
}

Test(random_failures, good_routes_after_bad_ones)
{
    for (int arm = 0; arm < arms_count; arm++) {
        for (uint64_t seed = 1; seed <= 6; seed++) {
            game_t game = {.problem = problem_new(&arms[arm], RANKS, 7, 2, 3, 5), .seed = seed};
            game.problem->timeout_ms = 10000;
            problem_inputs(game.problem, UNIFORM, (int[]){5, 5, 5}, seed);
            game.oracle = oracle_of(game.problem);
            world_note("%s, seed %d", arms[arm].name, (int)seed);
            world_run(RANKS, game_rank, &game);
            oracle_free(game.oracle);
            problem_free(game.problem);
        }
    }
}
