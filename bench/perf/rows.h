/*
 * The payload of the bit-exact check: what every element must be, computed apart from the library.
 * SPDX-License-Identifier: Apache-2.0
 *
 * x      begins with rank (2 elements) and token (4 elements) as digits of base 256, which every row type
 * holds exactly, so that a wrong row says whose it is; behind them are random bits, NaNs included. dout
 * integers -3..3 from (rank, token). y, dx_rows   integers -a..a from (rank, token, k), a so small that a sum
 * over K of them, weighted by 1/2 or 1, is exact in the row type; so the right sum does not depend on the
 * order of adding.
 */
#ifndef EPX_BENCH_PERF_ROWS_H
#define EPX_BENCH_PERF_ROWS_H

#include <stddef.h>
#include <stdint.h>

#include <epx/epx.h>

enum { EPX_PERF_HEADER = 6, EPX_PERF_DOUT_MAX = 3 };

typedef enum epx_perf_tensor {
    EPX_PERF_TENSOR_Y = 1,
    EPX_PERF_TENSOR_DX_ROWS,
    EPX_PERF_TENSOR_DOUT
} epx_perf_tensor_t;

int32_t epx_perf_element_bytes(epx_type_t type);

/* Bits of value in `type`, rounded to nearest even; finite values in range only. */
uint32_t epx_perf_encode(epx_type_t type, double value);
double epx_perf_decode(epx_type_t type, uint32_t bits);

void epx_perf_set(void *row, epx_type_t type, int64_t h, uint32_t bits);
uint32_t epx_perf_get(const void *row, epx_type_t type, int64_t h);

/* The row x[token] of `rank`. */
void epx_perf_x_row(void *row, epx_type_t type, int32_t width, uint64_t seed, int32_t rank, int64_t token);

/* Who the first elements of an x row say that it is; width >= EPX_PERF_HEADER. 0, or -1 when they are no
 * digits.
 */
int epx_perf_x_whose(const void *row, epx_type_t type, int32_t *rank_p, int64_t *token_p);

/* Largest integer of y and dx_rows for K choices. */
int32_t epx_perf_range(int32_t top_k);

/* values [width]: integers -range..range; k is 0 for dout. */
void epx_perf_small(int8_t *values, int32_t width, int32_t range, epx_perf_tensor_t tensor, uint64_t seed,
                    int32_t rank, int64_t token, int32_t k);

/* Row of integers as elements. */
void epx_perf_small_row(void *row, epx_type_t type, int32_t width, const int8_t *values);

/* 0.5 or 1, from (rank, token, k); always 1 for K > 128, where halves would not be exact. */
float epx_perf_weight(uint64_t seed, int32_t rank, int64_t token, int32_t k, int32_t top_k);

#endif
