/*
 * scatter: rows to several places each. SPDX-License-Identifier: Apache-2.0
 *
 * One warp takes one row or a piece of it, holds it in registers, and writes it to all its places.
 */
#include "kernels/cuda/segments.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

enum { THREADS = 512, TILE = 1024, GRAIN = 2048, UNROLL = 8 };

/* The places of a row, 32 at a time: lane x has the address of entry x. */
struct places_of {
    const epx_k_scatter_t &args;
    int32_t first, count;
    int64_t offset; /* of the piece */

    __device__ char *at(int32_t x) const
    {
        return x < count ? (char *)args.dst + __ldg(args.list + first + x) * args.dst_stride + offset
                         : nullptr;
    }
};

/* One warp: n values to all places. */
template <typename V>
__device__ inline void put_values(const places_of &places, char *held, const V *from, int32_t n)
{
#pragma unroll 1
    for (int32_t i = lane_id(); i - lane_id() < n; i += UNROLL * WARP) {
        V v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (i + u * WARP < n)
                v[u] = load_const(from + i + u * WARP);
        for (int32_t x = 0; x < places.count; x++) {
            if (x % WARP == 0 && places.count > WARP)
                held = places.at(x + lane_id());
            V *to = (V *)__shfl_sync(ALL, (unsigned long long)(uintptr_t)held, x % WARP);
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
                if (i + u * WARP < n)
                    store_once(to + i + u * WARP, v[u]);
        }
    }
}

template <bool ALIGNED>
__device__ inline void put_bytes(const places_of &places, const char *from, int32_t bytes)
{
    char *held = places.at(lane_id());
    unsigned bits = (unsigned)((uintptr_t)places.args.dst | (uintptr_t)places.args.dst_stride |
                               (uintptr_t)from | (uintptr_t)bytes);
    if constexpr (ALIGNED)
        put_values(places, held, (const uint4 *)from, bytes / 16);
    else if (bits % 4 == 0)
        put_values(places, held, (const uint32_t *)from, bytes / 4);
    else if (bits % 2 == 0)
        put_values(places, held, (const uint16_t *)from, bytes / 2);
    else
        put_values(places, held, (const uint8_t *)from, bytes);
}

template <bool ALIGNED>
__global__ void __launch_bounds__(THREADS, 2) scatter_rows(const __grid_constant__ epx_k_scatter_t args)
{
    __shared__ segments<TILE> table;
    int32_t bytes = (int32_t)args.bytes;
    for (int32_t tile = 0; tile < args.rows.experts; tile += TILE) {
        const int64_t *start = args.rows.start + tile, *count = args.rows.count + tile;
        int32_t n = min(args.rows.experts - tile, (int32_t)TILE);
        if (tile > 0)
            __syncthreads();
        int32_t total = add_up<THREADS>(table, n, [&](int32_t e) { return (int32_t)__ldg(count + e); });
        int32_t cut = cut_rows(total, bytes, GRAIN), each = piece_bytes(bytes, cut, GRAIN);
        for (int32_t unit = warp_of_grid(); unit < total * cut; unit += warps_of_grid()) {
            int32_t r = unit / cut, from = (unit - r * cut) * each, e = find_segment(table.before, n, r);
            int64_t g = __ldg(start + e) + r - table.before[e];
            places_of places = {args, __ldg(args.first + g), __ldg(args.count + g), from};
            put_bytes<ALIGNED>(places, (const char *)args.src + g * args.src_stride + from,
                               min(bytes - from, each));
        }
    }
}

launch_site aligned_site, odd_site;

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_scatter(const epx_k_scatter_t *args, epx_stream_t stream)
{
    using namespace epx;
    if (args->rows.experts <= 0)
        return EPX_OK;
    bool aligned = by_16(args->src, args->src_stride | args->bytes) && by_16(args->dst, args->dst_stride);
    auto kernel = aligned ? scatter_rows<true> : scatter_rows<false>;
    int blocks = persistent_blocks(aligned ? aligned_site : odd_site, kernel, THREADS, 0);
    return launch("scatter", {blocks, THREADS, 0, 1}, stream, kernel, *args);
}
