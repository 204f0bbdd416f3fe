/* The matrix product of builds without OpenBLAS. SPDX-License-Identifier: Apache-2.0 */
#include "gemm_plain.h"

const char *epx_math_gemm_name(void) { return epx_gemm_plain_name(); }

void epx_math_gemm_setup(void) { epx_gemm_plain_setup(); }

void epx_math_gemm(epx_layout_t layout, int64_t m, int64_t n, int64_t k, const epx_real_t *a, int64_t lda,
                   const epx_real_t *b, int64_t ldb, epx_real_t beta, epx_real_t *c, int64_t ldc)
{
    epx_gemm_plain(layout, m, n, k, a, lda, b, ldb, beta, c, ldc);
}
