/*
 * ragged's layout: from what is accepted to runs, regions and batches. SPDX-License-Identifier: Apache-2.0
 *
 * The host walks the experts in the order of a pass (wave, owner, id) with a cursor for each sender. The
 * cursor of sender s at an entry is the sum of what s has accepted at the entries before, and the row that an
 * expert begins with in its owner's batch is the sum of the aligned totals of the entries before it in its
 * pair (wave, owner): one warp for each sender finds both by prefix sums over the entries.
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

/* What a warp carries from 32 entries to the next. */
struct entry_walk {
    int64_t cursor = 0; /* return row of sender s */
    int64_t rows = 0;   /* aligned rows of all entries before */
    int64_t head = 0;   /* `rows` at the beginning of the pair */
    int64_t kept = 0, routed = 0;
};

/* One lane's entry, when the sender is this rank. */
__device__ inline void set_send_run(const ragged_task &task, int32_t i, int32_t e, int64_t cursor,
                                    int64_t row, int32_t rows)
{
    task.args.send_runs[i] = {cursor, row + task.before_me[e], task.real.owner[e], rows};
    for (int32_t v = 0; v < task.splits; v++) {
        task.args.first_row[(int64_t)v * task.experts + e] = (int32_t)cursor;
        cursor += task.args.accepted[((int64_t)task.rank * task.splits + v) * task.experts + e];
    }
}

__device__ inline int64_t counted_of_me(const ragged_task &task, const count_table &counts, int32_t e)
{
    int64_t rows = 0;
    for (int32_t v = 0; v < task.splits; v++)
        rows += counts.at(task.rank * task.splits + v, e);
    return rows;
}

/* Entries i0 .. i0 + 31. Returns each lane's cursor. */
__device__ inline int64_t walk_entries(const ragged_task &task, const count_table &counts, int32_t s,
                                       int32_t i0, entry_walk &walk)
{
    int32_t i = i0 + lane_id(), e = i < task.experts ? task.order.expert[i] : -1;
    int32_t rows = e >= 0 ? task.accepted_of(s, e) : 0, total = e >= 0 ? task.total[e] : 0;
    int64_t room = task.aligned(total), cursor = warp_through(rows), begin = warp_through(room);
    int64_t next_cursor = walk.cursor + __shfl_sync(ALL, cursor, WARP - 1),
            next_rows = walk.rows + __shfl_sync(ALL, begin, WARP - 1);
    cursor += walk.cursor - rows;
    begin += walk.rows - room;
    int32_t c = e >= 0 ? task.order.wave[e] : 0, d = e >= 0 ? task.real.owner[e] : -1;
    bool is_head = e >= 0 && i == task.order.first[c * task.ranks + d];
    int64_t head = max(warp_max_through(is_head ? begin : 0), walk.head), row = begin - head;
    if (e >= 0 && s == task.rank)
        set_send_run(task, i, e, cursor, row, rows);
    if (d == task.rank) {
        epx_run_t *run = &task.args.return_runs[(int64_t)task.slot(c, i) * task.ranks + s];
        run->first += row;
        run->row = cursor;
    }
    if (s == task.rank && e >= 0) {
        walk.kept += d == task.rank ? total : 0;
        walk.routed += counted_of_me(task, counts, e);
    }
    walk.cursor = next_cursor;
    walk.rows = next_rows;
    walk.head = __shfl_sync(ALL, head, WARP - 1);
    return cursor;
}

/* Regions of this rank's return rows, by pair, and what each wave moves; behind its walk. `total`: all its
 * return rows. */
__device__ inline void lay_regions(const ragged_task &task, int64_t total)
{
    const epx_k_ragged_layout_t &args = task.args;
    const int32_t *first = task.order.first;
    auto cursor = [&](int32_t x) { return x < task.experts ? args.send_runs[x].first : total; };
    for (int32_t c = 0; c < task.order.chunks; c++) {
        int64_t sent = 0, received = 0;
        for (int32_t d = lane_id(); d < task.ranks; d += WARP) {
            int32_t q = c * task.ranks + d;
            int64_t begin = cursor(first[q]), rows = cursor(first[q + 1]) - begin;
            args.home_start[q] = begin;
            args.home_count[q] = rows;
            sent += d != task.rank ? rows : 0;
            if (!args.rank_wire)
                continue;
            int64_t base = 0;
            for (int32_t i = first[q]; i < first[q + 1]; i++)
                base += task.before_me[task.order.expert[i]];
            args.base[q] = base;
            args.list_runs[q] = {begin, base, d, (int32_t)rows};
            args.head_runs[q] = {q, task.rank, d, 1};
        }
        int32_t mine = c * task.ranks + task.rank;
        for (int32_t i = first[mine] + lane_id(); i < first[mine + 1]; i += WARP)
            received += task.total[task.order.expert[i]] - args.send_runs[i].rows;
        sent = warp_sum(sent);
        received = warp_sum(received);
        if (lane_id() == 0)
            args.wave[c] = {args.rank_wire ? 0 : sent, sent, received};
    }
}

/* Rank wire: where the wire rows of sender s stand in this rank's slot, wave by wave. Before the walk, which
 * changes runs. */
__device__ inline void lay_wire_room(const ragged_task &task, int32_t s)
{
    const epx_k_ragged_layout_t &args = task.args;
    int32_t slot = 0;
    for (int32_t c = 0; c < task.order.chunks; c++) {
        int32_t q = c * task.ranks + task.rank, n = task.order.first[q + 1] - task.order.first[q];
        int64_t base = 0, room = 0;
        for (int32_t x = lane_id(); x < n; x += WARP) {
            const epx_run_t &run = args.return_runs[(int64_t)(slot + x) * task.ranks + s];
            base += run.first;
            room += run.rows;
        }
        slot += n;
        base = warp_sum(base);
        room = warp_sum(room);
        if (lane_id() == 0) {
            args.wire_start[c * task.ranks + s] = base;
            args.wire_room[c * task.ranks + s] = room;
            args.back_runs[c * task.ranks + s] = {base, 0, s, (int32_t)room};
        }
    }
    __syncwarp();
}

/* One warp: all about sender s. */
__device__ inline void lay_sender(const ragged_task &task, const count_table &counts, int32_t s)
{
    const epx_k_ragged_layout_t &args = task.args;
    entry_walk walk;
    int32_t c = 0, chunks = args.rank_wire ? task.order.chunks : 0;
    if (args.rank_wire)
        lay_wire_room(task, s);
    for (int32_t i0 = 0; i0 < task.experts; i0 += WARP) {
        int64_t cursor = walk_entries(task, counts, s, i0, walk);
        for (; c < chunks && task.order.first[c * task.ranks + task.rank] < min(i0 + WARP, task.experts);
             c++) {
            int64_t began = __shfl_sync(ALL, cursor, task.order.first[c * task.ranks + task.rank] - i0);
            if (lane_id() == 0)
                args.back_runs[c * task.ranks + s].row = began;
        }
    }
    for (; c < chunks; c++)
        if (lane_id() == 0)
            args.back_runs[c * task.ranks + s].row = walk.cursor;
    if (s != task.rank)
        return;
    __syncwarp();
    lay_regions(task, walk.cursor);
    int64_t kept = warp_sum(walk.kept), routed = warp_sum(walk.routed);
    if (lane_id() == 0) {
        args.verdict.head->kept = kept;
        args.verdict.head->routed = routed;
        args.verdict.head->dropped_sender = routed - walk.cursor;
    }
}

/* One warp: start and count of this rank's experts in wave c. Experts of other waves stand at the end of the
 * rows before. */
__device__ inline void lay_batch(const ragged_task &task, int32_t c)
{
    int32_t first = task.real.first[task.rank], experts = task.real.first[task.rank + 1] - first;
    int64_t *start = task.args.start + (int64_t)c * task.args.local_experts_max, before = 0;
    int64_t *count = task.args.count + (int64_t)c * task.args.local_experts_max;
    for (int32_t l0 = 0; l0 < task.args.local_experts_max; l0 += WARP) {
        int32_t l = l0 + lane_id(), e = l < experts ? task.real.expert[first + l] : -1;
        int64_t rows = e >= 0 && task.order.wave[e] == c ? task.total[e] : 0, room = task.aligned(rows),
                through = warp_through(room);
        if (l < task.args.local_experts_max) {
            start[l] = e >= 0 ? before + through - room : 0;
            count[l] = rows;
        }
        before += __shfl_sync(ALL, through, WARP - 1);
    }
}

} // namespace epx

#endif
