/*
 * scatter: rows to several places each. SPDX-License-Identifier: Apache-2.0
 *
 * Rows at multiples of 16 bytes: a warp's pieces stand in its slots of shared memory and go from there to all
 * their places. Others: a warp holds one in registers.
 */
#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

enum { THREADS = 1024, TILE = 1024, GRAIN = 2048, UNROLL = 8 };

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
    let_next_begin();
    int32_t bytes = (int32_t)args.bytes;
    for (int32_t tile = 0; tile < args.rows.experts; tile += TILE) {
        const int64_t *start = args.rows.start + tile, *count = args.rows.count + tile;
        int32_t n = min(args.rows.experts - tile, (int32_t)TILE);
        if (tile > 0)
            __syncthreads();
        int32_t total = add_up<THREADS>(table, n, [&](int32_t e) { return (int32_t)fresh(count + e); });
        int32_t cut = cut_rows(total, bytes, GRAIN), each = piece_bytes(bytes, cut, GRAIN);
        for (int32_t unit = warp_of_grid(); unit < total * cut; unit += warps_of_grid()) {
            int32_t r = unit / cut, from = (unit - r * cut) * each, e = find_segment(table.before, n, r);
            int64_t g = fresh(start + e) + r - table.before[e];
            places_of places = {args, fresh(args.first + g), fresh(args.count + g), from};
            put_bytes(places, (const char *)args.src + g * args.src_stride + from, min(bytes - from, each));
        }
    }
}

/* What is in a slot: its first places, one for each lane. */
struct scatter_note {
    int32_t place[WARP];
    int32_t first, count, from, bytes;
};

/* One warp: pieces through its slots, each to all of its places; a lane stores to every 32nd of them. */
template <typename B> struct scatter_mover {
    const epx_k_scatter_t &args;
    char *slots;
    uint64_t *phase;
    scatter_note *note;
    bulk_cursor<B::SLOTS> loaded, stored;

    __device__ scatter_mover(const epx_k_scatter_t &of, char *dynamic, bulk_shared<B, scatter_note> &shared)
        : args(of)
    {
        take_slots<B>(dynamic, shared, slots, phase, note);
    }
    __device__ int32_t entry(int32_t first, int32_t count) const
    {
        return lane_id() < count ? fresh(args.list + first + lane_id()) : 0;
    }
    __device__ void store_next()
    {
        phase_wait(phase + stored.slot, stored.parity);
        const scatter_note &n = note[stored.slot];
        for (int32_t x = lane_id(); x < n.count; x += WARP) {
            int64_t place = x < WARP ? n.place[x] : fresh(args.list + n.first + x);
            bulk_store((char *)args.dst + place * args.dst_stride + n.from, slots + stored.slot * B::BYTES,
                       (uint32_t)n.bytes);
        }
        bulk_close_group();
        stored.step();
    }
    /* entry: this lane's place, or anything where there is none. */
    __device__ void put(const char *src, int32_t entry, int32_t first, int32_t count, int32_t from,
                        int32_t bytes)
    {
        if (loaded.item >= B::SLOTS)
            bulk_wait_read<B::SLOTS - B::AHEAD - 1>();
        __syncwarp();
        note[loaded.slot].place[lane_id()] = entry;
        if (lane_id() == 0) {
            scatter_note &n = note[loaded.slot];
            n.first = first, n.count = count, n.from = from, n.bytes = bytes;
            bulk_load(slots + loaded.slot * B::BYTES, src, (uint32_t)bytes, phase + loaded.slot);
        }
        __syncwarp();
        loaded.step();
        if (loaded.item - stored.item > B::AHEAD)
            store_next();
    }
    __device__ void finish()
    {
        while (stored.item < loaded.item)
            store_next();
        bulk_wait_all();
    }
};

/* A piece of a row, on the lane that found it. */
struct scatter_piece {
    int32_t g, first, count, from; /* count 0: there is none */

    __device__ scatter_piece of_lane(int x) const
    {
        return {__shfl_sync(ALL, g, x), __shfl_sync(ALL, first, x), __shfl_sync(ALL, count, x),
                __shfl_sync(ALL, from, x)};
    }
};

/* Rows at multiples of 16 bytes. */
template <typename B>
__global__ void __launch_bounds__(B::THREADS, 1) scatter_bulk(const __grid_constant__ epx_k_scatter_t args)
{
    extern __shared__ __align__(128) char dynamic[];
    __shared__ segments<TILE> table;
    __shared__ bulk_shared<B, scatter_note> shared;
    scatter_mover<B> mover(args, dynamic, shared);
    behind_previous();
    let_next_begin();
    int32_t width = (int32_t)args.bytes;
    for (int32_t tile = 0; tile < args.rows.experts; tile += TILE) {
        const int64_t *start = args.rows.start + tile, *count = args.rows.count + tile;
        int32_t n = min(args.rows.experts - tile, (int32_t)TILE);
        if (tile > 0)
            __syncthreads();
        int32_t total = add_up<B::THREADS>(table, n, [&](int32_t e) { return (int32_t)fresh(count + e); });
        int32_t cut = bulk_cut<B>(total, width), each = bulk_piece(width, cut);
        int64_t units = (int64_t)total * cut, step = warps_of_grid();
        for (int64_t begin = warp_of_grid(); begin < units; begin += WARP * step) {
            int64_t unit = begin + lane_id() * step;
            scatter_piece piece = {0, 0, 0, 0};
            if (unit < units) {
                int32_t r = (int32_t)(unit / cut), e = find_segment_alone(table.before, n, r);
                piece.from = (int32_t)(unit - (int64_t)r * cut) * each;
                piece.g = (int32_t)fresh(start + e) + r - table.before[e];
                piece.first = fresh(args.first + piece.g);
                piece.count = piece.from < width ? fresh(args.count + piece.g) : 0;
            }
            unsigned mask = __ballot_sync(ALL, piece.count > 0);
            scatter_piece next = piece.of_lane(mask != 0 ? __ffs(mask) - 1 : 0);
            int32_t entry = mover.entry(next.first, next.count);
            while (mask != 0) {
                scatter_piece now = next;
                int32_t here = entry;
                mask &= mask - 1;
                if (mask != 0) {
                    next = piece.of_lane(__ffs(mask) - 1);
                    entry = mover.entry(next.first, next.count); /* on its way while this one is dealt with */
                }
                mover.put((const char *)args.src + now.g * args.src_stride + now.from, here, now.first,
                          now.count, now.from, min(width - now.from, each));
            }
        }
    }
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
