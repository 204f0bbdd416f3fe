/* reduce: rows summed by lists, rounded once. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/sums_bulk.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

template <typename T, int N>
__global__ void __launch_bounds__(REDUCE_THREADS, REDUCE_BLOCKS)
    reduce(const __grid_constant__ epx_k_reduce_t args)
{
    behind_previous();
    let_next_begin(args.units);
    int32_t n = args.n_device != nullptr ? fresh(args.n_device) : args.n;
    int32_t blocks = blocks_of<N>(args.width), cut = cut_rows(n, blocks, 1),
            each = piece_bytes(blocks, cut, 1);
    term_list list = {args.list, args.weights, (const char *)args.rows, args.row_stride};
    reduce_all<T, N>(list, warp_of_grid(), n * cut, warps_of_grid(), args.width, [&](int32_t unit) {
        int32_t j = unit / cut, first = (unit - j * cut) * each;
        return reduction{fresh(args.first + j), fresh(args.count + j), first, min(first + each, blocks),
                         (char *)args.out + j * args.out_stride};
    });
}

template <typename B, typename T, int N>
__global__ void __launch_bounds__(B::THREADS, 1) reduce_bulk(const __grid_constant__ epx_k_reduce_t args)
{
    extern __shared__ __align__(128) char dynamic[];
    __shared__ bulk_shared<B, reduce_note> shared;
    behind_previous();
    let_next_begin(args.units);
    int32_t n = args.n_device != nullptr ? fresh(args.n_device) : args.n, width = args.width * T::BYTES;
    term_list list = {args.list, args.weights, (const char *)args.rows, args.row_stride};
    bulk_reducer<B, T, N> reducer(list, dynamic, shared);
    int32_t cut = bulk_cut<B>(n, width), each = bulk_piece(width, cut);
    int64_t units = (int64_t)max(n, 0) * cut, step = warps_of_grid();
    for (int64_t first = warp_of_grid(); first < units; first += WARP * step) {
        int64_t unit = first + lane_id() * step;
        reduced_piece piece = {};
        if (unit < units) {
            int32_t j = (int32_t)(unit / cut);
            piece.from = (int32_t)(unit - (int64_t)j * cut) * each;
            piece.bytes = min(width - piece.from, each);
            if (piece.bytes > 0)
                piece.out = (char *)args.out + j * args.out_stride + piece.from;
            piece.begin = fresh(args.first + j);
            piece.count = fresh(args.count + j);
        }
        reducer.add_pieces(piece);
    }
    reducer.finish();
}

template <typename T, int N> launch_site site;
template <typename B, typename T, int N> launch_site bulk_site;

template <typename B, typename T, int N>
epx_status_t reduce_by_bulk(const epx_k_reduce_t *args, epx_stream_t stream)
{
    int blocks =
        persistent_blocks(bulk_site<B, T, N>, reduce_bulk<B, T, N>, B::THREADS, B::SHARED, args->units);
    return launch("reduce", {blocks, B::THREADS, B::SHARED, 1, true}, stream, reduce_bulk<B, T, N>, *args);
}

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
        if constexpr (N > 1) {
            return reduce_by_bulk<reduce_build, T, N>(args, stream);
        } else {
            int blocks = persistent_blocks(site<T, N>, reduce<T, N>, REDUCE_THREADS, 0, args->units);
            return launch("reduce", {blocks, REDUCE_THREADS, 0, 1, true}, stream, reduce<T, N>, *args);
        }
    });
}
