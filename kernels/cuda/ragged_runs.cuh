/*
 * ragged's layout: from what is accepted to runs, regions and batches. SPDX-License-Identifier: Apache-2.0
 *
 * The host walks the experts in the order of a pass (wave, owner, id) with a cursor for each sender. The
 * cursor of sender s at an entry is the sum of what s has accepted at the entries before, and the row that an
 * expert begins with in its owner's batch is the sum of the aligned totals of the entries before it in its
 * pair (wave, owner): one block finds both for one sender by prefix sums over the entries. Sums over all
 * entries may wrap; only their differences are used.
 */
#ifndef EPX_KERNELS_CUDA_RAGGED_RUNS_CUH
#define EPX_KERNELS_CUDA_RAGGED_RUNS_CUH

#include "kernels/cuda/ragged_task.cuh"

namespace epx
{

/* What sender s has of the expert of a gang, and what those before it have. */
__device__ inline void set_accepted(const ragged_task &task, int32_t e, int32_t slot, int32_t s,
                                    int64_t before, int64_t rows)
{
    if (slot >= 0)
        task.args.return_runs[(int64_t)slot * task.ranks + s] = {before, 0, s, (int32_t)rows};
    if (s == task.rank)
        task.before_me[e] = (int32_t)before;
}

/* The slot of an expert among this rank's own in the order of a pass, or -1. */
__device__ inline int32_t own_slot(const ragged_task &task, int32_t e, int32_t c)
{
    return task.real.owner[e] == task.rank ? task.slot(c, task.order.at[e]) : -1;
}

/* The same for all senders of an expert from what has been written, by its gang: where senders are virtual,
 * or fair. */
__device__ inline int64_t add_up_expert(const ragged_task &task, const gang &g, int32_t e, int32_t slot)
{
    int64_t before = 0;
#pragma unroll 1
    for (int32_t s0 = 0; s0 < task.ranks; s0 += g.lanes) {
        int32_t s = s0 + g.lane, rows = s < task.ranks ? task.accepted_of(s, e) : 0;
        int64_t through = before + g.through(rows);
        if (s < task.ranks)
            set_accepted(task, e, slot, s, through - rows, rows);
        before = g.of_last(through);
    }
    return before;
}

enum { WALK_SUMS = 5 };

/* Shared memory of the walks: sums at the entries of a chunk. */
struct walk_shared {
    block_sums<WALK_SUMS> sums;
    uint32_t cursor[ROUTE_THREADS], rows[ROUTE_THREADS], total[ROUTE_THREADS], before[ROUTE_THREADS];
    uint32_t head;
    int64_t room[WARP];
};

/* What is static about an entry of the order, -1 behind the last one. */
struct entry_facts {
    int32_t e, c, d, first,
        slot; /* expert, wave, owner, first entry of the pair; slot: -1 where it is another's */

    __device__ entry_facts(const ragged_task &task, int32_t i) : e(-1), c(0), d(-1), first(0), slot(-1)
    {
        if (i >= task.experts)
            return;
        e = task.order.expert[i];
        c = task.order.wave[e];
        d = task.real.owner[e];
        first = task.order.first[c * task.ranks + d];
        slot = d == task.rank ? task.slot(c, i) : -1;
    }
};

/* What a block carries from one chunk of entries to the next: sums of all before, and where the last pair's
 * rows begin. */
struct entry_walk {
    uint32_t cursor = 0, rows = 0, total = 0, before = 0, routed = 0, head = 0;
};

/* One thread's entry, when the sender is this rank. */
__device__ inline void set_send_run(const ragged_task &task, int32_t i, const entry_facts &f, uint32_t cursor,
                                    uint32_t row, int32_t rows, int32_t before)
{
    int64_t place = (int64_t)row + before;
    task.args.send_runs[i] = {cursor, place, f.d, rows};
    task.before_me[f.e] = (int32_t)(place - cursor - (int64_t)f.c * task.most);
#pragma unroll 1
    for (int32_t v = 0; v < task.splits; v++) {
        task.args.first_row[(int64_t)v * task.experts + f.e] = (int32_t)cursor;
        cursor += task.splits == 1
                      ? rows
                      : task.args.accepted[((int64_t)task.rank * task.splits + v) * task.experts + f.e];
    }
}

/* Rank wire: sums at the borders of the pair (c, this rank), kept where their differences will stand. */
__device__ inline void note_borders(const ragged_task &task, const walk_shared &shared, int32_t s, int32_t i0,
                                    int32_t end, const entry_walk &walk)
{
#pragma unroll 1
    for (int32_t c = (int32_t)threadIdx.x; c < task.order.chunks; c += (int32_t)blockDim.x) {
        int32_t q = c * task.ranks + task.rank, from = task.order.first[q], to = task.order.first[q + 1];
        int64_t at = (int64_t)c * task.ranks + s;
        auto sums = [&](int32_t x, uint32_t *cursor, uint32_t *before) {
            *cursor = x < end ? shared.cursor[x - i0] : walk.cursor;
            *before = x < end ? shared.before[x - i0] : walk.before;
        };
        uint32_t cursor, before;
        bool is_last = end == task.experts;
        if (from >= i0 && (from < end || is_last)) {
            sums(from, &cursor, &before);
            task.args.back_runs[at] = {0, cursor, s, 0};
            task.args.wire_start[at] = before;
        }
        if (to >= i0 && (to < end || is_last)) {
            sums(to, &cursor, &before);
            int64_t room = (uint32_t)(cursor - (uint32_t)task.args.back_runs[at].row);
            int64_t base = (uint32_t)(before - (uint32_t)task.args.wire_start[at]);
            task.args.wire_start[at] = task.args.back_runs[at].first = base;
            task.args.wire_room[at] = room;
            task.args.back_runs[at].rows = (int32_t)room;
        }
    }
}

/* Entries i0 .. i0 + blockDim - 1 for sender s; f: this thread's. */
__device__ inline void walk_entries(const ragged_task &task, const count_table &counts, int32_t s, int32_t i0,
                                    const entry_facts &f, entry_walk &walk, walk_shared &shared)
{
    int32_t x = (int32_t)threadIdx.x, i = i0 + x, end = min(i0 + (int32_t)blockDim.x, task.experts);
    uint32_t rows = f.e >= 0 ? (uint32_t)task.accepted_of(s, f.e) : 0,
             total = f.e >= 0 ? (uint32_t)task.total[f.e] : 0, routed = 0;
    epx_run_t *run = f.slot >= 0 ? &task.args.return_runs[(int64_t)f.slot * task.ranks + s] : nullptr;
    /* Before: what earlier senders have of it: of every expert for this rank as a sender, of own experts for
     * others. */
    uint32_t before = f.e >= 0 && s == task.rank ? (uint32_t)task.before_me[f.e]
                      : run != nullptr           ? (uint32_t)run->first
                                                 : 0;
#pragma unroll 1
    for (int32_t v = 0; f.e >= 0 && s == task.rank && v < task.splits; v++)
        routed += (uint32_t)counts.at(task.rank * task.splits + v, f.e);
    uint32_t sum[WALK_SUMS] = {rows, (uint32_t)task.aligned(total), total, before, routed}, all[WALK_SUMS];
    block_before(sum, all, shared.sums);
    uint32_t cursor = walk.cursor + sum[0], begin = walk.rows + sum[1];
    shared.cursor[x] = cursor, shared.rows[x] = begin;
    shared.total[x] = walk.total + sum[2], shared.before[x] = walk.before + sum[3];
    __syncthreads();
    uint32_t head = f.first >= i0 ? shared.rows[f.first - i0] : walk.head, row = begin - head;
    if (i == end - 1)
        shared.head = head;
    if (run != nullptr) {
        run->first += row;
        run->row = cursor;
    }
    if (f.e >= 0 && s == task.rank) {
        set_send_run(task, i, f, cursor, row, (int32_t)rows, (int32_t)before);
        if (task.experts > (int32_t)blockDim.x)
            task.wanted[i] = (int64_t)((uint64_t)shared.before[x] << 32 | shared.total[x]);
    }
    walk.cursor += all[0], walk.rows += all[1], walk.total += all[2], walk.before += all[3],
        walk.routed += all[4];
    __syncthreads();
    walk.head = shared.head;
    if (task.args.rank_wire)
        note_borders(task, shared, s, i0, end, walk);
}

/* Sums at entry x of this rank's walk, which is over: of its rows, of all rows, and of those of earlier
 * senders. */
struct border {
    uint32_t cursor, total, before;

    __device__ border(const ragged_task &task, const entry_walk &walk, const walk_shared &shared, int32_t x)
    {
        if (x >= task.experts) {
            cursor = walk.cursor, total = walk.total, before = walk.before;
        } else if (task.experts <= (int32_t)blockDim.x) {
            cursor = shared.cursor[x], total = shared.total[x], before = shared.before[x];
        } else {
            uint64_t both = (uint64_t)task.wanted[x];
            cursor = (uint32_t)task.args.send_runs[x].first, total = (uint32_t)both,
            before = (uint32_t)(both >> 32);
        }
    }
};

/* Regions of this rank's return rows, by pair; by the threads from `first` on. */
__device__ inline void lay_regions(const ragged_task &task, const entry_walk &walk, const walk_shared &shared,
                                   int32_t first)
{
    const epx_k_ragged_layout_t &args = task.args;
    int32_t pairs = task.order.chunks * task.ranks, step = (int32_t)blockDim.x - first;
#pragma unroll 1
    for (int32_t q = (int32_t)threadIdx.x - first; q >= 0 && q < pairs; q += step) {
        border from(task, walk, shared, task.order.first[q]), to(task, walk, shared, task.order.first[q + 1]);
        int32_t rows = (int32_t)(to.cursor - from.cursor), d = q % task.ranks;
        args.home_start[q] = from.cursor;
        args.home_count[q] = rows;
        if (!args.rank_wire)
            continue;
        int64_t base = (uint32_t)(to.before - from.before);
        args.base[q] = base;
        args.list_runs[q] = {from.cursor, base, d, rows};
        args.head_runs[q] = {q, task.rank, d, 1};
    }
}

/* What each wave moves, and the head's counts; by one warp. */
__device__ inline void lay_waves(const ragged_task &task, const entry_walk &walk, const walk_shared &shared)
{
    const epx_k_ragged_layout_t &args = task.args;
    int64_t kept = 0;
#pragma unroll 1
    for (int32_t c = lane_id(); c < task.order.chunks; c += WARP) {
        const int32_t *first = task.order.first + c * task.ranks;
        border begin(task, walk, shared, first[0]), end(task, walk, shared, first[task.ranks]);
        border from(task, walk, shared, first[task.rank]), to(task, walk, shared, first[task.rank + 1]);
        uint32_t own = to.cursor - from.cursor, here = to.total - from.total,
                 sent = end.cursor - begin.cursor - own;
        args.wave[c] = {args.rank_wire ? 0 : (int64_t)sent, sent, here - own};
        kept += here;
    }
#pragma unroll 1
    for (int32_t d = WARP / 2; d > 0; d /= 2)
        kept += __shfl_xor_sync(ALL, kept, d);
    if (lane_id() == 0) {
        args.verdict.head->kept = kept;
        args.verdict.head->routed = walk.routed;
        args.verdict.head->dropped_sender = (int64_t)walk.routed - walk.cursor;
    }
}

/* One block: all about sender s. first: the facts of this thread's entry of the first chunk. */
__device__ inline void lay_sender(const ragged_task &task, const count_table &counts, int32_t s,
                                  const entry_facts &first, walk_shared &shared)
{
    entry_walk walk;
#pragma unroll 1
    for (int32_t i0 = 0; i0 < task.experts; i0 += (int32_t)blockDim.x)
        walk_entries(task, counts, s, i0, i0 == 0 ? first : entry_facts(task, i0 + (int32_t)threadIdx.x),
                     walk, shared);
    if (s != task.rank)
        return;
    __syncthreads();
    if (threadIdx.x < WARP)
        lay_waves(task, walk, shared);
    else
        lay_regions(task, walk, shared, WARP);
    __syncthreads();
}

/* One block: start and count of this rank's experts in wave c. Experts of other waves stand at the end of the
 * rows before. */
__device__ inline void lay_batch(const ragged_task &task, int32_t c, walk_shared &shared)
{
    int32_t first = task.real.first[task.rank], experts = task.real.first[task.rank + 1] - first;
    int64_t *start = task.args.start + (int64_t)c * task.args.local_experts_max;
    int64_t *count = task.args.count + (int64_t)c * task.args.local_experts_max;
    uint32_t before = 0;
#pragma unroll 1
    for (int32_t l0 = 0; l0 < task.args.local_experts_max; l0 += (int32_t)blockDim.x) {
        int32_t l = l0 + (int32_t)threadIdx.x, e = l < experts ? task.real.expert[first + l] : -1;
        int64_t rows = e >= 0 && task.order.wave[e] == c ? task.total[e] : 0;
        uint32_t sum[WALK_SUMS] = {(uint32_t)task.aligned(rows)}, all[WALK_SUMS];
        block_before(sum, all, shared.sums);
        if (l < task.args.local_experts_max) {
            start[l] = e >= 0 ? before + sum[0] : 0;
            count[l] = rows;
        }
        before += all[0];
    }
}

} // namespace epx

#endif
