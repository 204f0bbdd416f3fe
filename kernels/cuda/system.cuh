/* What all processors see: words, and the device's clock. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_KERNELS_CUDA_SYSTEM_CUH
#define EPX_KERNELS_CUDA_SYSTEM_CUH

#include <stdint.h>

namespace epx
{

__device__ inline uint64_t load_acquire(const uint64_t *word)
{
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

__device__ inline void store_release(uint64_t *word, uint64_t value)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
}

/* As it is in memory at this moment; nothing is ordered by it. */
__device__ inline uint64_t look(const uint64_t *word) { return *(const volatile uint64_t *)word; }

__device__ inline int64_t now_ns()
{
    int64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

} // namespace epx

#endif
