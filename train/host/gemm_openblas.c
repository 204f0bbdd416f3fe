/* The matrix product by OpenBLAS, one thread per rank. SPDX-License-Identifier: Apache-2.0 */
#include <cblas.h>

#include "../math.h"

const char *epx_math_gemm_name(void) { return "openblas"; }

void epx_math_gemm_setup(void) { openblas_set_num_threads(1); }

void epx_math_gemm(epx_layout_t layout, int64_t m, int64_t n, int64_t k, const epx_real_t *a, int64_t lda,
                   const epx_real_t *b, int64_t ldb, epx_real_t beta, epx_real_t *c, int64_t ldc)
{
    if (m == 0 || n == 0)
        return;
    cblas_sgemm(CblasRowMajor, layout == EPX_TN ? CblasTrans : CblasNoTrans,
                layout == EPX_NT ? CblasTrans : CblasNoTrans, (blasint)m, (blasint)n, (blasint)k, 1, a,
                (blasint)lda, b, (blasint)ldb, beta, c, (blasint)ldc);
}
