/* reduce: rows summed by lists, rounded once. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/sums.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

enum { THREADS = 256 };

template <typename T, int N>
__global__ void __launch_bounds__(THREADS, 3) reduce(const __grid_constant__ epx_k_reduce_t args)
{
    int32_t n = args.n_device != nullptr ? __ldg(args.n_device) : args.n;
    int32_t blocks = blocks_of<N>(args.width), cut = cut_rows(n, blocks, 1),
            each = piece_bytes(blocks, cut, 1);
    term_list list = {args.list, args.weights, (const char *)args.rows, args.row_stride};
    for (int32_t unit = warp_of_grid(); unit < n * cut; unit += warps_of_grid()) {
        int32_t j = unit / cut, first = (unit - j * cut) * each;
        reduce_blocks<T, N>(list, __ldg(args.first + j), __ldg(args.count + j), args.width,
                            (char *)args.out + j * args.out_stride, first, min(first + each, blocks));
    }
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
        int blocks = persistent_blocks(site<T, N>, reduce<T, N>, THREADS, 0);
        return launch("reduce", {blocks, THREADS, 0, 1}, stream, reduce<T, N>, *args);
    });
}
