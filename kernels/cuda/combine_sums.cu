/*
 * combine of a rank alone: a token's row is a sum of the rank's own rows, which is made in registers, rounded
 * as one that goes to memory is, and added. SPDX-License-Identifier: Apache-2.0
 *
 * One warp takes one block of a token's columns. What it adds up was there before the post that the kernel
 * ahead waits behind, so that is done while the kernel ahead ends; nothing is written before.
 */
#include "kernels/cuda/sums.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

enum { THREADS = 1024, BLOCKS_EACH = 8 };

/* Entries of the list that make a token's row. */
struct list_range {
    int32_t begin, count; /* count -1: there is no row */
};

__device__ inline list_range range_of(const epx_k_combine_t &args, int64_t t)
{
    int32_t k = lane_id();
    int64_t place = k < args.columns ? fresh(args.place + t * args.columns + k) : -1, row = place - args.lo;
    bool there = place >= args.lo && place < args.hi;
    int32_t begin = there ? fresh(args.sums.first + row) : 0,
            count = there ? fresh(args.sums.count + row) : -1;
    unsigned which = __ballot_sync(ALL, there);
    int from = which != 0 ? __ffs(which) - 1 : 0;
    return {__shfl_sync(ALL, begin, from), __shfl_sync(ALL, count, from)};
}

/* A block of a token's row. */
template <typename T, int N>
__device__ inline void make_sum(float (&sum)[1][N], const term_list &list, const list_range &of,
                                int32_t block, int32_t width)
{
    for (int32_t x = 0; x < of.count; x += WARP)
        add_terms<T, N, 1>(sum, block, block + 1, width, list.at(of.begin + x, of.begin + of.count));
#pragma unroll
    for (int i = 0; i < N; i++)
        sum[0][i] = T::rounded(sum[0][i]);
}

template <int N>
__device__ inline void add_sum(const epx_k_combine_t &args, int64_t t, int32_t h, bool there,
                               const float (&sum)[N])
{
    float acc[N] = {}, *at = args.acc + t * args.width + h;
    if (!args.first)
        load_floats<N>(at, acc);
#pragma unroll
    for (int i = 0; i < N; i++)
        acc[i] = there ? __fmaf_rn(1.0f, sum[i], acc[i]) : acc[i];
    if (args.last)
        store_as<N>((char *)args.out + t * args.width * (args.out_type == EPX_FP32 ? 4 : 2), h, args.out_type,
                    acc);
    else
        store_floats<N>(at, acc);
}

__device__ inline int32_t tokens_of(const epx_k_combine_t &args)
{
    return (int32_t)(args.tokens_device != nullptr ? fresh(args.tokens_device) : args.tokens);
}

template <typename T, int N>
__global__ void __launch_bounds__(THREADS, 1) combine_sums(const __grid_constant__ epx_k_combine_t args)
{
    bool ahead = args.early != 0;
    if (!ahead) {
        behind_previous();
        let_next_begin(args.units);
    }
    const epx_k_own_sums_t &sums = args.sums;
    int64_t shift = fresh(sums.home_start) - fresh(sums.wire_start);
    term_list list = {sums.list + shift, sums.weights != nullptr ? sums.weights + shift : nullptr,
                      (const char *)sums.y, args.row_stride};
    int32_t blocks = blocks_of<N>(args.width), tokens = tokens_of(args);
    for (int64_t unit = warp_of_grid(); unit < (int64_t)tokens * blocks; unit += warps_of_grid()) {
        int64_t t = unit / blocks;
        int32_t block = (int32_t)(unit - t * blocks), h = element_of<N>(block);
        list_range of = range_of(args, t);
        float sum[1][N] = {};
        make_sum<T, N>(sum, list, of, block, args.width);
        if (ahead) {
            behind_previous();
            let_next_begin(args.units);
            ahead = false;
            tokens = tokens_of(args); /* a plan that has died has none any more */
        }
        if (t < tokens && h < args.width)
            add_sum<N>(args, t, h, of.count >= 0, sum[0]);
    }
    if (ahead)
        behind_previous();
}

template <typename T, int N> launch_site site;

template <typename T, int N> epx_status_t launch_sums(const epx_k_combine_t *args, epx_stream_t stream)
{
    int blocks = persistent_blocks(site<T, N>, combine_sums<T, N>, THREADS, 0, args->units);
    if (args->tokens >= 0) /* there are so many at most */
        blocks = at_most(blocks, (args->tokens * blocks_of<N>(args->width) - 1) / (THREADS / WARP) + 1);
    return launch("combine", {blocks, THREADS, 0, 1, true}, stream, combine_sums<T, N>, *args);
}

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_combine_sums(const epx_k_combine_t *args, epx_stream_t stream)
{
    using namespace epx;
    int64_t row = (int64_t)args->width * element_bytes(args->row_type);
    bool aligned = by_16(args->sums.y, args->row_stride | row) && by_16(args->acc, 0) && by_16(args->out, 0);
    return by_type(args->row_type, aligned, [&](auto type, auto n) {
        return launch_sums<decltype(type), decltype(n)::value>(args, stream);
    });
}

/*
 * Where each warp of the device has so few blocks of columns that one behind the other, with few rows in
 * flight, they are done before sums have gone to memory and come back. Many are sooner by bulk copies all the
 * same.
 */
extern "C" int epx_cuda_sums_soon(int64_t tokens, int32_t width, epx_type_t row_type)
{
    using namespace epx;
    int64_t blocks = ((int64_t)width * element_bytes(row_type) - 1) / (16 * WARP) + 1;
    int64_t warps = (int64_t)epx_cuda_units(current_device()) * (THREADS / WARP);
    return tokens * blocks <= BLOCKS_EACH * warps;
}
