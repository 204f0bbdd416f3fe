/* ring_block: the places of one token block's rows in a batch, in one launch of one cluster.
 * SPDX-License-Identifier: Apache-2.0 */
#include <epx/kernels_ring.h>

#include "kernels/cuda/stable.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

/* The local expert of assignment a, or -1. */
__device__ inline int32_t local_of(const epx_k_ring_block_t &args, int32_t a)
{
    int32_t e = args.kept[a];
    return e >= 0 && e < args.experts ? args.local[e] : -1;
}

/*
 * By the first warp of every block: adds to the ordinals of an expert the row that it begins with. next:
 * where the range begins and, returned, ends. What every block finds out one writes down.
 */
__device__ inline int64_t lay_experts(const epx_k_ring_block_t &args, const ordinals &o, int32_t from,
                                      bool writes, int64_t next, int64_t *excess)
{
    for (int32_t k0 = 0; k0 < o.keys; k0 += WARP) {
        int32_t k = k0 + lane_id();
        int64_t rows = k < o.keys ? o.all[k] : 0,
                room = (rows + args.row_align - 1) / args.row_align * args.row_align;
        int64_t through = room;
        for (int32_t d = 1; d < WARP; d *= 2) {
            int64_t other = __shfl_up_sync(ALL, through, d);
            through += lane_id() >= d ? other : 0;
        }
        if (k < o.keys) {
            int64_t start = next + through - room, count = min(rows, max(args.rows_max - start, (int64_t)0));
            o.before[k] += (uint32_t)start;
            *excess += rows - count;
            if (writes) {
                args.start[from + k] = start;
                args.count[from + k] = count;
            }
        }
        next += __shfl_sync(ALL, through, WARP - 1);
    }
    return next;
}

__device__ inline void put_row(const epx_k_ring_block_t &args, int32_t a, int32_t row)
{
    int32_t t = a / args.top_k;
    args.token[row] = t;
    if (args.row_weight != nullptr)
        args.row_weight[row] = args.weights[a];
    if (args.origin != nullptr)
        args.origin[row] = {args.rank, t, a % args.top_k};
}

__global__ void __launch_bounds__(ROUTE_THREADS, 1)
    ring_block(const __grid_constant__ epx_k_ring_block_t args, int32_t range)
{
    extern __shared__ uint32_t counters[];
    team our;
    behind_previous();
    let_next_begin();
    share items(our, 0, (int32_t)(*args.tokens * args.top_k));
    int64_t next = 0, excess = 0;
    /* A rank without experts still says where nothing is. */
    for (int32_t from = 0; from < max(args.local_experts, 1); from += range) {
        ordinals o(counters, min(max(args.local_experts, 1) - from, range));
        auto key = [&](int32_t a) {
            int32_t i = local_of(args, a);
            return i >= 0 ? i - from : -1;
        };
        if (from > 0)
            our.sync();
        held_items held;
        count_items(o, items, key, held);
        add_up_items(o, our);
        if (threadIdx.x < WARP)
            next = lay_experts(args, o, from, our.block == 0 && args.local_experts > 0, next, &excess);
        __syncthreads();
        place_items(
            o, items, key,
            [&](int32_t a, int32_t k, int32_t row) {
                bool found = row >= 0 && row < args.rows_max;
                if (from == 0 || row >= 0)
                    args.place[a] = found ? row : -1;
                if (found)
                    put_row(args, a, row);
                if (from == 0 && args.place_weight != nullptr)
                    args.place_weight[a] = args.weights[a];
            },
            held);
    }
    if (our.block == 0 && threadIdx.x < WARP) {
        for (int32_t d = WARP / 2; d > 0; d /= 2)
            excess += __shfl_xor_sync(ALL, excess, d);
        if (threadIdx.x == 0)
            *args.excess = excess;
    }
    our.sync();
}

launch_site site;

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_ring_block(const epx_k_ring_block_t *args, epx_stream_t stream)
{
    using namespace epx;
    int blocks = cluster_limit(site, ring_block);
    ordinals_plan plan = plan_ordinals(shared_limit(current_device()), args->local_experts, ROUTE_THREADS);
    return launch("ring_block", {blocks, plan.threads, plan.bytes, blocks, true}, stream, ring_block, *args,
                  (int32_t)plan.range);
}
