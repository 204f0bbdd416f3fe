/*
 * Arithmetic on one row, in the widest instructions that the CPU has. Lanes run across the row, never across
 * the terms of a sum, so that every version gives the bits of the plain loop. Internal to kernels/host and to
 * the transports' kernels. SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_KERNELS_HOST_ROWS_H
#define EPX_KERNELS_HOST_ROWS_H

#include <epx/epx.h>

/* How many elements of a sum are kept at a time where there is no accumulator in memory. */
#define EPX_ROW_BLOCK 1024

/*
 * Rows are arrays of n elements of `type` (fp32, bf16, fp16), at any address that suits the type.
 *   add    acc[h] = fmaf(weight, row[h], from_zero ? +0 : acc[h])
 *   store  row[h] = type(acc[h])
 *   scale  to[h] = type(weight * from[h]), the product in fp32; to may equal from
 *   dot    the dot of two rows in the fixed shape of kernels.h
 */
typedef struct epx_row_ops {
    const char *name; /* "plain", "avx2", "avx512" */
    void (*add)(float *acc, const void *row, float weight, int64_t n, epx_type_t type, int32_t from_zero);
    void (*store)(void *row, const float *acc, int64_t n, epx_type_t type);
    void (*scale)(void *to, const void *from, float weight, int64_t n, epx_type_t type);
    float (*dot)(const void *a, const void *b, int64_t n, epx_type_t type);
} epx_row_ops_t;

/* The best version for this CPU, and all that this CPU can run (NULL past the last; 0 is plain): for tests.
 */
const epx_row_ops_t *epx_row_ops(void);
const epx_row_ops_t *epx_row_ops_version(int32_t i);

/* Bytes of an element of a row type. */
static inline int64_t epx_row_element(epx_type_t type) { return type == EPX_FP32 ? 4 : 2; }

extern const epx_row_ops_t epx_row_ops_plain;

#endif
