/* What a lane counts where epochs are resident: see include/epx/kernels_words.h. SPDX-License-Identifier:
 * Apache-2.0 */
#include "kernels/cuda/lane.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

enum { HEAD_WORDS = sizeof(epx_plan_head_t) / sizeof(uint64_t), THREADS = 32 };
static_assert(sizeof(epx_plan_head_t) % sizeof(uint64_t) == 0 && HEAD_WORDS <= THREADS,
              "a word for each thread");

/* Steps of a lane are in stream order. */
__global__ void __launch_bounds__(THREADS) move_lane(const __grid_constant__ epx_k_lane_t args)
{
    epx_lane_words_t *words = args.words;
    int thread = (int)threadIdx.x;
    behind_previous();
    if (args.step == EPX_LANE_ROUTE && thread < HEAD_WORDS)
        ((uint64_t *)args.head)[thread] = ((const uint64_t *)&args.value)[thread];
    __syncwarp();
    if (thread != 0)
        return;
    if (args.step == EPX_LANE_ROUTE) {
        args.head->number = ++words->routes;
    } else if (args.step == EPX_LANE_BEGIN) {
        words->base = lane_base(words, args.head, args.generation);
    } else {
        end_pass(words, args.head, args.acknowledged);
    }
}

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_lane(const epx_k_lane_t *args, epx_stream_t stream)
{
    using namespace epx;
    shape1 shape = {1, THREADS, 0, 1, true};
    return launch("lane", shape, stream, move_lane, *args);
}
