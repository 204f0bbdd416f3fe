/*
 * Wrong arguments, one by one: each is named, changes nothing, and lets nobody wait. SPDX-License-Identifier:
 * Apache-2.0
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/drive.h"

TestSuite(arguments, .init = clean_environment);

enum { RANKS = 2 };

/* ---- opening ---------------------------------------------------------------------------------------------------------- */

static const int32_t owner_too_large[7] = {0, 1, 0, 1, 2, 0, 1}, owner_negative[7] = {0, 1, 0, 1, -1, 0, 1};
static const epx_allocator_t half_allocator = {0};

/* Each row spoils one field of a good configuration. */
typedef struct spoil {
    const char *what;
    void (*spoil)(epx_group_config_t *config);
    epx_status_t status;
    const char *word; /* that the text must hold */
} spoil_t;

#define SPOIL(name, statement) \
    static void name(epx_group_config_t *config) { statement; }
SPOIL(size_0, config->size = 0)
SPOIL(size_8, config->size = 8)
SPOIL(experts_0, config->experts = 0)
SPOIL(experts_negative, config->experts = -3)
SPOIL(top_k_0, config->top_k = 0)
SPOIL(top_k_8_of_7, config->top_k = 8)
SPOIL(width_0, config->width = 0)
SPOIL(width_negative, config->width = -1)
SPOIL(tokens_max_0, config->tokens_max = 0)
SPOIL(row_type_int32, config->row_type = EPX_INT32)
SPOIL(row_type_99, config->row_type = (epx_type_t)99)
SPOIL(out_type_int64, config->out_type = EPX_INT64)
SPOIL(out_type_other, config->out_type = EPX_BF16) /* of fp32 rows */
SPOIL(owner_2_of_2, config->owner = owner_too_large)
SPOIL(owner_minus_1, config->owner = owner_negative)
SPOIL(aux_negative, config->aux_bytes = -1)
SPOIL(aux_65, config->aux_bytes = 65)
SPOIL(align_negative, config->row_align = -1)
SPOIL(lanes_negative, config->lanes = -1)
SPOIL(depth_negative, config->depth = -1)
SPOIL(backward_9, config->backward = (epx_backward_t)9)
SPOIL(origin_7, config->origin = 7)
SPOIL(virtual_3_of_2, config->virtual_ranks = 3)
SPOIL(virtual_negative, config->virtual_ranks = -2)
SPOIL(spill_negative, config->spill_choices = -1)
SPOIL(ranks_3_of_2, config->ranks = 3)
SPOIL(factor_minus_2, config->capacity_factor = -2)
SPOIL(factor_nan, config->capacity_factor = (double)NAN)
SPOIL(factor_inf, config->capacity_factor = (double)INFINITY)
SPOIL(accept_9, config->accept = (epx_accept_t)9)
SPOIL(overflow_9, config->overflow = (epx_overflow_t)9)
SPOIL(wire_9, config->wire = (epx_wire_t)9)
SPOIL(batch_9, config->batch = (epx_batch_form_t)9)
SPOIL(check_9, config->check = (epx_check_t)9)
SPOIL(waves_negative, config->waves = -1)
SPOIL(timeout_negative, config->timeout_ms = -1)
SPOIL(transport_unknown, config->transport = "rigged")
SPOIL(fabric_unknown, config->fabric = "lokal")
SPOIL(device_unknown, config->device = "hots")
SPOIL(allocator_empty, config->allocator = &half_allocator)
SPOIL(too_many, config->tokens_max = 1 << 30; config->top_k = 7)

static const spoil_t spoils[] = {
    {"size 0", size_0, EPX_ERR_ARG, "size"},
    {"size 8", size_8, EPX_ERR_ARG, "size"},
    {"E = 0", experts_0, EPX_ERR_ARG, "experts"},
    {"E = -3", experts_negative, EPX_ERR_ARG, "experts"},
    {"K = 0", top_k_0, EPX_ERR_ARG, "top_k"},
    {"K > E", top_k_8_of_7, EPX_ERR_ARG, "top_k"},
    {"H = 0", width_0, EPX_ERR_ARG, "width"},
    {"H = -1", width_negative, EPX_ERR_ARG, "width"},
    {"T_max = 0", tokens_max_0, EPX_ERR_ARG, "tokens_max"},
    {"rows of int32", row_type_int32, EPX_ERR_ARG, "row_type"},
    {"row type 99", row_type_99, EPX_ERR_ARG, "row_type"},
    {"out of int64", out_type_int64, EPX_ERR_ARG, "out_type"},
    {"out narrower than the rows", out_type_other, EPX_ERR_ARG, "out_type"},
    {"owner = S", owner_2_of_2, EPX_ERR_ARG, "owner"},
    {"owner = -1", owner_minus_1, EPX_ERR_ARG, "owner"},
    {"aux_bytes = -1", aux_negative, EPX_ERR_ARG, "aux_bytes"},
    {"aux_bytes = 65", aux_65, EPX_ERR_ARG, "aux_bytes"},
    {"row_align = -1", align_negative, EPX_ERR_ARG, "row_align"},
    {"lanes = -1", lanes_negative, EPX_ERR_ARG, "lanes"},
    {"depth = -1", depth_negative, EPX_ERR_ARG, "depth"},
    {"backward = 9", backward_9, EPX_ERR_ARG, "backward"},
    {"origin = 7", origin_7, EPX_ERR_ARG, "origin"},
    {"virtual_ranks = 3", virtual_3_of_2, EPX_ERR_ARG, "virtual_ranks"},
    {"virtual_ranks = -2", virtual_negative, EPX_ERR_ARG, "virtual_ranks"},
    {"spill_choices = -1", spill_negative, EPX_ERR_ARG, "spill_choices"},
    {"ranks is not the comm's", ranks_3_of_2, EPX_ERR_ARG, "ranks"},
    {"capacity_factor = -2", factor_minus_2, EPX_ERR_ARG, "capacity_factor"},
    {"capacity_factor = NaN", factor_nan, EPX_ERR_ARG, "capacity_factor"},
    {"capacity_factor = Inf", factor_inf, EPX_ERR_ARG, "capacity_factor"},
    {"accept = 9", accept_9, EPX_ERR_ARG, "accept"},
    {"overflow = 9", overflow_9, EPX_ERR_ARG, "overflow"},
    {"wire = 9", wire_9, EPX_ERR_ARG, "wire"},
    {"batch = 9", batch_9, EPX_ERR_ARG, "batch"},
    {"check = 9", check_9, EPX_ERR_ARG, "check"},
    {"waves = -1", waves_negative, EPX_ERR_ARG, "waves"},
    {"timeout_ms = -1", timeout_negative, EPX_ERR_ARG, "timeout_ms"},
    {"transport 'rigged'", transport_unknown, EPX_ERR_ARG, "ragged"},
    {"fabric 'lokal'", fabric_unknown, EPX_ERR_ARG, "local"},
    {"device 'hots'", device_unknown, EPX_ERR_ARG, "host"},
    {"an allocator without functions", allocator_empty, EPX_ERR_ARG, "allocator"},
    {"2^31 assignments", too_many, EPX_ERR_ARG, "tokens_max"},
};
enum { SPOILS = sizeof(spoils) / sizeof(spoils[0]) };

/* One rank's configuration is wrong: it learns why, the others learn who. Then all open well on the same
 * comm. */
static void open_wrong_rank(rank_t *self)
{
    problem_t *p = self->arg;
    epx_group_config_t good = problem_config(p);
    for (int i = 0; i < SPOILS; i++) {
        epx_group_config_t config = good;
        epx_group_h group = NULL;
        self->at = spoils[i].what;
        if (self->rank == 1)
            spoils[i].spoil(&config);
        epx_status_t status = epx_group_open(self->comm, &config, &group);
        expect_status(self, spoils[i].what, status, self->rank == 1 ? spoils[i].status : EPX_ERR_PEER);
        expect_text(self, spoils[i].what, self->rank == 1 ? spoils[i].word : "rank 1", NULL);
        expect(self, group == NULL, "%s: the handle was written", spoils[i].what);
        if (self->rank == 1) {
            epx_memory_t memory = EPX_MEMORY_INIT;
            if (spoils[i].spoil != ranks_3_of_2)
                expect_status(self, "epx_group_memory", epx_group_memory(&config, &memory), spoils[i].status);
        }
    }
    session_t session;
    if (session_open(&session, self, p, NULL))
        session_close(&session);
}

ParameterizedTestParameters(arguments, one_rank_opens_wrongly) { return basic_arms(); }

ParameterizedTest(int *arm, arguments, one_rank_opens_wrongly)
{
    problem_t *p = problem_new(&arms[*arm], RANKS, 7, 2, 5, 8);
    world_note("%s", arms[*arm].name);
    world_run(RANKS, open_wrong_rank, p);
    problem_free(p);
}

/* All ranks are wrong in the same way: all are told. */
static void all_wrong_rank(rank_t *self)
{
    problem_t *p = self->arg;
    for (int i = 0; i < SPOILS; i++) {
        epx_group_config_t config = problem_config(p);
        epx_group_h group = NULL;
        spoils[i].spoil(&config);
        self->at = spoils[i].what;
        expect_status(self, spoils[i].what, epx_group_open(self->comm, &config, &group), spoils[i].status);
        expect_text(self, spoils[i].what, spoils[i].word, NULL);
    }
}

Test(arguments, all_ranks_open_wrongly)
{
    problem_t *p = problem_new(arm_named("ragged"), RANKS, 7, 2, 5, 8);
    world_run(RANKS, all_wrong_rank, p);
    problem_free(p);
}

static void open_null_rank(rank_t *self)
{
    problem_t *p = self->arg;
    epx_group_config_t config = problem_config(p);
    epx_group_h group = NULL;
    expect_status(self, "epx_group_open without a comm", epx_group_open(NULL, &config, &group), EPX_ERR_ARG);
    expect_status(self, "epx_group_open without a configuration", epx_group_open(self->comm, NULL, &group),
                  EPX_ERR_ARG);
    expect_status(self, "epx_group_open without a handle", epx_group_open(self->comm, &config, NULL),
                  EPX_ERR_ARG);
}

Test(arguments, open_without_something)
{
    problem_t *p = problem_new(arm_named("ring"), 1, 7, 2, 5, 8);
    world_run(1, open_null_rank, p);
    problem_free(p);
}

/* A struct from a newer header: its tail must be zero. */
typedef struct newer_config {
    epx_group_config_t config;
    int64_t field;
} newer_config_t;
typedef struct newer_routing {
    epx_routing_t routing;
    int64_t field;
} newer_routing_t;
typedef struct newer_batch {
    epx_batch_t batch;
    int64_t field;
} newer_batch_t;

static void newer_rank(rank_t *self)
{
    problem_t *p = self->arg;
    newer_config_t newer = {.config = problem_config(p), .field = 1};
    epx_group_h group = NULL;
    newer.config.size = sizeof(newer);
    expect_status(self, "a newer configuration", epx_group_open(self->comm, &newer.config, &group),
                  EPX_ERR_ARG);
    newer.field = 0;
    session_t session;
    epx_plan_h plan = NULL;
    if (!session_open(&session, self, p, &newer.config))
        return;
    buffer_t ids, weights;
    newer_routing_t routing = {.routing = session_routing(&session, &ids, &weights), .field = 0};
    routing.routing.size = sizeof(routing);
    epx_plan_create(session.group, 0, NULL, &plan);
    expect_status(self, "a newer routing with a zero tail",
                  epx_plan_route(plan, &routing.routing, rank_stream()), EPX_OK);
    routing.field = 5;
    newer_batch_t batch = {.batch = EPX_BATCH_INIT, .field = 0};
    batch.batch.size = sizeof(batch);
    expect_status(self, "a newer batch with a zero tail",
                  epx_dispatch(plan, 0, p->x[0], &batch.batch, rank_stream()), EPX_OK);
    epx_plan_destroy(&plan);
    epx_plan_create(session.group, 1, NULL, &plan);
    expect_status(self, "a newer routing", epx_plan_route(plan, &routing.routing, rank_stream()),
                  EPX_ERR_ARG);
    buffer_free(&ids, self, "ids");
    buffer_free(&weights, self, "weights");
    epx_plan_destroy(&plan);
    session_close(&session);
}

Test(arguments, structs_of_a_newer_header)
{
    problem_t *p = problem_new(arm_named("ragged"), 1, 7, 2, 5, 8);
    problem_inputs(p, UNIFORM, (int[]){8}, 4);
    world_run(1, newer_rank, p);
    problem_free(p);
}

/* ---- handles that are not there --------------------------------------------------------------------------------------- */

static void null_handles_rank(rank_t *self)
{
    char memory[64] = {0};
    float *f = (float *)(void *)memory;
    epx_batch_t batch = EPX_BATCH_INIT;
    epx_routing_t routing = EPX_ROUTING_INIT;
    epx_plan_stats_t stats = EPX_PLAN_STATS_INIT;
    epx_group_info_t info = EPX_GROUP_INFO_INIT;
    epx_plan_h plan = NULL;
    int64_t counts[8];
    const struct {
        const char *call;
        epx_status_t status;
    } row[] = {
        {"epx_group_info", epx_group_info(NULL, &info)},
        {"epx_group_check", epx_group_check(NULL)},
        {"epx_group_recover", epx_group_recover(NULL, NULL)},
        {"epx_step", epx_step(NULL)},
        {"epx_step_discard", epx_step_discard(NULL)},
        {"epx_plan_create", epx_plan_create(NULL, 0, NULL, &plan)},
        {"epx_plan_attach", epx_plan_attach(NULL, 0, memory, &plan)},
        {"epx_plan_route", epx_plan_route(NULL, &routing, rank_stream())},
        {"epx_plan_stats", epx_plan_stats(NULL, &stats, rank_stream())},
        {"epx_dispatch", epx_dispatch(NULL, 0, memory, &batch, rank_stream())},
        {"epx_dispatch_start", epx_dispatch_start(NULL, 0, memory, &batch, rank_stream())},
        {"epx_dispatch_finish", epx_dispatch_finish(NULL, 0, &batch, rank_stream())},
        {"epx_combine", epx_combine(NULL, 0, memory, memory, rank_stream())},
        {"epx_combine_start", epx_combine_start(NULL, 0, memory, rank_stream())},
        {"epx_combine_finish", epx_combine_finish(NULL, 0, memory, rank_stream())},
        {"epx_combine_backward", epx_combine_backward(NULL, 0, memory, memory, &batch, rank_stream())},
        {"epx_combine_backward_start", epx_combine_backward_start(NULL, 0, memory, rank_stream())},
        {"epx_combine_backward_finish", epx_combine_backward_finish(NULL, 0, memory, &batch, rank_stream())},
        {"epx_dispatch_backward", epx_dispatch_backward(NULL, 0, memory, memory, f, rank_stream())},
        {"epx_dispatch_backward_start", epx_dispatch_backward_start(NULL, 0, memory, rank_stream())},
        {"epx_dispatch_backward_finish", epx_dispatch_backward_finish(NULL, 0, memory, f, rank_stream())},
        {"epx_check_poison", epx_check_poison(NULL, 0, memory, rank_stream())},
        {"epx_batch_counts", epx_batch_counts(NULL, &batch, counts, counts, rank_stream())},
        {"epx_group_memory", epx_group_memory(NULL, &(epx_memory_t)EPX_MEMORY_INIT)},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
        expect_status(self, row[i].call, row[i].status, EPX_ERR_ARG);
    expect(self, epx_plan_waves(NULL) < 0, "epx_plan_waves(NULL) is %d", epx_plan_waves(NULL));
    expect(self, epx_plan_bytes(NULL) == 0 && epx_plan_memory(NULL) == NULL, "bytes or memory of no plan");
    epx_group_abort(NULL, "nothing");
    epx_group_close(NULL);
    epx_plan_destroy(NULL);
    epx_comm_destroy(NULL);
}

Test(arguments, handles_that_are_not_there) { world_run(1, null_handles_rank, NULL); }

/* ---- calls out of order ------------------------------------------------------------------------------------------------- */

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

ParameterizedTestParameters(arguments, case16_calls_out_of_order) { return every_arm(); }

ParameterizedTest(int *arm, arguments, case16_calls_out_of_order)
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

ParameterizedTestParameters(arguments, routes_beside_a_pass) { return every_arm(); }

ParameterizedTest(int *arm, arguments, routes_beside_a_pass)
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

ParameterizedTestParameters(arguments, backward_of_a_group_without_one) { return basic_arms(); }

ParameterizedTest(int *arm, arguments, backward_of_a_group_without_one)
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

ParameterizedTestParameters(arguments, batches_only_in_the_callers_memory) { return every_arm(); }

ParameterizedTest(int *arm, arguments, batches_only_in_the_callers_memory)
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

ParameterizedTestParameters(arguments, plans_and_questions) { return basic_arms(); }

ParameterizedTest(int *arm, arguments, plans_and_questions)
{
    run_bench(&arms[*arm], plan_arguments_rank, EPX_BACKWARD_KEPT, 0);
}

/* Codes and texts that are there whatever is asked. */
Test(arguments, status_texts)
{
    static const epx_status_t codes[] = {
        EPX_OK,          EPX_ERR_ARG,  EPX_ERR_ROUTING,  EPX_ERR_UNSUPPORTED, EPX_ERR_NO_MEMORY,
        EPX_ERR_TIMEOUT, EPX_ERR_PEER, EPX_ERR_MISMATCH, EPX_ERR_ABORTED,     EPX_ERR_FABRIC,
        EPX_ERR_CORRUPT, EPX_ERR_FATAL};
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        cr_assert_eq(strncmp(epx_status_name(codes[i]), i ? "EPX_ERR_" : "EPX_OK", i ? 8 : 7), 0);
        cr_assert(strlen(epx_status_text(codes[i])) > 3);
        for (size_t j = 0; j < i; j++)
            cr_assert_str_neq(epx_status_name(codes[i]), epx_status_name(codes[j]));
    }
    cr_assert_not_null(epx_status_name((epx_status_t)12345));
    cr_assert_not_null(epx_status_text((epx_status_t)-12345));
    cr_assert_str_eq(epx_last_error(), "");
    cr_assert_str_eq(epx_version(), "0.1.0");
}

Test(arguments, the_device_of_a_thread)
{
    cr_assert_eq(epx_device_use("host", 0), EPX_OK);
    cr_assert_eq(epx_device_use("host", 1), EPX_ERR_ARG);
    cr_assert(strstr(epx_last_error(), "0 to 0") != NULL, "%s", epx_last_error());
    cr_assert_eq(epx_device_use("host", -1), EPX_ERR_ARG);
    cr_assert_eq(epx_device_use("tpu", 0), EPX_ERR_ARG);
    cr_assert_eq(epx_device_use(NULL, 0), EPX_ERR_ARG);
    epx_status_t status = epx_device_use("cuda", 0);
    cr_assert(status == EPX_OK || status == EPX_ERR_UNSUPPORTED, "%s", epx_status_name(status));
    cr_assert(status == EPX_OK || epx_last_error()[0] != '\0');
}
