/*
 * What kernels share whose rows go in parts: F1 to F3 of include/epx/kernels_ragged.h.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_KERNELS_CUDA_FLOW_CUH
#define EPX_KERNELS_CUDA_FLOW_CUH

#include <epx/kernels_ragged.h>

#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/system.cuh"

namespace epx
{

enum { PARTS = EPX_FLOW_PARTS };
static_assert(EPX_FLOW_PARTS <= 32 && EPX_FLOW_RANKS_MAX <= 32, "each is a lane's");

__device__ inline void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
/* What loads have acquired may be read by bulk copies from here on. */
__device__ inline void to_bulk_copies() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

__device__ inline void store_word(uint64_t *word, uint64_t value)
{
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

/* The first of n rows that is in part p. */
__device__ inline int32_t part_first(int32_t n, int32_t p) { return (int32_t)((int64_t)n * p / PARTS); }
__device__ inline int32_t part_rows(int32_t n, int32_t p) { return part_first(n, p + 1) - part_first(n, p); }

/* Word of a part and a sender at a rank. */
__device__ inline uint64_t *part_word(void *const *dst, int64_t words, int32_t ranks, int32_t rank,
                                      int32_t part, int32_t sender)
{
    return (uint64_t *)((char *)fresh((const uint64_t *)dst + rank) + words) + (int64_t)part * ranks + sender;
}

} // namespace epx

#endif
