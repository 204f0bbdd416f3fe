/*
 * combine: one wave of the weighted sum of every token. SPDX-License-Identifier: Apache-2.0
 *
 * One warp takes one token, or a number of its columns where tokens are few. The partial sums of earlier
 * waves are read and written only for tokens that this wave brings something to; after the last wave they are
 * not written.
 */
#include "kernels/cuda/sums.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

enum { THREADS = 1024, TOGETHER = 1 };

/* Terms k0 .. k0 + 31 of token t, one on each lane. */
__device__ inline terms terms_of(const epx_k_combine_t &args, int64_t t, int32_t k0)
{
    int32_t k = k0 + lane_id();
    int64_t a = t * args.columns + k, place = k < args.columns ? fresh(args.place + a) : -1,
            row = place - args.lo;
    bool there = place >= args.lo && place < args.hi && (args.kept == nullptr || fresh(args.kept + row) != 0);
    terms of = {__ballot_sync(ALL, there), nullptr, 1.0f};
    if (there) {
        of.row = (const char *)args.rows + row * args.row_stride;
        of.weight = args.weights != nullptr ? fresh(args.weights + a) : 1.0f;
    }
    return of;
}

/* Blocks first .. first + TOGETHER - 1 of token t, those before `end`. */
template <typename T, int N>
__device__ inline void combine_blocks(const epx_k_combine_t &args, int64_t t, int32_t first, int32_t end,
                                      const terms &of)
{
    float acc[TOGETHER][N] = {}, *sum = args.acc + t * args.width;
    if (!args.first)
#pragma unroll
        for (int g = 0; g < TOGETHER; g++)
            if (first + g < end && element_of<N>(first + g) < args.width)
                load_floats<N>(sum + element_of<N>(first + g), acc[g]);
    add_terms<T, N, TOGETHER>(acc, first, end, args.width, of);
    for (int32_t k0 = WARP; k0 < args.columns; k0 += WARP)
        add_terms<T, N, TOGETHER>(acc, first, end, args.width, terms_of(args, t, k0));
    char *out = (char *)args.out + t * args.width * (args.out_type == EPX_FP32 ? 4 : 2);
#pragma unroll
    for (int g = 0; g < TOGETHER; g++) {
        int32_t h = element_of<N>(first + g);
        if (first + g >= end || h >= args.width)
            continue;
        if (args.last)
            store_as<N>(out, h, args.out_type, acc[g]);
        else
            store_floats<N>(sum + h, acc[g]);
    }
}

/* All lanes of a warp: the first token behind the first p parts of what the ranks give back. */
__device__ inline int32_t bound(const epx_k_token_part_t &only, int32_t p, int32_t tokens)
{
    int32_t least = tokens;
    if (p == 0)
        return 0;
    for (int32_t d = lane_id(); d < only.ranks; d += WARP) {
        int32_t rows = (int32_t)fresh(only.count + d), come = rows_of_part(rows, p, only.parts).first;
        if (come < rows)
            least = min(least, fresh(only.token + fresh(only.start + d) + come));
    }
    return (int32_t)__reduce_min_sync(ALL, least);
}

template <typename T, int N>
__global__ void __launch_bounds__(THREADS, 1) combine(const __grid_constant__ epx_k_combine_t args)
{
    behind_previous();
    let_next_begin();
    int32_t tokens = (int32_t)(args.tokens_device != nullptr ? fresh(args.tokens_device) : args.tokens);
    int32_t begin = 0;
    if (args.only.parts > 0) {
        begin = bound(args.only, args.only.part, tokens);
        tokens = bound(args.only, args.only.part + 1, tokens) - begin;
    }
    int32_t blocks = blocks_of<N>(args.width), cut = cut_rows(tokens, blocks, 1),
            each = piece_bytes(blocks, cut, 1);
    for (int32_t unit = warp_of_grid(); unit < tokens * cut; unit += warps_of_grid()) {
        int32_t of_part = unit / cut, first = (unit - of_part * cut) * each, end = min(first + each, blocks),
                t = begin + of_part;
        terms of = terms_of(args, t, 0);
        if (of.mask == 0 && args.columns <= WARP && !args.first && !args.last)
            continue;
        for (int32_t block = first; block < end; block += TOGETHER)
            combine_blocks<T, N>(args, t, block, end, of);
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
        int blocks = persistent_blocks(site<T, N>, combine<T, N>, THREADS, 0, args->units);
        return launch("combine", {blocks, THREADS, 0, 1, true}, stream, combine<T, N>, *args);
    });
}
