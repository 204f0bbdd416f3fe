/* ring_layout: from everyone's counts to what this rank keeps, in one launch of one cluster.
 * SPDX-License-Identifier: Apache-2.0 */
#include <epx/kernels_ring.h>

#include "kernels/cuda/table.h"
#include "kernels/cuda/verdict.cuh"

namespace epx
{
namespace
{

struct ring_task {
    epx_k_ring_layout_t args;
    epx_owners_t real, virt;
    rule accept;
    int32_t rank, ranks, splits, top_k, experts;
    int64_t *wanted; /* [E] */
};

/* T of every rank; a dead route has none. */
__device__ inline void set_blocks(const ring_task &task, const team &our, bool alive)
{
    const epx_k_ring_layout_t &args = task.args;
    for (int32_t b = our.thread(); b < task.ranks; b += our.threads()) {
        int64_t tokens = alive ? notice_of(args.notices, args.notice_stride, b)->tokens : 0;
        args.block_tokens[b] = tokens;
        if (args.tokens_report != nullptr)
            args.tokens_report[b] = tokens;
        args.block_runs[b] = {0, 0, (task.rank + 1) % task.ranks, (int32_t)tokens};
    }
}

/* Turns refused ids of this rank into -1. Returns how many of this thread's stay. */
__device__ inline int64_t refuse(const ring_task &task, const team &our)
{
    const epx_k_ring_layout_t &args = task.args;
    int64_t tokens = notice_of(args.notices, args.notice_stride, task.rank)->tokens, stay = 0;
#pragma unroll 4
    for (int32_t a = our.thread(); a < (int32_t)tokens * task.top_k; a += our.threads()) {
        int32_t e = args.kept[a], v = task.splits == 1 ? 0 : split_of(a / task.top_k, tokens, task.splits);
        bool stays = e >= 0 && args.ordinal[a] <
                                   args.accepted[((int64_t)task.rank * task.splits + v) * task.experts + e];
        stay += stays;
        if (!stays)
            args.kept[a] = -1;
    }
    return stay;
}

/* What all senders may send to this rank's experts; this thread's part. */
__device__ inline int64_t kept_here(const ring_task &task, const team &our)
{
    int32_t first = task.real.first[task.rank], mine = task.real.first[task.rank + 1] - first;
    int64_t sum = 0;
    for (int64_t i = our.thread(); i < (int64_t)task.accept.ranks * mine; i += our.threads())
        sum += task.args.accepted[i / mine * task.experts + task.real.expert[first + i % mine]];
    return sum;
}

__device__ inline int64_t routed_here(const ring_task &task, const count_table &counts, const team &our)
{
    int64_t sum = 0;
    for (int32_t i = our.thread(); i < task.splits * task.experts; i += our.threads())
        sum += counts.at(task.rank * task.splits + i / task.experts, i % task.experts);
    return sum;
}

/* Adds what a block has found to the counts of the head, through those of the cluster's first block. */
struct ring_sums {
    int64_t room[WARP];
    unsigned long long stay, kept, routed;
};

/* One thread, behind the cluster's barrier. */
__device__ inline void tell(const ring_task &task, const ring_sums &sums, int32_t culprit)
{
    const epx_k_ring_layout_t &args = task.args;
    if (culprit < 0) {
        args.verdict.head->routed = (int64_t)sums.routed;
        args.verdict.head->kept = (int64_t)sums.kept;
        args.verdict.head->dropped_sender = (int64_t)(sums.routed - sums.stay);
    }
    verdict_by_notices(args.verdict, args.notices, args.notice_stride, task.rank, culprit);
    verdict_done(args.verdict);
}

__global__ void __launch_bounds__(ROUTE_THREADS, 1)
    ring_layout(const __grid_constant__ ring_task task, int32_t gang_lanes)
{
    __shared__ ring_sums sums;
    team our;
    gang g(gang_lanes);
    behind_previous();
    let_next_begin();
    const epx_k_ring_layout_t &args = task.args;
    int32_t culprit = notice_culprit(args.notices, args.notice_stride, task.rank, task.ranks, sums.room);
    count_table counts = {(const char *)args.notices + sizeof(epx_route_notice_t), args.notice_stride,
                          task.splits, task.experts, culprit < 0};
    if (threadIdx.x == 0)
        sums.stay = sums.kept = sums.routed = 0;
    set_blocks(task, our, culprit < 0);
    accept_all(
        task.accept, our, g, task.virt, nullptr, counts, task.wanted, sums.room, args.accepted,
        [](const expert_facts &, int32_t, int64_t, int64_t) {}, [](const expert_facts &, int64_t, bool) {});
    our.sync();
    if (culprit < 0) {
        int64_t stay = block_sum(refuse(task, our), sums.room),
                kept = block_sum(kept_here(task, our), sums.room);
        int64_t routed = block_sum(routed_here(task, counts, our), sums.room);
        if (threadIdx.x == 0) {
            ring_sums *first = our.at(&sums, 0);
            atomicAdd(&first->stay, (unsigned long long)stay);
            atomicAdd(&first->kept, (unsigned long long)kept);
            atomicAdd(&first->routed, (unsigned long long)routed);
        }
    }
    our.sync();
    if (our.thread() == 0)
        tell(task, sums, culprit);
}

launch_site site;

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_ring_layout(const epx_k_ring_layout_t *args, epx_stream_t stream)
{
    using namespace epx;
    const epx_shape_t *shape = args->shape;
    ring_task task = {
        *args,        shape->real,   shape->virt,  rule_of(shape, 1), shape->rank,
        shape->ranks, shape->splits, shape->top_k, shape->experts,    args->seats + shape->virtual_ranks};
    int64_t assignments = (int64_t)shape->tokens_max * shape->top_k,
            counts = (int64_t)shape->virtual_ranks * shape->experts;
    int blocks = cluster_for(cluster_limit(site, ring_layout), assignments > counts ? assignments : counts);
    return launch("ring_layout", {blocks, ROUTE_THREADS, 0, blocks, true}, stream, ring_layout, task,
                  gang_width(shape->virtual_ranks));
}
