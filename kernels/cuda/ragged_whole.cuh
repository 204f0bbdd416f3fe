/*
 * ragged's layout in one launch, for few senders: every block decides for itself. SPDX-License-Identifier:
 * Apache-2.0
 *
 * What the counts decide is little work and a long chain. One block that decides hands its tables to the
 * others through memory, behind the end of its launch; here all blocks walk the chain side by side, with a
 * thread for each entry of the order of a pass, and keep the tables in their shared memory. The last block
 * writes what this rank sends, the blocks before it what each other sender has, and those before them give
 * assignments their places. Wire rows are counted from block to block up to the last one (relay.cuh), which
 * tells the host.
 */
#ifndef EPX_KERNELS_CUDA_RAGGED_WHOLE_CUH
#define EPX_KERNELS_CUDA_RAGGED_WHOLE_CUH

#include "kernels/cuda/ragged_alone.cuh"
#include "kernels/cuda/ragged_wire.cuh"

namespace epx
{

enum { WHOLE_THREADS = 512, WHOLE_RANKS = 8, WHOLE_BLOCKS = 128 };

struct whole_shared {
    block_sums<3> sums;
    block_sums<1> room_sums, wanted_sums;
    uint32_t wanted[WHOLE_THREADS + 1]; /* by entry: wanted of the entries before */
    uint32_t local_rows[WHOLE_THREADS]; /* by own expert: rows */
    int32_t local_wave[WHOLE_THREADS];  /* and wave */
    uint32_t routed;
    walk_shared walk;
};

/* What is static about a thread's entry; e: -1 behind the last one. */
struct whole_facts {
    int32_t e, c, d, first, last; /* expert, wave, owner, entries of the pair */

    __device__ whole_facts(const ragged_task &task, int32_t i) : e(-1), c(0), d(-1), first(0), last(0)
    {
        if (i >= task.experts)
            return;
        e = task.order.expert[i];
        c = task.order.wave[e], d = task.real.owner[e];
        const int32_t *pair = task.order.first + c * task.ranks + d;
        first = pair[0], last = pair[1];
    }
};

/* What all senders want of a thread's entry, on its way while the notices are looked at. */
template <int RANKS> struct whole_wants {
    int32_t of[RANKS];

    __device__ whole_wants(const ragged_task &task, int32_t e)
    {
        const char *counts = (const char *)task.args.notices + sizeof(epx_route_notice_t);
#pragma unroll
        for (int32_t s = 0; s < RANKS; s++)
            of[s] = e >= 0 && s < task.ranks
                        ? fresh((const int32_t *)(counts + s * task.args.notice_stride) + e)
                        : 0;
    }
    __device__ void forget()
    {
#pragma unroll
        for (int32_t s = 0; s < RANKS; s++)
            of[s] = 0;
    }
};

template <int RANKS> __device__ inline int32_t own_of(const whole_wants<RANKS> &wants, int32_t me)
{
    int32_t own = 0;
#pragma unroll
    for (int32_t s = 0; s < RANKS; s++)
        own = s == me ? wants.of[s] : own;
    return own;
}

/* What came of a thread's entry for one sender: its rows, those of all and of the senders before it; its
 * first return row at home, and where the entry's rows begin in the batch of its pair. */
struct whole_entry {
    uint32_t rows, total, before, cursor, row;
};

/* Whether `wanted` rows of a chunk are surely within its capacity (ragged_capacity, whose rounding the margin
 * is above), without a division; experts * wanted is exact. */
__device__ inline bool is_below_capacity(const rule &r, const whole_facts &f, uint32_t wanted,
                                         uint32_t valid_all)
{
    int32_t experts = f.last - f.first;
    double rows = (double)((int64_t)valid_all * experts) * r.cf;
    return r.accept != EPX_ACCEPT_WATERFILL &&
           (double)((int64_t)wanted * r.experts) <= rows * (1 - 0x1p-40) &&
           (int64_t)wanted <= experts * r.most_each;
}

/* How much of a thread's entry is accepted: the experts of a pair are those of a chunk, in its order. */
__device__ inline uint32_t whole_quota(const ragged_task &task, const whole_facts &f, uint32_t want,
                                       whole_shared &shared)
{
    uint32_t sum[1] = {want}, all[1];
    if (task.accept.dropless)
        return want;
    block_before(sum, all, shared.wanted_sums);
    shared.wanted[threadIdx.x] = sum[0];
    if (threadIdx.x == 0)
        shared.wanted[blockDim.x] = all[0];
    __syncthreads();
    if (f.e < 0 || is_below_capacity(task.accept, f, sum[0] - shared.wanted[f.first] + want, all[0]))
        return f.e < 0 ? 0 : want;
    return (uint32_t)quota_in(task.accept, shared.wanted, {f.first, (int32_t)threadIdx.x, f.last}, all[0]);
}

/* All threads of a block, for sender `me`; sums at all entries into shared.walk. */
template <int RANKS>
__device__ inline whole_entry decide_whole(const ragged_task &task, const whole_facts &f,
                                           const whole_wants<RANKS> &wants, int32_t me, whole_shared &shared,
                                           entry_walk &walk)
{
    walk_shared &w = shared.walk;
    int32_t i = (int32_t)threadIdx.x;
    uint32_t want = 0, through = 0, before = 0, end = 0;
    whole_entry entry = {};
#pragma unroll
    for (int32_t s = 0; s < RANKS; s++)
        want += (uint32_t)wants.of[s];
    entry.total = whole_quota(task, f, want, shared);
#pragma unroll
    for (int32_t s = 0; s < RANKS; s++) {
        through += (uint32_t)wants.of[s];
        end = min(entry.total, through);
        if (s == me)
            entry.rows = end - before, entry.before = before;
        before = end;
    }
    uint32_t sum[3] = {entry.rows, entry.total, entry.before}, all[3];
    block_before(sum, all, shared.sums);
    uint32_t begin = sum[1];
    if (task.align != 1) {
        uint32_t room[1] = {(uint32_t)task.aligned(entry.total)}, ignored[1];
        block_before(room, ignored, shared.room_sums);
        begin = room[0];
    }
    w.cursor[i] = entry.cursor = sum[0], w.rows[i] = begin, w.total[i] = sum[1], w.before[i] = sum[2];
    walk.cursor = all[0], walk.total = all[1], walk.before = all[2];
    __syncthreads();
    entry.row = begin - w.rows[f.first];
    return entry;
}

/* One block: what sender `me` has here. */
__device__ inline void write_sender(const ragged_task &task, const whole_facts &f, const whole_entry &entry,
                                    int32_t me, const entry_walk &walk, const walk_shared &shared)
{
    const epx_k_ragged_layout_t &args = task.args;
    if (f.d == task.rank)
        args.return_runs[(int64_t)task.slot(f.c, (int32_t)threadIdx.x) * task.ranks + me] = {
            entry.row + entry.before, entry.cursor, me, (int32_t)entry.rows};
    if (!args.rank_wire)
        return;
#pragma unroll 1
    for (int32_t c = (int32_t)threadIdx.x; c < task.order.chunks; c += (int32_t)blockDim.x) {
        const int32_t *first = task.order.first + c * task.ranks + task.rank;
        border from(task, walk, shared, first[0]), to(task, walk, shared, first[1]);
        int64_t base = (uint32_t)(to.before - from.before), room = (uint32_t)(to.cursor - from.cursor),
                at = (int64_t)c * task.ranks + me;
        args.back_runs[at] = {base, from.cursor, me, (int32_t)room};
        args.wire_start[at] = base;
        args.wire_room[at] = room;
    }
}

/* One block: what this rank sends, its batches, and what waves move; `wanted`: of a thread's entry by this
 * rank. */
__device__ inline void write_own(const ragged_task &task, const whole_facts &f, const whole_entry &entry,
                                 uint32_t wanted, entry_walk &walk, whole_shared &shared)
{
    const epx_k_ragged_layout_t &args = task.args;
    int32_t i = (int32_t)threadIdx.x, warp = i / WARP, warps = (int32_t)(blockDim.x / WARP);
    if (f.e >= 0) {
        args.send_runs[i] = {entry.cursor, (int64_t)entry.row + entry.before, f.d, (int32_t)entry.rows};
        args.first_row[f.e] = (int32_t)entry.cursor;
    }
    if (f.d == task.rank) {
        int32_t local = task.real.local[f.e];
        shared.local_rows[local] = entry.total, shared.local_wave[local] = f.c;
    }
    wanted = __reduce_add_sync(ALL, wanted);
    if (lane_id() == 0 && wanted != 0)
        atomicAdd(&shared.routed, wanted);
    __syncthreads();
    walk.routed = shared.routed;
    /* Where there are few pairs, the first warp has all regions. */
    if (warp == warps - 1)
        lay_waves(task, walk, shared.walk);
#pragma unroll 1
    for (int32_t c = warps - 2 - warp; warp < warps - 1 && c < task.order.chunks; c += warps - 1)
        lay_batch_by_warp(task, c, shared.local_rows, shared.local_wave);
    lay_regions(task, walk, shared.walk, 0);
}

/* One thread's assignment gets its return row, or none. c: its wave. */
__device__ inline void place_one(const ragged_task &task, const wire_tables &tables, int32_t a, int32_t e,
                                 int32_t ordinal)
{
    int32_t row = -1;
    if (e >= 0 && ordinal < tables.accepted[e]) {
        row = tables.first_row[e] + ordinal;
        task.args.send[row] = a;
        row += tables.to_place[e];
    }
    task.args.place[a] = row;
}

/* Behind decide_whole: what placing reads, in shared memory. */
__device__ inline void fill_whole(const ragged_task &task, const whole_facts &f, const whole_entry &entry,
                                  const entry_walk &walk, const walk_shared &shared,
                                  const wire_tables &tables)
{
    if (f.e >= 0) {
        int32_t wave = f.c * task.most;
        tables.accepted[f.e] = (int32_t)entry.rows, tables.first_row[f.e] = (int32_t)entry.cursor;
        tables.to_place[f.e] =
            task.args.rank_wire ? (int32_t)(entry.row + entry.before - entry.cursor) - wave : wave;
        tables.pair[f.e] = f.c * task.ranks + f.d;
    }
#pragma unroll 1
    for (int32_t q = (int32_t)threadIdx.x; task.args.rank_wire && q < tables.pairs;
         q += (int32_t)blockDim.x) {
        const int32_t *first = task.order.first + q;
        border from(task, walk, shared, first[0]), to(task, walk, shared, first[1]);
        tables.region[q] = (int32_t)from.cursor;
        tables.base[q] = (int32_t)(to.before - from.before);
        tables.wave_at[q] = q / task.ranks * task.most;
    }
}

/* A launch's blocks: `placers` that give assignments their places, then one for each sender, this rank's
 * last. */
struct whole_part {
    int32_t placers, sender; /* sender: that the block decides for */
    bool places, is_last;

    __device__ whole_part(const ragged_task &task, int32_t of) : placers(of)
    {
        int32_t s = (int32_t)blockIdx.x - placers;
        places = s < 0, is_last = s == task.ranks - 1;
        sender = places || is_last ? task.rank : s + (s >= task.rank);
    }
};

/* All threads of the last block: what the others have counted under each key, into o.all. */
__device__ inline void count_whole(const relay &r, ordinals &o)
{
    for (int32_t k = (int32_t)threadIdx.x; k < o.keys; k += (int32_t)blockDim.x)
        o.all[k] = 0;
    __syncthreads();
    look_back(r, o.keys, o.all);
    __syncthreads();
    if (threadIdx.x == 0)
        r.move_on();
}

/* Rank wire: the step of a warp of a block that places. */
__device__ inline void place_whole(const ragged_task &task, const wire_tables &tables, const wire_step &step,
                                   const wire_choice &c, int64_t tokens, const relay &r, ordinals &o)
{
    wire_numbers numbers;
    wire_item item = take_step<true>(task, tables, step, c, tokens, o, &numbers);
    wire_result result(task, tables, c, item, numbers);
    place_choice(task, tables, step, c, item);
    hand_on(r, o);
    put_result(task, tables, o, step, c, result, true);
}

} // namespace epx

#endif
