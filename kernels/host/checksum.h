/* The checksum of a row: FNV-1a, 32 bits, over its bytes. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_KERNELS_HOST_CHECKSUM_H
#define EPX_KERNELS_HOST_CHECKSUM_H

#include <stdint.h>

static inline uint32_t epx_row_checksum(const void *row, int64_t bytes)
{
    const unsigned char *byte = row;
    uint32_t sum = 2166136261u;
    for (int64_t b = 0; b < bytes; b++)
        sum = (sum ^ byte[b]) * 16777619u;
    return sum;
}

#endif
