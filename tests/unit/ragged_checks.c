/*
 * What EPX_CHECK finds in `ragged` when the exchange loses or changes something: two ranks on a fabric of
 * nothing, driven by one thread, with a hand on their memory between start and finish.
 * SPDX-License-Identifier: Apache-2.0
 */
#include <criterion/criterion.h>
#include <stdarg.h>

#include <stdlib.h>
#include <string.h>

#include "device/host/host.h"
#include "kernels/host/table.h"
#include "ragged/internal.h"
#include "unit/kept.h"
#include "ragged/ragged.h"

enum { RANKS = 2, EXPERTS = 3, K = 2, T = 3, H = 4 };

/* ---- a fabric that is always done ------------------------------------------------------------------------------------ */

/* Experts 0 and 1 belong to rank 0, expert 2 to rank 1. */
static const int32_t owner[] = {0, 0, 1}, local[] = {0, 1, 0}, first[] = {0, 2, 3}, expert[] = {0, 1, 2};
static const int32_t ids[RANKS][T * K] = {{0, 2, 1, 0, 2, -1}, {0, 0, 1, 2, -1, -1}};
static const int32_t counts[RANKS * EXPERTS] = {2, 1, 2, 2, 1, 1};

static epx_status_t no_post(epx_fabric_t *fabric, const epx_post_t *post, epx_stream_t stream)
{
    (void)fabric, (void)post, (void)stream;
    return EPX_OK;
}

static epx_status_t no_wait(epx_fabric_t *fabric, const epx_wait_t *wait, epx_wait_result_t *result_p,
                            epx_stream_t stream)
{
    (void)fabric, (void)wait, (void)result_p, (void)stream;
    return EPX_OK;
}

static epx_status_t known_counts(epx_fabric_t *fabric, const epx_exchange_t *exchange,
                                 epx_wait_result_t *result_p, epx_stream_t stream)
{
    (void)fabric, (void)result_p, (void)stream;
    const epx_route_notice_t notice = {.tokens = T, .bad_at = EPX_NOTICE_GOOD};
    for (int r = 0; r < RANKS; r++) {
        char *block = (char *)exchange->receive + (size_t)r * exchange->bytes;
        memcpy(block, &notice, sizeof(notice));
        memcpy(block + sizeof(notice), counts + r * EXPERTS, EXPERTS * sizeof(*counts));
    }
    return EPX_OK;
}

static const epx_fabric_ops_t nothing = {.name = "nothing",
                                         .caps = EPX_FABRIC_LOADSTORE,
                                         .post = no_post,
                                         .wait = no_wait,
                                         .exchange = known_counts};

static __attribute__((format(printf, 3, 4))) void no_log(int level, const char *tag, const char *format, ...)
{
    (void)level, (void)tag, (void)format;
}

static const epx_services_t services = {.fail = kept_fail, .log = no_log};

/* ---- two ranks --------------------------------------------------------------------------------------------------------- */

typedef struct side {
    epx_shape_t shape;
    epx_sizes_t sizes;
    epx_fabric_t fabric;
    epx_transport_env_t env;
    epx_transport_t *transport;
    epx_lane_t lane;
    epx_plan_base_t plan;
    epx_batch_t batch;
    float x[T * H], y[64 * H], out[T * H], dweight[T * K];
} side_t;

static side_t side[RANKS];
static void *peers[RANKS];
static const float weights[T * K] = {1, 1, 1, 1, 1, 1};

static void open_sides(epx_check_t check, epx_wire_t wire)
{
    epx_owners_t owners = {RANKS, EXPERTS, owner, local, first, expert};
    for (int32_t r = 0; r < RANKS; r++) {
        side_t *s = &side[r];
        memset(s, 0, sizeof(*s));
        s->shape = (epx_shape_t){.rank = r,
                                 .ranks = RANKS,
                                 .virtual_ranks = RANKS,
                                 .splits = 1,
                                 .experts = EXPERTS,
                                 .top_k = K,
                                 .columns = K,
                                 .width = H,
                                 .tokens_max = T,
                                 .virtual_tokens_max = T,
                                 .row_type = EPX_FP32,
                                 .out_type = EPX_FP32,
                                 .row_bytes = H * 4,
                                 .row_align = 1,
                                 .lanes = 1,
                                 .depth = 1,
                                 .backward = EPX_BACKWARD_KEPT,
                                 .capacity_factor = 1,
                                 .dropless = 1,
                                 .waves = 1,
                                 .wire = wire,
                                 .check = check,
                                 .real = owners,
                                 .virt = owners};
        cr_assert_eq(epx_ragged_query(&s->shape, EPX_FABRIC_LOADSTORE, &services, &s->sizes), EPX_OK);
        peers[r] = aligned_alloc(256, (size_t)s->sizes.segment_bytes);
        s->fabric = (epx_fabric_t){.ops = &nothing, .rank = r, .ranks = RANKS, .caps = EPX_FABRIC_LOADSTORE};
        s->env = (epx_transport_env_t){
            .shape = &s->shape,
            .sizes = &s->sizes,
            .fabric = &s->fabric,
            .device = &epx_device_host,
            .kernels = &epx_kernels_host,
            .services = &services,
            .group_name = "test",
            .segment = {.base = peers[r], .bytes = (size_t)s->sizes.segment_bytes, .peer_ptr = peers},
            .scratch = aligned_alloc(256, (size_t)s->sizes.scratch_bytes),
            .batch = aligned_alloc(256, (size_t)s->sizes.batch_bytes + 256)};
        void *state = calloc(1, (size_t)s->sizes.state_bytes);
        cr_assert_eq(epx_transport_ragged.open(&s->env, state, &s->transport), EPX_OK);
        s->plan =
            (epx_plan_base_t){.bytes = aligned_alloc(256, (size_t)s->sizes.plan_bytes),
                              .state = calloc(1, (size_t)s->sizes.plan_state_bytes),
                              .report = calloc(1, sizeof(epx_route_report_t) + (size_t)s->sizes.report_bytes),
                              .lane = &s->lane};
        s->batch = (epx_batch_t)EPX_BATCH_INIT;
        for (int i = 0; i < T * H; i++)
            s->x[i] = (float)(100 * r + i);
        epx_routing_t routing = {
            .size = sizeof(routing), .tokens = T, .ids = ids[r], .id_type = EPX_INT32, .weights = weights};
        cr_assert_eq(epx_transport_ragged.route(s->transport, &s->plan, &routing, EPX_OK, NULL), EPX_OK);
    }
}

static void close_sides(void)
{
    for (int r = 0; r < RANKS; r++) {
        free(peers[r]);
        free(side[r].env.scratch);
        free(side[r].env.batch);
        free(side[r].transport);
        free(side[r].plan.bytes);
        free(side[r].plan.state);
        free(side[r].plan.report);
    }
}

static void start_dispatch(void)
{
    for (int r = 0; r < RANKS; r++)
        cr_assert_eq(epx_transport_ragged.dispatch_start(side[r].transport, &side[r].plan, 0, side[r].x,
                                                         &side[r].batch, NULL),
                     EPX_OK);
}

static epx_status_t finish_dispatch(int r)
{
    kept_text[0] = '\0';
    return epx_transport_ragged.dispatch_finish(side[r].transport, &side[r].plan, 0, &side[r].batch, NULL);
}

/* y = the rows themselves. */
static void start_combine(void)
{
    for (int r = 0; r < RANKS; r++) {
        cr_assert_eq(finish_dispatch(r), EPX_OK, "%s", kept_text);
        memcpy(side[r].y, side[r].batch.rows, (size_t)side[r].sizes.batch_rows_max * H * 4);
        cr_assert_eq(epx_transport_ragged.combine_start(side[r].transport, &side[r].plan, 0, side[r].y, NULL),
                     EPX_OK, "%s", kept_text);
    }
}

static epx_status_t finish_combine(int r)
{
    kept_text[0] = '\0';
    return epx_transport_ragged.combine_finish(side[r].transport, &side[r].plan, 0, side[r].out, NULL);
}

static const epx_ragged_areas_t *areas(void) { return &((const epx_ragged_t *)side[0].transport)->areas; }

/* What the exchange would have left: canaries, or a changed bit. */
static void lose(int r, int64_t offset, size_t bytes)
{
    epx_k_poison_t args = {.rows = (char *)peers[r] + offset, .bytes = (int64_t)bytes};
    epx_host_poison(&args, NULL);
}

static void change(int r, int64_t offset) { ((char *)peers[r])[offset] ^= 4; }

/* The error names all of the words; NULL ends the list. */
static void corrupt(epx_status_t status, ...)
{
    va_list list;
    va_start(list, status);
    cr_assert_eq(status, EPX_ERR_CORRUPT, "%s instead", epx_status_name(status));
    for (const char *word = va_arg(list, const char *); word != NULL; word = va_arg(list, const char *))
        cr_assert(strstr(kept_text, word), "no \"%s\" in: %s", word, kept_text);
    va_end(list);
}

/* ---- nothing lost ------------------------------------------------------------------------------------------------------ */

/* All weights 1: out[t] = x[t] for each valid id; the checks see nothing. Twice: slots are filled with
 * canaries again. */
static void clean_pass(epx_check_t check, epx_wire_t wire)
{
    open_sides(check, wire);
    for (int pass = 0; pass < 2; pass++) {
        start_dispatch();
        start_combine();
        for (int r = 0; r < RANKS; r++) {
            cr_assert_eq(finish_combine(r), EPX_OK, "%s", kept_text);
            for (int i = 0; i < T * H; i++) {
                float times = (float)(2 - (ids[r][i / H * K] < 0) - (ids[r][i / H * K + 1] < 0));
                cr_assert_eq(side[r].out[i], times * side[r].x[i]);
            }
        }
    }
    close_sides();
}

Test(ragged_checks, clean_passes)
{
    for (int check = EPX_CHECK_OFF; check <= EPX_CHECK_FULL; check++) {
        clean_pass((epx_check_t)check, EPX_WIRE_ASSIGNMENT);
        clean_pass((epx_check_t)check, EPX_WIRE_RANK);
    }
}

/* ---- assignment wire --------------------------------------------------------------------------------------------------- */

/* Rank 0's batch: expert 0: rows 0, 1 of rank 0, rows 2, 3 of rank 1; expert 1: row 4 of rank 0, row 5 of
 * rank 1. */
Test(ragged_checks, a_row_that_never_came)
{
    open_sides(EPX_CHECK_CANARY, EPX_WIRE_ASSIGNMENT);
    start_dispatch();
    lose(0, areas()->slots + areas()->forward.rows + 5 * H * 4, H * 4);
    corrupt(finish_dispatch(0), "rank 0", "dispatch", "row 5", "expert 1", "from rank 1", "exchange", NULL);
    cr_assert_eq(finish_dispatch(1), EPX_OK);
    close_sides();
}

Test(ragged_checks, a_row_that_changed_on_its_way)
{
    open_sides(EPX_CHECK_FULL, EPX_WIRE_ASSIGNMENT);
    start_dispatch();
    change(1, areas()->slots + areas()->forward.rows + 1 * H * 4 + 5);
    cr_assert_eq(finish_dispatch(0), EPX_OK);
    corrupt(finish_dispatch(1), "rank 1", "row 1", "expert 2", "from rank 0", "changed", NULL);
    close_sides();
}

/* Rank 0's return rows: expert 0: tokens 0, 1; expert 1: token 1; expert 2 on rank 1: tokens 0 and 2. */
Test(ragged_checks, a_row_that_never_came_home)
{
    open_sides(EPX_CHECK_CANARY, EPX_WIRE_ASSIGNMENT);
    start_dispatch();
    start_combine();
    lose(0, areas()->returns + 4 * H * 4, H * 4);
    corrupt(finish_combine(0), "rank 0", "combine", "expert 2", "from rank 1", "token 2", "k 0", "exchange",
            NULL);
    close_sides();
}

Test(ragged_checks, a_row_that_changed_on_its_way_home)
{
    open_sides(EPX_CHECK_FULL, EPX_WIRE_ASSIGNMENT);
    start_dispatch();
    start_combine();
    change(0, areas()->returns + 2 * H * 4);
    corrupt(finish_combine(0), "expert 1", "from rank 0", "token 1", "k 0", "changed", NULL);
    close_sides();
}

Test(ragged_checks, a_row_that_the_caller_left_out)
{
    open_sides(EPX_CHECK_CANARY, EPX_WIRE_ASSIGNMENT);
    start_dispatch();
    cr_assert_eq(finish_dispatch(0), EPX_OK);
    memcpy(side[0].y, side[0].batch.rows, 6 * H * 4);
    epx_k_poison_t args = {.rows = side[0].y + 3 * H, .bytes = H * 4};
    epx_host_poison(&args, NULL);
    kept_text[0] = '\0';
    corrupt(epx_transport_ragged.combine_start(side[0].transport, &side[0].plan, 0, side[0].y, NULL),
            "rank 0", "row 3", "expert 0", "for rank 1", "caller", NULL);
    close_sides();
}

/* ---- rank wire ----------------------------------------------------------------------------------------------------------- */

/* Rank 0's slot: wire rows 0, 1 of rank 0 (tokens 0, 1), 3, 4 of rank 1 (tokens 0, 1; token 1 with expert 1
 * alone). */
static void lose_on_the_wire(int64_t area, size_t at, size_t bytes, const char *part, const char *row,
                             const char *who)
{
    start_dispatch();
    lose(0, areas()->slots + area + (int64_t)(at * bytes), bytes);
    corrupt(finish_dispatch(0), "rank 0", part, row, who, "exchange", NULL);
    lose(0, areas()->slots, (size_t)areas()->forward.bytes);
}

Test(ragged_checks, every_part_of_the_rank_wire)
{
    open_sides(EPX_CHECK_CANARY, EPX_WIRE_RANK);
    const epx_ragged_slot_t *slot = &areas()->forward;
    lose_on_the_wire(slot->rows, 4, H * 4, "the bytes of wire row 4", "expert 1", "from rank 1");
    lose_on_the_wire(slot->head, 1, 8, "the number of rows", "rank 0", "from rank 1");
    lose_on_the_wire(slot->first, 1, 4, "the list", "row 1", "from rank 0");
    lose_on_the_wire(slot->count, 3, 4, "the list's length", "row 3", "from rank 1");
    lose_on_the_wire(slot->list, 5, 4, "an entry", "row 5", "from rank 1");
    lose_on_the_wire(slot->index, 4, 4, "the index of row 4", "expert 1", "from rank 0");
    close_sides();
}

Test(ragged_checks, wire_rows_and_sums_that_changed)
{
    open_sides(EPX_CHECK_FULL, EPX_WIRE_RANK);
    start_dispatch();
    change(0, areas()->slots + areas()->forward.rows + 3 * H * 4 + 1);
    corrupt(finish_dispatch(0), "wire row 3", "expert 0", "from rank 1", "changed", NULL);
    start_dispatch();
    start_combine();
    change(0, areas()->returns + 3 * H * 4); /* token 0's sum of rank 1 */
    corrupt(finish_combine(0), "expert 2", "from rank 1", "token 0", "k 1", "changed", NULL);
    close_sides();
}
