/*
 * Exactness: equal calls give equal bits on any run; transports and wires agree. SPDX-License-Identifier:
 * Apache-2.0
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/drive.h"

TestSuite(exact, .init = clean_environment);

enum { RANKS = 3 };

typedef struct collect {
    problem_t *problem;
    oracle_t *oracle;
    schedule_t schedule;
    unsigned char *out[RANKS], *dx[RANKS];
    float *dweight[RANKS];
} collect_t;

static size_t out_bytes(const collect_t *c, int rank)
{
    return (size_t)c->problem->tokens[rank] * problem_row_bytes(c->problem);
}

static size_t weight_bytes(const collect_t *c, int rank)
{
    return (size_t)(c->problem->tokens[rank] * c->problem->columns) * 4;
}

/* To memory of the test's: a rank may be a process. from NULL: the pass failed. */
static void keep(void *to, const void *from, size_t bytes)
{
    if (from)
        memcpy(to, from, bytes);
}

static void collect_rank(rank_t *self)
{
    collect_t *c = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    if (!session_open(&session, self, c->problem, NULL))
        return;
    epx_plan_create(session.group, 0, NULL, &plan);
    pass_t pass = {.session = &session, .plan = plan, .o = c->oracle, .schedule = c->schedule};
    int ok = expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK);
    if (!ok || !pass_forward(&pass) || !pass_backward(&pass))
        epx_group_abort(session.group, "test failed");
    keep(c->out[self->rank], pass.out, out_bytes(c, self->rank));
    keep(c->dx[self->rank], pass.dx, out_bytes(c, self->rank));
    keep(c->dweight[self->rank], pass.dweight, weight_bytes(c, self->rank));
    pass_free(&pass);
    epx_plan_destroy(&plan);
    session_close(&session);
}

static void collect_run(collect_t *c)
{
    for (int r = 0; r < RANKS; r++) {
        c->out[r] = calloc(1, out_bytes(c, r));
        c->dx[r] = calloc(1, out_bytes(c, r));
        c->dweight[r] = calloc(1, weight_bytes(c, r));
    }
    world_run(RANKS, collect_rank, c);
}

static void collect(collect_t *c, const arm_t *arm, epx_type_t type, values_t values, pattern_t pattern,
                    uint64_t seed, int32_t sm_budget)
{
    char text[200];
    *c = (collect_t){.problem = problem_new(arm, RANKS, 7, 3, 9, 8)};
    c->problem->row_type = type;
    c->problem->values = values;
    c->problem->sm_budget = sm_budget;
    /* Spill columns must not change the dice: all arms here have none. */
    problem_inputs(c->problem, pattern, (int[]){8, 5, 7}, seed);
    c->oracle = oracle_of(c->problem);
    world_note("%s", problem_text(c->problem, text, sizeof(text)));
    collect_run(c);
}

static void collect_free(collect_t *c)
{
    for (int r = 0; r < RANKS; r++) {
        free(c->out[r]);
        free(c->dx[r]);
        free(c->dweight[r]);
    }
    oracle_free(c->oracle);
    problem_free(c->problem);
}

static void expect_equal(const collect_t *a, const collect_t *b)
{
    const problem_t *p = a->problem;
    for (int r = 0; r < RANKS; r++) {
        cr_assert_eq(memcmp(a->out[r], b->out[r], out_bytes(a, r)), 0, "out of rank %d: %s and %s differ", r,
                     p->arm.name, b->problem->arm.name);
        cr_assert_eq(memcmp(a->dx[r], b->dx[r], out_bytes(a, r)), 0, "dx of rank %d: %s and %s differ", r,
                     p->arm.name, b->problem->arm.name);
        cr_assert_eq(memcmp(a->dweight[r], b->dweight[r], (size_t)(p->tokens[r] * p->columns) * 4), 0,
                     "dweight of rank %d: %s and %s differ", r, p->arm.name, b->problem->arm.name);
    }
}

ParameterizedTestParameters(exact, two_runs_are_bit_equal) { return every_arm(); }

/* Nor does a budget of multiprocessors change a bit, with which sums are made in another order of calls. */
ParameterizedTest(int *arm, exact, two_runs_are_bit_equal)
{
    for (int type = EPX_FP32; type <= EPX_FP16; type++) {
        collect_t a, b;
        collect(&a, &arms[*arm], (epx_type_t)type, REAL, UNIFORM, 9, 0);
        collect(&b, &arms[*arm], (epx_type_t)type, REAL, UNIFORM, 9, 2);
        expect_equal(&a, &b);
        collect_free(&a);
        collect_free(&b);
    }
}

ParameterizedTestParameters(exact, the_order_of_calls_changes_no_bit) { return every_arm(); }

ParameterizedTest(int *arm, exact, the_order_of_calls_changes_no_bit)
{
    collect_t first, other;
    collect(&first, &arms[*arm], EPX_BF16, REAL, UNIFORM, 9, 0);
    for (int schedule = PIPELINED; schedule < SCHEDULES; schedule++) {
        first.problem->sm_budget = schedule % 2 == 0 ? 2 : 0;
        other =
            (collect_t){.problem = first.problem, .oracle = first.oracle, .schedule = (schedule_t)schedule};
        collect_run(&other);
        expect_equal(&first, &other);
        other.problem = NULL;
        for (int r = 0; r < RANKS; r++) {
            free(other.out[r]);
            free(other.dx[r]);
            free(other.dweight[r]);
        }
    }
    collect_free(&first);
}

static const char *const all_keep[] = {"pooled_wave_dropless", "ragged_dropless", "ragged_rank_dropless",
                                       "ring_dropless"};
enum { ALL_KEEP = sizeof(all_keep) / sizeof(all_keep[0]) };

/* Whole numbers that fit the type: every order of adding gives the same bits. */
Test(exact, transports_and_wires_agree_on_whole_numbers)
{
    for (int type = EPX_FP32; type <= EPX_FP16; type++) {
        collect_t c[ALL_KEEP];
        for (int i = 0; i < ALL_KEEP; i++)
            collect(&c[i], arm_named(all_keep[i]), (epx_type_t)type, WHOLE, type % 2 ? UNIFORM : HOLES, 17,
                    0);
        for (int i = 1; i < ALL_KEEP; i++)
            expect_equal(&c[0], &c[i]);
        for (int i = 0; i < ALL_KEEP; i++)
            collect_free(&c[i]);
    }
}

/* Half a step of the row type for each partial sum that the rank wire rounds, and of fp32 for each addition.
 */
static double allowed(const problem_t *p, const char *arm, double size)
{
    double half = p->row_type == EPX_FP32 ? 0x1p-24 : p->row_type == EPX_BF16 ? 0x1p-8 : 0x1p-11;
    double sums = size * (2 * p->columns * 0x1p-24);
    double partial = strstr(arm, "rank") ? size * half : 0;
    return sums + partial + 2 * size * half; /* and the two results are rounded once each */
}

static void expect_near(const collect_t *a, const collect_t *b)
{
    const problem_t *p = a->problem;
    for (int r = 0; r < RANKS; r++) {
        for (int64_t i = 0; i < p->tokens[r] * p->width; i++) {
            double size = 0; /* sum of the terms' sizes */
            for (int k = 0; k < p->columns; k++) {
                int64_t at = i / p->width * p->columns + k;
                size +=
                    fabs((double)p->weights[r][at] * (double)row_get(a->oracle->y[r], p->row_type,
                                                                     (size_t)(at * p->width + i % p->width)));
            }
            double x = (double)row_get(a->out[r], p->row_type, (size_t)i);
            double y = (double)row_get(b->out[r], p->row_type, (size_t)i);
            cr_assert(fabs(x - y) <= allowed(p, b->problem->arm.name, size),
                      "out[%d] of rank %d: %s %.9g, %s %.9g", (int)i, r, p->arm.name, x, b->problem->arm.name,
                      y);
        }
        /* One dot for each assignment, in one order, whoever makes it. */
        cr_assert_eq(memcmp(a->dweight[r], b->dweight[r], (size_t)(p->tokens[r] * p->columns) * 4), 0,
                     "dweight of rank %d: %s and %s differ", r, p->arm.name, b->problem->arm.name);
    }
}

Test(exact, transports_and_wires_agree_within_rounding)
{
    for (int type = EPX_FP32; type <= EPX_FP16; type++) {
        collect_t c[ALL_KEEP];
        for (int i = 0; i < ALL_KEEP; i++)
            collect(&c[i], arm_named(all_keep[i]), (epx_type_t)type, REAL, UNIFORM, 18, 0);
        for (int i = 1; i < ALL_KEEP; i++)
            expect_near(&c[0], &c[i]);
        for (int i = 0; i < ALL_KEEP; i++)
            collect_free(&c[i]);
    }
}

/* Dispatch alone is exact whatever the bytes mean: every pattern of 16 bits travels, signalling NaNs
 * included. */
Test(exact, every_16_bit_pattern_travels_unchanged)
{
    for (int a = 0; a < ALL_KEEP; a++) {
        problem_t *p = problem_new(arm_named(all_keep[a]), 2, 4, 2, 2048, 16);
        p->row_type = EPX_BF16;
        p->backward = EPX_BACKWARD_NONE;
        problem_inputs(p, UNIFORM, (int[]){16, 16}, 3);
        for (int r = 0; r < 2; r++) {
            for (size_t i = 0; i < 32768; i++) {
                uint16_t bits = (uint16_t)(i + (size_t)r * 32768);
                memcpy(p->x[r] + 2 * i, &bits, 2);
            }
        }
        problem_check(p, SERIAL);
    }
}
