/* Words as kernels see them: see words.cu, and W1 to W7 in include/epx/kernels_words.h.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_KERNELS_CUDA_WORDS_CUH
#define EPX_KERNELS_CUDA_WORDS_CUH

#include "kernels/cuda/lane.cuh"

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

/* Behind a fence of the same thread. */
__device__ inline void store_relaxed(uint64_t *word, uint64_t value)
{
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
}

__device__ inline uint64_t look(const uint64_t *word) { return *(const volatile uint64_t *)word; }

__device__ inline int64_t now_ns()
{
    int64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

__device__ inline uint64_t epoch_value(const epx_epoch_t &epoch)
{
    return (epoch.base != nullptr ? look(epoch.base) : 0) + epoch.add;
}

__device__ inline bool shut(const int32_t *gate)
{
    return gate != nullptr && *(const volatile int32_t *)gate != 1;
}

__device__ inline char *block_of(const epx_words_t &words, int32_t rank)
{
    return (char *)__ldg((const uint64_t *)words.peer + rank);
}

__device__ inline uint64_t *word_at(const epx_words_t &words, int32_t rank, int64_t offset, int64_t index)
{
    return (uint64_t *)(block_of(words, rank) + offset) + index;
}

/* An epoch of a pass that a post of this kernel, or of one that still runs, begins; begin.words NULL: any
 * epoch. */
__device__ inline uint64_t begun_value(const epx_lane_begin_of_t &begin, const epx_epoch_t &epoch)
{
    if (begin.words == nullptr)
        return epoch_value(epoch);
    return lane_base(begin.words, begin.head, begin.generation) + epoch.add;
}

/* One thread: the pass has begun. */
__device__ inline void begin_pass(const epx_lane_begin_of_t &begin, uint64_t base)
{
    if (begin.words != nullptr)
        begin.words->base = base;
}

} // namespace epx

#endif
