/*
 * Progress words: see epx_progress_words_t, and kernels/host/progress.h, whose twins these are.
 * SPDX-License-Identifier: Apache-2.0
 *
 * A pair is one store of 16 bytes to the host's memory. Nothing waits for it, and nothing else of the kernel
 * is ordered by it.
 */
#ifndef EPX_KERNELS_CUDA_PROGRESS_CUH
#define EPX_KERNELS_CUDA_PROGRESS_CUH

#include "kernels/cuda/lane.cuh"
#include "kernels/cuda/system.cuh"

namespace epx
{

__device__ inline uint64_t progress_time(uint32_t name)
{
    return (uint64_t)now_ns() >> EPX_PROGRESS_TIME_SHIFT << EPX_PROGRESS_NAME_BITS | name;
}

__device__ inline void put_pair(uint64_t *pair, uint64_t first, uint64_t second)
{
    asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};"
                 :
                 : "l"(pair), "l"(first), "l"(second)
                 : "memory");
}

/* One thread. */
__device__ inline void put_progress(uint64_t *pair, uint64_t value, uint32_t name)
{
    put_pair(pair, value, progress_time(name));
}

/* All threads of a grid; the first one says it. In a kernel that was launched early: behind_previous() first.
 */
__device__ inline void say_begun(const epx_k_begun_t &begun)
{
    if (begun.word == nullptr || blockIdx.x != 0 || threadIdx.x != 0)
        return;
    uint64_t base = begun.lane != nullptr ? lane_base(begun.lane, begun.head, begun.generation) : 0;
    put_progress(begun.word, base + begun.add, begun.name);
}

} // namespace epx

#endif
