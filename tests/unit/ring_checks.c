/*
 * ring: what EPX_CHECK finds. Two ranks on one thread over a fabric of plain memory, whose slots are spoilt
 * between calls. Every wait must be satisfied already, so that an order of calls that would block is seen
 * too. SPDX-License-Identifier: Apache-2.0
 */
#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

#include "core/services.h"
#include "device/host/host.h"
#include "ring/ring.h"

TestSuite(ring_checks);

enum { RANKS = 2, EXPERTS = 3, WIDTH = 4, TOKENS_MAX = 3, CHANNELS = 64 };

/* Three experts, rank 0 owns 0 and 1, rank 1 owns 2. */
static const int32_t owner3[] = {0, 0, 1}, local3[] = {0, 1, 0}, first3[] = {0, 2, 3}, expert3[] = {0, 1, 2};
static const epx_owners_t owners3 = {
    .ranks = RANKS, .experts = EXPERTS, .owner = owner3, .local = local3, .first = first3, .expert = expert3};

/* ---- a fabric of plain memory ------------------------------------------------------------------------------------ */

typedef struct plain_fabric {
    epx_fabric_t base;
    struct plain_fabric *peer;
    uint64_t word[CHANNELS][RANKS];
    int blocked;
} plain_fabric_t;

static epx_status_t plain_post(epx_fabric_t *fabric, const epx_post_t *post, epx_stream_t stream)
{
    (void)stream;
    plain_fabric_t *mine = (plain_fabric_t *)fabric;
    cr_assert(post->channel < CHANNELS && post->peer == 1 - fabric->rank && post->epoch.base == NULL);
    mine->peer->word[post->channel][fabric->rank] = post->epoch.add;
    return EPX_OK;
}

static epx_status_t plain_wait(epx_fabric_t *fabric, const epx_wait_t *wait, epx_wait_result_t *result,
                               epx_stream_t stream)
{
    (void)stream;
    plain_fabric_t *mine = (plain_fabric_t *)fabric;
    uint64_t seen = mine->word[wait->channel][wait->peer], expected = wait->epoch.add;
    *result = (epx_wait_result_t){.peer = wait->peer, .expected = expected, .seen = seen};
    mine->blocked = wait->mode == EPX_WAIT_EQUAL ? seen != expected : seen < expected;
    return mine->blocked ? EPX_ERR_TIMEOUT : EPX_OK;
}

static void plain_abort(epx_fabric_t *fabric, int32_t culprit)
{
    (void)fabric;
    (void)culprit;
}

static const epx_fabric_ops_t plain_ops = {
    .name = "plain", .post = plain_post, .wait = plain_wait, .abort = plain_abort};

/* ---- two ranks --------------------------------------------------------------------------------------------------- */

typedef struct end {
    epx_shape_t shape;
    epx_sizes_t sizes;
    plain_fabric_t fabric;
    void *segment, *scratch, *batch, *state, *plan_bytes, *plan_state;
    void *peer_ptr[RANKS];
    epx_lane_t lane;
    epx_route_report_t *report;
    epx_plan_base_t plan;
    epx_transport_t *transport;
    float x[TOKENS_MAX * WIDTH], y[16 * WIDTH], out[TOKENS_MAX * WIDTH], dweight[TOKENS_MAX];
    epx_batch_t got;
} end_t;

static end_t ends[RANKS];

/* Every token of rank 0 goes to expert 2 of rank 1; those of rank 1 to expert 1 of rank 0. T = 2, 3. */
static void fill_plan(end_t *e)
{
    epx_ring_layout_t at;
    char *bytes = e->plan_bytes;
    cr_assert(epx_ring_lay_out(&e->shape, &at));
    for (int32_t b = 0; b < RANKS; b++) {
        ((int64_t *)(bytes + at.plan_tokens))[b] = 2 + b;
        ((epx_run_t *)(bytes + at.plan_runs))[b] = (epx_run_t){.peer = 1 - e->shape.rank, .rows = 2 + b};
    }
    for (int32_t t = 0; t < TOKENS_MAX; t++) {
        ((int32_t *)(bytes + at.plan_kept))[t] = e->shape.rank == 0 ? 2 : 1;
        ((float *)(bytes + at.plan_weights))[t] = 1;
    }
    *epx_plan_head(&e->plan) = (epx_plan_head_t){.valid = 1, .tokens = 2 + e->shape.rank};
}

static void *memory(int64_t bytes) { return aligned_alloc(256, (size_t)(bytes + 255) / 256 * 256 + 256); }

static void end_open(end_t *e, int32_t rank, epx_check_t check)
{
    e->shape = (epx_shape_t){.rank = rank,
                             .ranks = RANKS,
                             .virtual_ranks = RANKS,
                             .splits = 1,
                             .experts = EXPERTS,
                             .top_k = 1,
                             .columns = 1,
                             .width = WIDTH,
                             .tokens_max = TOKENS_MAX,
                             .virtual_tokens_max = TOKENS_MAX,
                             .row_type = EPX_FP32,
                             .out_type = EPX_FP32,
                             .row_bytes = WIDTH * sizeof(float),
                             .row_align = 1,
                             .lanes = 1,
                             .depth = 2,
                             .backward = EPX_BACKWARD_KEPT,
                             .dropless = 1,
                             .accept = EPX_ACCEPT_PREFIX,
                             .check = check,
                             .timeout_ms = 1,
                             .real = owners3,
                             .virt = owners3};
    cr_assert_eq(epx_ring_query(&e->shape, EPX_FABRIC_LOADSTORE, epx_services(), &e->sizes), EPX_OK);
    cr_assert(e->sizes.channels <= CHANNELS);
    e->fabric = (plain_fabric_t){
        .base = {.ops = &plain_ops, .rank = rank, .ranks = RANKS, .caps = EPX_FABRIC_LOADSTORE},
        .peer = &ends[1 - rank].fabric};
    e->segment = memory(e->sizes.segment_bytes);
    e->scratch = memory(e->sizes.scratch_bytes);
    e->batch = memory(e->sizes.batch_bytes);
    e->state = calloc(1, (size_t)e->sizes.state_bytes);
    e->plan_bytes = memory(e->sizes.plan_bytes);
    e->lane = (epx_lane_t){0};
    e->plan_state = calloc(1, (size_t)e->sizes.plan_state_bytes);
    e->report = calloc(1, sizeof(*e->report) + (size_t)e->sizes.report_bytes);
    e->plan = (epx_plan_base_t){.bytes = e->plan_bytes,
                                .state = e->plan_state,
                                .report = e->report,
                                .lane = &e->lane,
                                .waves = RANKS,
                                .wait_peer = -1};
    fill_plan(e);
    for (int32_t i = 0; i < TOKENS_MAX * WIDTH; i++)
        e->x[i] = (float)(1 + i + 100 * rank);
}

static void open_both(epx_check_t check)
{
    for (int32_t r = 0; r < RANKS; r++)
        end_open(&ends[r], r, check);
    for (int32_t r = 0; r < RANKS; r++) {
        end_t *e = &ends[r];
        for (int32_t p = 0; p < RANKS; p++)
            e->peer_ptr[p] = ends[p].segment;
        epx_transport_env_t env = {.shape = &e->shape,
                                   .sizes = &e->sizes,
                                   .fabric = &e->fabric.base,
                                   .device = &epx_device_host,
                                   .kernels = epx_device_host.kernels,
                                   .services = epx_services(),
                                   .group_name = "unit",
                                   .segment = {e->segment, (size_t)e->sizes.segment_bytes, e->peer_ptr},
                                   .scratch = e->scratch,
                                   .batch = e->batch};
        cr_assert_eq(epx_transport_ring.open(&env, e->state, &e->transport), EPX_OK);
    }
}

static void close_both(void)
{
    for (int32_t r = 0; r < RANKS; r++) {
        end_t *e = &ends[r];
        epx_transport_ring.close(e->transport);
        void *all[] = {e->segment, e->scratch, e->batch, e->state, e->plan_bytes, e->plan_state};
        for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
            free(all[i]);
    }
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static epx_status_t dispatch_start(int32_t r, int32_t wave)
{
    end_t *e = &ends[r];
    e->got = (epx_batch_t)EPX_BATCH_INIT;
    return epx_transport_ring.dispatch_start(e->transport, &e->plan, wave, e->x, &e->got, NULL);
}

static epx_status_t dispatch_finish(int32_t r, int32_t wave)
{
    end_t *e = &ends[r];
    return epx_transport_ring.dispatch_finish(e->transport, &e->plan, wave, &e->got, NULL);
}

/* y = the rows that came. */
static epx_status_t combine_start(int32_t r, int32_t wave)
{
    end_t *e = &ends[r];
    memcpy(e->y, e->got.rows, (size_t)e->sizes.batch_rows_max * WIDTH * sizeof(float));
    return epx_transport_ring.combine_start(e->transport, &e->plan, wave, e->y, NULL);
}

static epx_status_t combine_finish(int32_t r, int32_t wave)
{
    end_t *e = &ends[r];
    return epx_transport_ring.combine_finish(e->transport, &e->plan, wave, e->out, NULL);
}

typedef epx_status_t (*call_t)(int32_t r, int32_t wave);

static void both(call_t call, int32_t wave)
{
    for (int32_t r = 0; r < RANKS; r++)
        cr_assert_eq(call(r, wave), EPX_OK, "rank %d: %s", r, epx_last_error());
}

/* The slot of rank r's chain that a hop arrives in. */
static char *slot_of(int32_t r, epx_ring_chain_id_t chain, int32_t hop)
{
    epx_ring_step_t step = {.ring = (epx_ring_t *)ends[r].transport,
                            .shape = &ends[r].shape,
                            .plan = &ends[r].plan,
                            .chain = chain};
    return epx_ring_slot(&step, hop);
}

static void expect_corrupt(epx_status_t status, const char *const *words)
{
    cr_assert_eq(status, EPX_ERR_CORRUPT, "%d", (int)status);
    for (int i = 0; words[i] != NULL; i++)
        cr_assert_not_null(strstr(epx_last_error(), words[i]), "'%s' does not say %s", epx_last_error(),
                           words[i]);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

/* One hop away and home again: out = x. Rank 0 may run ahead of rank 1 up to its first finish that receives.
 */
static void good_pass(void)
{
    both(dispatch_start, 0);
    both(dispatch_finish, 0);
    both(combine_start, 0);
    both(combine_finish, 0);
    both(dispatch_start, 1);
    both(dispatch_finish, 1);
    both(combine_start, 1);
    cr_assert_eq(combine_finish(0, 1), EPX_ERR_TIMEOUT); /* its sums are with rank 1 */
}

Test(ring_checks, a_finish_waits_only_for_what_the_left_has_done)
{
    open_both(EPX_CHECK_OFF);
    cr_assert_eq(dispatch_start(0, 0), EPX_OK);
    cr_assert_eq(dispatch_finish(0, 0), EPX_OK);
    cr_assert_eq(combine_start(0, 0), EPX_OK);
    cr_assert_eq(combine_finish(0, 0), EPX_OK);
    cr_assert_eq(dispatch_start(0, 1), EPX_OK);
    cr_assert_eq(dispatch_finish(0, 1), EPX_ERR_TIMEOUT); /* rank 1 has not begun */
    close_both();
    open_both(EPX_CHECK_OFF);
    good_pass();
    close_both();
}

static const epx_check_t checks[] = {EPX_CHECK_CANARY, EPX_CHECK_FULL};

/* Up to the finish of the hop in which rank 1's expert 2 gets the tokens of rank 0. */
static void until_arrival(epx_check_t check)
{
    open_both(check);
    both(dispatch_start, 0);
    both(dispatch_finish, 0);
    both(combine_start, 0);
    both(combine_finish, 0);
    both(dispatch_start, 1);
}

static void fill_pattern(void *rows, size_t bytes)
{
    for (size_t i = 0; i < bytes / 2; i++)
        ((uint16_t *)rows)[i] = 0x7fff;
}

Test(ring_checks, a_row_that_never_came)
{
    until_arrival(EPX_CHECK_CANARY);
    epx_ring_t *ring = (epx_ring_t *)ends[1].transport;
    char *rows = slot_of(1, EPX_RING_BLOCKS, 1) + ring->layout.block.rows;
    fill_pattern(rows + WIDTH * sizeof(float), WIDTH * sizeof(float)); /* token 1 */
    expect_corrupt(dispatch_finish(1, 1),
                   (const char *[]){"rank 1", "row 1", "expert 2", "rank 0", "exchange", NULL});
    close_both();
}

Test(ring_checks, a_bit_that_flipped)
{
    until_arrival(EPX_CHECK_FULL);
    epx_ring_t *ring = (epx_ring_t *)ends[1].transport;
    slot_of(1, EPX_RING_BLOCKS, 1)[ring->layout.block.rows + 5] ^= 1; /* token 0 */
    expect_corrupt(dispatch_finish(1, 1), (const char *[]){"rank 1", "token 0 of rank 0", "checksum", NULL});
    cr_assert_eq(dispatch_finish(0, 1), EPX_OK);
    close_both();
}

/* A block whose ids name rank 1's expert for tokens that the plan has not: every id beyond the rows is
 * refused. */
Test(ring_checks, more_rows_than_the_routing_allows)
{
    until_arrival(EPX_CHECK_OFF);
    epx_ring_t *ring = (epx_ring_t *)ends[1].transport;
    ((int64_t *)((char *)ends[1].plan_bytes + ring->layout.plan_tokens))[0] = TOKENS_MAX;
    ring->layout.rows_max = 2;
    ((int32_t *)(slot_of(1, EPX_RING_BLOCKS, 1) + ring->layout.block.kept))[2] = 2;
    expect_corrupt(dispatch_finish(1, 1), (const char *[]){"rank 0", "1 rows more", NULL});
    close_both();
}

Test(ring_checks, a_row_of_y_that_was_left_out)
{
    until_arrival(EPX_CHECK_CANARY);
    both(dispatch_finish, 1);
    end_t *e = &ends[1];
    memcpy(e->y, e->got.rows, sizeof(float) * WIDTH * 2);
    fill_pattern(e->y, WIDTH * sizeof(float)); /* row 0 */
    expect_corrupt(epx_transport_ring.combine_start(e->transport, &e->plan, 1, e->y, NULL),
                   (const char *[]){"rank 1", "row 0", "expert 2", "caller", NULL});
    close_both();
}

/* What has been used is filled with the pattern before it is given back, so that the next pass is looked at
 * too. */
Test(ring_checks, slots_are_poisoned_before_they_are_given_back)
{
    for (int i = 0; i < 2; i++) {
        until_arrival(checks[i]);
        both(dispatch_finish, 1);
        const uint16_t *rows = (const uint16_t *)slot_of(1, EPX_RING_BLOCKS, 1);
        for (int n = 0; n < 2 * WIDTH * 2; n++)
            cr_assert_eq(rows[n], 0x7fff);
        close_both();
    }
}

/* The sums of rank 0's block arrive at rank 1 with hop 1. */
Test(ring_checks, a_partial_sum_that_never_came)
{
    until_arrival(EPX_CHECK_CANARY);
    both(dispatch_finish, 1);
    both(combine_start, 1);
    fill_pattern(slot_of(1, EPX_RING_SUMS, 1), WIDTH * sizeof(float));
    expect_corrupt(combine_finish(1, 1),
                   (const char *[]){"rank 1", "partial sum of token 0 of rank 0", "exchange", NULL});
    close_both();
}

Test(ring_checks, a_partial_sum_that_changed)
{
    until_arrival(EPX_CHECK_FULL);
    both(dispatch_finish, 1);
    both(combine_start, 1);
    slot_of(1, EPX_RING_SUMS, 1)[WIDTH * sizeof(float) + 1] ^= 4;
    expect_corrupt(combine_finish(1, 1),
                   (const char *[]){"rank 1", "partial sum of token 1 of rank 0", "checksum", NULL});
    close_both();
}
