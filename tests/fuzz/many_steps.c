/*
 * One group for ten thousand steps with other tokens and another routing each time; and steps that nobody
 * waits for. SPDX-License-Identifier: Apache-2.0
 *
 * The seed is printed with every failure. TEST_STEPS=n sets how many; where the device is simulated or the
 * host itself there are fewer, since every step costs the processor what a GPU does for nothing.
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdlib.h>
#include <string.h>

#include "support/drive.h"

TestSuite(many_steps, .init = clean_environment);

enum {
    RANKS = 3,
    POOL = 40,
    STEPS_ON_GPU = 10000,
    STEPS = 2000,
    BURST_ON_GPU = 1000,
    BURST = 300,
    SEED = 71
};

typedef struct pool {
    problem_t *problem[POOL]; /* of one shape */
    oracle_t *oracle[POOL];
    int steps;
} pool_t;

static int count(int on_gpu, int here)
{
    const char *device = getenv("TEST_DEVICE"), *steps = getenv("TEST_STEPS");
    if (steps != NULL && atoi(steps) > 0)
        return atoi(steps);
    return device != NULL && strcmp(device, "cuda") == 0 ? on_gpu : here;
}

static void pool_new(pool_t *pool, const arm_t *arm, int width)
{
    for (int q = 0; q < POOL; q++) {
        problem_t *p = problem_new(arm, RANKS, 7, 2, width, 24);
        p->row_type = EPX_BF16;
        problem_inputs(p, (pattern_t)(q % PATTERNS), NULL, SEED * 1000 + (uint64_t)q);
        pool->problem[q] = p;
        pool->oracle[q] = oracle_of(p);
    }
}

static void pool_free(pool_t *pool)
{
    for (int q = 0; q < POOL; q++) {
        oracle_free(pool->oracle[q]);
        problem_free(pool->problem[q]);
    }
}

/* The plain ones, and the rank wire. */
static struct criterion_test_params four_arms(void)
{
    static int four[4] = {0, 1, 2};
    four[3] = (int)(arm_named("ragged_rank") - arms);
    int *params = cr_malloc(sizeof(four)); /* as Criterion's runner wants them */
    memcpy(params, four, sizeof(four));
    return cr_make_param_array(int, params, 4);
}

/* ---- every step is looked at ----------------------------------------------------------------------------------- */

static int one_step(session_t *session, epx_plan_h plan, const pool_t *pool, dice_t *dice)
{
    int q = (int)dice_range(dice, 0, POOL - 1), ok;
    pass_t pass = {.session = session, .plan = plan, .o = pool->oracle[q]};
    session_problem(session, pool->problem[q]);
    pass.schedule = (schedule_t)dice_range(dice, 0, SCHEDULES - 1);
    ok = expect_status(session->self, "epx_plan_route", session_route(session, plan), EPX_OK);
    ok = ok && pass_forward(&pass);
    if (ok && dice_range(dice, 0, 7) == 0)
        ok = pass_backward(&pass);
    pass_free(&pass);
    return ok;
}

static void steps_rank(rank_t *self)
{
    const pool_t *pool = self->arg;
    dice_t dice = {SEED}; /* equal on all ranks */
    session_t session;
    epx_plan_h plan[2] = {NULL, NULL};
    if (!session_open(&session, self, pool->problem[0], NULL))
        return;
    int ok = 1, step = 0;
    for (int i = 0; ok && i < 2; i++)
        ok =
            expect_status(self, "epx_plan_create", epx_plan_create(session.group, i, NULL, &plan[i]), EPX_OK);
    for (; ok && step < pool->steps; step++)
        ok = one_step(&session, plan[dice_range(&dice, 0, 1)], pool, &dice);
    expect(self, ok, "step %d of %d", step, pool->steps);
    if (!ok)
        epx_group_abort(session.group, "test failed");
    epx_plan_destroy(&plan[0]);
    epx_plan_destroy(&plan[1]);
    session_close(&session);
}

ParameterizedTestParameters(many_steps, other_tokens_and_routing_each) { return four_arms(); }

ParameterizedTest(int *arm, many_steps, other_tokens_and_routing_each)
{
    pool_t pool = {.steps = count(STEPS_ON_GPU, STEPS)};
    pool_new(&pool, &arms[*arm], 9);
    world_note("%s, seed %d, %d steps", arms[*arm].name, SEED, pool.steps);
    world_limit_s(120);
    world_run(RANKS, steps_rank, &pool);
    pool_free(&pool);
}

/* ---- nobody waits ---------------------------------------------------------------------------------------------- */

/* The inputs of one problem where the device reaches them, and what comes of them. */
typedef struct inputs {
    epx_routing_t routing;
    buffer_t ids, weights, x, wanted;
} inputs_t;

typedef struct burst {
    const pool_t *pool;
    session_t session;
    epx_plan_h plan[2]; /* on lanes of their own */
    inputs_t in[POOL];
    buffer_t *out; /* [steps] */
    int *which;    /* [steps] */
} burst_t;

/* A step whose experts hand back what they got; nothing is waited for. */
static epx_status_t echo(epx_plan_h plan, const inputs_t *in, void *out)
{
    epx_status_t status = epx_plan_route(plan, &in->routing, rank_stream());
    for (int w = 0; status == EPX_OK && w < epx_plan_waves(plan); w++) {
        epx_batch_t batch = EPX_BATCH_INIT;
        status = epx_dispatch(plan, w, in->x.data, &batch, rank_stream());
        if (status == EPX_OK)
            status = epx_combine(plan, w, batch.rows, out, rank_stream());
    }
    return status;
}

static size_t out_bytes(const pool_t *pool)
{
    return (size_t)pool->problem[0]->tokens_max * problem_row_bytes(pool->problem[0]);
}

/* Every problem once, each waited for. */
static int one_by_one(burst_t *b)
{
    int ok = 1, rank = b->session.self->rank;
    for (int q = 0; ok && q < POOL; q++) {
        inputs_t *in = &b->in[q];
        session_problem(&b->session, b->pool->problem[q]);
        buffer_new(&in->x, out_bytes(b->pool), 16);
        memcpy(in->x.data, b->pool->problem[q]->x[rank], in->x.bytes);
        buffer_new(&in->wanted, out_bytes(b->pool), 16);
        in->routing = session_routing(&b->session, &in->ids, &in->weights);
        ok = expect_status(b->session.self, "a step", echo(b->plan[0], in, in->wanted.data), EPX_OK);
    }
    return ok;
}

static int all_at_once(burst_t *b)
{
    dice_t dice = {SEED}; /* equal on all ranks */
    int ok = 1;
    for (int i = 0; i < b->pool->steps; i++)
        buffer_new(&b->out[i], out_bytes(b->pool), 16);
    for (int i = 0; ok && i < b->pool->steps; i++) {
        epx_plan_h plan = b->plan[dice_range(&dice, 0, 1)];
        b->which[i] = (int)dice_range(&dice, 0, POOL - 1);
        calls(b->session.self, "a step that nobody waits for", i);
        ok = expect_came(b->session.self, "a step that nobody waits for",
                         echo(plan, &b->in[b->which[i]], b->out[i].data), EPX_OK);
    }
    drained();
    return ok;
}

static void compare(burst_t *b)
{
    rank_t *self = b->session.self;
    for (int i = 0; i < b->pool->steps; i++) {
        int q = b->which[i];
        const problem_t *p = b->pool->problem[q];
        size_t bytes = (size_t)p->tokens[self->rank] * problem_row_bytes(p);
        expect(self, memcmp(b->out[i].data, b->in[q].wanted.data, bytes) == 0,
               "step %d (problem %d) differs from the same step on its own", i, q);
        buffer_free(&b->out[i], self, "out");
    }
    for (int q = 0; q < POOL; q++) {
        buffer_free(&b->in[q].ids, self, "ids");
        buffer_free(&b->in[q].weights, self, "weights");
        buffer_free(&b->in[q].x, self, "x");
        buffer_free(&b->in[q].wanted, self, "out");
    }
}

static void burst_rank(rank_t *self)
{
    burst_t *b = calloc(1, sizeof(*b));
    if (b == NULL)
        abort();
    b->pool = self->arg;
    b->out = calloc((size_t)b->pool->steps, sizeof(*b->out));
    b->which = calloc((size_t)b->pool->steps, sizeof(*b->which));
    if (b->out == NULL || b->which == NULL)
        abort();
    if (!session_open(&b->session, self, b->pool->problem[0], NULL))
        return;
    int ok = 1;
    for (int i = 0; ok && i < 2; i++)
        ok = expect_status(self, "epx_plan_create", epx_plan_create(b->session.group, i, NULL, &b->plan[i]),
                           EPX_OK);
    ok = ok && one_by_one(b) && all_at_once(b);
    if (ok)
        compare(b);
    else
        epx_group_abort(b->session.group, "test failed");
    epx_plan_destroy(&b->plan[0]);
    epx_plan_destroy(&b->plan[1]);
    session_close(&b->session);
    free(b->out);
    free(b->which);
    free(b);
}

ParameterizedTestParameters(many_steps, nobody_waits) { return four_arms(); }

ParameterizedTest(int *arm, many_steps, nobody_waits)
{
    pool_t pool = {.steps = count(BURST_ON_GPU, BURST)};
    pool_new(&pool, &arms[*arm], 64);
    world_note("%s, seed %d, %d steps", arms[*arm].name, SEED, pool.steps);
    world_run(RANKS, burst_rank, &pool);
    pool_free(&pool);
}
