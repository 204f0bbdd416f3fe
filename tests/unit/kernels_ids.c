/* Reading ids: extremes, holes, splits, spill columns. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

#include "kernels/host/table.h"
#include "support/number.h"

#define CELLS 4000
#define COUNTS 800
#define UNTOUCHED (-77)

static int64_t ids[CELLS];
static int32_t narrow[CELLS], expert[CELLS + 1], ordinal[CELLS + 1], counts[COUNTS + 1];
static int64_t skipped;
static epx_route_notice_t notice;
static const float weights[] = {1, 2, 3, 4, 5};
static float weights_copy[6];

static epx_k_read_ids_t arguments(int64_t tokens, int32_t columns, int32_t top_k, int32_t experts,
                                  int32_t splits)
{
    for (int32_t i = 0; i <= CELLS; i++)
        expert[i] = ordinal[i] = UNTOUCHED;
    for (int32_t i = 0; i <= COUNTS; i++)
        counts[i] = UNTOUCHED;
    skipped = UNTOUCHED;
    notice = (epx_route_notice_t){UNTOUCHED, UNTOUCHED, UNTOUCHED};
    return (epx_k_read_ids_t){.ids = ids,
                              .id_type = EPX_INT64,
                              .tokens = tokens,
                              .tokens_max = CELLS,
                              .columns = columns,
                              .top_k = top_k,
                              .experts = experts,
                              .splits = splits,
                              .expert = expert,
                              .ordinal = ordinal,
                              .counts = counts,
                              .skipped = &skipped,
                              .notice = &notice};
}

Test(kernels_ids, by_hand)
{
    /* Three tokens, K = 2 of E = 3, one spill column. */
    memcpy(ids, (int64_t[]){2, 2, 0, -1, 0, 2, 2, 0, -1}, 72);
    epx_k_read_ids_t args = arguments(3, 3, 2, 3, 1);
    cr_assert_eq(epx_host_read_ids(&args, NULL), EPX_OK);
    int32_t experts[] = {2, 2, 0, -1, 0, 2, 2, 0, -1, UNTOUCHED},
            ordinals[] = {0, 1, -1, -1, 0, -1, 2, 1, -1, UNTOUCHED};
    for (int32_t i = 0; i < 10; i++) {
        cr_assert_eq(expert[i], experts[i]);
        cr_assert_eq(ordinal[i], ordinals[i]);
    }
    cr_assert_eq(counts[0], 2);
    cr_assert_eq(counts[1], 0);
    cr_assert_eq(counts[2], 3);
    cr_assert_eq(counts[3], UNTOUCHED);
    cr_assert_eq(skipped, 1);
    cr_assert_eq(notice.bad_at, EPX_NOTICE_GOOD);
    cr_assert_eq(notice.tokens, 3);
}

Test(kernels_ids, splits_have_counts_and_ordinals_of_their_own)
{
    /* Five tokens, m = 2: three and two. */
    memcpy(ids, (int64_t[]){0, 1, 0, 0, 1}, 40);
    epx_k_read_ids_t args = arguments(5, 1, 1, 2, 2);
    epx_host_read_ids(&args, NULL);
    int32_t ordinals[] = {0, 0, 1, 0, 0}, wanted[] = {2, 1, 1, 1};
    for (int32_t i = 0; i < 5; i++)
        cr_assert_eq(ordinal[i], ordinals[i]);
    for (int32_t i = 0; i < 4; i++)
        cr_assert_eq(counts[i], wanted[i]);
}

static void untouched_but_for_bad(int64_t index, int64_t id)
{
    cr_assert_eq(notice.bad_at, index, "index %lld", (long long)notice.bad_at);
    cr_assert_eq(notice.bad_id, id, "id %lld", (long long)notice.bad_id);
    cr_assert_eq(skipped, UNTOUCHED);
    for (int32_t i = 0; i <= CELLS; i++)
        cr_assert(expert[i] == UNTOUCHED && ordinal[i] == UNTOUCHED);
    for (int32_t i = 0; i <= COUNTS; i++)
        cr_assert_eq(counts[i], UNTOUCHED);
}

Test(kernels_ids, a_bad_id_is_found_before_anything_is_written)
{
    static const int64_t extremes[] = {INT64_MAX,
                                       INT64_MAX - 1,
                                       INT64_MIN,
                                       INT64_MIN + 1,
                                       -2,
                                       5,
                                       6,
                                       INT32_MAX,
                                       INT32_MIN,
                                       (int64_t)1 << 32,
                                       ((int64_t)1 << 32) + 3,
                                       -((int64_t)1 << 32)};
    for (size_t i = 0; i < sizeof(extremes) / sizeof(extremes[0]); i++) {
        int is_int32 = extremes[i] >= INT32_MIN && extremes[i] <= INT32_MAX;
        for (int64_t at = 0; at < 12; at++) { /* spill columns too */
            for (int32_t a = 0; a < 12; a++)
                ids[a] = narrow[a] = a % 6 - 1;
            ids[at] = extremes[i];
            narrow[at] = (int32_t)extremes[i];
            epx_k_read_ids_t args = arguments(4, 3, 2, 5, 1);
            cr_assert_eq(epx_host_read_ids(&args, NULL), EPX_OK);
            untouched_but_for_bad(at, extremes[i]);
            if (!is_int32)
                continue;
            args = arguments(4, 3, 2, 5, 1);
            args.ids = narrow;
            args.id_type = EPX_INT32;
            epx_host_read_ids(&args, NULL);
            untouched_but_for_bad(at, extremes[i]);
        }
    }
}

Test(kernels_ids, the_first_of_two_bad_ids_is_told)
{
    memcpy(ids, (int64_t[]){0, 0, 9, 0, -5}, 40);
    epx_k_read_ids_t args = arguments(5, 1, 1, 2, 1);
    epx_host_read_ids(&args, NULL);
    untouched_but_for_bad(2, 9);
    /* What lies behind T tokens is not looked at. */
    args = arguments(2, 1, 1, 2, 1);
    epx_host_read_ids(&args, NULL);
    cr_assert_eq(notice.bad_at, EPX_NOTICE_GOOD);
    cr_assert_eq(expert[2], UNTOUCHED);
}

Test(kernels_ids, no_tokens_and_a_device_scalar)
{
    int64_t none = 0, two = 2;
    epx_k_read_ids_t args = arguments(50, 1, 1, 3, 4);
    args.tokens_device = &none;
    epx_host_read_ids(&args, NULL);
    cr_assert_eq(notice.bad_at, EPX_NOTICE_GOOD);
    cr_assert_eq(skipped, 0);
    for (int32_t i = 0; i < 12; i++)
        cr_assert_eq(counts[i], 0);
    cr_assert_eq(counts[12], UNTOUCHED);
    cr_assert_eq(expert[0], UNTOUCHED);
    ids[0] = ids[1] = 1;
    args = arguments(50, 1, 1, 3, 4);
    args.tokens_device = &two;
    args.ordinal = NULL; /* not wanted */
    epx_host_read_ids(&args, NULL);
    cr_assert_eq(expert[1], 1);
    cr_assert_eq(expert[2], UNTOUCHED);
    cr_assert_eq(ordinal[0], UNTOUCHED);
}

/* Where T comes from the device nobody has looked at it before. */
Test(kernels_ids, a_bad_number_of_tokens_reads_nothing)
{
    static const int64_t bad[] = {-1, 6, INT64_MIN, INT64_MAX, (int64_t)1 << 32};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        epx_k_read_ids_t args = arguments(5, 1, 1, 2, 1);
        args.tokens_device = &bad[i];
        args.tokens_max = 5;
        args.ids = NULL;
        cr_assert_eq(epx_host_read_ids(&args, NULL), EPX_OK);
        untouched_but_for_bad(EPX_NOTICE_TOKENS, bad[i]);
        cr_assert_eq(notice.tokens, bad[i]);
    }
}

Test(kernels_ids, weights_are_taken_along)
{
    memcpy(ids, (int64_t[]){0, 1, -1, 0}, 32);
    epx_k_read_ids_t args = arguments(2, 2, 2, 2, 1);
    args.weights = weights;
    args.weights_copy = weights_copy;
    epx_host_read_ids(&args, NULL);
    for (int32_t i = 0; i < 4; i++)
        cr_assert_eq(weights_copy[i], weights[i]);
    cr_assert_eq(weights_copy[4], 0);
}

Test(kernels_ids, agrees_with_looking_back)
{
    for (uint64_t seed = 1; seed <= 200; seed++) {
        dice_t dice = {seed};
        int32_t top_k = (int32_t)dice_range(&dice, 1, 10), columns = top_k + (int32_t)dice_range(&dice, 0, 2);
        int32_t experts = (int32_t)dice_range(&dice, 1, 100), m = (int32_t)dice_range(&dice, 1, 8);
        int64_t tokens = dice_range(&dice, 0, 40), holes = 0;
        for (int64_t a = 0; a < tokens * columns; a++)
            ids[a] = narrow[a] = (int32_t)dice_range(&dice, -1, experts - 1);
        epx_k_read_ids_t args = arguments(tokens, columns, top_k, experts, m);
        if (seed % 2) {
            args.ids = narrow;
            args.id_type = EPX_INT32;
        }
        epx_host_read_ids(&args, NULL);
        for (int64_t a = 0; a < tokens * columns; a++) {
            /* The sender of a token: deal the tokens' number out, block after block. */
            int64_t end = 0, first = 0, t = a / columns, before = 0;
            for (int32_t v = 0; end <= t; v++) {
                first = end;
                end += tokens / m + (v < tokens % m);
            }
            for (int64_t b = first * columns; b < a; b++)
                before += b % columns < top_k && ids[b] == ids[a];
            int counted = a % columns < top_k && ids[a] >= 0;
            holes += a % columns < top_k && ids[a] < 0;
            cr_assert_eq(expert[a], ids[a], "seed %d", (int)seed);
            cr_assert_eq(ordinal[a], counted ? before : -1, "seed %d, a = %d", (int)seed, (int)a);
        }
        cr_assert_eq(skipped, holes);
        cr_assert_eq(expert[tokens * columns], UNTOUCHED);
        int64_t sum = 0;
        for (int32_t i = 0; i < m * experts; i++)
            sum += counts[i];
        cr_assert_eq(sum, tokens * top_k - holes);
        cr_assert_eq(counts[m * experts], UNTOUCHED);
    }
}
