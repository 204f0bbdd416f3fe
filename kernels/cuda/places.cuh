/*
 * Rows to several places each, by bulk copies: a piece is loaded once, and goes from a warp's slot of shared
 * memory to all its places. SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_KERNELS_CUDA_PLACES_CUH
#define EPX_KERNELS_CUDA_PLACES_CUH

#include "kernels/cuda/bulk.cuh"

namespace epx
{

/* Rows of one table, and the list that says which of them. */
struct place_table {
    const int32_t *list;
    int64_t stride; /* bytes from row to row */
};

/* A piece and where it goes, on the lane that found it: rows list[first] .. list[first + count - 1], each
 * `to` away from the table's beginning; with first < 0 to `to` itself (count 1). bytes 0: there is no piece.
 */
struct placed_piece {
    char *to;
    const char *from;
    int32_t first, count, bytes;

    __device__ placed_piece of_lane(int x) const
    {
        return {(char *)__shfl_sync(ALL, (unsigned long long)(uintptr_t)to, x),
                (const char *)__shfl_sync(ALL, (unsigned long long)(uintptr_t)from, x),
                __shfl_sync(ALL, first, x), __shfl_sync(ALL, count, x), __shfl_sync(ALL, bytes, x)};
    }
};

/* What is in a slot: its first places, one for each lane. */
struct place_note {
    int32_t place[WARP];
    char *to;
    int32_t first, count, bytes;
};

/* One warp, all lanes; a lane stores to every 32nd place of a piece. */
template <typename B> struct place_mover {
    typedef bulk_shared<B, place_note> shared;

    place_table table;
    char *slots;
    uint64_t *phase;
    place_note *note;
    bulk_cursor<B::SLOTS> loaded, stored;

    __device__ place_mover(char *dynamic, shared &of) { take_slots<B>(dynamic, of, slots, phase, note); }
    __device__ int32_t place(const placed_piece &p) const
    {
        return p.first >= 0 && lane_id() < p.count ? fresh(table.list + p.first + lane_id()) : 0;
    }
    __device__ void store_next()
    {
        phase_wait(phase + stored.slot, stored.parity);
        const place_note &n = note[stored.slot];
        for (int32_t x = lane_id(); x < n.count; x += WARP) {
            int64_t row = x < WARP ? n.place[x] : fresh(table.list + n.first + x);
            bulk_store(n.to + row * table.stride, slots + stored.slot * B::BYTES, (uint32_t)n.bytes);
        }
        bulk_close_group();
        stored.step();
    }
    /* row: this lane's place of the piece. */
    __device__ void put(const placed_piece &p, int32_t row)
    {
        if (loaded.item >= B::SLOTS)
            bulk_wait_read<B::SLOTS - B::AHEAD - 1>();
        __syncwarp();
        note[loaded.slot].place[lane_id()] = row;
        if (lane_id() == 0) {
            place_note &n = note[loaded.slot];
            n.to = p.to, n.first = p.first, n.count = p.count, n.bytes = p.bytes;
            bulk_load(slots + loaded.slot * B::BYTES, p.from, (uint32_t)p.bytes, phase + loaded.slot);
        }
        __syncwarp();
        loaded.step();
        if (loaded.item - stored.item > B::AHEAD)
            store_next();
    }
    /* A piece of each lane that has one, in the order of lanes. */
    __device__ void put_all(const placed_piece &piece)
    {
        unsigned mask = __ballot_sync(ALL, piece.bytes > 0 && piece.count > 0);
        placed_piece next = piece.of_lane(mask != 0 ? __ffs(mask) - 1 : 0);
        int32_t row = mask != 0 ? place(next) : 0;
        while (mask != 0) {
            placed_piece now = next;
            int32_t here = row;
            mask &= mask - 1;
            if (mask != 0) {
                next = piece.of_lane(__ffs(mask) - 1);
                row = place(next); /* on its way while this one is dealt with */
            }
            put(now, here);
        }
    }
    /* All that has been loaded is stored: the table may change. */
    __device__ void settle()
    {
        while (stored.item < loaded.item)
            store_next();
    }
    __device__ void finish()
    {
        settle();
        bulk_wait_all();
    }
};

} // namespace epx

#endif
