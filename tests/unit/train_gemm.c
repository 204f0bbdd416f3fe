/* The matrix products against three loops, at sizes that are no multiple of any tile (CASES.md 20).
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "train/host/gemm_plain.h"
#include "train/random.h"

typedef void (*product_t)(epx_layout_t, int64_t, int64_t, int64_t, const float *, int64_t, const float *,
                          int64_t, float, float *, int64_t);

/* Small integers, so that every product and sum is exact and results must be equal. */
static float *integers(int64_t count, uint64_t seed)
{
    float *values = malloc((size_t)(count + 1) * sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)(epx_random_bits(seed, EPX_STREAM_TEST, (uint64_t)i) % 17) - 8;
    return values;
}

static float expected(epx_layout_t layout, int64_t i, int64_t j, int64_t k, const float *a, int64_t lda,
                      const float *b, int64_t ldb)
{
    float sum = 0;
    for (int64_t p = 0; p < k; p++)
        sum += (layout == EPX_TN ? a[p * lda + i] : a[i * lda + p]) *
               (layout == EPX_NT ? b[j * ldb + p] : b[p * ldb + j]);
    return sum;
}

/* Rows are three longer than they must be, and what stands between them must stay. */
static void check_product(product_t product, epx_layout_t layout, int64_t m, int64_t n, int64_t k, float beta)
{
    int64_t lda = (layout == EPX_TN ? m : k) + 3, ldb = (layout == EPX_NT ? k : n) + 3, ldc = n + 3;
    float *a = integers(lda * (layout == EPX_TN ? k : m), 1),
          *b = integers(ldb * (layout == EPX_NT ? n : k), 2);
    float *c = integers(ldc * m, 3), *before = integers(ldc * m, 3);
    if (beta == 0)
        for (int64_t i = 0; i < m * ldc; i++)
            c[i] = i % ldc < n ? NAN : c[i]; /* beta 0 does not read C */
    product(layout, m, n, k, a, lda, b, ldb, beta, c, ldc);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < ldc; j++) {
            float old = before[i * ldc + j];
            float want =
                j < n ? expected(layout, i, j, k, a, lda, b, ldb) + (beta == 0 ? 0 : beta * old) : old;
            cr_assert_eq(c[i * ldc + j], want,
                         "layout %d, %d x %d x %d, beta %g: [%d, %d] is %g and should be %g", layout, (int)m,
                         (int)n, (int)k, (double)beta, (int)i, (int)j, (double)c[i * ldc + j], (double)want);
        }
    free(a);
    free(b);
    free(c);
    free(before);
}

static void check_all(product_t product)
{
    static const int64_t sizes[][3] = {{1, 1, 1},      {8, 32, 16},   {7, 31, 5}, {9, 33, 17},
                                       {64, 192, 300}, {3, 100, 257}, {40, 5, 64}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (epx_layout_t layout = EPX_NN; layout <= EPX_TN; layout++) {
            check_product(product, layout, sizes[i][0], sizes[i][1], sizes[i][2], 0);
            check_product(product, layout, sizes[i][0], sizes[i][1], sizes[i][2], 1);
        }
    check_product(product, EPX_NN, 0, 5, 3, 0);
}

Test(train_gemm, product_in_use_is_right)
{
    epx_math_gemm_setup();
    check_all(epx_math_gemm);
}

Test(train_gemm, portable_product_is_right) { check_all(epx_gemm_plain); }

Test(train_gemm, product_for_this_processor_is_right)
{
    epx_gemm_plain_setup();
    check_all(epx_gemm_plain);
}
