/* take_dots: a wave's dots become gradients of the routing weights. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

enum { THREADS = 1024 };

__global__ void __launch_bounds__(THREADS) take_dots(const __grid_constant__ epx_k_take_dots_t args)
{
    behind_previous();
    let_next_begin(args.units);
    int64_t n = (args.tokens_device != nullptr ? *args.tokens_device : args.tokens) * args.columns;
    for (int64_t a = (int64_t)blockIdx.x * THREADS + threadIdx.x; a < n; a += (int64_t)gridDim.x * THREADS) {
        int64_t place = args.place[a], row = place - args.lo;
        if (place >= args.lo && place < args.hi && (args.kept == nullptr || args.kept[row] != 0))
            args.dweight[a] = args.dots[row];
        else if (args.first)
            args.dweight[a] = 0.0f;
    }
}

launch_site site;

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_take_dots(const epx_k_take_dots_t *args, epx_stream_t stream)
{
    using namespace epx;
    int blocks = persistent_blocks(site, take_dots, THREADS, 0, args->units);
    if (args->tokens_device == nullptr)
        blocks = at_most(blocks, (args->tokens * args->columns + THREADS - 1) / THREADS);
    return launch("take_dots", {blocks, THREADS, 0, 1, true}, stream, take_dots, *args);
}
