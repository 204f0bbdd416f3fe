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

#include "kernels/cuda/ragged_layout.cuh"

namespace epx
{

/* Behind accept_expert, by the same gang: the totals of the expert, and for own experts what each sender has
 * before it. */
__device__ inline void add_up_expert(const ragged_task &task, const gang &g, int32_t e)
{
    bool mine = task.real.owner[e] == task.rank;
    int32_t slot = mine ? task.slot(task.order.wave[e], task.order.at[e]) : 0;
    int64_t before = 0;
    for (int32_t s0 = 0; s0 < task.ranks; s0 += g.lanes) {
        int32_t s = s0 + g.lane, rows = s < task.ranks ? task.accepted_of(s, e) : 0;
        int64_t through = g.through(rows), first = before + through - rows;
        if (s < task.ranks && mine)
            task.args.return_runs[(int64_t)slot * task.ranks + s] = {first, 0, s, rows};
        if (s == task.rank)
            task.before_me[e] = (int32_t)first;
        before += g.of_last(through);
    }
    if (g.lane == 0)
        task.total[e] = (int32_t)before;
}

/* Shared memory of the walks. */
struct walk_shared {
    block_sums<4> sums;
    uint32_t cursor[ROUTE_THREADS], rows[ROUTE_THREADS],
        before[ROUTE_THREADS]; /* of the entries of a chunk */
    uint32_t head;
    int64_t room[WARP];
};

/* What a block carries from one chunk of entries to the next: sums of all before, and where the last pair's
 * rows begin. */
struct entry_walk {
    uint32_t cursor = 0, rows = 0, total = 0, before = 0, head = 0;
    int64_t routed = 0; /* of this thread */
};

/* One thread's entry, when the sender is this rank. */
__device__ inline void set_send_run(const ragged_task &task, int32_t i, int32_t e, uint32_t cursor,
                                    uint32_t row, int32_t rows)
{
    task.args.send_runs[i] = {cursor, (int64_t)row + task.before_me[e], task.real.owner[e], rows};
    for (int32_t v = 0; v < task.splits; v++) {
        task.args.first_row[(int64_t)v * task.experts + e] = (int32_t)cursor;
        cursor += task.args.accepted[((int64_t)task.rank * task.splits + v) * task.experts + e];
    }
}

/* Rank wire: sums at the borders of the pair (c, this rank), kept where their differences will stand. */
__device__ inline void note_borders(const ragged_task &task, const walk_shared &shared, int32_t s, int32_t i0,
                                    int32_t end, const entry_walk &walk)
{
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

/* Entries i0 .. i0 + blockDim - 1 for sender s. */
__device__ inline void walk_entries(const ragged_task &task, const count_table &counts, int32_t s, int32_t i0,
                                    entry_walk &walk, walk_shared &shared)
{
    int32_t x = (int32_t)threadIdx.x, i = i0 + x, end = min(i0 + (int32_t)blockDim.x, task.experts);
    int32_t e = i < end ? task.order.expert[i] : -1, d = e >= 0 ? task.real.owner[e] : -1,
            c = e >= 0 ? task.order.wave[e] : 0;
    uint32_t rows = e >= 0 ? (uint32_t)task.accepted_of(s, e) : 0,
             total = e >= 0 ? (uint32_t)task.total[e] : 0;
    epx_run_t *run =
        d == task.rank ? &task.args.return_runs[(int64_t)task.slot(c, i) * task.ranks + s] : nullptr;
    /* Before: what earlier senders have of it: of every expert for this rank as a sender, of own experts for
     * others. */
    uint32_t before = e >= 0 && s == task.rank ? (uint32_t)task.before_me[e]
                      : run != nullptr         ? (uint32_t)run->first
                                               : 0;
    uint32_t sum[4] = {rows, (uint32_t)task.aligned(total), total, before}, all[4];
    block_before<4>(sum, all, shared.sums);
    uint32_t cursor = walk.cursor + sum[0], begin = walk.rows + sum[1];
    shared.cursor[x] = cursor, shared.rows[x] = begin, shared.before[x] = walk.before + sum[3];
    __syncthreads();
    int32_t first = e >= 0 ? task.order.first[c * task.ranks + d] : i0;
    uint32_t head = first >= i0 ? shared.rows[first - i0] : walk.head, row = begin - head;
    if (i == end - 1)
        shared.head = head;
    if (e >= 0 && s == task.rank) {
        set_send_run(task, i, e, cursor, row, (int32_t)rows);
        task.wanted[i] = (int64_t)((uint64_t)(walk.before + sum[3]) << 32 | (uint32_t)(walk.total + sum[2]));
        for (int32_t v = 0; v < task.splits; v++)
            walk.routed += counts.at(task.rank * task.splits + v, e);
    }
    if (run != nullptr) {
        run->first += row;
        run->row = cursor;
    }
    walk.cursor += all[0], walk.rows += all[1], walk.total += all[2], walk.before += all[3];
    __syncthreads();
    walk.head = shared.head;
    if (task.args.rank_wire)
        note_borders(task, shared, s, i0, end, walk);
}

/* Sums at entry x of this rank's walk, which is over: of its rows, of all rows, and of those of earlier
 * senders. */
struct border {
    uint32_t cursor, total, before;

    __device__ border(const ragged_task &task, const entry_walk &walk, int32_t x)
    {
        uint64_t both = x < task.experts ? (uint64_t)task.wanted[x] : 0;
        cursor = x < task.experts ? (uint32_t)task.args.send_runs[x].first : walk.cursor;
        total = x < task.experts ? (uint32_t)both : walk.total;
        before = x < task.experts ? (uint32_t)(both >> 32) : walk.before;
    }
};

/* Regions of this rank's return rows, by pair. */
__device__ inline void lay_regions(const ragged_task &task, const entry_walk &walk)
{
    const epx_k_ragged_layout_t &args = task.args;
    for (int32_t q = (int32_t)threadIdx.x; q < task.order.chunks * task.ranks; q += (int32_t)blockDim.x) {
        border from(task, walk, task.order.first[q]), to(task, walk, task.order.first[q + 1]);
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

/* What each wave moves, and the head's counts. */
__device__ inline void lay_waves(const ragged_task &task, const entry_walk &walk, walk_shared &shared)
{
    const epx_k_ragged_layout_t &args = task.args;
    int64_t kept = 0;
    for (int32_t c = (int32_t)threadIdx.x; c < task.order.chunks; c += (int32_t)blockDim.x) {
        const int32_t *first = task.order.first + c * task.ranks;
        border begin(task, walk, first[0]), end(task, walk, first[task.ranks]);
        border from(task, walk, first[task.rank]), to(task, walk, first[task.rank + 1]);
        uint32_t own = to.cursor - from.cursor, here = to.total - from.total,
                 sent = end.cursor - begin.cursor - own;
        args.wave[c] = {args.rank_wire ? 0 : (int64_t)sent, sent, here - own};
        kept += here;
    }
    kept = block_sum(kept, shared.room);
    int64_t routed = block_sum(walk.routed, shared.room);
    if (threadIdx.x == 0) {
        args.verdict.head->kept = kept;
        args.verdict.head->routed = routed;
        args.verdict.head->dropped_sender = routed - walk.cursor;
    }
}

/* One block: all about sender s. */
__device__ inline void lay_sender(const ragged_task &task, const count_table &counts, int32_t s,
                                  walk_shared &shared)
{
    entry_walk walk;
    for (int32_t i0 = 0; i0 < task.experts; i0 += (int32_t)blockDim.x)
        walk_entries(task, counts, s, i0, walk, shared);
    if (s != task.rank)
        return;
    __syncthreads();
    lay_regions(task, walk);
    lay_waves(task, walk, shared);
}

/* One block: start and count of this rank's experts in wave c. Experts of other waves stand at the end of the
 * rows before. */
__device__ inline void lay_batch(const ragged_task &task, int32_t c, walk_shared &shared)
{
    int32_t first = task.real.first[task.rank], experts = task.real.first[task.rank + 1] - first;
    int64_t *start = task.args.start + (int64_t)c * task.args.local_experts_max;
    int64_t *count = task.args.count + (int64_t)c * task.args.local_experts_max;
    uint32_t before = 0;
    for (int32_t l0 = 0; l0 < task.args.local_experts_max; l0 += (int32_t)blockDim.x) {
        int32_t l = l0 + (int32_t)threadIdx.x, e = l < experts ? task.real.expert[first + l] : -1;
        int64_t rows = e >= 0 && task.order.wave[e] == c ? task.total[e] : 0;
        uint32_t sum[4] = {(uint32_t)task.aligned(rows), 0, 0, 0}, all[4];
        block_before<4>(sum, all, shared.sums);
        if (l < task.args.local_experts_max) {
            start[l] = e >= 0 ? before + sum[0] : 0;
            count[l] = rows;
        }
        before += all[0];
    }
}

} // namespace epx

#endif
