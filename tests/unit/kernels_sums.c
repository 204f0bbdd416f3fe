/* combine, reduce, take_dots and scale_dot against chains written out. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/host/table.h"
#include "support/number.h"

#define TOKENS 12
#define COLUMNS 6
#define ROWS 80
#define WIDTH 1100
#define GUARD 0xa5

static const epx_type_t types[] = {EPX_FP32, EPX_BF16, EPX_FP16};
static const int32_t widths[] = {1, 5, 32, 100, 1024, 1100};
static unsigned char rows[ROWS * (WIDTH * 4 + 16)], out[(TOKENS + 1) * WIDTH * 4], other[ROWS * WIDTH * 4];
static float acc[(TOKENS + 1) * WIDTH], weights[TOKENS * COLUMNS], expected[TOKENS * WIDTH], dots[ROWS + 1];
static int32_t place[TOKENS * COLUMNS];
static uint8_t kept[ROWS];

static void fill_rows(epx_type_t type, int32_t width, int64_t stride, dice_t *dice)
{
    for (int32_t r = 0; r < ROWS; r++)
        for (int32_t h = 0; h < width; h++)
            row_set(rows + r * stride, type, (size_t)h, (float)(dice_unit(dice) * 6 - 3));
}

/* Three waves of rows: places 0..19, 20..39, 40..59 with rows of their own; 90 and -1 are in none. */
/* All three waves in one call, without sums in memory, give what `out` holds. */
static void check_at_once(epx_type_t type, epx_type_t out_type, int32_t width, int64_t tokens,
                          int with_weights, int64_t stride)
{
    static unsigned char again[sizeof(out)];
    epx_k_combine_t args = {.tokens = tokens,
                            .columns = COLUMNS,
                            .width = width,
                            .row_type = type,
                            .out_type = out_type,
                            .weights = with_weights ? weights : NULL,
                            .place = place,
                            .hi = 60,
                            .rows = rows,
                            .row_stride = stride,
                            .out = again,
                            .first = 1,
                            .last = 1,
                            .waves = 3};
    memset(again, GUARD, sizeof(again));
    cr_assert_eq(epx_host_combine(&args, NULL), EPX_OK);
    for (int64_t i = 0; i < tokens * width; i++)
        cr_assert(same_number(row_get(again, out_type, (size_t)i), row_get(out, out_type, (size_t)i)));
    cr_assert_eq(again[(size_t)(tokens * width) * type_size(out_type)], GUARD);

    /* Rows 10 to 29 are elsewhere, in the opposite order. */
    static unsigned char elsewhere[20 * (4 * WIDTH + 16)];
    int32_t own[20];
    for (int32_t i = 0; i < 20; i++) {
        own[i] = 19 - i;
        memcpy(elsewhere + own[i] * stride, rows + (10 + i) * stride, (size_t)stride);
        memset(rows + (10 + i) * stride, 0xff, (size_t)stride);
    }
    args.own = own, args.own_rows = elsewhere, args.own_first = 10, args.own_count = 20;
    cr_assert_eq(epx_host_combine(&args, NULL), EPX_OK);
    for (int64_t i = 0; i < tokens * width; i++)
        cr_assert(same_number(row_get(again, out_type, (size_t)i), row_get(out, out_type, (size_t)i)));
}

static void check_combine(epx_type_t type, epx_type_t out_type, int32_t width, uint64_t seed)
{
    dice_t dice = {seed};
    int64_t stride = (int64_t)width * (int64_t)type_size(type) + 4 * dice_range(&dice, 0, 3), two = 2;
    int64_t tokens = dice_range(&dice, 0, TOKENS);
    int with_kept = seed % 3 == 0, with_weights = seed % 4 != 0, in_place = out_type == EPX_FP32 && seed % 2;
    fill_rows(type, width, stride, &dice);
    for (int32_t a = 0; a < TOKENS * COLUMNS; a++) {
        weights[a] = (float)(dice_unit(&dice) * 2 - 1);
        place[a] = (int32_t)dice_range(&dice, -4, 64);
        place[a] = place[a] < 0 ? -1 : place[a] >= 60 ? 90 : place[a];
    }
    for (int32_t r = 0; r < ROWS; r++)
        kept[r] = (uint8_t)dice_range(&dice, 0, 2);
    tokens = seed % 7 == 0 ? two : tokens;

    for (int64_t t = 0; t < tokens; t++)
        for (int32_t h = 0; h < width; h++) {
            float sum = 0.0f;
            for (int32_t wave = 0; wave < 3; wave++)
                for (int32_t k = 0; k < COLUMNS; k++) {
                    int32_t p = place[t * COLUMNS + k];
                    if (p / 20 != wave || p < 0 || (with_kept && kept[p % 20] == 0))
                        continue;
                    sum = fmaf(with_weights ? weights[t * COLUMNS + k] : 1.0f,
                               row_get(rows + (p % 20 + 20 * wave) * stride, type, (size_t)h), sum);
                }
            expected[t * width + h] = sum;
        }

    memset(out, GUARD, sizeof(out));
    poison(acc, sizeof(acc));
    for (int32_t wave = 0; wave < 3; wave++) {
        epx_k_combine_t args = {.tokens = tokens,
                                .columns = COLUMNS,
                                .width = width,
                                .row_type = type,
                                .out_type = out_type,
                                .weights = with_weights ? weights : NULL,
                                .place = place,
                                .lo = 20 * wave,
                                .hi = 20 * wave + 20,
                                .rows = rows + 20 * wave * stride,
                                .row_stride = stride,
                                .kept = with_kept ? kept : NULL,
                                .acc = in_place ? (float *)out : acc,
                                .out = out,
                                .first = wave == 0,
                                .last = wave == 2};
        if (seed % 7 == 0) {
            args.tokens = 1000;
            args.tokens_device = &two;
        }
        cr_assert_eq(epx_host_combine(&args, NULL), EPX_OK);
        if (wave < 2 && !in_place)
            cr_assert_eq(out[0], GUARD, "out is written by the last wave alone");
    }
    for (int64_t i = 0; i < tokens * width; i++)
        cr_assert(same_number(row_get(out, out_type, (size_t)i), row_round(out_type, expected[i])),
                  "%s to %s width %d seed %d token %d h %d: %a, not %a", type_name(type), type_name(out_type),
                  width, (int)seed, (int)(i / width), (int)(i % width),
                  (double)row_get(out, out_type, (size_t)i), (double)expected[i]);
    cr_assert_eq(out[(size_t)(tokens * width) * type_size(out_type)], GUARD);
    cr_assert(is_poison(acc + tokens * width, 4 * WIDTH));
    if (!with_kept)
        check_at_once(type, out_type, width, tokens, with_weights, stride);
}

Test(kernels_combine, is_one_chain_over_waves_and_k)
{
    for (int32_t t = 0; t < 3; t++)
        for (int32_t o = 0; o < 2; o++)
            for (int32_t w = 0; w < 6; w++)
                for (uint64_t seed = 0; seed < 14; seed++)
                    check_combine(types[t], o ? EPX_FP32 : types[t], widths[w], seed);
}

/* A token with nothing kept gets zeros, +0, whatever memory held before; a NaN reaches its own token only. */
Test(kernels_combine, empty_tokens_are_zero_and_nan_stays_at_home)
{
    epx_k_combine_t args = {.tokens = 3,
                            .columns = 1,
                            .width = 40,
                            .row_type = EPX_FP32,
                            .out_type = EPX_BF16,
                            .weights = weights,
                            .place = place,
                            .hi = 2,
                            .rows = rows,
                            .row_stride = 160,
                            .acc = acc,
                            .out = out,
                            .first = 1,
                            .last = 1};
    for (int32_t h = 0; h < 40; h++) {
        row_set(rows, EPX_FP32, (size_t)h, NAN);
        row_set(rows + 160, EPX_FP32, (size_t)h, 3.0f);
    }
    poison(acc, sizeof(acc));
    poison(out, sizeof(out));
    place[0] = 0;
    place[1] = -1;
    place[2] = 1;
    weights[0] = 0.0f;
    weights[1] = NAN; /* of an assignment that does not exist */
    weights[2] = 2.0f;
    epx_host_combine(&args, NULL);
    for (size_t h = 0; h < 40; h++) {
        cr_assert(isnan(row_get(out, EPX_BF16, h)));
        cr_assert(same_number(row_get(out, EPX_BF16, 40 + h), 0.0f));
        cr_assert(same_number(row_get(out, EPX_BF16, 80 + h), 6.0f));
    }
}

/* Rows of lists of their own: two waves of ten, the second one's lists three entries further on than said. */
enum { LISTS = 20, ENTRIES = 60 };
static int32_t list_first[LISTS], list_count[LISTS], list_row[ENTRIES];
static float list_weight[ENTRIES];

static void fill_lists(dice_t *dice)
{
    for (int32_t i = 0; i < ENTRIES; i++) {
        list_row[i] = (int32_t)dice_range(dice, 0, ROWS - 1);
        list_weight[i] = (float)(dice_unit(dice) - 0.5);
    }
    for (int32_t r = 0; r < LISTS; r++) {
        list_first[r] = (int32_t)dice_range(dice, 0, 45);
        list_count[r] = (int32_t)dice_range(dice, 0, 12);
    }
    for (int32_t t = 0; t < TOKENS; t++)
        for (int32_t k = 0; k < COLUMNS; k++)
            place[t * COLUMNS + k] = -1;
    for (int32_t t = 0; t < TOKENS; t++)
        for (int32_t wave = 0; wave < 2; wave++)
            if (dice_range(dice, 0, 3) != 0)
                place[t * COLUMNS + 3 * wave + dice_range(dice, 0, 2)] =
                    (int32_t)(100 + 10 * wave + dice_range(dice, 0, 9));
}

static float sum_of_list(int32_t r, int32_t shift, const float *weight, epx_type_t type, int64_t stride,
                         int32_t h)
{
    float sum = 0.0f;
    for (int32_t x = list_first[r] + shift; x < list_first[r] + shift + list_count[r]; x++)
        sum = fmaf(weight != NULL ? weight[x] : 1.0f, row_get(rows + list_row[x] * stride, type, (size_t)h),
                   sum);
    return row_round(type, sum);
}

static void check_own_sums(epx_type_t type, epx_type_t out_type, int32_t width, uint64_t seed)
{
    dice_t dice = {seed};
    int64_t stride = (int64_t)width * (int64_t)type_size(type) + 4 * dice_range(&dice, 0, 3);
    int64_t tokens = dice_range(&dice, 0, TOKENS), starts[2][2] = {{7, 7}, {12, 9}};
    const float *weight = seed % 3 != 0 ? list_weight : NULL;
    fill_rows(type, width, stride, &dice);
    fill_lists(&dice);
    memset(out, GUARD, sizeof(out));
    poison(acc, sizeof(acc));
    for (int32_t wave = 0; wave < 2; wave++) {
        epx_k_combine_t args = {.tokens = 1000,
                                .tokens_device = &tokens,
                                .columns = COLUMNS,
                                .width = width,
                                .row_type = type,
                                .out_type = out_type,
                                .place = place,
                                .lo = 100 + 10 * wave,
                                .hi = 110 + 10 * wave,
                                .row_stride = stride,
                                .acc = acc,
                                .out = out,
                                .first = wave == 0,
                                .last = wave == 1,
                                .sums = {.y = rows,
                                         .first = list_first + 10 * wave,
                                         .count = list_count + 10 * wave,
                                         .list = list_row,
                                         .weights = weight,
                                         .home_start = &starts[wave][0],
                                         .wire_start = &starts[wave][1]}};
        cr_assert_eq(epx_host_combine(&args, NULL), EPX_OK);
    }
    for (int64_t t = 0; t < tokens; t++)
        for (int32_t h = 0; h < width; h++) {
            float sum = 0.0f;
            for (int32_t k = 0; k < COLUMNS; k++) {
                int32_t r = place[t * COLUMNS + k] - 100;
                if (r >= 0)
                    sum += sum_of_list(r, r < 10 ? 0 : 3, weight, type, stride, h);
            }
            float found = row_get(out, out_type, (size_t)(t * width + h));
            cr_assert(same_number(found, row_round(out_type, sum)), "seed %d token %d h %d: %a, not %a",
                      (int)seed, (int)t, h, (double)found, (double)sum);
        }
    cr_assert_eq(out[(size_t)(tokens * width) * type_size(out_type)], GUARD);
}

Test(kernels_combine, own_sums_are_rounded_as_rows_and_added)
{
    for (uint64_t seed = 0; seed < 120; seed++)
        check_own_sums(types[seed % 3], seed % 5 ? types[seed % 3] : EPX_FP32, widths[seed / 3 % 6], seed);
}

Test(kernels_reduce, partial_sums_are_chains_rounded_once)
{
    for (uint64_t seed = 0; seed < 90; seed++) {
        dice_t dice = {seed};
        epx_type_t type = types[seed % 3];
        int32_t width = widths[seed / 3 % 6], first[TOKENS], count[TOKENS], list[60],
                n = (int32_t)dice_range(&dice, 0, TOKENS);
        float weight[60];
        int64_t stride = (int64_t)width * (int64_t)type_size(type) + 8,
                out_stride = (int64_t)width * (int64_t)type_size(type);
        fill_rows(type, width, stride, &dice);
        for (int32_t i = 0; i < 60; i++) {
            list[i] = (int32_t)dice_range(&dice, 0, ROWS - 1);
            weight[i] = (float)(dice_unit(&dice) - 0.5);
        }
        for (int32_t j = 0; j < TOKENS; j++) {
            first[j] = (int32_t)dice_range(&dice, 0, 50);
            count[j] = (int32_t)dice_range(&dice, 0, 10);
        }
        memset(out, GUARD, sizeof(out));
        epx_k_reduce_t args = {.first = first,
                               .count = count,
                               .n = seed % 2 ? 1000 : n,
                               .n_device = seed % 2 ? &n : NULL,
                               .list = list,
                               .weights = seed % 4 == 3 ? NULL : weight,
                               .width = width,
                               .row_type = type,
                               .rows = rows,
                               .row_stride = stride,
                               .out = out,
                               .out_stride = out_stride};
        cr_assert_eq(epx_host_reduce(&args, NULL), EPX_OK);
        for (int32_t j = 0; j < n; j++)
            for (int32_t h = 0; h < width; h++) {
                float sum = 0;
                for (int32_t i = first[j]; i < first[j] + count[j]; i++)
                    sum = fmaf(seed % 4 == 3 ? 1.0f : weight[i],
                               row_get(rows + list[i] * stride, type, (size_t)h), sum);
                cr_assert(same_number(row_get(out + j * out_stride, type, (size_t)h), row_round(type, sum)),
                          "seed %d row %d h %d", (int)seed, j, h);
            }
        cr_assert_eq(out[n * out_stride], GUARD);
    }
}

Test(kernels_take_dots, only_this_wave_is_written_after_the_first)
{
    float dweight[9];
    int32_t places[] = {3, -1, 10, 4, 5, 99, 12, 3, 11};
    uint8_t keep[] = {1, 0, 1}; /* row 1 of a wave is refused */
    for (int32_t r = 0; r < 3; r++)
        dots[r] = 100.0f + (float)r;
    poison(dweight, sizeof(dweight));
    epx_k_take_dots_t args = {.tokens = 4,
                              .columns = 2,
                              .place = places,
                              .lo = 3,
                              .hi = 6,
                              .dots = dots,
                              .kept = keep,
                              .dweight = dweight,
                              .first = 1};
    cr_assert_eq(epx_host_take_dots(&args, NULL), EPX_OK);
    float after[] = {100, 0, 0, 0, 102, 0, 0, 100};
    for (int32_t i = 0; i < 8; i++)
        cr_assert(same_number(dweight[i], after[i]), "%d", i);
    cr_assert(isnan(dweight[8]));
    args.first = 0;
    args.lo = 10;
    args.hi = 13;
    args.kept = NULL;
    int64_t two = 2;
    args.tokens_device = &two;
    epx_host_take_dots(&args, NULL);
    float second[] = {100, 0, 100, 0, 102, 0, 0, 100};
    for (int32_t i = 0; i < 8; i++)
        cr_assert(same_number(dweight[i], second[i]), "%d", i);
}

static float lane_dot(const void *a, const void *b, epx_type_t type, int32_t n)
{
    float lane[32];
    for (int32_t l = 0; l < 32; l++) {
        lane[l] = 0;
        for (int32_t h = l; h < n; h += 32)
            lane[l] = fmaf(row_get(a, type, (size_t)h), row_get(b, type, (size_t)h), lane[l]);
    }
    for (int32_t step = 16; step >= 1; step /= 2)
        for (int32_t l = 0; l < step; l++)
            lane[l] = lane[l] + lane[l + step];
    return lane[0];
}

Test(kernels_scale_dot, gradients_of_rows_and_weights)
{
    static unsigned char dy[ROWS * WIDTH * 4];
    for (uint64_t seed = 0; seed < 72; seed++) {
        dice_t dice = {seed};
        epx_type_t type = types[seed % 3];
        int32_t width = widths[seed / 3 % 6], index[40];
        int64_t bytes = (int64_t)width * (int64_t)type_size(type), start[] = {1, 9, 20}, count[] = {5, 0, 13};
        int mode = (int)(seed / 18 % 3); /* 0: index, 1: none, 2: none and in place */
        fill_rows(type, width, bytes, &dice);
        for (size_t i = 0; i < (size_t)ROWS * (size_t)width; i++)
            row_set(other, type, i, (float)(dice_unit(&dice) - 0.5));
        for (int32_t g = 0; g < 40; g++) {
            weights[g] = g == 3 ? 0.0f : (float)(dice_unit(&dice) * 2 - 1);
            index[g] = (int32_t)dice_range(&dice, 0, ROWS - 1);
            dots[g] = -7;
        }
        memset(dy, GUARD, sizeof(dy));
        if (mode == 2)
            memcpy(dy, rows, (size_t)(ROWS * bytes));
        epx_k_scale_dot_t args = {.rows = {start, count, 3},
                                  .index = mode == 0 ? index : NULL,
                                  .weight = weights,
                                  .width = width,
                                  .row_type = type,
                                  .dout = mode == 2 ? dy : rows,
                                  .y = other,
                                  .dy = dy,
                                  .dot = dots};
        cr_assert_eq(epx_host_scale_dot(&args, NULL), EPX_OK);
        for (int32_t g = 0; g < 40; g++) {
            const unsigned char *dout = rows + (mode == 0 ? index[g] : g) * bytes;
            if (g < 1 || (g >= 6 && g < 20) || g >= 33) {
                cr_assert_eq(dots[g], -7, "row %d is not of the batch", g);
                cr_assert(mode == 2 ? memcmp(dy + g * bytes, dout, (size_t)bytes) == 0
                                    : dy[g * bytes] == GUARD);
                continue;
            }
            float dot = lane_dot(dout, other + g * bytes, type, width);
            cr_assert(same_number(dots[g], dot), "seed %d row %d: %a, not %a", (int)seed, g, (double)dots[g],
                      (double)dot);
            for (int32_t h = 0; h < width; h++)
                cr_assert(same_number(row_get(dy + g * bytes, type, (size_t)h),
                                      row_round(type, weights[g] * row_get(dout, type, (size_t)h))));
        }
    }
}
