/*
 * scatter: rows to several places each. SPDX-License-Identifier: Apache-2.0
 *
 * Rows at multiples of 16 bytes: a warp's pieces stand in its slots of shared memory and go from there to all
 * their places. Others: a warp holds one in registers.
 */
#include "kernels/cuda/places.cuh"
#include "kernels/cuda/table.h"
#include "kernels/cuda/turns.cuh"

namespace epx
{
namespace
{

enum { THREADS = 1024, TILE = 1024, GRAIN = 2048, UNROLL = 8 };
enum { DRAWN_FROM = 8 }; /* pieces of a warp from which on they are drawn */

/* Rows of expert e that are moved. */
__device__ inline int32_t rows_of(const epx_k_scatter_t &args, int32_t e)
{
    return e == args.without - 1 ? 0 : (int32_t)fresh(args.rows.count + e);
}

/* The places of a row, 32 at a time: lane x has the address of entry x. */
struct places_of {
    const epx_k_scatter_t &args;
    int32_t first, count;
    int64_t offset; /* of the piece */

    __device__ char *at(int32_t x) const
    {
        return x < count ? (char *)args.dst + fresh(args.list + first + x) * args.dst_stride + offset
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
                v[u] = fresh(from + i + u * WARP);
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

__device__ inline void put_bytes(const places_of &places, const char *from, int32_t bytes)
{
    char *held = places.at(lane_id());
    unsigned bits = (unsigned)((uintptr_t)places.args.dst | (uintptr_t)places.args.dst_stride |
                               (uintptr_t)from | (uintptr_t)bytes);
    if (bits % 4 == 0)
        put_values(places, held, (const uint32_t *)from, bytes / 4);
    else if (bits % 2 == 0)
        put_values(places, held, (const uint16_t *)from, bytes / 2);
    else
        put_values(places, held, (const uint8_t *)from, bytes);
}

__global__ void __launch_bounds__(THREADS, 1) scatter_rows(const __grid_constant__ epx_k_scatter_t args)
{
    __shared__ segments<TILE> table;
    behind_previous();
    let_next_begin(args.units);
    int32_t bytes = (int32_t)args.bytes;
    for (int32_t tile = 0; tile < args.rows.experts; tile += TILE) {
        const int64_t *start = args.rows.start + tile;
        int32_t n = min(args.rows.experts - tile, (int32_t)TILE);
        if (tile > 0)
            __syncthreads();
        int32_t total = add_up<THREADS>(table, n, [&](int32_t e) { return rows_of(args, tile + e); });
        int32_t cut = cut_rows(total, bytes, GRAIN), each = piece_bytes(bytes, cut, GRAIN);
        for (int32_t unit = warp_of_grid(); unit < total * cut; unit += warps_of_grid()) {
            int32_t r = unit / cut, from = (unit - r * cut) * each, e = find_segment(table.before, n, r);
            int64_t g = fresh(start + e) + r - table.before[e];
            places_of places = {args, fresh(args.first + g), fresh(args.count + g), from};
            put_bytes(places, (const char *)args.src + g * args.src_stride + from, min(bytes - from, each));
        }
    }
}

/* Rows of a tile of experts, in pieces. */
struct pieces_of {
    const epx_k_scatter_t &args;
    const int64_t *start;
    const int32_t *before;
    int32_t n, cut, each;
    int64_t count;

    /* Of one lane; none where there is no such unit. */
    __device__ placed_piece at(int64_t unit) const
    {
        placed_piece piece = {nullptr, nullptr, 0, 0, 0};
        if (unit < 0 || unit >= count)
            return piece;
        int32_t r = (int32_t)(unit / cut), e = find_segment_alone(before, n, r),
                from = (int32_t)(unit - (int64_t)r * cut) * each;
        int64_t g = fresh(start + e) + r - before[e];
        piece.first = fresh(args.first + g);
        piece.count = fresh(args.count + g);
        piece.to = (char *)args.dst + from;
        piece.from = (const char *)args.src + g * args.src_stride + from;
        piece.bytes = min((int32_t)args.bytes - from, each);
        return piece;
    }
};

/* One warp: its share, whatever the pieces weigh. */
template <typename B> __device__ inline void put_share(place_mover<B> &mover, const pieces_of &pieces)
{
    int64_t step = warps_of_grid();
    for (int64_t begin = warp_of_grid(); begin < pieces.count; begin += WARP * step)
        mover.put_all(pieces.at(begin + lane_id() * step));
}

/*
 * One warp: pieces that it draws, one at a time. While one is moved the next is looked up, and the draw of
 * the one after that is on its way.
 */
template <typename B>
__device__ inline void put_drawn(place_mover<B> &mover, const pieces_of &pieces, uint64_t *turns)
{
    bool draws = lane_id() == 0;
    unsigned long long answer = draws ? ask_turn(turns, 1) : 0;
    placed_piece piece = {nullptr, nullptr, 0, 0, 0};
    for (bool more = true; more;) {
        int64_t unit = (int64_t)__shfl_sync(ALL, answer, 0);
        more = unit < pieces.count;
        placed_piece next = pieces.at(more && draws ? unit : -1);
        if (more)
            answer = draws ? ask_turn(turns, 1) : 0;
        mover.put_all(piece);
        piece = next;
    }
}

/* Rows at multiples of 16 bytes. */
template <typename B>
__global__ void __launch_bounds__(B::THREADS, 1) scatter_bulk(const __grid_constant__ epx_k_scatter_t args)
{
    extern __shared__ __align__(128) char dynamic[];
    __shared__ segments<TILE> table;
    __shared__ typename place_mover<B>::shared shared;
    place_mover<B> mover(dynamic, shared);
    mover.table = {args.list, args.dst_stride};
    behind_previous();
    let_next_begin(args.units);
    int32_t width = (int32_t)args.bytes;
    bool turns = args.turns != nullptr && args.rows.experts <= TILE;
    for (int32_t tile = 0; tile < args.rows.experts; tile += TILE) {
        const int64_t *start = args.rows.start + tile;
        int32_t n = min(args.rows.experts - tile, (int32_t)TILE);
        if (tile > 0)
            __syncthreads();
        int32_t total = add_up<B::THREADS>(table, n, [&](int32_t e) { return rows_of(args, tile + e); });
        int32_t cut = bulk_cut<B>(total, width), each = bulk_piece(width, cut);
        pieces_of pieces = {args, start, table.before, n, cut, each, (int64_t)total * cut};
        /* Few pieces are dealt out sooner than drawn. */
        turns = turns && pieces.count >= DRAWN_FROM * (int64_t)warps_of_grid();
        if (turns)
            put_drawn(mover, pieces, args.turns);
        else
            put_share(mover, pieces);
    }
    if (turns)
        end_turns<whole_block>(args.turns);
    mover.finish();
}

launch_site odd_site;
template <typename B> launch_site bulk_site;

template <typename B> epx_status_t scatter_by_bulk(const epx_k_scatter_t *args, epx_stream_t stream)
{
    int blocks = persistent_blocks(bulk_site<B>, scatter_bulk<B>, B::THREADS, B::SHARED, args->units);
    return launch("scatter", {blocks, B::THREADS, B::SHARED, 1, true}, stream, scatter_bulk<B>, *args);
}

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_scatter(const epx_k_scatter_t *args, epx_stream_t stream)
{
    using namespace epx;
    if (args->rows.experts <= 0)
        return EPX_OK;
    bool aligned = by_16(args->src, args->src_stride | args->bytes) && by_16(args->dst, args->dst_stride);
    if (aligned)
        return scatter_by_bulk<move_build>(args, stream);
    int blocks = persistent_blocks(odd_site, scatter_rows, THREADS, 0, args->units);
    return launch("scatter", {blocks, THREADS, 0, 1, true}, stream, scatter_rows, *args);
}
