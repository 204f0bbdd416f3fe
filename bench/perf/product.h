/*
 * A large matrix product on the GPU, for what runs beside an exchange. SPDX-License-Identifier: Apache-2.0
 *
 * It is cuBLAS's, loaded when it is wanted, so that neither building nor other measurements need it.
 */
#ifndef EPX_BENCH_PERF_PRODUCT_H
#define EPX_BENCH_PERF_PRODUCT_H

#include <epx/device.h>

typedef struct epx_perf_product epx_perf_product_t;

/* C = A * B, `side` x `side` each, bf16 with sums in fp32, random numbers. NULL: why_not says why. */
epx_perf_product_t *epx_perf_product_open(const epx_device_ops_t *device, int32_t side, char *why_not,
                                          size_t why_not_bytes);
void epx_perf_product_close(epx_perf_product_t **product);

/* Floating-point operations of one. */
double epx_perf_product_flops(const epx_perf_product_t *product);

/* Enqueues one. units > 0: it is told to use so many multiprocessors. 0, or a code of cuBLAS. */
int epx_perf_product_run(epx_perf_product_t *product, int32_t units, epx_stream_t stream);

#endif
