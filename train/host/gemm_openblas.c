/* The matrix product by OpenBLAS, one thread per rank. SPDX-License-Identifier: Apache-2.0
 *
 * An OpenBLAS that is older than the processor does not know it and takes its kernels for the Prescott of
 * 2004, which are several times slower than plain C with the vectors that the processor has. Then plain C it
 * is. */
#include <cblas.h>
#include <strings.h>

#include "gemm_plain.h"

static int use_plain;

const char *epx_math_gemm_name(void) { return use_plain ? epx_gemm_plain_name() : "OpenBLAS"; }

void epx_math_gemm_setup(void)
{
    const char *name;
    openblas_set_num_threads(1);
    epx_gemm_plain_setup();
    use_plain = epx_tile_x86(&name) && strcasecmp(openblas_get_corename(), "Prescott") == 0;
}

void epx_math_gemm(epx_layout_t layout, int64_t m, int64_t n, int64_t k, const epx_real_t *a, int64_t lda,
                   const epx_real_t *b, int64_t ldb, epx_real_t beta, epx_real_t *c, int64_t ldc)
{
    if (m == 0 || n == 0)
        return;
    if (use_plain)
        epx_gemm_plain(layout, m, n, k, a, lda, b, ldb, beta, c, ldc);
    else
        cblas_sgemm(CblasRowMajor, layout == EPX_TN ? CblasTrans : CblasNoTrans,
                    layout == EPX_NT ? CblasTrans : CblasNoTrans, (blasint)m, (blasint)n, (blasint)k, 1, a,
                    (blasint)lda, b, (blasint)ldb, beta, c, (blasint)ldc);
}
