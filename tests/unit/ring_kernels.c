/* ring's kernels against values worked out by hand. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <string.h>

#include "kernels/host/table.h"
#include <epx/kernels_ring.h>

enum { UNSET = -77 };

/* Three experts, rank 0 owns 0 and 1, rank 1 owns 2. */
static const int32_t owner3[] = {0, 0, 1}, local3[] = {0, 1, 0}, first3[] = {0, 2, 3}, expert3[] = {0, 1, 2};
static const epx_owners_t owners3 = {
    .ranks = 2, .experts = 3, .owner = owner3, .local = local3, .first = first3, .expert = expert3};

static epx_shape_t shape3(int32_t rank)
{
    return (epx_shape_t){.rank = rank,
                         .ranks = 2,
                         .virtual_ranks = 2,
                         .splits = 1,
                         .experts = 3,
                         .top_k = 2,
                         .columns = 2,
                         .tokens_max = 3,
                         .virtual_tokens_max = 3,
                         .capacity_factor = 0.5,
                         .accept = EPX_ACCEPT_PREFIX,
                         .real = owners3,
                         .virt = owners3};
}

/* One notice with the counts of three experts, as it lies in an exchange. */
typedef struct notice3 {
    epx_route_notice_t notice;
    int32_t counts[4];
} notice3_t;

typedef struct layout {
    int32_t counts[8], accepted[8];
    int64_t seats[2], block_tokens[2];
    int64_t told[2];
    epx_run_t block_runs[2];
    epx_plan_head_t head;
    epx_route_report_t report;
} layout_t;

static layout_t lay_out(const epx_shape_t *shape, const void *notices, int64_t stride, const int32_t *ordinal,
                        int32_t *kept)
{
    layout_t out = {.block_tokens = {UNSET, UNSET}};
    epx_k_ring_layout_t args = {.shape = shape,
                                .notices = notices,
                                .notice_stride = stride,
                                .counts = out.counts,
                                .accepted = out.accepted,
                                .seats = out.seats,
                                .ordinal = ordinal,
                                .kept = kept,
                                .block_tokens = out.block_tokens,
                                .tokens_report = out.told,
                                .block_runs = out.block_runs,
                                .verdict = {.head = &out.head, .report = &out.report, .route = 9}};
    cr_assert_eq(epx_host_ring_layout(&args, NULL), EPX_OK);
    cr_assert_eq(out.report.done, 9);
    cr_assert_eq(out.report.kept, out.head.kept);
    for (int32_t b = 0; b < shape->ranks; b++)
        cr_assert_eq(out.told[b], out.block_tokens[b]);
    return out;
}

static void expect(const int32_t *got, const int32_t *wanted, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        cr_assert_eq(got[i], wanted[i], "entry %d: %d, not %d", i, got[i], wanted[i]);
}

/*
 * Rank 0 has tokens (0, 2), (1, 0), (2, -1), rank 1 has (0, 0), (1, 2). V = 9, cf = 0.5, A_max = 6.
 * Rank 0 owns two experts: phys = 2 * ceil(12 * 0.5 / 3) = 4, cap = ceil(18 * 0.5 / 3) = 3. Expert 0 takes
 * both of rank 0 and the first of rank 1; expert 1 gets nothing. Rank 1 owns one: phys = 2, cap = ceil(9 *
 * 0.5 / 3) = 2. Expert 2 takes both of rank 0 and nothing of rank 1.
 */
static const notice3_t notices[] = {{{3, EPX_NOTICE_GOOD, 0}, {2, 1, 2, 0}},
                                    {{2, EPX_NOTICE_GOOD, 0}, {2, 1, 1, 0}}};

Test(ring_kernels, layout_of_rank_0)
{
    epx_shape_t shape = shape3(0);
    int32_t kept[] = {0, 2, 1, 0, 2, -1}, ordinal[] = {0, 0, 0, 1, 1, -1};
    layout_t out = lay_out(&shape, notices, sizeof(notices[0]), ordinal, kept);
    expect(kept, (int32_t[]){0, 2, -1, 0, 2, -1}, 6);
    cr_assert_eq(out.block_tokens[0], 3);
    cr_assert_eq(out.block_tokens[1], 2);
    for (int32_t b = 0; b < 2; b++) {
        cr_assert_eq(out.block_runs[b].first, 0);
        cr_assert_eq(out.block_runs[b].row, 0);
        cr_assert_eq(out.block_runs[b].peer, 1);
        cr_assert_eq(out.block_runs[b].rows, b == 0 ? 3 : 2);
    }
    cr_assert_eq(out.head.tokens, 3);
    cr_assert_eq(out.head.routed, 5);
    cr_assert_eq(out.head.kept, 3);
    cr_assert_eq(out.head.dropped_sender, 1);
}

Test(ring_kernels, layout_of_rank_1)
{
    epx_shape_t shape = shape3(1);
    int32_t kept[] = {0, 0, 1, 2}, ordinal[] = {0, 1, 0, 0};
    layout_t out = lay_out(&shape, notices, sizeof(notices[0]), ordinal, kept);
    expect(kept, (int32_t[]){0, -1, -1, -1}, 4);
    cr_assert_eq(out.block_runs[0].peer, 0);
    cr_assert_eq(out.block_runs[0].rows, 3);
    cr_assert_eq(out.head.tokens, 2);
    cr_assert_eq(out.head.routed, 4);
    cr_assert_eq(out.head.kept, 2);
    cr_assert_eq(out.head.dropped_sender, 3);
}

/*
 * One rank plays two: its three tokens split in (0, 1) and (2), each virtual rank owns one of two experts,
 * all choose expert 0. cf = 1, V = 3: phys = ceil(4 / 2) = 2, cap = ceil(3 / 2) = 2: the second virtual
 * rank's token is refused.
 */
Test(ring_kernels, layout_of_virtual_ranks)
{
    static const int32_t real_owner[] = {0, 0}, real_first[] = {0, 2}, experts[] = {0, 1},
                         real_local[] = {0, 1};
    static const int32_t virt_owner[] = {0, 1}, virt_first[] = {0, 1, 2}, virt_local[] = {0, 0};
    static const struct {
        epx_route_notice_t notice;
        int32_t counts[4];
    } notice = {{3, EPX_NOTICE_GOOD, 0}, {2, 0, 1, 0}};
    epx_shape_t shape = {.ranks = 1,
                         .virtual_ranks = 2,
                         .splits = 2,
                         .experts = 2,
                         .top_k = 1,
                         .columns = 1,
                         .tokens_max = 3,
                         .virtual_tokens_max = 2,
                         .capacity_factor = 1,
                         .accept = EPX_ACCEPT_PREFIX,
                         .real = {1, 2, real_owner, real_local, real_first, experts},
                         .virt = {2, 2, virt_owner, virt_local, virt_first, experts}};
    int32_t kept[] = {0, 0, 0}, ordinal[] = {0, 1, 0};
    layout_t out = lay_out(&shape, &notice, sizeof(notice), ordinal, kept);
    expect(kept, (int32_t[]){0, 0, -1}, 3);
    cr_assert_eq(out.head.kept, 2);
    cr_assert_eq(out.head.dropped_sender, 1);
    cr_assert_eq(out.block_runs[0].peer, 0);
}

/* One bad notice: every block is empty, on every rank; whose fault it was is told. */
Test(ring_kernels, layout_of_a_failed_route)
{
    static const notice3_t bad[] = {{{3, EPX_NOTICE_GOOD, 0}, {2, 1, 2, 0}}, {{2, 3, 77}, {0}}};
    for (int32_t rank = 0; rank < 2; rank++) {
        epx_shape_t shape = shape3(rank);
        layout_t out = lay_out(&shape, bad, sizeof(bad[0]), NULL, NULL);
        cr_assert_eq(out.head.valid, rank == 1 ? EPX_ERR_ROUTING : EPX_ERR_PEER);
        cr_assert_eq(out.head.tokens, 0);
        cr_assert_eq(out.report.dead, 9);
        cr_assert_eq(out.report.status, out.head.valid);
        cr_assert_eq(out.report.rank, 1);
        cr_assert_eq(out.report.bad_at, 3);
        cr_assert_eq(out.report.bad_id, 77);
        for (int32_t b = 0; b < 2; b++)
            cr_assert(out.block_tokens[b] == 0 && out.block_runs[b].rows == 0);
    }
}

Test(ring_kernels, layout_without_tokens)
{
    static const notice3_t none[] = {{{0, EPX_NOTICE_GOOD, 0}, {0}}, {{0, EPX_NOTICE_GOOD, 0}, {0}}};
    epx_shape_t shape = shape3(0);
    layout_t out = lay_out(&shape, none, sizeof(none[0]), NULL, NULL);
    cr_assert_eq(out.head.tokens + out.head.routed + out.head.kept + out.head.dropped_sender, 0);
    cr_assert_eq(out.block_runs[0].rows, 0);
}

/* ---- places --------------------------------------------------------------------------------------------------- */

enum { ROWS = 12 };

typedef struct places {
    int64_t tokens, start[2], count[2], excess;
    int32_t place[8], token[ROWS];
    float place_weight[8], row_weight[ROWS];
    epx_origin_t origin[ROWS];
} places_t;

/* Four experts, of which this rank owns 1 and 3. */
static places_t place(int64_t tokens, const int32_t *kept, int32_t row_align, int64_t rows_max)
{
    static const int32_t local[] = {-1, 0, -1, 1};
    static const float weights[] = {1, 2, 3, 4, 5, 6};
    places_t out = {.tokens = tokens, .excess = UNSET};
    for (int32_t i = 0; i < ROWS; i++)
        out.token[i] = UNSET;
    epx_k_ring_block_t args = {.tokens = &out.tokens,
                               .experts = 4,
                               .top_k = 2,
                               .local_experts = 2,
                               .row_align = row_align,
                               .rows_max = rows_max,
                               .rank = 9,
                               .local = local,
                               .kept = kept,
                               .weights = weights,
                               .start = out.start,
                               .count = out.count,
                               .place = out.place,
                               .token = out.token,
                               .place_weight = out.place_weight,
                               .row_weight = out.row_weight,
                               .origin = out.origin,
                               .excess = &out.excess};
    cr_assert_eq(epx_host_ring_block(&args, NULL), EPX_OK);
    return out;
}

/* Expert 1 gets tokens 0, 1, 2 in rows 0, 1, 2; expert 3 begins at a multiple of 4 with tokens 0 and 1. */
Test(ring_kernels, block_in_order)
{
    places_t out = place(3, (int32_t[]){1, 3, 3, 1, 1, 0}, 4, ROWS);
    cr_assert_eq(out.start[0], 0);
    cr_assert_eq(out.count[0], 3);
    cr_assert_eq(out.start[1], 4);
    cr_assert_eq(out.count[1], 2);
    cr_assert_eq(out.excess, 0);
    expect(out.place, (int32_t[]){0, 4, 5, 1, 2, -1}, 6);
    expect(out.token, (int32_t[]){0, 1, 2, UNSET, 0, 1, UNSET}, 7);
    cr_assert_eq(out.row_weight[0], 1.0f);
    cr_assert_eq(out.row_weight[1], 4.0f);
    cr_assert_eq(out.row_weight[2], 5.0f);
    cr_assert_eq(out.row_weight[4], 2.0f);
    cr_assert_eq(out.row_weight[5], 3.0f);
    for (int32_t a = 0; a < 6; a++)
        cr_assert_eq(out.place_weight[a], (float)(a + 1));
    cr_assert_eq(out.origin[5].rank, 9);
    cr_assert_eq(out.origin[5].token, 1);
    cr_assert_eq(out.origin[5].k, 0);
    cr_assert_eq(out.origin[1].k, 1);
}

/* The same expert twice in a token: two rows. Nothing for expert 1: it has no rows and a place all the same.
 */
Test(ring_kernels, block_with_repeats)
{
    places_t out = place(2, (int32_t[]){3, 3, -1, 2}, 1, ROWS);
    expect(out.place, (int32_t[]){0, 1, -1, -1}, 4);
    cr_assert_eq(out.count[0], 0);
    cr_assert_eq(out.count[1], 2);
    cr_assert_eq(out.origin[1].k, 1);
}

Test(ring_kernels, block_of_nothing)
{
    places_t out = place(0, NULL, 8, ROWS);
    cr_assert_eq(out.count[0] + out.count[1] + out.excess, 0);
}

/* Ids that no rank sends, and more rows than there is room for: neither reaches memory that is not theirs. */
Test(ring_kernels, block_from_a_stranger)
{
    places_t out = place(2, (int32_t[]){4, -2, INT32_MAX, 1}, 1, ROWS);
    expect(out.place, (int32_t[]){-1, -1, -1, 0}, 4);
    out = place(3, (int32_t[]){1, 3, 3, 1, 1, 0}, 4, 5);
    cr_assert_eq(out.excess, 1);
    cr_assert_eq(out.count[1], 1);
    expect(out.place, (int32_t[]){0, 4, -1, 1, 2, -1}, 6);
    cr_assert_eq(out.token[5], UNSET);
}
