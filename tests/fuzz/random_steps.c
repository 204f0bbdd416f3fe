/*
 * Random shapes, routings, orders of calls: whatever comes, the library does what the oracle says.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Each world is made from one seed, which every failure prints. A fixed list of seeds runs each time, and
 * some that come from the clock. TEST_SEED=n runs that one alone; TEST_SEEDS=n sets how many come from the
 * clock, and TEST_FIRST=n is the first of these in the clock's place.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "support/drive.h"

TestSuite(random_steps, .init = clean_environment);

enum { FIXED_SEEDS = 150, CLOCK_SEEDS = 50, FIXED_ON_GPU = 50, CLOCK_ON_GPU = 15, STEPS = 4 };

typedef struct life {
    dice_t dice; /* equal on all ranks: each has its own copy */
    problem_t *problem[STEPS];
    oracle_t *oracle[STEPS];
    int steps;
} life_t;

static int pick(dice_t *dice, const int *from, int count) { return from[dice_range(dice, 0, count - 1)]; }

#define PICK(dice, array) pick(dice, array, (int)(sizeof(array) / sizeof((array)[0])))

/* A shape; the steps of one life share it. ranks_wanted 0: any. */
static problem_t *shape(dice_t *dice, int ranks_wanted)
{
    static const int ranks[] = {1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8}, widths[] = {1, 2, 3, 7, 8, 16, 33, 100};
    static const int tokens[] = {1, 1, 2, 3, 5, 8, 13, 21, 40}, aligns[] = {1, 1, 1, 2, 5, 8, 32};
    static const double factors[] = {0.05, 0.5, 0.9, 1, 1.15, 1.15, 1.5, 4};
    const arm_t *arm = &arms[dice_range(dice, 0, arms_count - 1)];
    int drawn = PICK(dice, ranks), s = ranks_wanted > 0 ? ranks_wanted : drawn;
    int e = (int)dice_range(dice, 1, 14), k = (int)dice_range(dice, 1, e < 5 ? e : 5);
    problem_t *p = problem_new(arm, s, e, k, PICK(dice, widths), PICK(dice, tokens));
    if (arm->kind != RING)
        p->arm.waves = (int)dice_range(dice, 1, 5);
    p->row_type = (epx_type_t)dice_range(dice, EPX_FP32, EPX_FP16);
    p->out_type = dice_range(dice, 0, 1) ? EPX_FP32 : EPX_TYPE_DEFAULT;
    p->id_type = dice_range(dice, 0, 1) ? EPX_INT64 : EPX_INT32;
    p->row_align = PICK(dice, aligns);
    p->aux_bytes = dice_range(dice, 0, 3) ? 0 : (int)dice_range(dice, 1, 64);
    p->origin = (int)dice_range(dice, 0, 1);
    p->in_caller = dice_range(dice, 0, 4) == 0;
    p->lanes = (int)dice_range(dice, 1, 3);
    p->depth = (int)dice_range(dice, 1, 3);
    p->splits = dice_range(dice, 0, 3) ? 1 : (int)dice_range(dice, 2, 5);
    p->cf = factors[dice_range(dice, 0, 7)];
    p->cs = factors[dice_range(dice, 0, 7)];
    p->backward = dice_range(dice, 0, 2) ? EPX_BACKWARD_KEPT : EPX_BACKWARD_RECOMPUTE;
    p->check = dice_range(dice, 0, 5)   ? EPX_CHECK_DEFAULT
               : dice_range(dice, 0, 1) ? EPX_CHECK_CANARY
                                        : EPX_CHECK_FULL;
    if (dice_range(dice, 0, 3) == 0)
        problem_scatter_owners(p, dice_bits(dice));
    return p;
}

/* One rank's life: some plans on some lanes, routes and passes in an order that the dice give, equal on all
 * ranks. */
static int one_step(session_t *session, dice_t *dice, epx_plan_h plan, const oracle_t *o)
{
    const problem_t *p = session->p;
    int passes = (int)dice_range(dice, 1, 2);
    pass_t pass = {.session = session, .plan = plan, .o = o};
    int ok = expect_status(session->self, "epx_plan_route", session_route(session, plan), EPX_OK);
    for (int i = 0; ok && i < passes; i++) {
        pass.schedule = (schedule_t)dice_range(dice, 0, SCHEDULES - 1);
        pass.into = (int)dice_range(dice, 0, 1);
        pass.re_dispatch = p->backward == EPX_BACKWARD_RECOMPUTE ? (int)dice_range(dice, 0, 2) : 0;
        pass.no_dweight = dice_range(dice, 0, 5) == 0;
        ok = pass_forward(&pass);
        if (ok && i == 0)
            pass_stats(&pass);
        if (ok && dice_range(dice, 0, 2))
            ok = pass_backward(&pass);
    }
    pass_free(&pass);
    return ok;
}

static void life_rank(rank_t *self)
{
    const life_t *life = self->arg;
    dice_t dice = life->dice;
    session_t session;
    epx_plan_h plan[3] = {0};
    if (!session_open(&session, self, life->problem[0], NULL))
        return;
    int lanes = life->problem[0]->lanes, ok = 1;
    for (int i = 0; ok && i < lanes; i++)
        ok =
            expect_status(self, "epx_plan_create", epx_plan_create(session.group, i, NULL, &plan[i]), EPX_OK);
    for (int i = 0; ok && i < life->steps; i++) {
        session_problem(&session, life->problem[i]);
        ok = one_step(&session, &dice, plan[dice_range(&dice, 0, lanes - 1)], life->oracle[i]);
    }
    if (!ok)
        epx_group_abort(session.group, "test failed");
    for (int i = 0; i < 3; i++)
        epx_plan_destroy(&plan[i]);
    session_close(&session);
}

static void live(uint64_t seed, problem_t *first)
{
    char text[200];
    life_t life = {.dice = {seed}};
    life.problem[0] = first ? first : shape(&life.dice, 0);
    life.steps = (int)dice_range(&life.dice, 1, STEPS);
    for (int i = 0; i < life.steps; i++) {
        if (i > 0)
            life.problem[i] = problem_again(life.problem[0]);
        problem_inputs(life.problem[i], (pattern_t)dice_range(&life.dice, 0, PATTERNS - 1), NULL,
                       dice_bits(&life.dice));
    }
    world_note("TEST_SEED=%llu: %s", (unsigned long long)seed,
               problem_text(life.problem[0], text, sizeof(text)));
    for (int i = 0; i < life.steps; i++)
        life.oracle[i] = oracle_of(life.problem[i]);
    world_run(life.problem[0]->ranks, life_rank, &life);
    for (int i = 0; i < life.steps; i++) {
        oracle_free(life.oracle[i]);
        problem_free(life.problem[i]);
    }
}

static uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

/* A GPU takes as long to open a group as a processor takes for a life. */
static uint64_t on_gpu(uint64_t there, uint64_t elsewhere)
{
    const char *device = getenv("TEST_DEVICE");
    return device != NULL && strcmp(device, "cuda") == 0 ? there : elsewhere;
}

Test(random_steps, fixed_seeds)
{
    uint64_t only = number_of("TEST_SEED", 0);
    if (only) {
        live(only, NULL);
        return;
    }
    uint64_t most = on_gpu(FIXED_ON_GPU, FIXED_SEEDS);
    for (uint64_t seed = 1; seed <= most; seed++)
        live(seed, NULL);
}

Test(random_steps, seeds_of_the_clock)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t clock = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000,
             first = number_of("TEST_FIRST", clock),
             count = number_of("TEST_SEEDS", on_gpu(CLOCK_ON_GPU, CLOCK_SEEDS));
    if (number_of("TEST_SEED", 0))
        cr_skip_test("TEST_SEED asks for one seed alone");
    printf("seeds %llu to %llu\n", (unsigned long long)first, (unsigned long long)(first + count - 1));
    fflush(stdout); /* they are wanted most where the process ends */
    for (uint64_t seed = first; seed < first + count; seed++)
        live(seed, NULL);
}

/* Shapes that must be among them, with every arm. */
Test(random_steps, shapes_that_are_asked_for)
{
    static const struct {
        int ranks, experts, waves, tokens_max;
    } shapes[] = {{3, 7, 2, 9}, {4, 2, 2, 9}, {4, 12, 2, 9}, {3, 5, 3, 1}};
    if (number_of("TEST_SEED", 0))
        cr_skip_test("TEST_SEED asks for one seed alone");
    for (int arm = 0; arm < arms_count; arm++) {
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
            problem_t *p =
                problem_new(&arms[arm], shapes[i].ranks, shapes[i].experts, 2, 6, shapes[i].tokens_max);
            if (p->arm.kind != RING)
                p->arm.waves = shapes[i].waves;
            live(90000 + (uint64_t)arm * 10 + i, p);
        }
    }
}

/* Any shape at all, with the numbers of ranks that a GPU's tests are asked for. */
Test(random_steps, numbers_of_ranks)
{
    static const int numbers[] = {1, 2, 3, 8, 64};
    if (number_of("TEST_SEED", 0))
        cr_skip_test("TEST_SEED asks for one seed alone");
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        int lives = numbers[i] < 64 ? 8 : 3;
        for (int life = 0; life < lives; life++) {
            uint64_t seed = 80000 + (uint64_t)numbers[i] * 100 + (uint64_t)life;
            dice_t dice = {seed};
            live(seed, shape(&dice, numbers[i]));
        }
    }
}
