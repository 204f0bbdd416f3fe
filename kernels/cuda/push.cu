/*
 * push: entries of lists to consecutive rows of peers. SPDX-License-Identifier:
 * Apache-2.0
 *
 * Rows at multiples of 16 bytes go by bulk copies, in pieces; other rows by a
 * warp each. Small parts are a thread's for each entry, and so are checksums,
 * which are serial. Several pushes are one launch. Parts that are placed go to
 * all their places instead: wide ones are read once for it.
 */
#include "kernels/cuda/checksum.cuh"
#include "kernels/cuda/progress.cuh"
#include "kernels/cuda/push_fan.cuh"
#include "kernels/cuda/push_wide.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

enum { THREADS = 1024, TILE = PUSH_TILE, GRAIN = 1024, NARROW_THREADS = 256, PUSHES_MAX = 6 };

__device__ inline void put_narrow(const epx_k_push_t &args, const epx_part_t &part, const entry &at)
{
    if (part.kind == EPX_PART_ORIGIN) {
        int32_t *to = (int32_t *)part_to(part, at), s = (int32_t)at.source;
        to[0] = args.rank, to[1] = s / args.columns, to[2] = s % args.columns;
    } else if (is_placed(part, at)) {
        each_place(args.own, at, [&](char *to) { copy_few(to, part_from(part, at), part.bytes); });
    } else {
        copy_few(part_to(part, at), part_from(part, at), part.bytes);
    }
}

/* All wide parts are cut into the same number of pieces. */
__device__ inline void put_wide(const epx_k_push_t &args, const epx_part_t &part, const entry &at,
                                int32_t piece, int32_t count)
{
    int32_t all = (int32_t)part.bytes, each = piece_bytes(all, count, GRAIN), from = piece * each,
            bytes = min(all - from, each);
    const char *src = part_from(part, at) + from;
    if (bytes <= 0)
        return;
    if (is_placed(part, at))
        each_place(args.own, at, [&](char *to) { copy_bytes<false>(to + from, src, bytes); });
    else
        copy_bytes<false>(part_to(part, at) + from, src, bytes);
}

/* Rows at any addresses: the wide parts, by a warp for each row. */
__global__ void __launch_bounds__(THREADS, 1)
    push_rows(const __grid_constant__ epx_k_push_t args, int32_t widest)
{
    __shared__ segments<TILE> table;
    behind_previous();
    let_next_begin(args.units);
    say_begun(args.begun);
    int32_t all = runs_of(args);
    for (int32_t tile = 0; tile < all; tile += TILE) {
        const epx_run_t *runs = args.runs + tile;
        int32_t n = min(all - tile, (int32_t)TILE);
        __syncthreads();
        int32_t total = add_up<THREADS>(table, n, [&](int32_t i) { return max(runs[i].rows, 0); });
        int32_t cut = cut_rows(total, widest, GRAIN);
        for (int32_t unit = warp_of_grid(); unit < total * cut; unit += warps_of_grid()) {
            int32_t u = unit / cut, piece = unit - u * cut, r = spread(u, total);
            int32_t i = find_segment(table.before, n, r);
            entry at = entry_at(args, runs + i, r - table.before[i]);
            for (int32_t p = 0; at.source >= 0 && p < args.parts; p++)
                if (is_wide(args.part[p]))
                    put_wide(args, args.part[p], at, piece, cut);
        }
    }
}

/* Pushes of one launch, in no order. */
struct push_set {
    epx_k_push_t one[PUSHES_MAX];
    int32_t count;
};

/* All threads of a group: calls fn(entry) for this thread's entries of a push;
 * `thread` of `threads` in all.
 */
template <int BLOCK, typename GROUP, typename F>
__device__ inline void each_entry(const epx_k_push_t &args, segments<TILE> &table, int64_t thread,
                                  int64_t threads, const F &fn)
{
    int32_t all = runs_of(args);
    for (int32_t tile = 0; tile < all; tile += TILE) {
        const epx_run_t *runs = args.runs + tile;
        int32_t n = min(all - tile, (int32_t)TILE);
        GROUP::sync();
        int32_t total = add_up<BLOCK, GROUP>(table, n, [&](int32_t i) { return max(runs[i].rows, 0); });
        for (int64_t r = thread; r < total; r += threads) {
            int32_t i = find_segment_alone(table.before, n, (int32_t)r);
            entry at = entry_at(args, runs + i, (int32_t)r - table.before[i]);
            if (at.source >= 0)
                fn(at);
        }
    }
}

__device__ inline void put_all_narrow(const epx_k_push_t &args, const entry &at)
{
    for (int32_t p = 0; p < args.parts; p++)
        if (!is_wide(args.part[p]) && args.part[p].kind != EPX_PART_CHECKSUM)
            put_narrow(args, args.part[p], at);
}

/* Rows at multiples of 16 bytes: some warps ask for bulk copies of the wide
 * parts, others do the small parts. TURNS: pushes that have them use them.
 */
template <typename B, typename M, bool TURNS>
__global__ void __launch_bounds__(B::THREADS + NARROW_THREADS, 1)
    push_bulk(const __grid_constant__ push_set set, int32_t widest)
{
    typedef part_of_block<0, B::THREADS, 1> movers;
    typedef part_of_block<B::THREADS, NARROW_THREADS, 2> others;
    extern __shared__ __align__(128) char dynamic[];
    __shared__ segments<TILE> tables[TURNS ? 3 : 2]; /* the last one: of the others */
    __shared__ typename M::shared shared;
    if (threadIdx.x < B::THREADS) {
        M mover(dynamic, shared);
        behind_previous();
        let_next_begin(set.one[0].units);
        say_begun(set.one[0].begun);
        for (int32_t x = 0; x < set.count; x++) {
            if (!has_wide(set.one[x]))
                continue;
            if constexpr (TURNS) {
                if (set.one[x].turns != nullptr) {
                    move_by_turns<B, movers>(set.one[x], widest, tables, mover);
                    continue;
                }
            }
            move_wide<B, movers>(set.one[x], widest, tables[0], mover);
        }
        end_pushes(mover);
    } else {
        behind_previous();
        let_next_begin(set.one[0].units);
        int64_t thread = (int64_t)blockIdx.x * NARROW_THREADS + others::thread(),
                threads = (int64_t)gridDim.x * NARROW_THREADS;
        for (int32_t x = 0; x < set.count; x++)
            if (has_narrow(set.one[x]))
                each_entry<NARROW_THREADS, others>(set.one[x], tables[TURNS ? 2 : 1], thread, threads,
                                                   [&](const entry &at) { put_all_narrow(set.one[x], at); });
    }
}

__global__ void __launch_bounds__(THREADS, 1)
    push_entries(const __grid_constant__ push_set set, bool narrow, bool checksums)
{
    __shared__ segments<TILE> table;
    behind_previous();
    let_next_begin(set.one[0].units);
    say_begun(set.one[0].begun);
    int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x, threads = (int64_t)gridDim.x * THREADS;
    for (int32_t x = 0; x < set.count; x++) {
        const epx_k_push_t &args = set.one[x];
        each_entry<THREADS, whole_block>(args, table, thread, threads, [&](const entry &at) {
            if (narrow)
                put_all_narrow(args, at);
            for (int32_t p = 0; checksums && p < args.parts; p++)
                if (args.part[p].kind == EPX_PART_CHECKSUM)
                    *(uint32_t *)part_to(args.part[p], at) =
                        row_checksum(part_from(args.part[p], at), args.part[p].bytes);
        });
    }
}

launch_site rows_site, entries_site;
template <typename M, bool TURNS> launch_site bulk_site;

/* What a set of pushes has. */
struct push_kinds {
    int32_t widest;
    bool wide, aligned, narrow, checksums, placed; /* placed: wide ones */
};

push_kinds kinds_of(const push_set &set)
{
    push_kinds k = {0, false, true, false, false, false};
    for (int32_t x = 0; x < set.count; x++) {
        for (int32_t p = 0; p < set.one[x].parts; p++) {
            const epx_part_t &part = set.one[x].part[p];
            if (is_wide(part)) {
                k.wide = true;
                k.widest = part.bytes > k.widest ? (int32_t)part.bytes : k.widest;
                k.aligned = k.aligned && ((int64_t)(uintptr_t)part.src | part.src_stride | part.dst_offset |
                                          part.dst_stride | part.bytes) %
                                                 16 ==
                                             0;
                k.placed = k.placed || part.placed;
                k.aligned = k.aligned && (!part.placed || by_16(set.one[x].own.dst, set.one[x].own.stride));
            } else if (part.kind == EPX_PART_CHECKSUM) {
                k.checksums = true;
            } else {
                k.narrow = true;
            }
        }
    }
    return k;
}

template <typename B, typename M, bool TURNS>
epx_status_t push_by_bulk(const push_set &set, int32_t widest, epx_stream_t stream)
{
    constexpr int THREADS_OF = B::THREADS + NARROW_THREADS;
    void (*kernel)(const push_set, int32_t) = push_bulk<B, M, TURNS>;
    int blocks = persistent_blocks(bulk_site<M, TURNS>, kernel, THREADS_OF, B::SHARED, set.one[0].units);
    return launch("push", {blocks, THREADS_OF, B::SHARED, 1, true}, stream, kernel, set, widest);
}

/* Whether a budget is set, and a push has what it takes to work within it; runs of such a one are one tile.
 */
bool takes_turns(push_set &set)
{
    bool any = false;
    for (int32_t x = 0; x < set.count; x++) {
        epx_k_push_t &one = set.one[x];
        if (one.run_count > TILE)
            one.turns = nullptr;
        any = any || (one.turns != nullptr && has_wide(one));
    }
    return any && set.one[0].units > 0 && set.one[0].units < epx_cuda_units(current_device());
}

/* Whether rows are read once for all their entries: those of wide parts are copies. */
bool fans_out(const push_set &set)
{
    for (int32_t x = 0; x < set.count; x++) {
        const epx_k_push_t &one = set.one[x];
        bool good = one.order != nullptr && one.run_count <= TILE && one.columns > 1 && one.columns <= WARP;
        for (int32_t p = 0; p < one.parts; p++)
            if (is_wide(one.part[p]) && (!good || one.part[p].divide != one.columns))
                return false;
    }
    return true;
}

template <typename M> epx_status_t push_wide(push_set &set, int32_t widest, epx_stream_t stream)
{
    return takes_turns(set) ? push_by_bulk<move_build, M, true>(set, widest, stream)
                            : push_by_bulk<move_build, M, false>(set, widest, stream);
}

epx_status_t push_by_rows(const push_set &set, int32_t widest, epx_stream_t stream)
{
    epx_status_t status = EPX_OK;
    int blocks = persistent_blocks(rows_site, push_rows, THREADS, 0, set.one[0].units);
    for (int32_t x = 0; x < set.count && status == EPX_OK; x++)
        if (has_wide(set.one[x]))
            status = launch("push", {blocks, THREADS, 0, 1, true}, stream, push_rows, set.one[x], widest);
    return status;
}

/* The first kernel of them says that the call has begun. */
epx_status_t push_together(push_set &set, epx_stream_t stream)
{
    push_kinds k = kinds_of(set);
    epx_status_t status = EPX_OK;
    bool by_bulk = k.wide && k.aligned;
    if (by_bulk && k.placed)
        status = push_wide<place_mover<move_build>>(set, k.widest, stream);
    else if (by_bulk && fans_out(set) && !takes_turns(set))
        status = push_by_bulk<move_build, fan_mover<move_build>, false>(set, k.widest, stream);
    else if (by_bulk)
        status = push_wide<bulk_mover<move_build>>(set, k.widest, stream);
    else if (k.wide)
        status = push_by_rows(set, k.widest, stream);
    bool narrow = k.narrow && !by_bulk;
    if (k.wide)
        set.one[0].begun.word = nullptr;
    if (status == EPX_OK && (narrow || k.checksums)) {
        int blocks = persistent_blocks(entries_site, push_entries, THREADS, 0, set.one[0].units);
        status =
            launch("push", {blocks, THREADS, 0, 1, true}, stream, push_entries, set, narrow, k.checksums);
    }
    return status;
}

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_push(const epx_k_push_t *args, epx_stream_t stream)
{
    using namespace epx;
    epx_status_t status = EPX_OK;
    push_set set;
    epx_k_begun_t begun = args->begun;
    for (set.count = 0; args != nullptr && status == EPX_OK; args = args->more) {
        if (args->run_count > 0 && args->parts > 0)
            set.one[set.count++] = *args;
        if (set.count == 1)
            set.one[0].begun = begun;
        if (set.count == PUSHES_MAX || (args->more == nullptr && set.count > 0)) {
            status = push_together(set, stream);
            set.count = 0;
            begun.word = nullptr;
        }
    }
    if (begun.word == nullptr || begun.lane != nullptr) /* there a post says so too */
        return status;
    epx_k_stamp_t stamp = {};
    stamp.word = begun.word;
    stamp.time_ns = (int64_t *)begun.word + 1;
    stamp.value.add = begun.add;
    stamp.name = begun.name;
    return epx_cuda_stamp(&stamp, stream);
}
