/*
 * pooled_extra: the schedule of extra waves, in one launch of one cluster. SPDX-License-Identifier:
 * Apache-2.0
 *
 * The schedule of a destination is a chain over experts, senders and waves, so one thread walks it, on tables
 * in shared memory; destinations are independent and are dealt out to threads. Where not even one
 * destination's tables fit, a single thread walks all on the scratch that was given.
 */
#include "kernels/cuda/pooled.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

/* What one (virtual sender of mine, expert) moves in the wave. */
struct move {
    int32_t first, rows, home;
};

struct extra_task {
    epx_k_pooled_extra_t args;
    pooled_layout layout;
    int32_t at_once; /* destinations whose tables a block holds; 0: none */
};

/* Sets what destination v moves in wave `wanted`, or, with -1, counts the waves. */
__device__ inline int32_t walk_destination(const extra_task &task, int32_t v, int32_t *tables, int32_t wanted)
{
    const pooled_layout &layout = task.layout;
    rule r = pooled_rule(layout);
    int32_t ranks = r.ranks, n = local_experts_of(layout, v), wave = 0;
    const int32_t *expert = layout.expert + layout.first[v], *counts = task.args.counts;
    int64_t slots = min(pooled_slots(r, n), (int64_t)INT32_MAX), rows = pooled_rows(r), all = 0;
    int32_t *left = tables, *room = tables + (int64_t)ranks * n;
    for (int32_t i = 0; i < n; i++)
        for (int32_t s = 0; s < ranks; s++)
            all += left[i * ranks + s] = counts[(int64_t)s * layout.experts + expert[i]];

    for (; all > 0 && (wanted < 0 || wave <= wanted); wave++) {
        for (int32_t s = 0; s < ranks; s++)
            room[s] = (int32_t)slots;
        for (int32_t i = 0; i < n; i++) {
            int64_t rows_left = rows;
            for (int32_t s = 0; s < ranks; s++) {
                int32_t take = (int32_t)min((int64_t)min(left[i * ranks + s], room[s]), rows_left);
                if (take == 0)
                    continue;
                if (wave == wanted && s / layout.splits == layout.rank) {
                    int64_t at = (int64_t)(s % layout.splits) * layout.experts + expert[i];
                    int32_t whole = counts[(int64_t)s * layout.experts + expert[i]];
                    ((move *)task.args.move)[at] = {whole - left[i * ranks + s], take, -1};
                }
                left[i * ranks + s] -= take;
                room[s] -= take;
                rows_left -= take;
                all -= take;
            }
        }
    }
    return wave;
}

/* All destinations, by the whole cluster. Returns the largest number of waves that this thread has seen. */
__device__ inline int32_t walk_all(const extra_task &task, const team &our, int32_t *tables, int32_t most,
                                   int32_t wanted)
{
    int32_t ranks = task.layout.virtual_ranks, waves = 0;
    if (task.at_once == 0) {
        for (int32_t v = 0; our.thread() == 0 && v < ranks; v++)
            waves = max(waves, walk_destination(task, v, task.args.remaining, wanted));
        return waves;
    }
    /* Neighbouring destinations go to different warps, which then do not wait for each other. */
    int32_t warps = (int32_t)(blockDim.x / WARP), mine = lane_id() * warps + (int32_t)(threadIdx.x / WARP);
    if (mine >= task.at_once)
        return 0;
    for (int32_t v = our.block + mine * our.blocks; v < ranks; v += task.at_once * our.blocks)
        waves = max(waves, walk_destination(task, v, tables + (int64_t)mine * (most + 1) * ranks, wanted));
    return waves;
}

/* Hands out slots: within a wave every sender's slab fills experts ascending. */
__device__ inline void give_slots(const extra_task &task, const team &our)
{
    const pooled_layout &layout = task.layout;
    for (int32_t x = our.thread(); x < layout.splits * layout.virtual_ranks; x += our.threads()) {
        int32_t i = x / layout.virtual_ranks, v = x % layout.virtual_ranks, home = pooled_block(layout, i, v);
        for (int32_t at = layout.first[v]; at < layout.first[v + 1]; at++) {
            move *one = (move *)task.args.move + (int64_t)i * layout.experts + layout.expert[at];
            one->home = home;
            home += one->rows;
        }
    }
}

__device__ inline void place_wave(const extra_task &task, const team &our)
{
    const epx_k_pooled_extra_t &args = task.args;
    const pooled_layout &layout = task.layout;
    int64_t tokens = pooled_tokens(args.tokens, args.tokens_device);
    for (int32_t a = our.thread(); a < (int32_t)tokens * layout.columns; a += our.threads()) {
        int32_t ordinal = args.ordinal[a], place = -1;
        if (ordinal >= 0) {
            int32_t i = layout.splits == 1 ? 0 : split_of(a / layout.columns, tokens, layout.splits);
            const move &one = ((const move *)args.move)[(int64_t)i * layout.experts + args.expert[a]];
            int32_t j = ordinal - one.first;
            place = j >= 0 && j < one.rows ? one.home + j : -1;
        }
        args.place[a] = place;
    }
}

/* Waves of the pass, at least one; what this rank's senders have; by the whole cluster. */
__device__ inline void write_whole(const extra_task &task, const team &our, int32_t waves,
                                   int32_t *most_of_block)
{
    const pooled_layout &layout = task.layout;
    atomicMax(our.at(most_of_block, 0), waves);
    our.sync();
    if (our.block != 0)
        return;
    int64_t routed = 0;
    for (int32_t i = 0; threadIdx.x < WARP && i < layout.splits; i++) {
        const int32_t *n = task.args.counts + ((int64_t)layout.rank * layout.splits + i) * layout.experts;
        int64_t valid = 0;
        for (int32_t e = lane_id(); e < layout.experts; e += WARP)
            valid += n[e];
        for (int32_t d = WARP / 2; d > 0; d /= 2)
            valid += __shfl_xor_sync(ALL, valid, d);
        if (threadIdx.x == 0)
            task.args.valid[i] = valid;
        routed += valid;
    }
    if (threadIdx.x == 0) {
        *task.args.waves = max(*most_of_block, 1);
        *task.args.routed = routed;
    }
}

__global__ void __launch_bounds__(ROUTE_THREADS, 1)
    pooled_extra(const __grid_constant__ extra_task task, int32_t most)
{
    extern __shared__ int32_t tables[];
    __shared__ int32_t most_of_block;
    team our;
    if (threadIdx.x == 0)
        most_of_block = 0;
    bool whole = task.args.waves != nullptr;
    for (int32_t x = our.thread(); !whole && x < task.layout.splits * task.layout.experts; x += our.threads())
        ((move *)task.args.move)[x] = {0, 0, -1};
    our.sync();
    int32_t waves = walk_all(task, our, tables, most, whole ? -1 : task.args.wave);
    if (whole) {
        write_whole(task, our, waves, &most_of_block);
        return;
    }
    our.sync();
    give_slots(task, our);
    our.sync();
    place_wave(task, our);
}

launch_site site;

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_pooled_extra(const epx_k_pooled_extra_t *args, epx_stream_t stream)
{
    using namespace epx;
    const pooled_layout &layout = *args->layout;
    int64_t ranks = layout.virtual_ranks,
            bytes = ((int64_t)layout.local_experts_max + 1) * ranks * (int64_t)sizeof(int32_t);
    int64_t fit = (int64_t)(shared_limit(current_device())) / bytes;
    int blocks = cluster_limit(site, pooled_extra);
    int64_t wanted = (ranks - 1) / blocks + 1, at_once = fit < wanted ? fit : wanted;
    if (at_once > ROUTE_THREADS)
        at_once = ROUTE_THREADS;
    extra_task task = {*args, layout, (int32_t)at_once};
    return launch("pooled_extra", {blocks, ROUTE_THREADS, (size_t)(at_once * bytes), blocks}, stream,
                  pooled_extra, task, layout.local_experts_max);
}
