/* Tiles of the matrix product for x86 with fused multiply-adds. Compiled for all x86 processors and chosen by
 * what runs, so that one build is fast on old and new ones. In float only. SPDX-License-Identifier:
 * Apache-2.0 */
#include "gemm_plain.h"

#include <stddef.h>

#if defined(__x86_64__) && !defined(EPX_TRAIN_DOUBLE)

#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,fma")))
#define AVX512 __attribute__((target("avx512f")))

/* 4 rows and 16 columns: eight of sixteen registers hold sums. */
AVX2 static void sum_part(int64_t depth, const float *const *a, int64_t a_step, const float *b,
                          int64_t b_step, float *sum)
{
    __m256 part[4][2];
    for (int r = 0; r < 4; r++)
        part[r][0] = part[r][1] = _mm256_setzero_ps();
    for (int64_t p = 0; p < depth; p++, b += b_step) {
        __m256 left = _mm256_loadu_ps(b), right = _mm256_loadu_ps(b + 8);
        for (int r = 0; r < 4; r++) {
            __m256 value = _mm256_set1_ps(a[r][p * a_step]);
            part[r][0] = _mm256_fmadd_ps(value, left, part[r][0]);
            part[r][1] = _mm256_fmadd_ps(value, right, part[r][1]);
        }
    }
    for (int r = 0; r < 4; r++) {
        _mm256_storeu_ps(sum + r * EPX_TILE_COLUMNS, part[r][0]);
        _mm256_storeu_ps(sum + r * EPX_TILE_COLUMNS + 8, part[r][1]);
    }
}

AVX2 static void tile_avx2(int64_t depth, const float *const *a, int64_t a_step, const float *b,
                           int64_t b_step, float *sum)
{
    for (int r = 0; r < EPX_TILE_ROWS; r += 4)
        for (int j = 0; j < EPX_TILE_COLUMNS; j += 16)
            sum_part(depth, a + r, a_step, b + j, b_step, sum + r * EPX_TILE_COLUMNS + j);
}

/* The whole tile: sixteen of thirty-two registers hold sums. */
AVX512 static void tile_avx512(int64_t depth, const float *const *a, int64_t a_step, const float *b,
                               int64_t b_step, float *sum)
{
    __m512 part[EPX_TILE_ROWS][2];
    for (int r = 0; r < EPX_TILE_ROWS; r++)
        part[r][0] = part[r][1] = _mm512_setzero_ps();
    for (int64_t p = 0; p < depth; p++, b += b_step) {
        __m512 left = _mm512_loadu_ps(b), right = _mm512_loadu_ps(b + 16);
        for (int r = 0; r < EPX_TILE_ROWS; r++) {
            __m512 value = _mm512_set1_ps(a[r][p * a_step]);
            part[r][0] = _mm512_fmadd_ps(value, left, part[r][0]);
            part[r][1] = _mm512_fmadd_ps(value, right, part[r][1]);
        }
    }
    for (int r = 0; r < EPX_TILE_ROWS; r++) {
        _mm512_storeu_ps(sum + r * EPX_TILE_COLUMNS, part[r][0]);
        _mm512_storeu_ps(sum + r * EPX_TILE_COLUMNS + 16, part[r][1]);
    }
}

epx_tile_t epx_tile_x86(const char **name_p)
{
    if (__builtin_cpu_supports("avx512f")) {
        *name_p = "plain C with AVX-512";
        return tile_avx512;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        *name_p = "plain C with AVX2";
        return tile_avx2;
    }
    return NULL;
}

#else

epx_tile_t epx_tile_x86(const char **name_p)
{
    (void)name_p;
    return NULL;
}

#endif
