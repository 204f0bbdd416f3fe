/*
 * What the accept rules share. Internal to src/transport/accept_*.c.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_TRANSPORT_ACCEPT_COMMON_H
#define EPX_TRANSPORT_ACCEPT_COMMON_H

#include <stdint.h>

/* ceil(product * factor / divisor): one multiplication and one division in double. The result saturates at
 * 2^40, far above the 2^31 rows that opening refuses, so that later integer products cannot overflow. product
 * >= 0, divisor >= 1. */
int64_t epx_accept_ceil(int64_t product, double factor, int64_t divisor);

static inline int64_t epx_min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t epx_max64(int64_t a, int64_t b) { return a > b ? a : b; }

#endif
