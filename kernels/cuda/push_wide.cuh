/*
 * The wide parts of a push, by bulk copies: which entries there are, where each goes, and who moves what.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_KERNELS_CUDA_PUSH_WIDE_CUH
#define EPX_KERNELS_CUDA_PUSH_WIDE_CUH

#include "kernels/cuda/places.cuh"
#include "kernels/cuda/turns.cuh"

namespace epx
{

enum { PUSH_TILE = 1024 }; /* runs that are looked at together */
constexpr int64_t FEW_BYTES = 64;

__host__ __device__ inline bool is_wide(const epx_part_t &part)
{
    return part.kind == EPX_PART_COPY && part.bytes > FEW_BYTES;
}

__host__ __device__ inline bool has_wide(const epx_k_push_t &args)
{
    bool any = false;
    for (int32_t p = 0; p < args.parts; p++)
        any = any || is_wide(args.part[p]);
    return any;
}

__device__ inline bool has_narrow(const epx_k_push_t &args)
{
    bool any = false;
    for (int32_t p = 0; p < args.parts; p++)
        any = any || (!is_wide(args.part[p]) && args.part[p].kind != EPX_PART_CHECKSUM);
    return any;
}

/* None behind a gate that is shut. */
__device__ inline int32_t runs_of(const epx_k_push_t &args)
{
    return args.gate != nullptr && *(const volatile int32_t *)args.gate != 1 ? 0 : args.run_count;
}

/* Where one entry goes; which one it is. */
struct entry {
    int64_t source, row;
    char *base;
    int64_t i;
    bool stays; /* at this rank */
};

__device__ inline entry entry_at(const epx_k_push_t &args, const epx_run_t *run, int32_t j)
{
    int64_t i = run->first + j;
    return {args.index != nullptr ? args.index[i] : i, run->row + j, (char *)args.dst[run->peer], i,
            run->peer == args.rank};
}

__device__ inline bool is_placed(const epx_part_t &part, const entry &at) { return part.placed && at.stays; }

/* From an entry's first[i] to its beginning in the list. */
__device__ inline int32_t list_shift(const epx_k_places_t &own)
{
    return (int32_t)(fresh(own.start) - fresh(own.base));
}

/* Calls fn(address) for every place of an entry that is placed. */
template <typename F>
__device__ inline void each_place(const epx_k_places_t &own, const entry &at, const F &fn)
{
    int32_t first = fresh(own.first + at.i) + list_shift(own), count = fresh(own.count + at.i);
    for (int32_t x = first; x < first + count; x++)
        fn((char *)own.dst + fresh(own.list + x) * own.stride);
}

__device__ inline char *part_to(const epx_part_t &part, const entry &at)
{
    return at.base + part.dst_offset + at.row * part.dst_stride;
}

__device__ inline const char *part_from(const epx_part_t &part, const entry &at)
{
    int64_t s = part.divide == 1 ? at.source : (int32_t)at.source / part.divide;
    return (const char *)part.src + s * part.src_stride;
}

/* One warp: bytes from .. from + bytes - 1 of a part, of the entry that each lane has found (bytes <= 0:
 * none). */
template <typename B>
__device__ inline void move_found(bulk_mover<B> &mover, const epx_k_push_t &args, const epx_part_t &part,
                                  const entry &at, int32_t from, int32_t bytes)
{
    (void)args;
    move_pieces(mover, part_to(part, at) + from, part_from(part, at) + from, bytes);
}

template <typename B>
__device__ inline void move_found(place_mover<B> &mover, const epx_k_push_t &args, const epx_part_t &part,
                                  const entry &at, int32_t from, int32_t bytes)
{
    placed_piece piece = {part_to(part, at) + from, part_from(part, at) + from, -1, 1, bytes};
    if (bytes > 0 && is_placed(part, at)) {
        piece.to = (char *)args.own.dst + from;
        piece.first = fresh(args.own.first + at.i) + list_shift(args.own);
        piece.count = fresh(args.own.count + at.i);
    }
    mover.put_all(piece);
}

/* Before the pieces of a push, and when all have been given to the mover. */
template <typename B> __device__ inline void begin_push(bulk_mover<B> &, const epx_k_push_t &) {}
template <typename B> __device__ inline void begin_push(place_mover<B> &mover, const epx_k_push_t &args)
{
    mover.settle();
    mover.table = {args.own.list, args.own.stride};
}
template <typename B> __device__ inline void end_pushes(bulk_mover<B> &mover)
{
    if (lane_id() == 0)
        mover.finish();
}
template <typename B> __device__ inline void end_pushes(place_mover<B> &mover) { mover.finish(); }

/* Row pieces of a tile of runs: unit u is one of `cut` of a row of them. */
struct push_units {
    const epx_run_t *runs;
    const int32_t *before;
    int32_t n, total, cut;

    __device__ int64_t count() const { return (int64_t)total * cut; }
};

/* One warp: moves the wide parts of each lane's unit; negative: it has none. */
template <typename M>
__device__ inline void move_units(const epx_k_push_t &args, const push_units &of, M &mover, int64_t unit)
{
    entry at = {-1, 0, nullptr, 0, false};
    int32_t piece = 0;
    if (unit >= 0) {
        int32_t u = (int32_t)(unit / of.cut), r = spread(u, of.total),
                i = find_segment_alone(of.before, of.n, r);
        piece = (int32_t)(unit - (int64_t)u * of.cut);
        at = entry_at(args, of.runs + i, r - of.before[i]);
    }
    for (int32_t p = 0; p < args.parts; p++) {
        const epx_part_t &part = args.part[p];
        if (!is_wide(part))
            continue;
        int32_t each = bulk_piece((int32_t)part.bytes, of.cut), from = piece * each,
                bytes = min((int32_t)part.bytes - from, each);
        move_found(mover, args, part, at, from, at.source >= 0 ? bytes : 0);
    }
}

/* The wide parts of a push, by the movers of all blocks. */
template <typename B, typename GROUP, typename M>
__device__ inline void move_wide(const epx_k_push_t &args, int32_t widest, segments<PUSH_TILE> &table,
                                 M &mover)
{
    begin_push(mover, args);
    int64_t warp = (int64_t)blockIdx.x * B::WARPS + GROUP::thread() / WARP,
            step = (int64_t)gridDim.x * B::WARPS;
    int32_t all = runs_of(args);
    for (int32_t tile = 0; tile < all; tile += PUSH_TILE) {
        const epx_run_t *runs = args.runs + tile;
        int32_t n = min(all - tile, (int32_t)PUSH_TILE);
        GROUP::sync();
        int32_t total = add_up<B::THREADS, GROUP>(table, n, [&](int32_t i) { return max(runs[i].rows, 0); });
        push_units of = {runs, table.before, n, total, bulk_cut<B>(total, widest)};
        for (int64_t first = warp; first < of.count(); first += WARP * step) {
            int64_t unit = first + lane_id() * step;
            move_units(args, of, mover, unit < of.count() ? unit : -1);
        }
    }
}

/*
 * The same where few multiprocessors do it. A store to a peer that waits for the link holds back what stands
 * behind it in its multiprocessor, local stores too, so that rows for others and rows that stay, mixed, fill
 * neither the link nor the memory. Here half of the blocks begin with the ones and half with the others.
 * Fixed shares gained nothing when measured (docs/performance.md); likely not all blocks get as much of the
 * link. So units are drawn from a counter of their kind, by those first who began with it, in the end by all.
 */
enum { TO_OTHERS = 0, STAYS = 1, DRAWN_MOST = 8 }; /* counters of EPX_TURNS */

template <typename B, typename GROUP, typename M>
__device__ inline void move_by_turns(const epx_k_push_t &args, int32_t widest, segments<PUSH_TILE> *table,
                                     M &mover)
{
    int32_t n = runs_of(args), rows = 0;
    for (int32_t kind = TO_OTHERS; kind <= STAYS; kind++) {
        GROUP::sync();
        rows += add_up<B::THREADS, GROUP>(table[kind], n, [&](int32_t i) {
            return (args.runs[i].peer == args.rank) == (kind == STAYS) ? max(args.runs[i].rows, 0) : 0;
        });
    }
    int32_t cut = bulk_cut<B>(rows, widest), warps = (int32_t)gridDim.x * B::WARPS;
    /* Halves that are spread over the multiprocessors. */
    int32_t begins = blockIdx.x * 3 % 8 < 4 ? TO_OTHERS : STAYS;
    begin_push(mover, args);
    for (int32_t i = 0; i < 2; i++) {
        int32_t kind = i == 0 ? begins : 1 - begins;
        const int32_t *before = table[kind].before;
        push_units of = {args.runs, before, n, before[n], cut};
        int32_t most = (int32_t)min(max(of.count() / (4 * warps), (int64_t)1), (int64_t)DRAWN_MOST);
        for (int64_t first = draw(args.turns + kind, most); first < of.count();
             first = draw(args.turns + kind, most)) {
            int64_t unit = first + lane_id();
            move_units(args, of, mover, lane_id() < most && unit < of.count() ? unit : -1);
        }
    }
    end_turns<GROUP>(args.turns);
}

} // namespace epx

#endif
