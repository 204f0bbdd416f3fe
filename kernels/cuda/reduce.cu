/* reduce: rows summed by lists, rounded once. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/sums.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

template <typename T, int N>
__global__ void __launch_bounds__(REDUCE_THREADS, REDUCE_BLOCKS)
    reduce(const __grid_constant__ epx_k_reduce_t args)
{
    int32_t n = args.n_device != nullptr ? __ldg(args.n_device) : args.n;
    int32_t blocks = blocks_of<N>(args.width), cut = cut_rows(n, blocks, 1),
            each = piece_bytes(blocks, cut, 1);
    term_list list = {args.list, args.weights, (const char *)args.rows, args.row_stride};
    reduce_all<T, N>(list, warp_of_grid(), n * cut, warps_of_grid(), args.width, [&](int32_t unit) {
        int32_t j = unit / cut, first = (unit - j * cut) * each;
        return reduction{__ldg(args.first + j), __ldg(args.count + j), first, min(first + each, blocks),
                         (char *)args.out + j * args.out_stride};
    });
}

template <typename T, int N> launch_site site;

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_reduce(const epx_k_reduce_t *args, epx_stream_t stream)
{
    using namespace epx;
    if (args->n <= 0 && args->n_device == nullptr)
        return EPX_OK;
    int64_t row = (int64_t)args->width * element_bytes(args->row_type);
    bool aligned = by_16(args->rows, args->row_stride | row) && by_16(args->out, args->out_stride);
    return by_type(args->row_type, aligned, [&](auto type, auto n) {
        typedef decltype(type) T;
        constexpr int N = decltype(n)::value;
        int blocks = persistent_blocks(site<T, N>, reduce<T, N>, REDUCE_THREADS, 0);
        return launch("reduce", {blocks, REDUCE_THREADS, 0, 1}, stream, reduce<T, N>, *args);
    });
}
