/*
 * gather: rows of a batch from anywhere. SPDX-License-Identifier: Apache-2.0
 *
 * Where the batch is an expansion, a source row is wanted by several experts, and what all rows are does not
 * fit the second-level cache. Rows of an expert come in the order of their tokens, so the experts are walked
 * side by side, a fraction of each after the other: then a row is wanted again soon after it was read, and
 * memory is read once.
 */
#include "kernels/cuda/segments.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

enum width { NARROW, ODD, ALIGNED };
enum { THREADS = 512, TILE = 2048, ROUNDS_MAX = 64, GRAIN = 1024 };
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
__device__ inline int32_t build(gather_shared &shared, const epx_k_gather_t &args, int32_t tile,
                                int32_t experts, int32_t rounds)
{
    const int64_t *start = args.rows.start + tile, *count = args.rows.count + tile;
    return add_up<THREADS>(shared.table, experts * rounds, [&](int32_t i) {
        int32_t r = i / experts, e = i - r * experts;
        int64_t all = __ldg(count + e);
        int32_t from = fraction(all, r, rounds);
        shared.first[i] = (int32_t)__ldg(start + e) + from;
        return fraction(all, r + 1, rounds) - from;
    });
}

__device__ inline int64_t source_of(const epx_k_gather_t &args, int32_t g)
{
    return args.index != nullptr ? __ldg(args.index + g) : g;
}

template <width WIDTH>
__global__ void __launch_bounds__(THREADS, 2) gather_rows(const __grid_constant__ epx_k_gather_t args)
{
    __shared__ gather_shared shared;
    const int32_t *before = shared.table.before;
    for (int32_t tile = 0; tile < args.rows.experts; tile += TILE) {
        int32_t experts = args.rows.experts - tile < TILE ? args.rows.experts - tile : TILE;
        int32_t rounds = args.index == nullptr ? 1 : min(TILE / experts, (int32_t)ROUNDS_MAX),
                n = experts * rounds;
        if (tile > 0)
            __syncthreads();
        int32_t total = build(shared, args, tile, experts, rounds);
        if constexpr (WIDTH != NARROW) {
            int32_t bytes = (int32_t)args.bytes, cut = cut_rows(total, bytes, GRAIN),
                    each = piece_bytes(bytes, cut, GRAIN);
            for (int32_t unit = warp_of_grid(); unit < total * cut; unit += warps_of_grid()) {
                int32_t r = unit / cut, from = (unit - r * cut) * each;
                int32_t i = find_segment(before, n, r), g = shared.first[i] + r - before[i];
                copy_bytes<WIDTH == ALIGNED>((char *)args.dst + g * args.dst_stride + from,
                                             (const char *)args.src + source_of(args, g) * args.src_stride +
                                                 from,
                                             min(bytes - from, each));
            }
        } else {
            for (int64_t r = blockIdx.x * THREADS + threadIdx.x; r < total;
                 r += (int64_t)gridDim.x * THREADS) {
                int32_t i = find_segment_alone(before, n, (int32_t)r),
                        g = shared.first[i] + (int32_t)r - before[i];
                copy_few((char *)args.dst + g * args.dst_stride,
                         (const char *)args.src + source_of(args, g) * args.src_stride, args.bytes);
            }
        }
    }
}

launch_site sites[3];

width width_of(const epx_k_gather_t *args)
{
    if (args->bytes <= FEW_BYTES)
        return NARROW;
    bool aligned = by_16(args->src, args->src_stride | args->bytes) && by_16(args->dst, args->dst_stride);
    return aligned ? ALIGNED : ODD;
}

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_gather(const epx_k_gather_t *args, epx_stream_t stream)
{
    using namespace epx;
    if (args->rows.experts <= 0)
        return EPX_OK;
    static void (*const kernels[])(epx_k_gather_t) = {gather_rows<NARROW>, gather_rows<ODD>,
                                                      gather_rows<ALIGNED>};
    width which = width_of(args);
    auto kernel = kernels[which];
    shape1 shape = {persistent_blocks(sites[which], kernel, THREADS, 0), THREADS, 0, 1};
    return launch("gather", shape, stream, kernel, *args);
}
