/* The row arithmetic: every version of it against the plain definition, bit by bit. SPDX-License-Identifier:
 * Apache-2.0 */
#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/host/rows.h"
#include "support/number.h"

#define WIDTH_MAX 7200

static const epx_type_t types[] = {EPX_FP32, EPX_BF16, EPX_FP16};
static const int32_t widths[] = {0,  1,  2,  3,  7,   8,    15,   16,   17,   31,   32,
                                 33, 63, 64, 65, 100, 1023, 1024, 1025, 2880, 3584, 7168};
static const float weights[] = {0.0f, -0.0f, 1.0f, 0.37f, -2.5e-3f, 1e30f, INFINITY, NAN};
static unsigned char a[WIDTH_MAX * 4], b[WIDTH_MAX * 4], got[WIDTH_MAX * 4];
static float acc[WIDTH_MAX];

#define MANY(array) (int32_t)(sizeof(array) / sizeof((array)[0]))

/* Ordinary values with a few that are special. */
static void fill(void *row, epx_type_t type, int32_t n, dice_t *dice)
{
    static const float special[] = {0.0f, -0.0f, 1e-40f, 6e-8f, 60000.0f, -3e38f, INFINITY, NAN};
    for (int32_t h = 0; h < n; h++) {
        float value = (float)(dice_unit(dice) * 4 - 2);
        if (dice_range(dice, 0, 63) == 0)
            value = special[dice_range(dice, 0, MANY(special) - 1)];
        row_set(row, type, (size_t)h, value);
    }
}

static void check_row(const epx_row_ops_t *ops, epx_type_t type, int32_t n, dice_t *dice)
{
    fill(a, type, n, dice);
    for (int32_t w = 0; w < MANY(weights); w++) {
        float weight = weights[w];
        for (int32_t from_zero = 0; from_zero <= 1; from_zero++) {
            fill(b, EPX_FP32, n + 1, dice);
            memcpy(acc, b, (size_t)(n + 1) * 4);
            ops->add(acc, a, weight, n, type, from_zero);
            for (int32_t h = 0; h < n; h++) {
                float sum = fmaf(weight, row_get(a, type, (size_t)h),
                                 from_zero ? 0.0f : row_get(b, EPX_FP32, (size_t)h));
                cr_assert(same_number(acc[h], sum), "add %s %s n=%d h=%d: %a, not %a", ops->name,
                          type_name(type), n, h, (double)acc[h], (double)sum);
            }
            cr_assert_eq(memcmp(&acc[n], b + 4 * (size_t)n, 4), 0, "wrote past the row");
        }
        memset(got, 0x5a, sizeof(got));
        ops->scale(got, a, weight, n, type);
        for (int32_t h = 0; h < n; h++) {
            float product = row_round(type, weight * row_get(a, type, (size_t)h));
            cr_assert(same_number(row_get(got, type, (size_t)h), product), "scale %s %s n=%d h=%d", ops->name,
                      type_name(type), n, h);
        }
        cr_assert_eq(got[(size_t)n * type_size(type)], 0x5a);
        memcpy(b, a, sizeof(b));
        ops->scale(b, b, weight, n, type); /* in place */
        for (int32_t h = 0; h < n; h++)
            cr_assert(same_number(row_get(got, type, (size_t)h), row_get(b, type, (size_t)h)));
    }
}

static void check_store(const epx_row_ops_t *ops, epx_type_t type, int32_t n, dice_t *dice)
{
    fill(acc, EPX_FP32, n, dice);
    memset(got, 0x5a, sizeof(got));
    ops->store(got, acc, n, type);
    for (int32_t h = 0; h < n; h++)
        cr_assert(same_number(row_get(got, type, (size_t)h), row_round(type, acc[h])),
                  "store %s %s n=%d h=%d", ops->name, type_name(type), n, h);
    cr_assert_eq(got[(size_t)n * type_size(type)], 0x5a);
}

/* 32 lanes, lane l takes h = l, l + 32, ...; then 16, 8, 4, 2, 1. */
static float dot_of(const void *left, const void *right, epx_type_t type, int32_t n)
{
    float lane[32];
    for (int32_t l = 0; l < 32; l++) {
        lane[l] = 0;
        for (int32_t h = l; h < n; h += 32)
            lane[l] = fmaf(row_get(left, type, (size_t)h), row_get(right, type, (size_t)h), lane[l]);
    }
    float sixteen[16], eight[8], four[4];
    for (int32_t l = 0; l < 16; l++)
        sixteen[l] = lane[l] + lane[l + 16];
    for (int32_t l = 0; l < 8; l++)
        eight[l] = sixteen[l] + sixteen[l + 8];
    for (int32_t l = 0; l < 4; l++)
        four[l] = eight[l] + eight[l + 4];
    return (four[0] + four[2]) + (four[1] + four[3]);
}

Test(kernels_rows, every_version_gives_the_bits_of_the_definition)
{
    dice_t dice = {0x2045};
    int32_t versions = 0;
    for (const epx_row_ops_t *ops; (ops = epx_row_ops_version(versions)) != NULL; versions++) {
        for (int32_t t = 0; t < MANY(types); t++) {
            for (int32_t i = 0; i < MANY(widths); i++) {
                check_row(ops, types[t], widths[i], &dice);
                check_store(ops, types[t], widths[i], &dice);
                for (int32_t round = 0; round < 3; round++) {
                    fill(a, types[t], widths[i], &dice);
                    fill(b, types[t], widths[i], &dice);
                    for (int32_t h = 0; h < widths[i] && round < 2; h++) /* without the special values */
                        if (!(fabsf(row_get(a, types[t], (size_t)h)) < 3 &&
                              fabsf(row_get(b, types[t], (size_t)h)) < 3)) {
                            row_set(a, types[t], (size_t)h, 0.1f);
                            row_set(b, types[t], (size_t)h, 0.7f);
                        }
                    float dot = ops->dot(a, b, widths[i], types[t]),
                          wanted = dot_of(a, b, types[t], widths[i]);
                    cr_assert(same_number(dot, wanted), "dot %s %s n=%d: %a, not %a", ops->name,
                              type_name(types[t]), widths[i], (double)dot, (double)wanted);
                }
            }
        }
    }
    cr_log_info("%d versions on this CPU, best: %s", versions, epx_row_ops()->name);
    cr_assert_eq(epx_row_ops(), epx_row_ops_version(versions - 1));
    cr_assert_null(epx_row_ops_version(versions));
}

/* Rows of 16-bit types may start at any even address, fp32 rows at any multiple of 4. */
Test(kernels_rows, any_alignment_of_the_element)
{
    dice_t dice = {0x41};
    for (int32_t v = 0; epx_row_ops_version(v) != NULL; v++) {
        const epx_row_ops_t *ops = epx_row_ops_version(v);
        for (int32_t t = 0; t < MANY(types); t++) {
            size_t element = type_size(types[t]);
            for (size_t shift = 1; shift <= 9; shift++) {
                int32_t n = 100;
                fill(a + shift * element, types[t], n, &dice);
                fill(b + element, types[t], n, &dice);
                cr_assert(same_number(ops->dot(a + shift * element, b + element, n, types[t]),
                                      dot_of(a + shift * element, b + element, types[t], n)));
                ops->add(acc + shift, a + shift * element, 0.3f, n, types[t], 1);
                ops->store(got + shift * element, acc + shift, n, types[t]);
                for (int32_t h = 0; h < n; h++) {
                    float sum = fmaf(0.3f, row_get(a, types[t], (size_t)h + shift), 0.0f);
                    cr_assert(
                        same_number(row_get(got, types[t], (size_t)h + shift), row_round(types[t], sum)));
                }
            }
        }
    }
}

/* A sum of one term from +0 is +0 where the product is -0. */
Test(kernels_rows, sums_start_at_plus_zero)
{
    float row[40] = {0}, sum[40];
    for (int32_t v = 0; epx_row_ops_version(v) != NULL; v++) {
        epx_row_ops_version(v)->add(sum, row, -1.0f, 40, EPX_FP32, 1);
        for (int32_t h = 0; h < 40; h++)
            cr_assert(sum[h] == 0 && !signbit(sum[h]));
    }
}
