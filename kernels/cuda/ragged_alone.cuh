/*
 * ragged's decisions by one block, for groups whose counts fit its shared memory. SPDX-License-Identifier:
 * Apache-2.0
 *
 * The same chains as in accept.cuh and ragged_runs.cuh, but with a thread for each expert, so that no table
 * is read twice from global memory and barriers are those of a block. The rule `fair` and larger groups take
 * the other way.
 */
#ifndef EPX_KERNELS_CUDA_RAGGED_ALONE_CUH
#define EPX_KERNELS_CUDA_RAGGED_ALONE_CUH

#include "kernels/cuda/ragged_runs.cuh"

namespace epx
{

/* Shared memory: tables by expert, by entry of the order, and by place in the virtual owners' list. */
struct alone_shared {
    block_sums<3> sums;
    block_sums<1> room_sums;
    block_sums<1, unsigned long long> wanted_sums;
    uint32_t routed;                                         /* by this rank */
    unsigned long long wanted[ROUTE_THREADS + 1];            /* by place: wanted of the experts before */
    uint32_t total[ROUTE_THREADS], before_me[ROUTE_THREADS]; /* by expert */
    int32_t expert[ROUTE_THREADS], slot[ROUTE_THREADS];      /* by entry */
    uint32_t row[ROUTE_THREADS];                             /* by entry: first row in the batch */
    uint32_t local_rows[ROUTE_THREADS];                      /* by own expert: rows */
    int32_t local_wave[ROUTE_THREADS];                       /* and wave */
    walk_shared walk;
};

/* One block at work; n: [N, E] counts, which become what is accepted. */
struct alone {
    const ragged_task &task;
    alone_shared &shared;
    int32_t *n;

    /* First entry of this rank's own experts in wave c. */
    __device__ int32_t border(int32_t c) const { return task.order.first[c * task.ranks + task.rank]; }
    __device__ int32_t accepted_of(int32_t s, int32_t e) const
    {
        if (task.splits == 1)
            return n[s * task.experts + e];
        int32_t rows = 0;
#pragma unroll 1
        for (int32_t v = s * task.splits; v < (s + 1) * task.splits; v++)
            rows += n[v * task.experts + e];
        return rows;
    }
};

__device__ inline void load_counts(const alone &a, const count_table &counts)
{
    int32_t experts = a.task.experts, e = (int32_t)threadIdx.x;
#pragma unroll 4
    for (int32_t s = 0; e < experts && s < a.task.accept.ranks; s++)
        a.n[s * experts + e] = counts.at(s, e);
    if (e == 0)
        a.shared.routed = 0;
}

/* How many rows the expert at `place.at` takes; thread by thread. wanted[x]: of the experts before place x.
 */
template <typename W>
__device__ inline int64_t quota_in(const rule &r, const W *wanted, const chunk_place &place,
                                   int64_t valid_all)
{
    auto of = [&](int32_t x) { return (int64_t)(wanted[x + 1] - wanted[x]); };
    int64_t mine = of(place.at), before = 0, slack = 0;
    if (r.accept != EPX_ACCEPT_WATERFILL)
        return clamp(ragged_capacity(r, place.end - place.first, valid_all) -
                         (int64_t)(wanted[place.at] - wanted[place.first]),
                     0, mine);
    int64_t share = even_share(r, valid_all), base = min(mine, share);
#pragma unroll 1
    for (int32_t x = place.first; x < place.end; x++) {
        slack += share - min(of(x), share);
        before += x < place.at ? of(x) - min(of(x), share) : 0;
    }
    return base + clamp(slack - before, 0, mine - base);
}

/* Senders ascending take the quota of expert e. */
__device__ inline void take_alone(const alone &a, int32_t e, int64_t quota)
{
    int32_t experts = a.task.experts, ranks = a.task.accept.ranks, mine = a.task.rank * a.task.splits;
    int64_t through = 0;
    uint32_t before = 0, before_me = 0;
#pragma unroll 1
    for (int32_t s = 0; s < ranks; s++) {
        through += a.n[s * experts + e];
        uint32_t end = (uint32_t)min(quota, through);
        before_me = s == mine ? before : before_me;
        a.n[s * experts + e] = (int32_t)(end - before);
        if (s >= mine && s < mine + a.task.splits)
            a.task.args.accepted[(int64_t)s * experts + e] = (int32_t)(end - before);
        before = end;
    }
    a.shared.total[e] = (uint32_t)quota;
    a.shared.before_me[e] = before_me;
}

/* What is wanted and taken of all experts; place: of this thread. Returns this thread's part of what this
 * rank routed. */
__device__ inline uint32_t accept_alone(const alone &a, int32_t e, const chunk_place &place)
{
    int32_t experts = a.task.experts, ranks = a.task.accept.ranks, x = (int32_t)threadIdx.x;
    int32_t mine = a.task.rank * a.task.splits;
    unsigned long long sum[1] = {0}, all[1];
    uint32_t routed = 0;
#pragma unroll 1
    for (int32_t s = 0; x < experts && s < ranks; s++) {
        int32_t want = a.n[s * experts + e];
        sum[0] += (unsigned long long)want;
        routed += s >= mine && s < mine + a.task.splits ? (uint32_t)want : 0;
    }
    block_before(sum, all, a.shared.wanted_sums);
    if (x < experts)
        a.shared.wanted[x] = sum[0];
    if (x == 0)
        a.shared.wanted[experts] = all[0];
    __syncthreads();
    if (x < experts)
        take_alone(a, e, quota_in(a.task.accept, a.shared.wanted, place, (int64_t)all[0]));
    __syncthreads();
    return routed;
}

/* Runs of this rank as a sender, and of own experts but for the senders' cursors; one entry for each thread.
 */
__device__ inline entry_walk walk_alone(const alone &a, const entry_facts &f, int32_t local, uint32_t routed)
{
    const ragged_task &task = a.task;
    walk_shared &w = a.shared.walk;
    int32_t i = (int32_t)threadIdx.x;
    uint32_t rows = 0, total = 0, before = 0;
    if (f.e >= 0)
        rows = (uint32_t)a.accepted_of(task.rank, f.e), total = a.shared.total[f.e],
        before = a.shared.before_me[f.e];
    uint32_t sum[3] = {rows, total, before}, all[3];
    routed = __reduce_add_sync(ALL, routed);
    if (lane_id() == 0 && routed != 0)
        atomicAdd(&a.shared.routed, routed);
    block_before(sum, all, a.shared.sums);
    uint32_t begin = sum[1];
    if (task.align != 1) {
        uint32_t room[1] = {(uint32_t)task.aligned(total)}, ignored[1];
        block_before(room, ignored, a.shared.room_sums);
        begin = room[0];
    }
    w.cursor[i] = sum[0], w.rows[i] = begin, w.total[i] = sum[1], w.before[i] = sum[2];
    __syncthreads();
    uint32_t row = begin - w.rows[f.first];
    a.shared.row[i] = row;
    a.shared.expert[i] = f.e;
    a.shared.slot[i] = f.slot;
    if (f.slot >= 0)
        a.shared.local_rows[local] = total, a.shared.local_wave[local] = f.c;
    if (f.e >= 0) {
        int64_t place = (int64_t)row + before;
        uint32_t cursor = sum[0];
        task.args.send_runs[i] = {cursor, place, f.d, (int32_t)rows};
        task.before_me[f.e] = (int32_t)(place - cursor - (int64_t)f.c * task.most);
#pragma unroll 1
        for (int32_t v = 0; v < task.splits; v++) {
            task.args.first_row[(int64_t)v * task.experts + f.e] = (int32_t)cursor;
            cursor += (uint32_t)a.n[(task.rank * task.splits + v) * task.experts + f.e];
        }
    }
    uint32_t first = row;
#pragma unroll 1
    for (int32_t s = 0; f.slot >= 0 && s < task.ranks; s++) {
        epx_run_t *run = &task.args.return_runs[(int64_t)f.slot * task.ranks + s];
        int32_t of_sender = a.accepted_of(s, f.e);
        run->first = first;
        run->peer = s;
        run->rows = of_sender;
        first += (uint32_t)of_sender;
    }
    entry_walk walk;
    walk.cursor = all[0], walk.total = all[1], walk.before = all[2], walk.routed = a.shared.routed;
    __syncthreads();
    return walk;
}

/* One warp: the cursors of sender s at own experts, and where its rows for each wave's begin; a lane walks
 * neighbouring entries. */
__device__ inline void cursors_alone(const alone &a, int32_t s)
{
    const ragged_task &task = a.task;
    int32_t each = (task.experts + WARP - 1) / WARP, from = min(lane_id() * each, task.experts),
            to = min(from + each, task.experts), c = 0;
    uint32_t rows = 0;
#pragma unroll 1
    for (int32_t i = from; i < to; i++)
        rows += (uint32_t)a.accepted_of(s, a.shared.expert[i]);
    uint32_t through = (uint32_t)warp_inclusive((int32_t)rows), cursor = through - rows;
    bool is_last = to == task.experts;
#pragma unroll 1
    for (int32_t i = from; i <= to && (i < to || is_last); i++) {
#pragma unroll 1
        for (; task.args.rank_wire && c < task.order.chunks && a.border(c) <= i; c++)
            if (a.border(c) == i && (i < to || from < to || lane_id() == 0))
                task.args.back_runs[c * task.ranks + s].row = cursor;
        if (i == to)
            break;
        if (a.shared.slot[i] >= 0)
            task.args.return_runs[(int64_t)a.shared.slot[i] * task.ranks + s].row = cursor;
        cursor += (uint32_t)a.accepted_of(s, a.shared.expert[i]);
    }
}

/* One warp, rank wire: the room that sender s's rows have here in wave c, behind earlier senders'. */
__device__ inline void room_alone(const alone &a, int32_t c, int32_t s)
{
    const ragged_task &task = a.task;
    uint32_t before = 0, room = 0;
    int32_t end = task.order.first[c * task.ranks + task.rank + 1];
#pragma unroll 1
    for (int32_t i = a.border(c) + lane_id(); i < end; i += WARP) {
        int32_t e = a.shared.expert[i];
#pragma unroll 1
        for (int32_t r = 0; r < s; r++)
            before += (uint32_t)a.accepted_of(r, e);
        room += (uint32_t)a.accepted_of(s, e);
    }
    before = __reduce_add_sync(ALL, before);
    room = __reduce_add_sync(ALL, room);
    if (lane_id() != 0)
        return;
    int32_t at = c * task.ranks + s;
    epx_run_t *back = &task.args.back_runs[at];
    task.args.wire_start[at] = back->first = before;
    task.args.wire_room[at] = room;
    back->peer = s;
    back->rows = (int32_t)room;
}

/* One warp: start and count of this rank's experts in wave c. rows_of, wave_of: by own expert. */
__device__ inline void lay_batch_by_warp(const ragged_task &task, int32_t c, const uint32_t *rows_of,
                                         const int32_t *wave_of)
{
    int32_t experts = task.real.first[task.rank + 1] - task.real.first[task.rank],
            most = task.args.local_experts_max;
    int64_t *start = task.args.start + (int64_t)c * most, *count = task.args.count + (int64_t)c * most;
    uint32_t before = 0;
#pragma unroll 1
    for (int32_t l0 = 0; l0 < most; l0 += WARP) {
        int32_t l = l0 + lane_id();
        uint32_t rows = l < experts && wave_of[l] == c ? rows_of[l] : 0, room = (uint32_t)task.aligned(rows);
        uint32_t through = (uint32_t)warp_inclusive((int32_t)room);
        if (l < most) {
            start[l] = l < experts ? before + through - room : 0;
            count[l] = rows;
        }
        before += __shfl_sync(ALL, through, WARP - 1);
    }
}

/* What is static about a thread's expert, by place and by entry; loaded while the notices are looked at. */
struct alone_facts {
    int32_t e, local; /* expert at the thread's place, or -1; ordinal of the entry's expert at its owner */
    chunk_place place;
    entry_facts entry;

    __device__ alone_facts(const ragged_task &task, int32_t x)
        : e(-1), local(0), place{0, 0, 0}, entry(task, x)
    {
        if (x >= task.experts)
            return;
        e = task.virt.expert[x];
        place = chunk_of(task.accept, task.virt, x, e, task.order.wave[e]);
        local = task.real.local[entry.e];
    }
};

/* All that the counts decide, by one block of as many threads as there are experts or more. */
__device__ inline void decide_alone(const alone &a, const count_table &counts, const alone_facts &f)
{
    const ragged_task &task = a.task;
    load_counts(a, counts);
    __syncthreads();
    uint32_t routed = accept_alone(a, f.e, f.place);
    entry_walk walk = walk_alone(a, f.entry, f.local, routed);
    int32_t warps = (int32_t)(blockDim.x / WARP), chunks = task.order.chunks, S = task.ranks;
    int32_t jobs = 1 + chunks + S + (task.args.rank_wire ? chunks * S : 0);
#pragma unroll 1
    for (int32_t job = (int32_t)threadIdx.x / WARP; job < jobs; job += warps) {
        if (job == 0)
            lay_waves(task, walk, a.shared.walk);
        else if (job <= chunks)
            lay_batch_by_warp(task, job - 1, a.shared.local_rows, a.shared.local_wave);
        else if (job <= chunks + S)
            cursors_alone(a, job - 1 - chunks);
        else
            room_alone(a, (job - 1 - chunks - S) / S, (job - 1 - chunks - S) % S);
    }
    lay_regions(task, walk, a.shared.walk, 0);
    __syncthreads();
}

} // namespace epx

#endif
