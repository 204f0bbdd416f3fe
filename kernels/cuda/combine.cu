/*
 * combine: one wave of the weighted sum of every token. SPDX-License-Identifier: Apache-2.0
 *
 * One warp takes one token, or a number of its columns where tokens are few. The partial sums of earlier
 * waves are read and written only for tokens that this wave brings something to; after the last wave they are
 * not written.
 */
#include "kernels/cuda/sums_bulk.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

enum { THREADS = 1024, TOGETHER = 1 };

/* Places lo .. hi - 1. */
struct range {
    int64_t lo, hi;
};

__device__ inline int32_t waves_of(const epx_k_combine_t &args) { return max(args.waves, 1); }

__device__ inline range range_of(const epx_k_combine_t &args, int32_t wave)
{
    int64_t each = (args.hi - args.lo) / waves_of(args);
    return {args.lo + wave * each, args.lo + (wave + 1) * each};
}

/* A token's terms are brought into order once: all lie on the lanes together. */
__device__ inline bool by_lanes(const epx_k_combine_t &args)
{
    return args.columns <= WARP || waves_of(args) == 1;
}

__device__ inline const char *row_at(const epx_k_combine_t &args, int64_t row)
{
    int64_t own = row - args.own_first;
    if (args.own != nullptr && own >= 0 && own < args.own_count)
        return (const char *)args.own_rows + fresh(args.own + own) * args.row_stride;
    return (const char *)args.rows + row * args.row_stride;
}

/* Terms k0 .. k0 + 31 of token t, one on each lane, of a range of places. row: this lane's, behind lo. */
__device__ inline terms terms_of(const epx_k_combine_t &args, int64_t t, int32_t k0, const range &of_places,
                                 int64_t &row)
{
    int32_t k = k0 + lane_id();
    int64_t a = t * args.columns + k, place = k < args.columns ? fresh(args.place + a) : -1;
    row = place - args.lo;
    bool there = place >= of_places.lo && place < of_places.hi &&
                 (args.kept == nullptr || fresh(args.kept + row) != 0);
    terms of = {__ballot_sync(ALL, there), nullptr, 1.0f};
    if (there) {
        of.row = row_at(args, row);
        of.weight = args.weights != nullptr ? fresh(args.weights + a) : 1.0f;
    }
    return of;
}

/* Of all waves: those of the first wave to the first lanes, and so on. lane: [32] shared, the warp's own. */
__device__ inline void order_by_wave(const epx_k_combine_t &args, terms &of, int64_t row, uint8_t *lane)
{
    int32_t each = (int32_t)((args.hi - args.lo) / args.waves), before = 0,
            wave = of.mask & (1u << lane_id()) ? (int32_t)row / each : -1;
    __syncwarp(); /* what stood there has been read */
    for (int32_t w = 0; w < args.waves; w++) {
        unsigned same = __ballot_sync(ALL, wave == w);
        if (wave == w)
            lane[before + __popc(same & ((1u << lane_id()) - 1))] = (uint8_t)lane_id();
        before += __popc(same);
    }
    __syncwarp();
    int32_t from = lane_id() < before ? lane[lane_id()] : lane_id();
    of.row = (const char *)__shfl_sync(ALL, (unsigned long long)(uintptr_t)of.row, from);
    of.weight = __shfl_sync(ALL, of.weight, from);
    of.mask = before == WARP ? ALL : (1u << before) - 1;
}

/* The first terms of token t: all, or with many columns 32 of the only wave, or none. */
__device__ inline terms first_terms(const epx_k_combine_t &args, int64_t t, uint8_t *lane)
{
    int64_t row;
    if (!by_lanes(args))
        return {0, nullptr, 1.0f};
    terms of = terms_of(args, t, 0, {args.lo, args.hi}, row);
    if (waves_of(args) > 1)
        order_by_wave(args, of, row, lane);
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
    int32_t waves = args.columns > WARP ? waves_of(args) : 0;
    for (int32_t w = 0; w < waves; w++) {
        int64_t row;
        for (int32_t k0 = by_lanes(args) ? WARP : 0; k0 < args.columns; k0 += WARP)
            add_terms<T, N, TOGETHER>(acc, first, end, args.width,
                                      terms_of(args, t, k0, range_of(args, w), row));
    }
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

template <typename T, int N>
__global__ void __launch_bounds__(THREADS, 1) combine(const __grid_constant__ epx_k_combine_t args)
{
    __shared__ uint8_t lane[THREADS / WARP][WARP];
    behind_previous();
    let_next_begin(args.units);
    int64_t tokens = args.tokens_device != nullptr ? fresh(args.tokens_device) : args.tokens;
    int32_t blocks = blocks_of<N>(args.width), cut = cut_rows((int32_t)tokens, blocks, 1),
            each = piece_bytes(blocks, cut, 1);
    for (int32_t unit = warp_of_grid(); unit < (int32_t)tokens * cut; unit += warps_of_grid()) {
        int32_t t = unit / cut, first = (unit - t * cut) * each, end = min(first + each, blocks);
        terms of = first_terms(args, t, lane[threadIdx.x / WARP]);
        if (of.mask == 0 && args.columns <= WARP && !args.first && !args.last)
            continue;
        for (int32_t block = first; block < end; block += TOGETHER)
            combine_blocks<T, N>(args, t, block, end, of);
    }
}

/* A piece of a token's row and its terms, one on each lane of the mask. */
struct combined_piece {
    terms of;
    char *out;
    int32_t from, bytes;
};

/* The whole sum in one call: see sums_bulk.cuh. What the next piece adds is looked up while this one is
 * added. */
template <typename B, typename T, int N>
__global__ void __launch_bounds__(B::THREADS, 1) combine_bulk(const __grid_constant__ epx_k_combine_t args)
{
    extern __shared__ __align__(128) char dynamic[];
    __shared__ bulk_shared<B, reduce_note> shared;
    __shared__ uint8_t lane[B::WARPS][WARP];
    bulk_adder<B, T, N> adder(dynamic, shared);
    behind_previous();
    let_next_begin(args.units);
    int32_t tokens = (int32_t)(args.tokens_device != nullptr ? fresh(args.tokens_device) : args.tokens);
    int32_t width = args.width * T::BYTES, cut = bulk_cut<B>(tokens, width), each = bulk_piece(width, cut);
    int64_t units = (int64_t)max(tokens, 0) * cut;
    auto find = [&](int64_t unit) {
        combined_piece piece = {{0, nullptr, 1.0f}, nullptr, 0, 0};
        if (unit < units) {
            int64_t t = unit / cut;
            piece.from = (int32_t)(unit - t * cut) * each;
            piece.bytes = min(width - piece.from, each);
            piece.out = (char *)args.out + t * width + piece.from;
            piece.of = first_terms(args, t, lane[threadIdx.x / WARP]);
        }
        return piece;
    };
    int64_t unit = warp_of_grid(), step = warps_of_grid();
    combined_piece next = find(unit);
    for (; unit < units; unit += step) {
        combined_piece now = next;
        next = find(unit + step);
        unsigned mask = now.bytes > 0 ? now.of.mask : 0;
        if (mask == 0)
            adder.clear(now.out, now.bytes);
        while (mask != 0) {
            int k = __ffs(mask) - 1;
            mask &= mask - 1;
            const char *row = (const char *)__shfl_sync(ALL, (unsigned long long)(uintptr_t)now.of.row, k);
            float weight = __shfl_sync(ALL, now.of.weight, k);
            adder.load(row + now.from, weight, now.bytes, mask == 0 ? now.out : nullptr);
        }
    }
    adder.finish();
}

/*
 * Whether sums go by bulk copies: one call makes them, in the type of the rows, of terms that lie on a warp's
 * lanes together, and there are enough for each of the blocks; few are sooner there without.
 */
bool goes_by_bulk(const epx_k_combine_t *args, int blocks)
{
    int64_t bytes = args->tokens * args->width * element_bytes(args->row_type);
    return args->first && args->last && args->columns <= WARP && args->out_type == args->row_type &&
           bytes >= BULK_ENOUGH * blocks;
}

bool is_aligned(const epx_k_combine_t *args)
{
    int64_t row = (int64_t)args->width * element_bytes(args->row_type);
    return by_16(args->rows, args->row_stride | row) && by_16(args->own_rows, 0) && by_16(args->acc, 0) &&
           by_16(args->out, 0);
}

template <typename T, int N> launch_site site;
template <typename B, typename T, int N> launch_site bulk_site;

template <typename B, typename T, int N>
epx_status_t combine_as(const epx_k_combine_t *args, epx_stream_t stream)
{
    if constexpr (N > 1) {
        int blocks =
            persistent_blocks(bulk_site<B, T, N>, combine_bulk<B, T, N>, B::THREADS, B::SHARED, args->units);
        if (goes_by_bulk(args, blocks))
            return launch("combine", {blocks, B::THREADS, B::SHARED, 1, true}, stream, combine_bulk<B, T, N>,
                          *args);
    }
    int blocks = persistent_blocks(site<T, N>, combine<T, N>, THREADS, 0, args->units);
    return launch("combine", {blocks, THREADS, 0, 1, true}, stream, combine<T, N>, *args);
}

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_combine(const epx_k_combine_t *args, epx_stream_t stream)
{
    using namespace epx;
    if (args->tokens <= 0 && args->tokens_device == nullptr)
        return EPX_OK;
    if (args->sums.y != nullptr)
        return epx_cuda_combine_sums(args, stream);
    return by_type(args->row_type, is_aligned(args), [&](auto type, auto n) {
        typedef decltype(type) T;
        return combine_as<reduce_build, T, decltype(n)::value>(args, stream);
    });
}
