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

static void many_ranks_rank(rank_t *self)
{
    epx_group_config_t config = problem_config(self->arg);
    epx_memory_t memory = EPX_MEMORY_INIT;
    config.ranks = INT32_MAX;
    expect_status(self, "epx_group_memory", epx_group_memory(&config, &memory), EPX_ERR_ARG);
    expect_text(self, "epx_group_memory", "ranks is 2147483647", NULL);
}

Test(arguments, memory_of_more_ranks_than_can_be_counted)
{
    problem_t *p = problem_new(arm_named("ragged"), 1, 7, 2, 5, 8);
    world_run(1, many_ranks_rank, p);
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

/* ---- whatever is asked ------------------------------------------------------------------------------------------------ */

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
