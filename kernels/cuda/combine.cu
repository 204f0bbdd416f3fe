/*
 * combine: one wave of the weighted sum of every token. SPDX-License-Identifier: Apache-2.0
 *
 * One warp takes one token, or a number of its columns where tokens are few. The partial sums of earlier
 * waves are read and written only for tokens that this wave brings something to; after the last wave they are
 * not written.
 */
#include <type_traits>

#include "kernels/cuda/sums.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

enum { THREADS = 256 };

/* Terms k0 .. k0 + 31 of token t, one on each lane. */
__device__ inline unsigned terms_of(const epx_k_combine_t &args, int64_t t, int32_t k0, const char **row_p,
                                    float *weight_p)
{
    int32_t k = k0 + lane_id();
    int64_t a = t * args.columns + k, place = k < args.columns ? __ldg(args.place + a) : -1,
            row = place - args.lo;
    bool there = place >= args.lo && place < args.hi && (args.kept == nullptr || __ldg(args.kept + row) != 0);
    *row_p = there ? (const char *)args.rows + row * args.row_stride : nullptr;
    *weight_p = there && args.weights != nullptr ? __ldg(args.weights + a) : 1.0f;
    return __ballot_sync(ALL, there);
}

template <typename T, int N>
__device__ inline void combine_block(const epx_k_combine_t &args, int64_t t, int32_t block, unsigned mask,
                                     const char *row, float weight)
{
    int32_t h = (block * WARP + lane_id()) * N;
    bool inside = h < args.width;
    float acc[N] = {};
    float *sum = args.acc + t * args.width + h;
    if (!args.first && inside)
        load_floats<N>(sum, acc);
    add_terms<T, N>(acc, h, inside, mask, row, weight);
    for (int32_t k0 = WARP; k0 < args.columns; k0 += WARP) {
        mask = terms_of(args, t, k0, &row, &weight);
        add_terms<T, N>(acc, h, inside, mask, row, weight);
    }
    if (!inside)
        return;
    if (args.last)
        store_as<N>((char *)args.out + t * args.width * (args.out_type == EPX_FP32 ? 4 : 2), h, args.out_type,
                    acc);
    else
        store_floats<N>(sum, acc);
}

template <typename T, int N>
__global__ void __launch_bounds__(THREADS, 4) combine(const __grid_constant__ epx_k_combine_t args)
{
    int64_t tokens = args.tokens_device != nullptr ? __ldg(args.tokens_device) : args.tokens;
    int32_t blocks = blocks_of<N>(args.width), cut = cut_rows((int32_t)tokens, blocks, 1),
            each = piece_bytes(blocks, cut, 1);
    for (int32_t unit = warp_of_grid(); unit < (int32_t)tokens * cut; unit += warps_of_grid()) {
        int32_t t = unit / cut, first = (unit - t * cut) * each, end = min(first + each, blocks);
        const char *row;
        float weight;
        unsigned mask = terms_of(args, t, 0, &row, &weight);
        if (mask == 0 && args.columns <= WARP && !args.first && !args.last)
            continue;
        for (int32_t block = first; block < end; block++)
            combine_block<T, N>(args, t, block, mask, row, weight);
    }
}

bool is_aligned(const epx_k_combine_t *args)
{
    int64_t row = (int64_t)args->width * element_bytes(args->row_type);
    return by_16(args->rows, args->row_stride | row) && by_16(args->acc, 0) && by_16(args->out, 0);
}

template <typename T, int N> launch_site site;

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_combine(const epx_k_combine_t *args, epx_stream_t stream)
{
    using namespace epx;
    if (args->tokens <= 0 && args->tokens_device == nullptr)
        return EPX_OK;
    return by_type(args->row_type, is_aligned(args), [&](auto type, auto n) {
        typedef decltype(type) T;
        constexpr int N = decltype(n)::value;
        int blocks = persistent_blocks(site<T, N>, combine<T, N>, THREADS, 0);
        return launch("combine", {blocks, THREADS, 0, 1}, stream, combine<T, N>, *args);
    });
}
