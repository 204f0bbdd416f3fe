/*
 * pooled_gate1: who travels, in which wave and slot; one cluster for each virtual sender.
 * SPDX-License-Identifier: Apache-2.0
 *
 * An assignment's ordinal among those to its destination decides alone: kept below room = limit * W. What is
 * refused proposes its further choices in rounds, and takes ordinals behind what the destination has kept.
 */
#include "kernels/cuda/pooled.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

enum { TABLES = 3 };

static __device__ __noinline__ int32_t column_of(int32_t a, int32_t columns) { return a % columns; }

/* One sender at work; the tables [N] are shared memory of each block, equal in all. */
struct gate {
    const epx_k_pooled_gate1_t &args;
    const pooled_layout &layout;
    const team &our;
    int32_t sender;
    int64_t first, end; /* tokens */
    uint32_t *room, *taken, *block;
    int64_t valid, refused, spilled;
};

struct gate_shared {
    int64_t room[WARP];
    unsigned long long valid; /* of this block's share */
    int64_t valid_all;
};

__device__ inline int32_t place_at(const gate &g, int32_t d, uint32_t ordinal)
{
    uint32_t waves = (uint32_t)g.layout.waves;
    return (int32_t)(ordinal % waves) * g.layout.home_rows + (int32_t)(g.block[d] + ordinal / waves);
}

/* V(s) of the whole cluster, by one warp behind its barrier. */
__device__ inline void add_up_valid_of(const team &our, gate_shared &shared)
{
    int64_t sum = lane_id() < our.blocks ? (int64_t)*our.at(&shared.valid, lane_id()) : 0;
    for (int32_t d = CLUSTER_MAX / 2; d > 0; d /= 2)
        sum += __shfl_xor_sync(ALL, sum, d);
    if (lane_id() == 0)
        shared.valid_all = sum;
}

/* Rooms of a range of destinations, and what they take of the first choices. */
__device__ inline void open_gates(gate &g, const ordinals &o, int32_t from, int64_t *room)
{
    rule r = pooled_rule(g.layout);
    int64_t refused = 0;
    for (int32_t k = (int32_t)threadIdx.x; k < o.keys; k += (int32_t)blockDim.x) {
        int32_t d = from + k;
        int64_t most = pooled_sender_limit(r, local_experts_of(g.layout, d), g.valid) * r.waves;
        g.room[d] = (uint32_t)min(most, (int64_t)INT32_MAX);
        g.taken[d] = min(o.all[k], g.room[d]);
        g.block[d] = (uint32_t)pooled_block(g.layout, g.sender, d);
        refused += o.all[k] - g.taken[d];
    }
    g.refused += block_sum(refused, room);
}

__device__ inline void first_choices(gate &g, uint32_t *counters, int32_t range, gate_shared &shared)
{
    const epx_k_pooled_gate1_t &args = g.args;
    int32_t columns = g.layout.columns, top_k = g.layout.top_k;
    share items(g.our, (int32_t)(g.first * columns), (int32_t)(g.end * columns));
    for (int32_t from = 0; from < g.layout.virtual_ranks; from += range) {
        ordinals o(counters, min(g.layout.virtual_ranks - from, range));
        uint32_t valid = 0;
        auto destination = [&](int32_t a) {
            int32_t e = columns == top_k || column_of(a, columns) < top_k ? args.expert[a] : -1;
            return e >= 0 ? g.layout.owner[e] : -1;
        };
        auto key = [&](int32_t a) {
            int32_t d = destination(a);
            return d >= 0 ? d - from : -1;
        };
        if (from > 0)
            g.our.sync();
        held_items held;
        count_items(
            o, items,
            [&](int32_t a) {
                int32_t d = destination(a);
                valid += d >= 0;
                return d >= 0 ? d - from : -1;
            },
            held);
        if (from == 0) {
            valid = __reduce_add_sync(ALL, valid);
            if (lane_id() == 0)
                atomicAdd(&shared.valid, (unsigned long long)valid);
        }
        add_up_items(o, g.our, [&] {
            if (from == 0 && threadIdx.x < WARP)
                add_up_valid_of(g.our, shared);
        });
        g.valid = shared.valid_all;
        open_gates(g, o, from, shared.room);
        place_items(
            o, items, key,
            [&](int32_t a, int32_t k, int32_t ordinal) {
                if (ordinal >= 0)
                    args.place[a] =
                        (uint32_t)ordinal < g.room[from + k] ? place_at(g, from + k, (uint32_t)ordinal) : -1;
                else if (from == 0)
                    args.place[a] = -1;
            },
            held);
    }
}

/* The destination that token t proposes in round x, or -1. Places of earlier rounds are visible. */
__device__ inline int32_t proposal(const gate &g, int32_t t, int32_t x)
{
    int64_t row = (int64_t)t * g.layout.columns;
    int32_t e = g.args.expert[row + g.layout.top_k + x], refused = 0;
    for (int32_t k = 0; k < g.layout.top_k; k++)
        refused += g.args.expert[row + k] >= 0 && g.args.place[row + k] < 0;
    for (int32_t k = g.layout.top_k; k < g.layout.top_k + x; k++)
        refused -= g.args.place[row + k] >= 0;
    return e >= 0 && refused > 0 ? g.layout.owner[e] : -1;
}

__device__ inline void spill_round(gate &g, uint32_t *counters, int32_t range, int32_t x, int64_t *room)
{
    share tokens(g.our, (int32_t)g.first, (int32_t)g.end);
    for (int32_t from = 0; from < g.layout.virtual_ranks; from += range) {
        ordinals o(counters, min(g.layout.virtual_ranks - from, range));
        auto key = [&](int32_t t) {
            int32_t d = proposal(g, t, x);
            return d >= 0 ? d - from : -1;
        };
        g.our.sync();
        held_items held;
        count_items(o, tokens, key, held);
        add_up_items(o, g.our);
        place_items(
            o, tokens, key,
            [&](int32_t t, int32_t k, int32_t ordinal) {
                if (ordinal < 0)
                    return;
                uint32_t number = g.taken[from + k] + (uint32_t)ordinal;
                if (number < g.room[from + k])
                    g.args.place[(int64_t)t * g.layout.columns + g.layout.top_k + x] =
                        place_at(g, from + k, number);
            },
            held);
        int64_t more = 0;
        __syncthreads();
        for (int32_t k = (int32_t)threadIdx.x; k < o.keys; k += (int32_t)blockDim.x) {
            uint32_t now = min(g.taken[from + k] + o.all[k], g.room[from + k]);
            more += now - g.taken[from + k];
            g.taken[from + k] = now;
        }
        g.spilled += block_sum(more, room);
    }
}

__device__ inline void add_result(const gate &g, int64_t *to, int64_t value)
{
    if (g.layout.splits == 1)
        *to = value;
    else
        atomicAdd((unsigned long long *)to, (unsigned long long)value);
}

/* One thread of a sender. */
__device__ inline void write_results(const gate &g)
{
    epx_plan_head_t *head = g.args.verdict.head;
    g.args.valid[g.sender] = g.valid;
    add_result(g, &head->routed, g.valid);
    add_result(g, &head->skipped, (g.end - g.first) * g.layout.top_k - g.valid);
    add_result(g, &head->dropped_sender, g.refused - g.spilled);
    add_result(g, &head->spilled, g.spilled);
    if (g.sender == 0) {
        head->tokens = g.args.notice->tokens;
        head->valid = 1;
    }
}

/* The notice is bad: nothing travels but headers, which say why. */
__device__ inline void die(const epx_k_pooled_gate1_t &args, const pooled_layout &layout, int32_t sender)
{
    args.valid[sender] = 0;
    if (sender == 0)
        verdict_dead(args.verdict, notice_status(args.notice), layout.rank, args.notice);
}

__global__ void __launch_bounds__(ROUTE_THREADS, 1)
    pooled_gate1(const __grid_constant__ epx_k_pooled_gate1_t args,
                 const __grid_constant__ pooled_layout layout, int32_t range)
{
    extern __shared__ uint32_t tables[];
    __shared__ gate_shared shared;
    team our;
    behind_previous();
    let_next_begin();
    int32_t i = our.index(), ranks = layout.virtual_ranks;
    if (args.notice->bad_at != EPX_NOTICE_GOOD) {
        if (our.thread() == 0)
            die(args, layout, i);
        return; /* all blocks do */
    }
    int64_t tokens = args.notice->tokens, first = split_first(i, tokens, layout.splits);
    int64_t end = split_first(i + 1, tokens, layout.splits);
    gate g = {args, layout, our, i, first, end, tables, tables + ranks, tables + 2 * ranks, 0, 0, 0};
    if (threadIdx.x == 0)
        shared.valid = 0;
    __syncthreads();
    first_choices(g, tables + TABLES * ranks, range, shared);
    for (int32_t x = 0; x < layout.columns - layout.top_k && g.spilled < g.refused; x++)
        spill_round(g, tables + TABLES * ranks, range, x, shared.room);
    if (our.thread() == 0)
        write_results(g);
    our.sync();
}

/* Several senders: each adds its own. */
__global__ void clear_results(const __grid_constant__ epx_k_pooled_gate1_t args)
{
    epx_plan_head_t *head = args.verdict.head;
    if (args.notice->bad_at == EPX_NOTICE_GOOD)
        head->routed = head->skipped = head->dropped_sender = head->spilled = 0;
}

launch_site site;

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_pooled_gate1(const epx_k_pooled_gate1_t *args, epx_stream_t stream)
{
    using namespace epx;
    const pooled_layout &layout = *args->layout;
    ordinals_plan plan;
    if (!plan_pooled(layout.virtual_ranks, TABLES, layout.virtual_ranks, &plan))
        return epx_fail(EPX_ERR_UNSUPPORTED, "cuda: pooled_wave has no room for the tables of %d ranks",
                        layout.virtual_ranks);
    int blocks = cluster_for(cluster_limit(site, pooled_gate1),
                             layout.assignments_max / layout.top_k * layout.columns);
    epx_status_t status = EPX_OK;
    if (layout.splits > 1)
        status = launch("pooled_gate1", {1, 1, 0, 1}, stream, clear_results, *args);
    if (status == EPX_OK)
        status = launch("pooled_gate1",
                        {blocks * layout.splits, plan.threads,
                         plan.bytes + TABLES * (size_t)layout.virtual_ranks * sizeof(uint32_t), blocks, true},
                        stream, pooled_gate1, *args, layout, (int32_t)plan.range);
    return status;
}
