/*
 * A push whose entries are copies of fewer rows: each row is read once, and goes from a warp's slot of shared
 * memory to the places of all its entries. SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_KERNELS_CUDA_PUSH_FAN_CUH
#define EPX_KERNELS_CUDA_PUSH_FAN_CUH

#include "kernels/cuda/push_wide.cuh"

namespace epx
{

/* Where the piece of a slot goes, by lanes; NULL: this lane has no entry. */
struct fan_note {
    char *to[WARP];
    int32_t bytes;
};

/* One warp, all lanes. */
template <typename B> struct fan_mover {
    typedef bulk_shared<B, fan_note> shared;

    char *slots;
    uint64_t *phase;
    fan_note *note;
    bulk_cursor<B::SLOTS> loaded, stored;

    __device__ fan_mover(char *dynamic, shared &of) { take_slots<B>(dynamic, of, slots, phase, note); }
    __device__ void store_next()
    {
        phase_wait(phase + stored.slot, stored.parity);
        const fan_note &n = note[stored.slot];
        if (n.to[lane_id()] != nullptr)
            bulk_store(n.to[lane_id()], slots + stored.slot * B::BYTES, (uint32_t)n.bytes);
        bulk_close_group();
        stored.step();
    }
    /* to: this lane's. */
    __device__ void put(const char *from, int32_t bytes, char *to)
    {
        if (loaded.item >= B::SLOTS)
            bulk_wait_read<B::SLOTS - B::AHEAD - 1>();
        __syncwarp();
        note[loaded.slot].to[lane_id()] = to;
        if (lane_id() == 0) {
            note[loaded.slot].bytes = bytes;
            bulk_load(slots + loaded.slot * B::BYTES, from, (uint32_t)bytes, phase + loaded.slot);
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

template <typename B> __device__ inline void end_pushes(fan_mover<B> &mover) { mover.finish(); }

/* Rows of a push that goes by its order: unit u is piece u mod cut of token u / cut. */
struct fan_units {
    const epx_k_push_t &args;
    const int32_t *first; /* shared: of each run, counted from the first one's */
    int64_t base;         /* of what `order` holds, to count as they do */
    int32_t runs, cut;
    int64_t count;

    /* Column k of a unit's token: where its entry goes, without the part; row < 0: nowhere. */
    __device__ entry at(int64_t unit, int32_t k) const
    {
        entry none = {-1, -1, nullptr, 0, false};
        if (unit < 0)
            return none;
        int64_t a = unit / cut * args.columns + k, i = fresh(args.order + a) - base;
        if (i < 0 || i > INT32_MAX)
            return none;
        int32_t x = find_segment_alone(first, runs, (int32_t)i);
        const epx_run_t *run = args.runs + x;
        int64_t j = i - first[x];
        if (j < 0 || j >= run->rows)
            return none;
        return {a, run->row + j, (char *)args.dst[run->peer], run->first + j, false};
    }
};

/* One warp: the units that its lanes have found, `group` of them, columns lanes each. */
template <typename B>
__device__ inline void put_fans(fan_mover<B> &mover, const fan_units &of, const epx_part_t &part,
                                int64_t begin, int64_t step, int32_t group, const entry &found)
{
    int32_t columns = of.args.columns, each = bulk_piece((int32_t)part.bytes, of.cut);
    for (int32_t x = 0; x < group && begin + x * step < of.count; x++) {
        int64_t unit = begin + x * step, token = unit / of.cut;
        int32_t from = (int32_t)(unit - token * of.cut) * each, bytes = min((int32_t)part.bytes - from, each);
        char *to = found.row >= 0 ? part_to(part, found) + from : nullptr;
        to = (char *)__shfl_sync(ALL, (unsigned long long)(uintptr_t)to,
                                 min(x * columns + lane_id(), WARP - 1));
        to = lane_id() < columns ? to : nullptr;
        if (bytes > 0 && __any_sync(ALL, to != nullptr))
            mover.put((const char *)part.src + token * part.src_stride + from, bytes, to);
    }
}

/* The wide parts of a push that has an order and one tile of runs, by the movers of all blocks. */
template <typename B, typename GROUP>
__device__ inline void move_wide(const epx_k_push_t &args, int32_t widest, segments<PUSH_TILE> &table,
                                 fan_mover<B> &mover)
{
    int64_t warp = (int64_t)blockIdx.x * B::WARPS + GROUP::thread() / WARP,
            step = (int64_t)gridDim.x * B::WARPS;
    int32_t n = runs_of(args), tokens = (int32_t)fresh(args.order_tokens), group = WARP / args.columns;
    if (n <= 0)
        return;
    int64_t base = args.runs[0].first;
    GROUP::sync();
    for (int32_t i = GROUP::thread(); i < n; i += B::THREADS)
        table.before[i] = (int32_t)(args.runs[i].first - base);
    GROUP::sync();
    int32_t cut = bulk_cut<B>(tokens, widest);
    fan_units of = {args, table.before, args.order_base + base, n, cut, (int64_t)tokens * cut};
    int32_t x = lane_id() / args.columns, k = lane_id() % args.columns;
    int64_t mine = x < group ? x * step : of.count;
    entry found = of.at(warp + mine < of.count ? warp + mine : -1, k);
    for (int64_t begin = warp; begin < of.count; begin += group * step) {
        int64_t next = begin + group * step + mine;
        entry here = found;
        found = of.at(next < of.count ? next : -1, k); /* on its way while these are moved */
        for (int32_t p = 0; p < args.parts; p++)
            if (is_wide(args.part[p]))
                put_fans(mover, of, args.part[p], begin, step, group, here);
    }
}

} // namespace epx

#endif
