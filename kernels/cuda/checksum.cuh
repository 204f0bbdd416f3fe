/* The checksum of a row: FNV-1a, 32 bits, over its bytes; serial, one thread. SPDX-License-Identifier:
 * Apache-2.0 */
#ifndef EPX_KERNELS_CUDA_CHECKSUM_CUH
#define EPX_KERNELS_CUDA_CHECKSUM_CUH

#include <stdint.h>

namespace epx
{

__device__ inline uint32_t add_byte(uint32_t sum, uint32_t byte) { return (sum ^ byte) * 16777619u; }

__device__ inline uint32_t add_word(uint32_t sum, uint32_t word)
{
    sum = add_byte(sum, word & 0xff);
    sum = add_byte(sum, word >> 8 & 0xff);
    sum = add_byte(sum, word >> 16 & 0xff);
    return add_byte(sum, word >> 24);
}

__device__ inline uint32_t row_checksum(const char *row, int64_t bytes)
{
    uint32_t sum = 2166136261u;
    int64_t b = 0;
    if (((uintptr_t)row & 15) == 0) {
        for (; b + 16 <= bytes; b += 16) {
            uint4 v = *(const uint4 *)(row + b);
            sum = add_word(add_word(add_word(add_word(sum, v.x), v.y), v.z), v.w);
        }
    }
    for (; b < bytes; b++)
        sum = add_byte(sum, (uint8_t)row[b]);
    return sum;
}

} // namespace epx

#endif
