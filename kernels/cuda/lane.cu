/* What a lane counts where epochs are resident: see include/epx/kernels_words.h. SPDX-License-Identifier:
 * Apache-2.0 */
#include "kernels/cuda/lane.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

enum { THREADS = 32 };

/* Steps of a lane are in stream order. */
__global__ void __launch_bounds__(THREADS) move_lane(const __grid_constant__ epx_k_lane_t args)
{
    epx_lane_words_t *words = args.words;
    behind_previous();
    let_next_begin();
    if (args.step == EPX_LANE_ROUTE) {
        begin_route(args, words->routes + 1, nullptr);
    } else if (threadIdx.x != 0) {
        return;
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
