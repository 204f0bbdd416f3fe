/*
 * The row arithmetic for AVX2 and AVX-512, and the choice among the versions. Chosen by a question to the CPU
 * at each call (a load and a test) and not by the dynamic linker, whose resolvers run before a sanitizer is
 * ready. SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/host/rows_body.h"

#if defined(__x86_64__)

#define AVX2 __attribute__((target("avx2,fma")))
#define AVX512 __attribute__((target("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq")))

AVX2 static void add_avx2(float *acc, const void *row, float weight, int64_t n, epx_type_t type,
                          int32_t from_zero)
{
    add_body(acc, row, weight, n, type, from_zero);
}

AVX2 static void store_avx2(void *row, const float *acc, int64_t n, epx_type_t type)
{
    store_body(row, acc, n, type);
}

AVX2 static void scale_avx2(void *to, const void *from, float weight, int64_t n, epx_type_t type)
{
    scale_body(to, from, weight, n, type);
}

AVX2 static float dot_avx2(const void *a, const void *b, int64_t n, epx_type_t type)
{
    return dot_body(a, b, n, type);
}

AVX512 static void add_avx512(float *acc, const void *row, float weight, int64_t n, epx_type_t type,
                              int32_t from_zero)
{
    add_body(acc, row, weight, n, type, from_zero);
}

AVX512 static void store_avx512(void *row, const float *acc, int64_t n, epx_type_t type)
{
    store_body(row, acc, n, type);
}

AVX512 static void scale_avx512(void *to, const void *from, float weight, int64_t n, epx_type_t type)
{
    scale_body(to, from, weight, n, type);
}

AVX512 static float dot_avx512(const void *a, const void *b, int64_t n, epx_type_t type)
{
    return dot_body(a, b, n, type);
}

static const epx_row_ops_t ops_avx2 = {
    .name = "avx2", .add = add_avx2, .store = store_avx2, .scale = scale_avx2, .dot = dot_avx2};
static const epx_row_ops_t ops_avx512 = {
    .name = "avx512", .add = add_avx512, .store = store_avx512, .scale = scale_avx512, .dot = dot_avx512};

static int32_t best_version(void)
{
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    int avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    return !avx2 ? 0 : !avx512 ? 1 : 2;
}

const epx_row_ops_t *epx_row_ops_version(int32_t i)
{
    static const epx_row_ops_t *const versions[] = {&epx_row_ops_plain, &ops_avx2, &ops_avx512};
    return i <= best_version() ? versions[i] : NULL;
}

const epx_row_ops_t *epx_row_ops(void) { return epx_row_ops_version(best_version()); }

#else

const epx_row_ops_t *epx_row_ops_version(int32_t i) { return i == 0 ? &epx_row_ops_plain : NULL; }

const epx_row_ops_t *epx_row_ops(void) { return &epx_row_ops_plain; }

#endif
