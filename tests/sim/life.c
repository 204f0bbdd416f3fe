/*
 * A random shape, some plans on some lanes, steps in a random order of calls; now and then a rank ends the
 * group in the middle of a step, and all recover it. SPDX-License-Identifier: Apache-2.0
 */
#include "sim/life.h"

#include <stdio.h>
#include <stdlib.h>

#include "support/drive.h"

enum { STEPS = 3, RANKS_MAX = 4 };

typedef struct life {
    uint64_t seed;
    problem_t *problem[STEPS];
    oracle_t *oracle[STEPS];
    int steps;
    int broken_step; /* before which the group is ended and recovered, or -1 */
    int breaker;
    problem_t *bad; /* a step with an id that no expert has, on one rank; NULL: none */
    int bad_step;   /* before which it is tried */
} life_t;

static problem_t *shape(dice_t *dice, int only)
{
    static const double factors[] = {0.5, 0.9, 1.15, 1.15, 1.5, 4};
    const arm_t *arm;
    do
        arm = &arms[dice_range(dice, 0, arms_count - 1)];
    while (only >= 0 && (int)arm->kind != only);
    int s = (int)dice_range(dice, 2, RANKS_MAX), e = (int)dice_range(dice, 2, 6);
    int k = (int)dice_range(dice, 1, 2), t = (int)dice_range(dice, 1, 4);
    problem_t *p = problem_new(arm, s, e, k, (int)dice_range(dice, 1, 5), t);
    if (arm->kind != RING)
        p->arm.waves = (int)dice_range(dice, 1, 3);
    p->row_type = (epx_type_t)dice_range(dice, EPX_FP32, EPX_FP16);
    p->lanes = (int)dice_range(dice, 1, 2);
    p->depth = (int)dice_range(dice, 1, 2);
    p->cf = factors[dice_range(dice, 0, 5)];
    p->cs = factors[dice_range(dice, 0, 5)];
    p->backward = dice_range(dice, 0, 2) ? EPX_BACKWARD_KEPT : EPX_BACKWARD_RECOMPUTE;
    p->aux_bytes = dice_range(dice, 0, 3) ? 0 : 8;
    return p;
}

static int one_step(session_t *session, dice_t *dice, epx_plan_h plan, const oracle_t *o)
{
    int passes = (int)dice_range(dice, 1, 2);
    pass_t pass = {.session = session, .plan = plan, .o = o};
    int ok = expect_status(session->self, "epx_plan_route", session_route(session, plan), EPX_OK);
    for (int i = 0; ok && i < passes; i++) {
        pass.schedule = (schedule_t)dice_range(dice, 0, SCHEDULES - 1);
        pass.re_dispatch = session->p->backward == EPX_BACKWARD_RECOMPUTE ? (int)dice_range(dice, 0, 2) : 0;
        ok = pass_forward(&pass);
        if (ok && i == 0)
            pass_stats(&pass);
        if (ok && dice_range(dice, 0, 1))
            ok = pass_backward(&pass);
    }
    pass_free(&pass);
    return ok;
}

static int make_plans(session_t *session, epx_plan_h *plan, int lanes)
{
    int ok = 1;
    for (int i = 0; ok && i < lanes; i++) {
        epx_plan_destroy(&plan[i]);
        ok = expect_status(session->self, "epx_plan_create",
                           epx_plan_create(session->group, i, NULL, &plan[i]), EPX_OK);
    }
    return ok;
}

/* A step that does not come to its end: words and rows of it are on their way while the group is recovered.
 */
static int break_and_recover(session_t *session, epx_plan_h plan, const life_t *life)
{
    const problem_t *p = session->p;
    epx_batch_t batch = EPX_BATCH_INIT;
    int rank = session->self->rank;
    /* Who is through with the last step must not end it for others. */
    expect_status(session->self, "epx_comm_barrier", epx_comm_barrier(session->self->comm), EPX_OK);
    if (session_route(session, plan) == EPX_OK &&
        epx_dispatch_start(plan, 0, p->x[rank], &batch, NULL) == EPX_OK && rank != life->breaker)
        epx_dispatch_finish(plan, 0, &batch, NULL);
    if (rank == life->breaker)
        epx_group_abort(session->group, NULL);
    if (!expect_status(session->self, "epx_group_recover", epx_group_recover(session->group, NULL), EPX_OK))
        return 0;
    session->info = (epx_group_info_t)EPX_GROUP_INFO_INIT; /* its tables are new */
    return expect_status(session->self, "epx_group_info", epx_group_info(session->group, &session->info),
                         EPX_OK);
}

/* The rank with the bad id says so and goes on at once; the others learn of it, at the route or at their
 * first wait. */
static int route_badly(session_t *session, epx_plan_h plan, const life_t *life)
{
    epx_batch_t batch = EPX_BATCH_INIT;
    int rank = session->self->rank;
    session_problem(session, life->bad);
    epx_status_t status = session_route(session, plan);
    if (rank == life->breaker)
        return expect_came(session->self, "epx_plan_route", status, EPX_ERR_ROUTING);
    if (status == EPX_OK)
        status = epx_dispatch(plan, 0, life->bad->x[rank], &batch, NULL);
    return expect_came(session->self, "route or dispatch", status, EPX_ERR_PEER);
}

static void life_rank(void *arg)
{
    rank_t *self = arg;
    const life_t *life = self->arg;
    dice_t dice = {life->seed + 1};
    session_t session;
    epx_plan_h plan[2] = {0};
    int lanes = life->problem[0]->lanes;
    if (session_open(&session, self, life->problem[0], NULL)) {
        int ok = make_plans(&session, plan, lanes);
        for (int i = 0; ok && i < life->steps; i++) {
            epx_plan_h chosen;
            if (life->bad != NULL && i == life->bad_step)
                ok = route_badly(&session, plan[dice_range(&dice, 0, lanes - 1)], life);
            session_problem(&session, life->problem[i]);
            if (ok && i == life->broken_step)
                ok = break_and_recover(&session, plan[0], life) && make_plans(&session, plan, lanes);
            chosen = plan[dice_range(&dice, 0, lanes - 1)];
            if (ok)
                ok = one_step(&session, &dice, chosen, life->oracle[i]);
        }
        if (!ok)
            epx_group_abort(session.group, "test failed");
        for (int i = 0; i < 2; i++)
            epx_plan_destroy(&plan[i]);
        session_close(&session);
    }
    epx_comm_destroy(&self->comm);
}

static void make_life(life_t *life, dice_t *dice, int only)
{
    life->problem[0] = shape(dice, only);
    life->steps = (int)dice_range(dice, 1, STEPS);
    life->broken_step = dice_range(dice, 0, 3) == 0 ? (int)dice_range(dice, 0, life->steps - 1) : -1;
    life->breaker = (int)dice_range(dice, 0, life->problem[0]->ranks - 1);
    for (int i = 0; i < life->steps; i++) {
        if (i > 0)
            life->problem[i] = problem_again(life->problem[0]);
        problem_inputs(life->problem[i], (pattern_t)dice_range(dice, 0, PATTERNS - 1), NULL, dice_bits(dice));
        life->oracle[i] = oracle_of(life->problem[i]);
    }
    if (dice_range(dice, 0, 2) > 0)
        return;
    int tokens[RANKS_MAX] = {1, 1, 1, 1};
    life->bad = problem_again(life->problem[0]);
    life->bad_step = (int)dice_range(dice, 0, life->steps - 1);
    problem_inputs(life->bad, UNIFORM, tokens, dice_bits(dice));
    life->bad->ids[life->breaker][0] = life->bad->experts;
}

life_result_t life_play(uint64_t seed, sim_mutant_t mutant, int only)
{
    life_result_t result = {0};
    dice_t dice = {seed};
    life_t life = {.seed = seed};
    make_life(&life, &dice, only);
    int ranks = life.problem[0]->ranks, before = failures();
    rank_t rank[RANKS_MAX];
    void *args[RANKS_MAX];
    epx_comm_h comm[RANKS_MAX];
    problem_text(life.problem[0], result.text, sizeof(result.text));
    if (!expect(NULL, epx_comm_threads(ranks, comm) == EPX_OK, "epx_comm_threads: %s", epx_last_error()))
        return result;
    for (int r = 0; r < ranks; r++) {
        rank[r] = (rank_t){.rank = r, .ranks = ranks, .comm = comm[r], .arg = &life, .at = "start"};
        args[r] = &rank[r];
    }
    sim_fabric_use(mutant);
    result.end = sim_run(seed, ranks, life_rank, args, 3000000);
    sim_fabric_leave();
    for (int r = 0; r < ranks && result.end != SIM_ENDED; r++)
        expect(&rank[r], 0, "%s in %s %d", result.end == SIM_DEADLOCK ? "waits for ever" : "did not end",
               rank[r].at, rank[r].number);
    result.failures = failures() - before;
    result.trace = sim_trace();
    result.turns = sim_turns();
    if (life.bad != NULL)
        problem_free(life.bad);
    for (int i = 0; i < life.steps; i++) {
        oracle_free(life.oracle[i]);
        problem_free(life.problem[i]);
    }
    return result;
}
