/*
 * Who is kept by `ragged` and where rows stand: full receivers, uneven counts, virtual ranks.
 * SPDX-License-Identifier: Apache-2.0
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/drive.h"

TestSuite(ragged_rules, .init = clean_environment);

enum { RANKS_MAX = 8 };

/* Every setting of ragged that changes a layout. */
static arm_t arm_of(int i)
{
    return (arm_t){.name = "ragged",
                   .transport = "ragged",
                   .fabric = "local",
                   .device = "host",
                   .kind = RAGGED,
                   .waves = 1 + i % 4,
                   .accept = (epx_accept_t)(EPX_ACCEPT_PREFIX + i % 3),
                   .wire = i % 2 ? EPX_WIRE_RANK : EPX_WIRE_ASSIGNMENT,
                   .batch = i % 4 == 3 ? EPX_BATCH_INDEXED : EPX_BATCH_EXPANDED};
}

/* ---- statistics of one step of a group ---------------------------------------------------------------------------- */

typedef struct step {
    problem_t *problem;
    epx_plan_stats_t stats[RANKS_MAX];
    int64_t rows_max;
} step_t;

static void step_rank(rank_t *self)
{
    step_t *step = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    if (!session_open(&session, self, step->problem, NULL))
        return;
    epx_plan_create(session.group, 0, NULL, &plan);
    expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK);
    step->stats[self->rank] = (epx_plan_stats_t)EPX_PLAN_STATS_INIT;
    expect_status(self, "epx_plan_stats", epx_plan_stats(plan, &step->stats[self->rank], rank_stream()),
                  EPX_OK);
    if (self->rank == 0)
        step->rows_max = session.info.batch_rows_max;
    epx_plan_destroy(&plan);
    session_close(&session);
}

static step_t step_of(problem_t *p)
{
    step_t step = {.problem = p};
    world_run(p->ranks, step_rank, &step);
    return step;
}

/* ---- CASES 22 ------------------------------------------------------------------------------------------------------- */

/* Three ranks, three experts; all 24 assignments go to one, which has room for ceil(24 * 1 / 3) = 8. */
static void full_receiver(epx_accept_t accept, const int *tokens, const int *dropped)
{
    arm_t arm = arm_of(0);
    arm.accept = accept;
    problem_t *p = problem_new(&arm, 3, 3, 1, 2, 12);
    p->cf = 1;
    problem_inputs(p, ONE_EXPERT, tokens, 1);
    step_t step = step_of(p);
    for (int r = 0; r < 3; r++) {
        cr_assert_eq(step.stats[r].dropped_sender, dropped[r], "rank %d drops %d, not %d", r,
                     (int)step.stats[r].dropped_sender, dropped[r]);
        cr_assert_eq(step.stats[r].kept, r == 2 ? 8 : 0);
        cr_assert_eq(step.stats[r].dropped_receiver, 0);
    }
    problem_free(p);
}

/* 8 of 24 in equal shares: 2.67 each, the two largest remainders are equal and go to the lower senders: 3,
 * 3, 2. */
Test(ragged_rules, case22_fair_shares) { full_receiver(EPX_ACCEPT_FAIR, (int[]){8, 8, 8}, (int[]){5, 5, 6}); }

/* 8 of 24 among 12, 9 and 3: exactly 4, 3, 1. */
Test(ragged_rules, case22_fair_shares_in_proportion)
{
    full_receiver(EPX_ACCEPT_FAIR, (int[]){12, 9, 3}, (int[]){8, 6, 2});
}

/* The published behaviour: the first sender is served, the last ones pay. */
Test(ragged_rules, case22_prefix_serves_the_first)
{
    full_receiver(EPX_ACCEPT_PREFIX, (int[]){8, 8, 8}, (int[]){0, 8, 8});
}

/* ---- CASES 19, 21 ---------------------------------------------------------------------------------------------------- */

/* One rank has one token, one all, one none, and routers love a few experts: every row must still be where
 * the receiver looks. */
Test(ragged_rules, case19_uneven_counts_against_the_layout)
{
    static const int tokens[][RANKS_MAX] = {
        {1, 16}, {16, 0, 3}, {0, 1, 16, 5}, {2, 16, 1, 0, 7}, {16, 1, 1, 0, 0, 9}};
    static const int experts[] = {3, 7, 2, 12, 5};
    for (int i = 0; i < 40; i++) {
        int shape = i % 5;
        arm_t arm = arm_of(i);
        problem_t *p = problem_new(&arm, shape + 2, experts[shape], 3, 5, 16);
        p->row_align = i % 3 ? 1 : 4;
        p->cf = i % 7 ? 1.15 : 4; /* four times as much room as there are rows: CASES 21 */
        problem_inputs(p, (pattern_t)(i % PATTERNS), tokens[shape], 900 + (uint64_t)i);
        problem_check(p, (schedule_t)(i % SCHEDULES));
    }
}

/* ---- virtual ranks ----------------------------------------------------------------------------------------------------- */

/* The same step on `ranks` real ranks: tokens of 8 / ranks neighbours stand together. */
static problem_t *folded(const problem_t *eight, int ranks)
{
    int m = RANKS_MAX / ranks, tokens[RANKS_MAX];
    problem_t *p =
        problem_new(&eight->arm, ranks, eight->experts, eight->top_k, eight->width, eight->tokens_max * m);
    p->splits = m;
    p->cf = eight->cf;
    for (int r = 0; r < ranks; r++)
        tokens[r] = eight->tokens_max * m;
    problem_inputs(p, UNIFORM, tokens, 1);
    size_t cells = (size_t)(eight->tokens_max * eight->top_k);
    for (int v = 0; v < RANKS_MAX; v++)
        memcpy(p->ids[v / m] + (size_t)(v % m) * cells, eight->ids[v], cells * sizeof(int64_t));
    return p;
}

/* Eight ranks, and two or one that play eight: the same assignments are kept, rank by rank. */
Test(ragged_rules, virtual_ranks_drop_like_real_ones)
{
    for (int i = 0; i < 12; i++) {
        arm_t arm = arm_of(i);
        problem_t *eight = problem_new(&arm, RANKS_MAX, 16, 2, 3, 10);
        int all[RANKS_MAX] = {10, 10, 10, 10, 10, 10, 10, 10};
        eight->cf = 1;
        problem_inputs(eight, SKEWED, all, 70 + (uint64_t)i);
        step_t real = step_of(eight);
        int64_t dropped = 0;
        for (int ranks = 1; ranks <= 2; ranks++) {
            problem_t *p = folded(eight, ranks);
            step_t step = step_of(p);
            for (int r = 0; r < ranks; r++) {
                int64_t kept = 0, drops = 0;
                for (int v = r * RANKS_MAX / ranks; v < (r + 1) * RANKS_MAX / ranks; v++) {
                    kept += real.stats[v].kept;
                    drops += real.stats[v].dropped_sender;
                }
                cr_assert_eq(step.stats[r].kept, kept, "%d of %d ranks: kept %d, not %d", r, ranks,
                             (int)step.stats[r].kept, (int)kept);
                cr_assert_eq(step.stats[r].dropped_sender, drops);
                dropped += drops;
            }
            problem_check(p, (schedule_t)(i % SCHEDULES));
        }
        cr_assert_gt(dropped, 0, "the case drops nothing");
        problem_free(eight);
    }
}

/* Dropless: a rank that plays eight needs no more room than all rows together. */
Test(ragged_rules, dropless_rooms)
{
    arm_t arm = arm_of(0);
    arm.dropless = 1;
    problem_t *p = problem_new(&arm, 2, 16, 2, 3, 10);
    p->splits = 8;
    problem_inputs(p, ONE_EXPERT, (int[]){10, 9}, 3);
    step_t step = step_of(p);
    cr_assert_eq(step.rows_max, 2 * 10 * 2);
    cr_assert_eq(step.stats[1].kept, (10 + 9) * 2);
    problem_check(p, SPLIT);
}
