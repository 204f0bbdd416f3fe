/* Resident epochs, what post shares with lane. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_KERNELS_CUDA_LANE_CUH
#define EPX_KERNELS_CUDA_LANE_CUH

#include <epx/kernels_words.h>

namespace epx
{

__device__ inline uint64_t low_bits(uint64_t value, int bits) { return value & (((uint64_t)1 << bits) - 1); }

/* The base of the epochs of a pass that begins. */
__device__ inline uint64_t lane_base(const epx_lane_words_t *words, const epx_plan_head_t *head,
                                     uint64_t generation)
{
    uint64_t passes = *(const volatile uint64_t *)&words->passes,
             number = *(const volatile uint64_t *)&head->number;
    return generation << (EPX_EPOCH_PASS_BITS + EPX_EPOCH_ROUTE_BITS + EPX_EPOCH_CALL_BITS) |
           low_bits(passes, EPX_EPOCH_PASS_BITS) << (EPX_EPOCH_ROUTE_BITS + EPX_EPOCH_CALL_BITS) |
           low_bits(number, EPX_EPOCH_ROUTE_BITS) << EPX_EPOCH_CALL_BITS;
}

/* One thread: what EPX_LANE_END does. */
__device__ inline void end_pass(epx_lane_words_t *words, const epx_plan_head_t *head,
                                const uint64_t *acknowledged)
{
    if (*(const volatile int32_t *)&head->valid != 1)
        return;
    words->passes++;
    for (int i = 0; i < EPX_LANE_CREDITS; i++)
        if (acknowledged[i] != 0)
            words->credit[i] = words->base + acknowledged[i];
}

enum { HEAD_WORDS = sizeof(epx_plan_head_t) / sizeof(uint64_t) };
static_assert(sizeof(epx_plan_head_t) % sizeof(uint64_t) == 0 && HEAD_WORDS <= 32,
              "a word for each lane of a warp");

/* One warp: what EPX_LANE_ROUTE does. routes: with this one; but: a word of the head that is left alone. */
__device__ inline void begin_route(const epx_k_lane_t &args, uint64_t routes, const void *but)
{
    int lane = (int)threadIdx.x % 32;
    if (lane < HEAD_WORDS && (uint64_t *)args.head + lane != but)
        ((uint64_t *)args.head)[lane] = ((const uint64_t *)&args.value)[lane];
    __syncwarp();
    if (lane == 0)
        args.head->number = args.words->routes = routes;
}

} // namespace epx

#endif
