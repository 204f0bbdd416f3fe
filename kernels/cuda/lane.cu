/* What a lane counts where epochs are resident: see include/epx/kernels_words.h. SPDX-License-Identifier:
 * Apache-2.0 */
#include <epx/kernels_words.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

__device__ inline uint64_t low(uint64_t value, int bits) { return value & (((uint64_t)1 << bits) - 1); }

/* One thread: steps of a lane are in stream order. */
__global__ void move_lane(const __grid_constant__ epx_k_lane_t args)
{
    epx_lane_words_t *words = args.words;
    behind_previous();
    if (args.step == EPX_LANE_ROUTE) {
        args.head->number = ++words->routes;
    } else if (args.step == EPX_LANE_BEGIN) {
        words->base = args.generation << (EPX_EPOCH_PASS_BITS + EPX_EPOCH_ROUTE_BITS + EPX_EPOCH_CALL_BITS) |
                      low(words->passes, EPX_EPOCH_PASS_BITS)
                          << (EPX_EPOCH_ROUTE_BITS + EPX_EPOCH_CALL_BITS) |
                      low(args.head->number, EPX_EPOCH_ROUTE_BITS) << EPX_EPOCH_CALL_BITS;
    } else if (args.head->valid == 1) {
        words->passes++;
        for (int i = 0; i < EPX_LANE_CREDITS; i++)
            if (args.acknowledged[i] != 0)
                words->credit[i] = words->base + args.acknowledged[i];
    }
}

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_lane(const epx_k_lane_t *args, epx_stream_t stream)
{
    using namespace epx;
    shape1 shape = {1, 1, 0, 1, true};
    return launch("lane", shape, stream, move_lane, *args);
}
