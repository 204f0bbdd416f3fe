/* The layout of `ragged` against values worked out by hand. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <string.h>

#include "kernels/host/table.h"
#include <epx/kernels_ragged.h>

enum { RANKS = 2, EXPERTS = 4, PAIRS = 4, ASSIGNMENTS = 8, UNSET = -77 };

/* Everything that a layout reads and writes, small. */
typedef struct layout {
    epx_shape_t shape;
    epx_ragged_order_t order;
    int32_t counts[16], accepted[16], first_row[8], last_token[PAIRS], list_end[PAIRS];
    int64_t scratch[8], base[PAIRS];
    epx_plan_head_t head;
    epx_route_report_t report;
    epx_ragged_wave_t wave[2], told[2];
    int32_t place[ASSIGNMENTS], send[ASSIGNMENTS];
    epx_run_t send_runs[EXPERTS], return_runs[EXPERTS * RANKS];
    int64_t start[2 * EXPERTS], count[2 * EXPERTS], home_start[PAIRS], home_count[PAIRS];
    int32_t wire_token[ASSIGNMENTS], wire_first[ASSIGNMENTS], wire_count[ASSIGNMENTS],
        list_place[ASSIGNMENTS];
    float list_weight[ASSIGNMENTS];
    int32_t wire_row[ASSIGNMENTS], home[ASSIGNMENTS];
    epx_run_t wire_runs[PAIRS], list_runs[PAIRS], head_runs[PAIRS], back_runs[PAIRS];
    int64_t wire_start[PAIRS], wire_room[PAIRS];
} layout_t;

static layout_t out;

/* Three experts, rank 0 owns 0 and 1, rank 1 owns 2. Two tokens of K = 2 and more. */
static const int32_t owner3[] = {0, 0, 1}, local3[] = {0, 1, 0}, first3[] = {0, 2, 3}, expert3[] = {0, 1, 2};
static const epx_owners_t owners3 = {
    .ranks = 2, .experts = 3, .owner = owner3, .local = local3, .first = first3, .expert = expert3};

/* One chunk: order 0, 1 | 2. Two chunks: 0 | 2 then 1 | nothing. */
static const int32_t one_expert[] = {0, 1, 2}, one_first[] = {0, 2, 3}, one_wave[] = {0, 0, 0},
                     one_at[] = {0, 1, 2};
static const epx_ragged_order_t one_chunk = {
    .chunks = 1, .expert = one_expert, .first = one_first, .wave = one_wave, .at = one_at};
static const int32_t two_expert[] = {0, 2, 1}, two_first[] = {0, 1, 2, 3, 3}, two_wave[] = {0, 1, 0},
                     two_at[] = {0, 2, 1};
static const epx_ragged_order_t two_chunks = {
    .chunks = 2, .expert = two_expert, .first = two_first, .wave = two_wave, .at = two_at};

/* Rank 0: tokens (0, 2), (1, 0), (2, -1). Rank 1: tokens (0, 0), (1, 2). */
static const int32_t ids0[] = {0, 2, 1, 0, 2, -1}, ordinals0[] = {0, 0, 0, 1, 1, -1};
static const int32_t ids1[] = {0, 0, 1, 2}, ordinals1[] = {0, 1, 0, 0};
static const int32_t counts3[] = {2, 1, 2, 2, 1, 1};
static const float weights0[] = {1, 2, 3, 4, 5, 6}, weights1[] = {7, 8, 9, 10};

/* A notice as it lies in an exchange. */
typedef struct noticed {
    epx_route_notice_t notice;
    int32_t counts[4];
} noticed_t;

static noticed_t noticed[2]; /* what the ranks say, but for T and counts */

static void set_shape(int32_t rank, int32_t row_align)
{
    memset(&out, 0, sizeof(out));
    for (int32_t r = 0; r < 2; r++)
        noticed[r].notice.bad_at = EPX_NOTICE_GOOD;
    out.shape = (epx_shape_t){.rank = rank,
                              .ranks = 2,
                              .virtual_ranks = 2,
                              .splits = 1,
                              .experts = 3,
                              .top_k = 2,
                              .columns = 2,
                              .tokens_max = 3,
                              .virtual_tokens_max = 3,
                              .row_align = row_align,
                              .capacity_factor = 1,
                              .dropless = 1,
                              .real = owners3,
                              .virt = owners3};
}

static void lay_out(const epx_ragged_order_t *order, int32_t local_experts_max, int rank_wire, int64_t tokens,
                    const int32_t *expert, const int32_t *ordinal, const int32_t *counts,
                    const float *weights)
{
    int32_t entries = out.shape.splits * out.shape.experts;
    for (int32_t r = 0; r < out.shape.ranks; r++) {
        noticed[r].notice.tokens = tokens;
        memcpy(noticed[r].counts, counts + r * entries, (size_t)entries * sizeof(*counts));
    }
    out.order = *order;
    epx_k_ragged_layout_t args = {.shape = &out.shape,
                                  .order = &out.order,
                                  .local_experts_max = local_experts_max,
                                  .rank_wire = rank_wire,
                                  .notices = noticed,
                                  .notice_stride = sizeof(noticed[0]),
                                  .expert = expert,
                                  .ordinal = ordinal,
                                  .weights = weights,
                                  .counts = out.counts,
                                  .accepted = out.accepted,
                                  .scratch = out.scratch,
                                  .first_row = out.first_row,
                                  .last_token = out.last_token,
                                  .list_end = out.list_end,
                                  .base = out.base,
                                  .verdict = {.head = &out.head, .report = &out.report, .route = 9},
                                  .wave_report = out.told,
                                  .wave = out.wave,
                                  .place = out.place,
                                  .send = out.send,
                                  .send_runs = out.send_runs,
                                  .return_runs = out.return_runs,
                                  .start = out.start,
                                  .count = out.count,
                                  .home_start = out.home_start,
                                  .home_count = out.home_count,
                                  .wire_token = out.wire_token,
                                  .wire_first = out.wire_first,
                                  .wire_count = out.wire_count,
                                  .list_place = out.list_place,
                                  .list_weight = out.list_weight,
                                  .wire_row = out.wire_row,
                                  .home = out.home,
                                  .wire_runs = out.wire_runs,
                                  .list_runs = out.list_runs,
                                  .head_runs = out.head_runs,
                                  .back_runs = out.back_runs,
                                  .wire_start = out.wire_start,
                                  .wire_room = out.wire_room};
    cr_assert_eq(epx_host_ragged_layout(&args, NULL), EPX_OK);
    cr_assert_eq(out.report.done, 9);
    cr_assert_eq(out.report.kept, out.head.kept);
    for (int32_t c = 0; c < order->chunks; c++)
        cr_assert_eq(memcmp(&out.told[c], &out.wave[c], sizeof(out.wave[c])), 0);
}

static void ints(const char *what, const int32_t *got, int n, const int32_t *wanted)
{
    for (int i = 0; i < n; i++)
        cr_assert_eq(got[i], wanted[i], "%s[%d] is %d, not %d", what, i, got[i], wanted[i]);
}

static void longs(const char *what, const int64_t *got, int n, const int64_t *wanted)
{
    for (int i = 0; i < n; i++)
        cr_assert_eq(got[i], wanted[i], "%s[%d] is %ld, not %ld", what, i, (long)got[i], (long)wanted[i]);
}

static void floats(const char *what, const float *got, int n, const float *wanted)
{
    for (int i = 0; i < n; i++)
        cr_assert_eq(got[i], wanted[i], "%s[%d] is %g, not %g", what, i, (double)got[i], (double)wanted[i]);
}

/* wanted: first, row, peer, rows of each run. */
static void runs(const char *what, const epx_run_t *got, int n, const int64_t (*wanted)[4])
{
    for (int i = 0; i < n; i++) {
        int64_t seen[4] = {got[i].first, got[i].row, got[i].peer, got[i].rows};
        for (int f = 0; f < 4; f++)
            cr_assert_eq(seen[f], wanted[i][f], "%s[%d]: field %d is %ld, not %ld", what, i, f, (long)seen[f],
                         (long)wanted[i][f]);
    }
}

Test(ragged_layout, two_chunks_seen_by_rank_0)
{
    set_shape(0, 1);
    lay_out(&two_chunks, 2, 0, 3, ids0, ordinals0, counts3, weights0);
    /* A_max = 6: places of wave 1 start at 6. Return rows: expert 0: 0, 1; expert 2: 2, 3; expert 1: 4. */
    ints("place", out.place, 6, (int32_t[]){0, 2, 10, 1, 3, -1});
    ints("send", out.send, 5, (int32_t[]){0, 3, 1, 4, 2});
    runs("send_runs", out.send_runs, 3, (const int64_t[][4]){{0, 0, 0, 2}, {2, 0, 1, 2}, {4, 0, 0, 1}});
    /* Rank 1 keeps two of expert 0 and one of expert 2 before its one of expert 1, which returns to its
     * row 3. */
    runs("return_runs", out.return_runs, 4,
         (const int64_t[][4]){{0, 0, 0, 2}, {2, 0, 1, 2}, {0, 4, 0, 1}, {1, 3, 1, 1}});
    /* What is not of a wave stands at the end of what is. */
    longs("start", out.start, 4, (int64_t[]){0, 4, 0, 0});
    longs("count", out.count, 4, (int64_t[]){4, 0, 0, 2});
    longs("home_start", out.home_start, 4, (int64_t[]){0, 2, 4, 5});
    longs("home_count", out.home_count, 4, (int64_t[]){2, 2, 1, 0});
    longs("wave 0", &out.wave[0].sent_rows, 3, (int64_t[]){2, 2, 2});
    longs("wave 1", &out.wave[1].sent_rows, 3, (int64_t[]){0, 0, 1});
    longs("routed, kept, dropped", (int64_t[]){out.head.routed, out.head.kept, out.head.dropped_sender}, 3,
          (int64_t[]){5, 6, 0});
}

/* Expert 0 has four rows, so expert 1 starts at 8 with row_align = 8; the second sender's rows follow the
 * first's. */
Test(ragged_layout, alignment_and_order_of_senders)
{
    set_shape(1, 8);
    lay_out(&one_chunk, 2, 0, 2, ids1, ordinals1, counts3, weights1);
    runs("send_runs", out.send_runs, 3, (const int64_t[][4]){{0, 2, 0, 2}, {2, 9, 0, 1}, {3, 2, 1, 1}});
    ints("place", out.place, 4, (int32_t[]){0, 1, 2, 3});
    /* Expert 2 stands here: two rows of rank 0 (its return rows 3 and 4), one of mine. */
    runs("return_runs", out.return_runs, 2, (const int64_t[][4]){{0, 3, 0, 2}, {2, 3, 1, 1}});
    longs("start, count", (int64_t[]){out.start[0], out.count[0]}, 2, (int64_t[]){0, 3});

    set_shape(0, 8);
    lay_out(&one_chunk, 2, 0, 3, ids0, ordinals0, counts3, weights0);
    longs("start", out.start, 2, (int64_t[]){0, 8});
    longs("count", out.count, 2, (int64_t[]){4, 2});
}

Test(ragged_layout, rank_wire_of_rank_0)
{
    set_shape(0, 1);
    lay_out(&one_chunk, 2, 1, 3, ids0, ordinals0, counts3, weights0);
    /* To rank 0: tokens 0 and 1 (experts 1, 0: places 4 and 1, k ascending). To rank 1, from return row 3:
     * tokens 0, 2. */
    ints("wire_token", out.wire_token, 2, (int32_t[]){0, 1});
    ints("wire_token", out.wire_token + 3, 2, (int32_t[]){0, 2});
    ints("wire_first", out.wire_first, 2, (int32_t[]){0, 1});
    ints("wire_count", out.wire_count, 2, (int32_t[]){1, 2});
    ints("list_place", out.list_place, 5, (int32_t[]){0, 4, 1, 0, 1});
    floats("list_weight", out.list_weight, 5, (float[]){1, 3, 4, 2, 5});
    ints("wire_row", out.wire_row, 5, (int32_t[]){0, 0, 1, 1, 1});
    ints("home", out.home, 6, (int32_t[]){0, 3, 1, -1, 4, -1});
    runs("wire_runs", out.wire_runs, 2, (const int64_t[][4]){{0, 0, 0, 2}, {3, 0, 1, 2}});
    runs("list_runs", out.list_runs, 2, (const int64_t[][4]){{0, 0, 0, 3}, {3, 0, 1, 2}});
    runs("head_runs", out.head_runs, 2, (const int64_t[][4]){{0, 0, 0, 1}, {1, 0, 1, 1}});
    runs("back_runs", out.back_runs, 2, (const int64_t[][4]){{0, 0, 0, 3}, {3, 0, 1, 3}});
    longs("wire_start", out.wire_start, 2, (int64_t[]){0, 3});
    longs("wire_room", out.wire_room, 2, (int64_t[]){3, 3});
    longs("home_count", out.home_count, 2, (int64_t[]){2, 2});
    longs("wave", &out.wave[0].sent_rows, 3, (int64_t[]){2, 2, 3});
}

/* Rank 1 stands behind rank 0's three rows at rank 0, and behind its two at itself. */
Test(ragged_layout, rank_wire_of_rank_1)
{
    set_shape(1, 1);
    lay_out(&one_chunk, 2, 1, 2, ids1, ordinals1, counts3, weights1);
    ints("wire_token", out.wire_token, 2, (int32_t[]){0, 1});
    ints("wire_first", out.wire_first, 2, (int32_t[]){3, 5});
    ints("wire_count", out.wire_count, 2, (int32_t[]){2, 1});
    ints("list_place", out.list_place, 4, (int32_t[]){2, 3, 5, 2});
    ints("to myself", (int32_t[]){out.wire_token[3], out.wire_first[3], out.wire_count[3]}, 3,
         (int32_t[]){1, 2, 1});
    ints("wire_row", out.wire_row, 4, (int32_t[]){3, 3, 4, 2});
    ints("home", out.home, 4, (int32_t[]){0, -1, 1, 3});
    runs("wire_runs", out.wire_runs, 2, (const int64_t[][4]){{0, 3, 0, 2}, {3, 2, 1, 1}});
    runs("back_runs", out.back_runs, 2, (const int64_t[][4]){{0, 3, 0, 2}, {2, 3, 1, 1}});
}

/* A token's experts in falling order, in two chunks: homes are still by (wave, rank). */
Test(ragged_layout, homes_ascend)
{
    static const int32_t ids[] = {1, 2}, ordinals[] = {0, 0}, counts[] = {0, 1, 1, 0, 0, 0};
    set_shape(0, 1);
    lay_out(&two_chunks, 2, 1, 1, ids, ordinals, counts, weights0);
    ints("place", out.place, 2, (int32_t[]){6 + 1, 0});
    ints("home", out.home, 2, (int32_t[]){0, 6 + 1});
}

/*
 * One real rank that plays two: experts 0, 1 | 2, 3, each pair split in two chunks, so that wave 0 holds 0
 * and 2. Tokens 0 and 1 belong to the first virtual sender. Every chunk has cap = ceil(3 / 4) = 1: expert 2
 * keeps the first of two.
 */
Test(ragged_layout, virtual_ranks)
{
    static const int32_t owner[] = {0, 0, 0, 0}, local[] = {0, 1, 2, 3}, first[] = {0, 4},
                         expert[] = {0, 1, 2, 3};
    static const int32_t virtual_owner[] = {0, 0, 1, 1}, virtual_local[] = {0, 1, 0, 1},
                         virtual_first[] = {0, 2, 4};
    static const int32_t order_expert[] = {0, 2, 1, 3}, order_first[] = {0, 2, 4}, wave[] = {0, 1, 0, 1},
                         at[] = {0, 2, 1, 3};
    static const int32_t ids[] = {2, 0, 2}, ordinals[] = {0, 0, 0}, counts[] = {1, 0, 1, 0, 0, 0, 1, 0};
    const epx_ragged_order_t order = {
        .chunks = 2, .expert = order_expert, .first = order_first, .wave = wave, .at = at};
    memset(&out, 0, sizeof(out));
    for (int32_t r = 0; r < 2; r++)
        noticed[r].notice.bad_at = EPX_NOTICE_GOOD;
    out.shape = (epx_shape_t){.ranks = 1,
                              .virtual_ranks = 2,
                              .splits = 2,
                              .experts = 4,
                              .top_k = 1,
                              .columns = 1,
                              .tokens_max = 3,
                              .virtual_tokens_max = 2,
                              .row_align = 1,
                              .capacity_factor = 1};
    out.shape.real = (epx_owners_t){1, 4, owner, local, first, expert};
    out.shape.virt = (epx_owners_t){2, 4, virtual_owner, virtual_local, virtual_first, expert};
    lay_out(&order, 4, 0, 3, ids, ordinals, counts, weights0);
    ints("place", out.place, 3, (int32_t[]){1, 0, -1});
    longs("start", out.start, 8, (int64_t[]){0, 1, 1, 2, 0, 0, 0, 0});
    longs("count", out.count, 8, (int64_t[]){1, 0, 1, 0, 0, 0, 0, 0});
    longs("routed, kept, dropped", (int64_t[]){out.head.routed, out.head.kept, out.head.dropped_sender}, 3,
          (int64_t[]){3, 2, 1});
}

/* Sums of the rank wire: only the rows that are there, k ascending, weights parallel to the list, sums of
 * rows beside. */
Test(ragged_return, sums_go_to_their_sender)
{
    static const float src[] = {1, 2, 10, 20, 100, 200}; /* three places of width 2 */
    static const int32_t first[] = {0, 1, UNSET, 3}, count[] = {1, 2, UNSET, 1}, list[] = {2, 0, 1, 1};
    static const float weights[] = {0.5f, 3, -1, 2};
    static const epx_run_t run[] = {{.first = 0, .row = 1, .peer = 1, .rows = 3},
                                    {.first = 3, .row = 0, .peer = 0, .rows = 1}};
    static const int64_t rows[] = {2, 1};
    float peer0[8], peer1[8];
    for (int i = 0; i < 8; i++)
        peer0[i] = peer1[i] = UNSET;
    void *const dst[] = {peer0, peer1};
    epx_k_ragged_return_t args = {.dst = dst,
                                  .dst_offset = 8,
                                  .dst_stride = 8,
                                  .sum_offset = -1,
                                  .runs = run,
                                  .rows = rows,
                                  .run_count = 2,
                                  .first = first,
                                  .count = count,
                                  .list = list,
                                  .weights = weights,
                                  .width = 2,
                                  .row_type = EPX_FP32,
                                  .src = src,
                                  .row_bytes = 8};
    cr_assert_eq(epx_host_ragged_return(&args, NULL), EPX_OK);
    /* Places 2; 0 and 1: 0.5 * 100; 3 * 1 - 10. */
    floats("peer 1", peer1, 8, (float[]){UNSET, UNSET, UNSET, UNSET, 50, 100, -7, -14});
    floats("peer 0", peer0, 8, (float[]){UNSET, UNSET, 20, 40, UNSET, UNSET, UNSET, UNSET});
    args.weights = NULL;
    cr_assert_eq(epx_host_ragged_return(&args, NULL), EPX_OK);
    cr_assert_eq(peer1[6], 11);
}

/* FNV-1a of "a" is e40c292c, of "b" e70c2de5. */
Test(verify, finds_the_first_changed_row)
{
    static const int64_t start[] = {0, 2}, count[] = {1, 2};
    uint32_t sum[] = {0xe40c292cu, 0, 0xe70c2de5u, 0xe40c292cu};
    int64_t bad[2];
    epx_k_verify_t args = {
        .rows = {start, count, 2}, .src = "axba", .stride = 1, .bytes = 1, .sum = sum, .bad = bad};
    cr_assert_eq(epx_host_verify(&args, NULL), EPX_OK);
    cr_assert_eq(bad[0], -1);
    args.src = "axbb";
    epx_host_verify(&args, NULL);
    cr_assert_eq(bad[0], 3);
    cr_assert_eq(bad[1], 1);
}

/* One bad notice: all runs are empty but the heads, which tell every receiver of no wire rows. */
Test(ragged_layout, a_failed_route_moves_nothing)
{
    for (int32_t rank = 0; rank < 2; rank++) {
        for (int rank_wire = 0; rank_wire < 2; rank_wire++) {
            set_shape(rank, 1);
            noticed[0].notice.bad_at = 5;
            noticed[0].notice.bad_id = -9;
            lay_out(&two_chunks, 2, rank_wire, 3, ids0, ordinals0, counts3, weights0);
            cr_assert_eq(out.head.valid, rank == 0 ? EPX_ERR_ROUTING : EPX_ERR_PEER);
            cr_assert_eq(out.head.tokens, 0);
            cr_assert(out.report.dead == 9 && out.report.rank == 0 && out.report.status == out.head.valid);
            cr_assert(out.report.bad_at == 5 && out.report.bad_id == -9);
            for (int i = 0; i < 3; i++)
                cr_assert_eq(out.send_runs[i].rows, 0);
            for (int i = 0; i < 2 * RANKS; i++)
                cr_assert(out.return_runs[i].rows == 0 && out.count[i] == 0 && out.home_count[i] == 0);
            for (int q = 0; rank_wire && q < PAIRS; q++) {
                cr_assert(out.wire_runs[q].rows == 0 && out.list_runs[q].rows == 0 &&
                          out.back_runs[q].rows == 0 && out.wire_start[q] == 0 && out.wire_room[q] == 0);
                cr_assert(out.head_runs[q].rows == 1 && out.head_runs[q].first == q &&
                          out.head_runs[q].row == rank && out.head_runs[q].peer == q % 2);
            }
        }
    }
}

Test(ragged_layout, tokens_that_are_too_many_are_an_argument_error)
{
    set_shape(1, 1);
    noticed[1].notice.bad_at = EPX_NOTICE_TOKENS;
    noticed[1].notice.bad_id = 4;
    lay_out(&one_chunk, 2, 0, 4, ids1, ordinals1, counts3, weights1);
    cr_assert(out.head.valid == EPX_ERR_ARG && out.report.status == EPX_ERR_ARG && out.report.bad_id == 4);
}
