/*
 * Calls out of order, of waves that are not, with pointers that are missing: each is refused, changes
 * nothing, and a whole good pass goes well behind it. SPDX-License-Identifier: Apache-2.0
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdlib.h>

#include "support/drive.h"

TestSuite(call_order, .init = clean_environment);

enum { RANKS = 2 };

/* What the data calls of these tests use. */
typedef struct desk {
    session_t session;
    epx_plan_h plan, other, far; /* other: same lane; far: lane 1 */
    const unsigned char *x, *dout;
    wave_buffers_t wave;
    epx_batch_t batch;
    buffer_t out, dweight;
    float *dw;
} desk_t;

typedef struct bench {
    problem_t *problem;
    oracle_t *oracle;
} bench_t;

static int desk_open(desk_t *d, rank_t *self, const bench_t *b)
{
    *d = (desk_t){0};
    if (!session_open(&d->session, self, b->problem, NULL))
        return 0;
    wave_new(&d->wave, &d->session);
    buffer_new(&d->out, 8 * problem_row_bytes(b->problem), 4);
    buffer_new(&d->dweight, 8 * (size_t)b->problem->columns * 4, 4);
    d->dw = (float *)(void *)d->dweight.data;
    d->x = b->problem->x[self->rank];
    d->dout = b->problem->dout[self->rank];
    d->batch = (epx_batch_t)EPX_BATCH_INIT;
    epx_plan_create(d->session.group, 0, NULL, &d->plan);
    epx_plan_create(d->session.group, 0, NULL, &d->other);
    epx_plan_create(d->session.group, 1, NULL, &d->far);
    return 1;
}

static void desk_close(desk_t *d, rank_t *self)
{
    wave_free(&d->wave, self);
    buffer_free(&d->out, self, "out");
    buffer_free(&d->dweight, self, "dweight");
    epx_plan_destroy(&d->plan);
    epx_plan_destroy(&d->other);
    epx_plan_destroy(&d->far);
    if (failures())
        epx_group_abort(d->session.group, "test failed");
    session_close(&d->session);
}

static void refused(desk_t *d, const char *what, epx_status_t status)
{
    expect_status(d->session.self, what, status, EPX_ERR_ARG);
    expect(d->session.self, epx_last_error()[0] != 0, "%s: no text", what);
}

static void fine(desk_t *d, const char *what, epx_status_t status)
{
    expect_status(d->session.self, what, status, EPX_OK);
}

/* A whole good pass, so that a refused call is seen to have changed nothing. */
static void good_pass(desk_t *d, epx_plan_h plan, const bench_t *b, int backward)
{
    if (failures())
        return;
    pass_t pass = {.session = &d->session, .plan = plan, .o = b->oracle};
    if (pass_forward(&pass) && backward)
        pass_backward(&pass);
    pass_free(&pass);
}

static void run_bench(const arm_t *arm, rank_fn fn, epx_backward_t backward, int in_caller)
{
    bench_t b = {.problem = problem_new(arm, RANKS, 7, 2, 5, 8)};
    b.problem->backward = backward;
    b.problem->in_caller = in_caller;
    b.problem->depth = 1;
    problem_inputs(b.problem, UNIFORM, (int[]){8, 8}, 44);
    b.oracle = oracle_of(b.problem);
    world_note("%s", arm->name);
    world_run(RANKS, fn, &b);
    oracle_free(b.oracle);
    problem_free(b.problem);
}

static void before_route(desk_t *d)
{
    epx_plan_stats_t stats = EPX_PLAN_STATS_INIT;
    refused(d, "epx_dispatch before a route", epx_dispatch(d->plan, 0, d->x, &d->batch, rank_stream()));
    refused(d, "epx_combine before a route",
            epx_combine(d->plan, 0, d->wave.y.data, d->out.data, rank_stream()));
    refused(d, "epx_combine_backward before a route",
            epx_combine_backward(d->plan, 0, d->dout, d->wave.y.data, &d->batch, rank_stream()));
    refused(d, "epx_dispatch_backward before a route",
            epx_dispatch_backward(d->plan, 0, d->wave.y.data, d->out.data, d->dw, rank_stream()));
    refused(d, "epx_plan_stats before a route", epx_plan_stats(d->plan, &stats, rank_stream()));
}

static void wrong_waves(desk_t *d, int waves)
{
    refused(d, "epx_dispatch of wave -1", epx_dispatch(d->plan, -1, d->x, &d->batch, rank_stream()));
    refused(d, "epx_dispatch of a wave too many",
            epx_dispatch(d->plan, waves, d->x, &d->batch, rank_stream()));
    refused(d, "epx_combine of wave -1",
            epx_combine(d->plan, -1, d->wave.y.data, d->out.data, rank_stream()));
    refused(d, "epx_combine of a wave too many",
            epx_combine(d->plan, waves, d->wave.y.data, d->out.data, rank_stream()));
    refused(d, "epx_combine_backward of a wave too many",
            epx_combine_backward(d->plan, waves, d->dout, d->wave.y.data, &d->batch, rank_stream()));
    refused(d, "epx_dispatch_backward of wave INT_MIN",
            epx_dispatch_backward(d->plan, INT32_MIN, d->wave.y.data, d->out.data, d->dw, rank_stream()));
    if (waves > 1)
        refused(d, "epx_dispatch of wave 1 first", epx_dispatch(d->plan, 1, d->x, &d->batch, rank_stream()));
    refused(d, "epx_check_poison of a wave too many",
            epx_check_poison(d->plan, waves, d->wave.y.data, rank_stream()));
}

static void nothing_in_flight(desk_t *d)
{
    refused(d, "case16: epx_combine without a dispatch",
            epx_combine(d->plan, 0, d->wave.y.data, d->out.data, rank_stream()));
    refused(d, "epx_combine_start without a dispatch",
            epx_combine_start(d->plan, 0, d->wave.y.data, rank_stream()));
    refused(d, "epx_combine_finish without a start",
            epx_combine_finish(d->plan, 0, d->out.data, rank_stream()));
    refused(d, "epx_dispatch_finish without a start",
            epx_dispatch_finish(d->plan, 0, &d->batch, rank_stream()));
    refused(d, "epx_combine_backward_finish without a start",
            epx_combine_backward_finish(d->plan, 0, d->wave.y.data, &d->batch, rank_stream()));
    refused(d, "epx_dispatch_backward without a combine_backward",
            epx_dispatch_backward(d->plan, 0, d->wave.y.data, d->out.data, d->dw, rank_stream()));
    refused(d, "epx_dispatch_backward_finish without a start",
            epx_dispatch_backward_finish(d->plan, 0, d->out.data, d->dw, rank_stream()));
}

static void missing_pointers(desk_t *d)
{
    epx_batch_t sizeless = {0};
    refused(d, "epx_dispatch without x", epx_dispatch(d->plan, 0, NULL, &d->batch, rank_stream()));
    refused(d, "epx_dispatch without a batch", epx_dispatch(d->plan, 0, d->x, NULL, rank_stream()));
    refused(d, "epx_dispatch with a batch of size 0",
            epx_dispatch(d->plan, 0, d->x, &sizeless, rank_stream()));
    refused(d, "epx_combine_backward without dout",
            epx_combine_backward(d->plan, 0, NULL, d->wave.y.data, &d->batch, rank_stream()));
    refused(d, "epx_combine_backward without y",
            epx_combine_backward(d->plan, 0, d->dout, NULL, &d->batch, rank_stream()));
    refused(d, "epx_combine_backward without a batch",
            epx_combine_backward(d->plan, 0, d->dout, d->wave.y.data, NULL, rank_stream()));
}

static void in_flight(desk_t *d, int waves)
{
    fine(d, "epx_dispatch", epx_dispatch(d->plan, 0, d->x, &d->batch, rank_stream()));
    refused(d, "epx_dispatch twice", epx_dispatch(d->plan, 0, d->x, &d->batch, rank_stream()));
    refused(d, "epx_dispatch_finish twice", epx_dispatch_finish(d->plan, 0, &d->batch, rank_stream()));
    if (waves > 1)
        refused(d, "more waves in flight than depth",
                epx_dispatch(d->plan, 1, d->x, &d->batch, rank_stream()));
    refused(d, "a busy lane: dispatch", epx_dispatch(d->other, 0, d->x, &d->batch, rank_stream()));
    refused(d, "a busy lane: combine", epx_combine(d->other, 0, d->wave.y.data, d->out.data, rank_stream()));
    refused(d, "a busy lane: combine_backward",
            epx_combine_backward(d->other, 0, d->dout, d->wave.y.data, &d->batch, rank_stream()));
    refused(d, "combine_backward within a forward pass",
            epx_combine_backward(d->plan, 0, d->dout, d->wave.y.data, &d->batch, rank_stream()));
    refused(d, "epx_combine without y", epx_combine(d->plan, 0, NULL, d->out.data, rank_stream()));
    refused(d, "epx_combine without out", epx_combine(d->plan, 0, d->wave.y.data, NULL, rank_stream()));
    memset(d->wave.y.data, 0, d->wave.y.bytes);
    fine(d, "epx_combine", epx_combine(d->plan, 0, d->wave.y.data, d->out.data, rank_stream()));
    refused(d, "case16: epx_combine twice",
            epx_combine(d->plan, 0, d->wave.y.data, d->out.data, rank_stream()));
    for (int w = 1; w < waves; w++) {
        fine(d, "epx_dispatch", epx_dispatch(d->plan, w, d->x, &d->batch, rank_stream()));
        fine(d, "epx_combine", epx_combine(d->plan, w, d->wave.y.data, d->out.data, rank_stream()));
    }
    refused(d, "epx_combine after the pass",
            epx_combine(d->plan, waves - 1, d->wave.y.data, d->out.data, rank_stream()));
}

static void backward_in_flight(desk_t *d, int waves)
{
    fine(d, "epx_combine_backward",
         epx_combine_backward(d->plan, 0, d->dout, d->wave.y.data, &d->batch, rank_stream()));
    refused(d, "epx_combine_backward twice",
            epx_combine_backward(d->plan, 0, d->dout, d->wave.y.data, &d->batch, rank_stream()));
    if (waves > 1)
        refused(d, "more gradients in flight than depth",
                epx_combine_backward(d->plan, 1, d->dout, d->wave.y.data, &d->batch, rank_stream()));
    refused(d, "a forward pass beside a backward one",
            epx_dispatch(d->plan, 0, d->x, &d->batch, rank_stream()));
    refused(d, "epx_combine in a backward pass",
            epx_combine(d->plan, 0, d->wave.y.data, d->out.data, rank_stream()));
    refused(d, "a busy lane", epx_dispatch(d->other, 0, d->x, &d->batch, rank_stream()));
    refused(d, "epx_dispatch_backward without dx_rows",
            epx_dispatch_backward(d->plan, 0, NULL, d->out.data, d->dw, rank_stream()));
    refused(d, "epx_dispatch_backward without dx",
            epx_dispatch_backward(d->plan, 0, d->wave.y.data, NULL, d->dw, rank_stream()));
    for (int w = 0; w < waves; w++) {
        if (w > 0)
            fine(d, "epx_combine_backward",
                 epx_combine_backward(d->plan, w, d->dout, d->wave.y.data, &d->batch, rank_stream()));
        fine(d, "epx_dispatch_backward",
             epx_dispatch_backward(d->plan, w, d->wave.y.data, d->out.data, NULL, rank_stream()));
    }
    refused(d, "epx_dispatch_backward twice",
            epx_dispatch_backward(d->plan, waves - 1, d->wave.y.data, d->out.data, d->dw, rank_stream()));
}

static void order_rank(rank_t *self)
{
    const bench_t *b = self->arg;
    desk_t d;
    if (!desk_open(&d, self, b))
        return;
    before_route(&d);
    fine(&d, "epx_plan_route", session_route(&d.session, d.plan));
    fine(&d, "epx_plan_route", session_route(&d.session, d.other));
    fine(&d, "epx_plan_route", session_route(&d.session, d.far));
    int waves = epx_plan_waves(d.plan);
    wrong_waves(&d, waves);
    nothing_in_flight(&d);
    missing_pointers(&d);
    good_pass(&d, d.plan, b, 1);
    if (!failures())
        in_flight(&d, waves);
    good_pass(&d, d.other, b, 1);
    if (!failures())
        backward_in_flight(&d, waves);
    good_pass(&d, d.far, b, 1);
    good_pass(&d, d.plan, b, 1);
    desk_close(&d, self);
}

ParameterizedTestParameters(call_order, case16_calls_out_of_order) { return every_arm(); }

ParameterizedTest(int *arm, call_order, case16_calls_out_of_order)
{
    run_bench(&arms[*arm], order_rank, EPX_BACKWARD_KEPT, 0);
}

/* While one lane is in flight the other is free, and its own plan cannot be routed. */
static void routes_rank(rank_t *self)
{
    const bench_t *b = self->arg;
    desk_t d;
    if (!desk_open(&d, self, b))
        return;
    fine(&d, "epx_plan_route", session_route(&d.session, d.plan));
    fine(&d, "epx_dispatch", epx_dispatch(d.plan, 0, d.x, &d.batch, rank_stream()));
    refused(&d, "a route in the middle of its pass", session_route(&d.session, d.plan));
    fine(&d, "epx_plan_route on the other lane", session_route(&d.session, d.far));
    good_pass(&d, d.far, b, 1);
    memset(d.wave.y.data, 0, d.wave.y.bytes);
    fine(&d, "epx_combine", epx_combine(d.plan, 0, d.wave.y.data, d.out.data, rank_stream()));
    for (int w = 1; w < epx_plan_waves(d.plan); w++) {
        fine(&d, "epx_dispatch", epx_dispatch(d.plan, w, d.x, &d.batch, rank_stream()));
        fine(&d, "epx_combine", epx_combine(d.plan, w, d.wave.y.data, d.out.data, rank_stream()));
    }
    fine(&d, "epx_plan_route", session_route(&d.session, d.plan));
    good_pass(&d, d.plan, b, 1);
    desk_close(&d, self);
}

ParameterizedTestParameters(call_order, routes_beside_a_pass) { return every_arm(); }

ParameterizedTest(int *arm, call_order, routes_beside_a_pass)
{
    run_bench(&arms[*arm], routes_rank, EPX_BACKWARD_KEPT, 0);
}

static void no_backward_rank(rank_t *self)
{
    const bench_t *b = self->arg;
    desk_t d;
    if (!desk_open(&d, self, b))
        return;
    fine(&d, "epx_plan_route", session_route(&d.session, d.plan));
    good_pass(&d, d.plan, b, 0);
    refused(&d, "epx_combine_backward with backward=none",
            epx_combine_backward(d.plan, 0, d.dout, d.wave.y.data, &d.batch, rank_stream()));
    refused(&d, "epx_combine_backward_start with backward=none",
            epx_combine_backward_start(d.plan, 0, d.dout, rank_stream()));
    refused(&d, "epx_dispatch_backward with backward=none",
            epx_dispatch_backward(d.plan, 0, d.wave.y.data, d.out.data, d.dw, rank_stream()));
    good_pass(&d, d.plan, b, 0);
    desk_close(&d, self);
}

ParameterizedTestParameters(call_order, backward_of_a_group_without_one) { return basic_arms(); }

ParameterizedTest(int *arm, call_order, backward_of_a_group_without_one)
{
    run_bench(&arms[*arm], no_backward_rank, EPX_BACKWARD_NONE, 0);
}

/* batch_in_caller: the library has no area of its own. */
static void no_area_rank(rank_t *self)
{
    const bench_t *b = self->arg;
    desk_t d;
    if (!desk_open(&d, self, b))
        return;
    pass_t pass = {.session = &d.session, .plan = d.plan, .into = 1};
    epx_batch_t full = wave_batch(&pass, &d.wave), lacking;
    fine(&d, "epx_plan_route", session_route(&d.session, d.plan));
    refused(&d, "no into_rows, into_start, into_count",
            epx_dispatch(d.plan, 0, d.x, &d.batch, rank_stream()));
    lacking = full;
    lacking.into_rows = NULL;
    refused(&d, "no into_rows", epx_dispatch(d.plan, 0, d.x, &lacking, rank_stream()));
    lacking = full;
    lacking.into_start = NULL;
    refused(&d, "no into_start", epx_dispatch(d.plan, 0, d.x, &lacking, rank_stream()));
    lacking = full;
    lacking.into_count = NULL;
    refused(&d, "no into_count", epx_dispatch(d.plan, 0, d.x, &lacking, rank_stream()));
    good_pass(&d, d.plan, b, 1);
    desk_close(&d, self);
}

ParameterizedTestParameters(call_order, batches_only_in_the_callers_memory) { return every_arm(); }

ParameterizedTest(int *arm, call_order, batches_only_in_the_callers_memory)
{
    run_bench(&arms[*arm], no_area_rank, EPX_BACKWARD_KEPT, 1);
}

/* ---- plans ---------------------------------------------------------------------------------------------------------------- */

static void plan_arguments_rank(rank_t *self)
{
    const bench_t *b = self->arg;
    desk_t d;
    if (!desk_open(&d, self, b))
        return;
    epx_group_h group = d.session.group;
    epx_plan_h plan = NULL;
    unsigned char *memory = aligned_alloc(256, epx_plan_bytes(group) + 256);
    epx_plan_stats_t sizeless = {0};
    epx_group_info_t info = {0};
    int64_t counts[8];
    refused(&d, "lane -1", epx_plan_create(group, -1, NULL, &plan));
    refused(&d, "lane 2 of 2", epx_plan_create(group, 2, NULL, &plan));
    refused(&d, "no handle", epx_plan_create(group, 0, NULL, NULL));
    refused(&d, "memory not aligned to 256", epx_plan_create(group, 0, memory + 64, &plan));
    refused(&d, "attach without a handle", epx_plan_attach(group, 0, memory, NULL));
    refused(&d, "info without a size", epx_group_info(group, &info));
    refused(&d, "info without a place", epx_group_info(group, NULL));
    expect(self, plan == NULL, "a refused create wrote the handle");
    fine(&d, "epx_plan_route", session_route(&d.session, d.plan));
    refused(&d, "stats without a size", epx_plan_stats(d.plan, &sizeless, rank_stream()));
    refused(&d, "stats without a place", epx_plan_stats(d.plan, NULL, rank_stream()));
    refused(&d, "counts without a batch", epx_batch_counts(d.plan, NULL, counts, counts, rank_stream()));
    refused(&d, "epx_group_memory without a place",
            epx_group_memory(&(epx_group_config_t)EPX_GROUP_CONFIG_INIT, NULL));
    good_pass(&d, d.plan, b, 1);
    free(memory);
    desk_close(&d, self);
}

ParameterizedTestParameters(call_order, plans_and_questions) { return basic_arms(); }

ParameterizedTest(int *arm, call_order, plans_and_questions)
{
    run_bench(&arms[*arm], plan_arguments_rank, EPX_BACKWARD_KEPT, 0);
}
