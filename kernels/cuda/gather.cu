/*
 * gather: rows of a batch from anywhere. SPDX-License-Identifier: Apache-2.0
 *
 * Where the batch is an expansion, a source row is wanted by several experts, and what all rows are does not
 * fit the second-level cache. Rows of an expert come in the order of their tokens, so the experts are walked
 * side by side, a fraction of each after the other: then a row is wanted again soon after it was read, and
 * memory is read once. Rows at multiples of 16 bytes go by bulk copies.
 */
#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

enum width { NARROW, ODD, ALIGNED };
enum { THREADS = 1024, TILE = 2048, ROUNDS_MAX = 64, GRAIN = 1024 };
constexpr int64_t FEW_BYTES = 64;

struct gather_shared {
    segments<TILE> table;
    int32_t first[TILE]; /* batch row that each segment begins with */
};

/* Fraction r / rounds of `count` rows. */
__device__ inline int32_t fraction(int64_t count, int32_t r, int32_t rounds)
{
    return (int32_t)(count * r / rounds);
}

/* Segment i: the fraction i / experts of the tile's expert i mod experts. */
template <int BLOCK>
__device__ inline int32_t build(gather_shared &shared, const epx_k_gather_t &args, int32_t tile,
                                int32_t experts, int32_t rounds)
{
    const int64_t *start = args.rows.start + tile, *count = args.rows.count + tile;
    return add_up<BLOCK>(shared.table, experts * rounds, [&](int32_t i) {
        int32_t r = i / experts, e = i - r * experts;
        int64_t all = fresh(count + e);
        int32_t from = fraction(all, r, rounds);
        shared.first[i] = (int32_t)fresh(start + e) + from;
        return fraction(all, r + 1, rounds) - from;
    });
}

__device__ inline const char *source_of(const epx_k_gather_t &args, int32_t g)
{
    int32_t s = args.index != nullptr ? fresh(args.index + g) : g;
    if (args.own != nullptr) {
        int32_t own = s - args.own_first;
        if (own >= 0 && own < args.own_count)
            return (const char *)args.own_src +
                   (int64_t)(fresh(args.own + own) / args.own_divide) * args.src_stride;
    }
    return (const char *)args.src + s * args.src_stride;
}

/* Rows at multiples of 16 bytes. */
template <typename B>
__global__ void __launch_bounds__(B::THREADS, 1) gather_bulk(const __grid_constant__ epx_k_gather_t args)
{
    extern __shared__ __align__(128) char dynamic[];
    __shared__ gather_shared shared;
    __shared__ bulk_shared<B, bulk_target> bulk;
    const int32_t *before = shared.table.before;
    bulk_mover<B> mover(dynamic, bulk);
    behind_previous();
    let_next_begin(args.units);
    for (int32_t tile = 0; tile < args.rows.experts; tile += TILE) {
        int32_t experts = args.rows.experts - tile < TILE ? args.rows.experts - tile : TILE;
        int32_t rounds = args.index == nullptr ? 1 : min(TILE / experts, (int32_t)ROUNDS_MAX),
                n = experts * rounds, width = (int32_t)args.bytes;
        if (tile > 0)
            __syncthreads();
        int32_t total = build<B::THREADS>(shared, args, tile, experts, rounds);
        int32_t cut = bulk_cut<B>(total, width), each = bulk_piece(width, cut);
        int64_t units = (int64_t)total * cut, step = warps_of_grid();
        for (int64_t first = warp_of_grid(); first < units; first += WARP * step) {
            int64_t unit = first + lane_id() * step;
            char *to = nullptr;
            const char *src = nullptr;
            int32_t bytes = 0;
            if (unit < units) {
                int32_t r = (int32_t)(unit / cut), from = (int32_t)(unit - (int64_t)r * cut) * each;
                int32_t i = find_segment_alone(before, n, r), g = shared.first[i] + r - before[i];
                to = (char *)args.dst + g * args.dst_stride + from;
                src = source_of(args, g) + from;
                bytes = min(width - from, each);
            }
            move_pieces(mover, to, src, bytes);
        }
    }
    if (lane_id() == 0)
        mover.finish();
}

template <width WIDTH>
__global__ void __launch_bounds__(THREADS, 1) gather_rows(const __grid_constant__ epx_k_gather_t args)
{
    __shared__ gather_shared shared;
    const int32_t *before = shared.table.before;
    behind_previous();
    let_next_begin(args.units);
    for (int32_t tile = 0; tile < args.rows.experts; tile += TILE) {
        int32_t experts = args.rows.experts - tile < TILE ? args.rows.experts - tile : TILE;
        int32_t rounds = args.index == nullptr ? 1 : min(TILE / experts, (int32_t)ROUNDS_MAX),
                n = experts * rounds;
        if (tile > 0)
            __syncthreads();
        int32_t total = build<THREADS>(shared, args, tile, experts, rounds);
        if constexpr (WIDTH != NARROW) {
            int32_t bytes = (int32_t)args.bytes, cut = cut_rows(total, bytes, GRAIN),
                    each = piece_bytes(bytes, cut, GRAIN);
            for (int32_t unit = warp_of_grid(); unit < total * cut; unit += warps_of_grid()) {
                int32_t r = unit / cut, from = (unit - r * cut) * each;
                int32_t i = find_segment(before, n, r), g = shared.first[i] + r - before[i];
                copy_bytes<false>((char *)args.dst + g * args.dst_stride + from, source_of(args, g) + from,
                                  min(bytes - from, each));
            }
        } else {
            for (int64_t r = blockIdx.x * THREADS + threadIdx.x; r < total;
                 r += (int64_t)gridDim.x * THREADS) {
                int32_t i = find_segment_alone(before, n, (int32_t)r),
                        g = shared.first[i] + (int32_t)r - before[i];
                copy_few((char *)args.dst + g * args.dst_stride, source_of(args, g), args.bytes);
            }
        }
    }
}

launch_site sites[2];
template <typename B> launch_site bulk_site;

template <typename B> epx_status_t gather_by_bulk(const epx_k_gather_t *args, epx_stream_t stream)
{
    int blocks = persistent_blocks(bulk_site<B>, gather_bulk<B>, B::THREADS, B::SHARED, args->units);
    return launch("gather", {blocks, B::THREADS, B::SHARED, 1, true}, stream, gather_bulk<B>, *args);
}

width width_of(const epx_k_gather_t *args)
{
    if (args->bytes <= FEW_BYTES)
        return NARROW;
    bool aligned = by_16(args->src, args->src_stride | args->bytes) && by_16(args->dst, args->dst_stride) &&
                   by_16(args->own_src, 0);
    return aligned ? ALIGNED : ODD;
}

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_gather(const epx_k_gather_t *args, epx_stream_t stream)
{
    using namespace epx;
    if (args->rows.experts <= 0)
        return EPX_OK;
    width which = width_of(args);
    if (which == ALIGNED)
        return gather_by_bulk<move_build>(args, stream);
    auto kernel = which == NARROW ? gather_rows<NARROW> : gather_rows<ODD>;
    shape1 shape = {persistent_blocks(sites[which], kernel, THREADS, 0, args->units), THREADS, 0, 1, true};
    return launch("gather", shape, stream, kernel, *args);
}
