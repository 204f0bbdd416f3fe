/*
 * Work that the blocks of a grid draw from counters in memory, EPX_TURNS words. SPDX-License-Identifier:
 * Apache-2.0
 *
 * Counters only grow until all blocks have drawn their last, and the last block to end sets them back: a unit
 * is drawn once, nobody waits for another block, and the next kernel that is given them finds zeros.
 */
#ifndef EPX_KERNELS_CUDA_TURNS_CUH
#define EPX_KERNELS_CUDA_TURNS_CUH

#include "kernels/cuda/segments.cuh"

namespace epx
{

enum { TURN_KINDS = 2, TURNS_ENDED = TURN_KINDS };

/* Lane 0 of a warp: asks for the next `n` units. The answer is waited for where it is used. */
__device__ inline unsigned long long ask_turn(uint64_t *turn, int32_t n)
{
    return atomicAdd((unsigned long long *)turn, (unsigned long long)n);
}

/* One warp: the first of the next `n` units. */
__device__ inline int64_t draw(uint64_t *turn, int32_t n)
{
    unsigned long long first = 0;
    if (lane_id() == 0)
        first = ask_turn(turn, n);
    return (int64_t)__shfl_sync(ALL, first, 0);
}

/* All threads of a group, behind all draws of this block. */
template <typename GROUP> __device__ inline void end_turns(uint64_t *turns)
{
    GROUP::sync();
    if (GROUP::thread() != 0)
        return;
    __threadfence();
    if (atomicAdd((unsigned long long *)turns + TURNS_ENDED, 1ull) == gridDim.x - 1)
        turns[0] = turns[1] = turns[TURNS_ENDED] = 0;
}

} // namespace epx

#endif
