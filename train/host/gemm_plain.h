/* The matrix product without a library. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_TRAIN_HOST_GEMM_PLAIN_H
#define EPX_TRAIN_HOST_GEMM_PLAIN_H

#include "../math.h"

enum { EPX_TILE_ROWS = 8, EPX_TILE_COLUMNS = 32 };

/* sum [EPX_TILE_ROWS, EPX_TILE_COLUMNS] = products of EPX_TILE_ROWS rows of A and EPX_TILE_COLUMNS columns of
 * B, summed over depth in ascending order. Row r of A is a[r][0], a[r][a_step], ...; row p of B starts at b +
 * p * b_step. */
typedef void (*epx_tile_t)(int64_t depth, const epx_real_t *const *a, int64_t a_step, const epx_real_t *b,
                           int64_t b_step, epx_real_t *sum);

/* The best one for this processor, with its name; NULL where only the portable one runs. (gemm_x86.c) */
epx_tile_t epx_tile_x86(const char **name_p);

/* Picks the tile; call once before the product. Until then the portable one is used. */
void epx_gemm_plain_setup(void);
const char *epx_gemm_plain_name(void);

/* As epx_math_gemm. */
void epx_gemm_plain(epx_layout_t layout, int64_t m, int64_t n, int64_t k, const epx_real_t *a, int64_t lda,
                    const epx_real_t *b, int64_t ldb, epx_real_t beta, epx_real_t *c, int64_t ldc);

#endif
