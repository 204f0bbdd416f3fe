/*
 * ragged's rank wire: a token's assignments to one rank and wave travel as one row, with a list of the places
 * that it stands for. SPDX-License-Identifier: Apache-2.0
 *
 * Wire rows and list entries of a pair (wave, rank) are numbered in the order (token, k). Both are stable
 * ordinals with the pair as key; the wire rows count only the first of a token's assignments to the pair.
 * Assignments of one token are neighbours in a warp's 32 items, or, with more choices than that, follow each
 * other.
 */
#ifndef EPX_KERNELS_CUDA_RAGGED_WIRE_CUH
#define EPX_KERNELS_CUDA_RAGGED_WIRE_CUH

#include "kernels/cuda/ragged_layout.cuh"

namespace epx
{

/* The items of a warp: tokens first .. end - 1, by whole tokens or by 32 choices of one. */
struct token_steps {
    int32_t first, end, at_once; /* tokens of a step; 0: one token takes several steps */

    __device__ token_steps(const team &our, int32_t tokens, int32_t top_k)
    {
        at_once = top_k <= WARP ? WARP / top_k : 0;
        int32_t unit = max(at_once, 1),
                each = tokens > 0 ? ((tokens - 1) / our.warps() / unit + 1) * unit : 0;
        int64_t start = (int64_t)our.warp() * each;
        first = (int32_t)min(start, (int64_t)tokens);
        end = (int32_t)min(start + each, (int64_t)tokens);
    }
};

/* One lane's assignment. */
struct wire_item {
    int32_t t, k, q; /* q: its pair, -1: none or not kept */
    bool first;      /* the first of its token's to the pair */
};

__device__ inline int32_t pair_at(const ragged_task &task, int64_t a)
{
    return task.args.place[a] >= 0 ? task.pair(task.args.expert[a]) : -1;
}

__device__ inline wire_item item_at(const ragged_task &task, const token_steps &steps, int32_t t0, int32_t k0)
{
    int32_t t = t0, k = k0 + lane_id();
    if (steps.at_once > 0) {
        t = t0 + lane_id() / task.top_k;
        k = lane_id() < steps.at_once * task.top_k ? lane_id() % task.top_k : task.top_k;
    }
    wire_item item = {t, k, -1, false};
    if (t < steps.end && k < task.top_k)
        item.q = pair_at(task, (int64_t)t * task.top_k + k);
    if (steps.at_once > 0) {
        unsigned of_token = ((task.top_k == WARP ? 0 : 1u << task.top_k) - 1)
                            << (lane_id() - lane_id() % task.top_k);
        unsigned mates = __match_any_sync(ALL, item.q) & of_token;
        item.first = item.q >= 0 && lane_id() == __ffs(mates) - 1;
    } else if (item.q >= 0) {
        item.first = true;
        for (int32_t x = 0; x < k && item.first; x++)
            item.first = pair_at(task, (int64_t)t * task.top_k + x) != item.q;
    }
    return item;
}

/* Calls fn(item) for all steps of a warp, all lanes together. */
template <typename F>
__device__ inline void for_items(const ragged_task &task, const token_steps &steps, const F &fn)
{
    for (int32_t t0 = steps.first; t0 < steps.end; t0 += max(steps.at_once, 1))
        for (int32_t k0 = 0; k0 < (steps.at_once > 0 ? 1 : task.top_k); k0 += WARP)
            fn(item_at(task, steps, t0, k0));
}

/* How many of the token's assignments go to the item's pair, how many pairs it has, and how many come before
 * this one. */
struct token_view {
    int32_t entries, pairs, before;
};

__device__ inline token_view view_token(const ragged_task &task, const token_steps &steps,
                                        const wire_item &item)
{
    token_view view = {0, 0, 0};
    if (steps.at_once > 0) {
        int32_t lane0 = lane_id() - lane_id() % task.top_k;
        unsigned firsts = __ballot_sync(ALL, item.first);
        for (int32_t x = 0; x < task.top_k; x++) {
            int32_t other = __shfl_sync(ALL, item.q, min(lane0 + x, WARP - 1));
            bool first = lane0 + x < WARP && (firsts >> (lane0 + x) & 1);
            view.entries += other == item.q;
            view.pairs += first;
            view.before += first && other < item.q;
        }
        return view;
    }
    if (item.t >= steps.end || item.k >= task.top_k)
        return view;
    for (int32_t x = 0; x < task.top_k; x++) {
        int64_t a = (int64_t)item.t * task.top_k;
        int32_t other = pair_at(task, a + x);
        bool first = other >= 0;
        for (int32_t y = 0; y < x && first; y++)
            first = pair_at(task, a + y) != other;
        view.entries += other == item.q;
        view.pairs += first;
        view.before += first && other < item.q;
    }
    return view;
}

/* Keys of a range: entries of pair `from` + i at i, its wire rows at range + i. */
__device__ inline void count_wire(const ragged_task &task, const token_steps &steps, ordinals &o,
                                  int32_t from, int32_t range)
{
    for (int32_t k = lane_id(); k < o.keys; k += WARP)
        o.mine[k] = 0;
    __syncwarp();
    for_items(task, steps, [&](const wire_item &item) {
        int32_t i = item.q - from;
        if (item.q < 0 || (uint32_t)i >= (uint32_t)range)
            return;
        atomicAdd(&o.mine[i], 1u);
        if (item.first)
            atomicAdd(&o.mine[range + i], 1u);
    });
}

/* A kept assignment whose list entry and wire row have their numbers within the pair. */
__device__ inline void put_item(const ragged_task &task, const wire_item &item, const token_view &view,
                                int32_t entry, int32_t wire)
{
    const epx_k_ragged_layout_t &args = task.args;
    int64_t a = (int64_t)item.t * task.top_k + item.k, region = args.home_start[item.q], row = region + wire;
    int32_t e = args.expert[a], c = task.order.wave[e], base = (int32_t)args.base[item.q];
    const epx_run_t &run = args.send_runs[task.order.at[e]];
    args.list_place[region + entry] = (int32_t)(run.row + (args.place[a] - c * task.most - run.first));
    args.list_weight[region + entry] = args.weights[a];
    args.wire_row[a] = base + wire;
    if (!item.first)
        return;
    args.wire_token[row] = item.t;
    args.wire_first[row] = base + entry;
    args.wire_count[row] = view.entries;
    args.home[(int64_t)item.t * task.top_k + view.before] = c * task.most + (int32_t)row;
}

__device__ inline void place_wire(const ragged_task &task, const token_steps &steps, ordinals &o,
                                  int32_t from, int32_t range)
{
    for_items(task, steps, [&](const wire_item &item) {
        token_view view = view_token(task, steps, item);
        int32_t i = item.q - from;
        bool counts = item.q >= 0 && (uint32_t)i < (uint32_t)range;
        unsigned same = __match_any_sync(ALL, counts ? i : -1),
                 firsts = __ballot_sync(ALL, item.first) & same;
        int32_t leader = __ffs(same) - 1;
        uint32_t entry = 0, wire = 0;
        if (counts && lane_id() == leader) {
            entry = o.mine[i];
            wire = o.mine[range + i];
            o.mine[i] = entry + __popc(same);
            o.mine[range + i] = wire + __popc(firsts);
        }
        entry = __shfl_sync(ALL, entry, leader);
        wire = __shfl_sync(ALL, wire, leader);
        unsigned below = (1u << lane_id()) - 1;
        if (counts)
            put_item(task, item, view, (int32_t)(entry + o.before[i]) + __popc(same & below),
                     (int32_t)(wire + o.before[range + i]) + __popc(firsts & (below << 1 | 1)) - 1);
        if (from == 0 && item.t < steps.end && item.k < task.top_k && item.k >= view.pairs)
            task.args.home[(int64_t)item.t * task.top_k + item.k] = -1;
        __syncwarp();
    });
}

/* What the numbers of wire rows decide, by all threads of one block. */
__device__ inline void set_wire_runs(const ragged_task &task, const ordinals &o, int32_t from, int32_t range)
{
    const epx_k_ragged_layout_t &args = task.args;
    int32_t pairs = task.order.chunks * task.ranks;
    for (int32_t i = (int32_t)threadIdx.x; i < range && from + i < pairs; i += (int32_t)blockDim.x) {
        int32_t q = from + i, d = q % task.ranks, wires = (int32_t)o.all[range + i];
        args.home_count[q] = wires;
        args.wire_runs[q] = {args.home_start[q], args.base[q], d, wires};
        if (d != task.rank)
            atomicAdd((unsigned long long *)&args.wave[q / task.ranks].sent_rows, (unsigned long long)wires);
    }
}

/* All of a cluster; place and the runs are done and visible. */
__device__ inline void lay_wire(const ragged_task &task, const team &our, int32_t tokens, uint32_t *counters,
                                int32_t range)
{
    token_steps steps(our, tokens, task.top_k);
    int32_t pairs = task.order.chunks * task.ranks;
    for (int32_t from = 0; from < pairs; from += range) {
        ordinals o(counters, 2 * range);
        if (from > 0)
            our.sync();
        count_wire(task, steps, o, from, range);
        add_up_items(o, our);
        if (our.block == 0)
            set_wire_runs(task, o, from, range);
        place_wire(task, steps, o, from, range);
    }
    our.sync();
}

} // namespace epx

#endif
