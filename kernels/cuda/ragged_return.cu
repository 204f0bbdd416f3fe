/*
 * ragged_return: partial sums of this rank, written where they are awaited. SPDX-License-Identifier:
 * Apache-2.0
 *
 * How many rows a run has is known on the device only (rows[i]), so blocks add them up as push does.
 */
#include <epx/kernels_ragged.h>

#include "kernels/cuda/checksum.cuh"
#include "kernels/cuda/progress.cuh"
#include "kernels/cuda/sums_bulk.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

enum { THREADS = 256, TILE = 1024, BULK_TILE = 256 /* what slots leave of shared memory */ };

__device__ inline int32_t rows_of(const epx_k_ragged_return_t &args, int32_t i)
{
    int64_t most = fresh(&args.runs[i].rows), rows = fresh(args.rows + i);
    if (args.without > 0 && fresh(&args.runs[i].peer) + 1 == args.without)
        return 0;
    return (int32_t)max(rows < most ? rows : most, (int64_t)0);
}

__device__ inline char *base_of(const epx_k_ragged_return_t &args, const epx_run_t &run)
{
    return (char *)fresh((const uint64_t *)args.dst + run.peer);
}

/* The lists, behind behind_previous(). */
__device__ inline term_list list_of(const epx_k_ragged_return_t &args)
{
    int64_t on = args.home_start != nullptr ? fresh(args.home_start) - fresh(args.wire_start) : 0;
    return {args.list + on, args.weights != nullptr ? args.weights + on : nullptr, (const char *)args.src,
            args.row_bytes};
}

/* Where the list of a run's row r is told. */
__device__ inline int64_t told_at(const epx_k_ragged_return_t &args, const epx_run_t &run, int32_t r)
{
    return (args.home_start != nullptr ? run.row : run.first) + r;
}

template <typename T, int N>
__global__ void __launch_bounds__(REDUCE_THREADS, REDUCE_BLOCKS)
    return_rows(const __grid_constant__ epx_k_ragged_return_t args)
{
    __shared__ segments<TILE> table;
    behind_previous();
    let_next_begin(args.units);
    say_begun(args.begun);
    term_list list = list_of(args);
    for (int32_t tile = 0; tile < args.run_count; tile += TILE) {
        int32_t n = min(args.run_count - tile, (int32_t)TILE);
        if (tile > 0)
            __syncthreads();
        int32_t total = add_up<REDUCE_THREADS>(table, n, [&](int32_t i) { return rows_of(args, tile + i); });
        int32_t blocks = blocks_of<N>(args.width), cut = cut_rows(total, blocks, 1),
                each = piece_bytes(blocks, cut, 1);
        reduce_all<T, N>(list, warp_of_grid(), total * cut, warps_of_grid(), args.width, [&](int32_t unit) {
            int32_t u = unit / cut, first = (unit - u * cut) * each, r = spread(u, total),
                    i = find_segment(table.before, n, r);
            const epx_run_t &run = args.runs[tile + i];
            int64_t j = told_at(args, run, r - table.before[i]), row = run.row + r - table.before[i];
            return reduction{fresh(args.first + j), fresh(args.count + j), first, min(first + each, blocks),
                             base_of(args, run) + args.dst_offset + row * args.dst_stride};
        });
    }
}

template <typename B, typename T, int N>
__global__ void __launch_bounds__(B::THREADS, 1)
    return_bulk(const __grid_constant__ epx_k_ragged_return_t args)
{
    extern __shared__ __align__(128) char dynamic[];
    __shared__ segments<BULK_TILE> table;
    __shared__ bulk_shared<B, reduce_note> shared;
    behind_previous();
    let_next_begin(args.units);
    say_begun(args.begun);
    term_list list = list_of(args);
    bulk_reducer<B, T, N> reducer(list, dynamic, shared);
    int32_t width = args.width * T::BYTES;
    for (int32_t tile = 0; tile < args.run_count; tile += BULK_TILE) {
        int32_t n = min(args.run_count - tile, (int32_t)BULK_TILE);
        if (tile > 0)
            __syncthreads();
        int32_t total = add_up<B::THREADS>(table, n, [&](int32_t i) { return rows_of(args, tile + i); });
        int32_t cut = bulk_cut<B>(total, width), each = bulk_piece(width, cut);
        int64_t units = (int64_t)total * cut, step = warps_of_grid();
        for (int64_t first = warp_of_grid(); first < units; first += WARP * step) {
            int64_t unit = first + lane_id() * step;
            reduced_piece piece = {};
            if (unit < units) {
                int32_t u = (int32_t)(unit / cut), r = spread(u, total),
                        i = find_segment_alone(table.before, n, r);
                const epx_run_t &run = args.runs[tile + i];
                int64_t j = told_at(args, run, r - table.before[i]), row = run.row + r - table.before[i];
                piece.from = (int32_t)(unit - (int64_t)u * cut) * each;
                piece.bytes = min(width - piece.from, each);
                if (piece.bytes > 0)
                    piece.out = base_of(args, run) + args.dst_offset + row * args.dst_stride + piece.from;
                piece.begin = fresh(args.first + j);
                piece.count = fresh(args.count + j);
            }
            reducer.add_pieces(piece);
        }
    }
    reducer.finish();
}

__global__ void __launch_bounds__(THREADS)
    return_checksums(const __grid_constant__ epx_k_ragged_return_t args)
{
    __shared__ segments<TILE> table;
    for (int32_t tile = 0; tile < args.run_count; tile += TILE) {
        int32_t n = min(args.run_count - tile, (int32_t)TILE);
        if (tile > 0)
            __syncthreads();
        int32_t total = add_up<THREADS>(table, n, [&](int32_t i) { return rows_of(args, tile + i); });
        for (int32_t r = (int32_t)(blockIdx.x * THREADS + threadIdx.x); r < total;
             r += (int32_t)(gridDim.x * THREADS)) {
            int32_t i = find_segment_alone(table.before, n, r);
            const epx_run_t &run = args.runs[tile + i];
            int64_t row = run.row + r - table.before[i];
            char *base = base_of(args, run);
            ((uint32_t *)(base + args.sum_offset))[row] =
                row_checksum(base + args.dst_offset + row * args.dst_stride, args.row_bytes);
        }
    }
}

template <typename T, int N> launch_site site;
launch_site checksum_site;
template <typename B, typename T, int N> launch_site bulk_site;

/* Whether there are too few rows for bulk copies. */
bool are_few(const epx_k_ragged_return_t *args, int blocks)
{
    return args->rows_most > 0 && args->rows_most * args->row_bytes < BULK_ENOUGH * blocks;
}

template <typename B, typename T, int N> int bulk_blocks(const epx_k_ragged_return_t *args)
{
    return persistent_blocks(bulk_site<B, T, N>, return_bulk<B, T, N>, B::THREADS, B::SHARED, args->units);
}

template <typename B, typename T, int N>
epx_status_t return_by_bulk(const epx_k_ragged_return_t *args, epx_stream_t stream)
{
    return launch("ragged_return", {bulk_blocks<B, T, N>(args), B::THREADS, B::SHARED, 1, true}, stream,
                  return_bulk<B, T, N>, *args);
}

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_ragged_return(const epx_k_ragged_return_t *args, epx_stream_t stream)
{
    using namespace epx;
    if (args->run_count <= 0)
        return EPX_OK;
    bool aligned = by_16(args->src, args->row_bytes) && (args->dst_offset | args->dst_stride) % 16 == 0;
    epx_status_t status = by_type(args->row_type, aligned, [&](auto type, auto n) {
        typedef decltype(type) T;
        constexpr int N = decltype(n)::value;
        if constexpr (N > 1) {
            if (!are_few(args, bulk_blocks<reduce_build, T, N>(args)))
                return args->units > 0 ? return_by_bulk<budget_build, T, N>(args, stream)
                                       : return_by_bulk<reduce_build, T, N>(args, stream);
        }
        int blocks = persistent_blocks(site<T, N>, return_rows<T, N>, REDUCE_THREADS, 0, args->units);
        return launch("ragged_return", {blocks, REDUCE_THREADS, 0, 1, true}, stream, return_rows<T, N>,
                      *args);
    });
    if (status != EPX_OK || args->sum_offset < 0)
        return status;
    int blocks = persistent_blocks(checksum_site, return_checksums, THREADS, 0, args->units);
    return launch("ragged_return", {blocks, THREADS, 0, 1}, stream, return_checksums, *args);
}
