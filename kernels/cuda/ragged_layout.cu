/*
 * ragged_layout: everything about a routing that the counts decide, in one launch of one cluster.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Steps, a barrier of the cluster between them: what each expert is wanted by; who is accepted, and the
 * totals; cursors and runs; the places of assignments; on the rank wire the numbers of wire rows and list
 * entries, which have a barrier of their own.
 */
#include "kernels/cuda/ragged_runs.cuh"
#include "kernels/cuda/ragged_wire.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

__device__ inline void accept_all(const ragged_task &task, const team &our, const gang &g,
                                  const count_table &counts, int64_t valid_all)
{
    for (int32_t at = our.thread() / g.lanes; at < task.experts; at += our.threads() / g.lanes) {
        accept_expert(task.accept, g, task.virt, task.wanted, at, valid_all, counts, task.args.accepted);
        add_up_expert(task, g, task.virt.expert[at]);
    }
}

/* Every assignment of this rank gets its return row, or none. */
__device__ inline void place_assignments(const ragged_task &task, const team &our, int64_t tokens)
{
    const epx_k_ragged_layout_t &args = task.args;
    int32_t n = (int32_t)tokens * task.top_k;
#pragma unroll 4
    for (int32_t a = our.thread(); a < n; a += our.threads()) {
        int32_t e = args.expert[a], v = task.splits == 1 ? 0 : split_of(a / task.top_k, tokens, task.splits),
                place = -1;
        if (e >= 0) {
            int32_t ordinal = args.ordinal[a];
            if (ordinal < args.accepted[((int64_t)task.rank * task.splits + v) * task.experts + e]) {
                int32_t row = args.first_row[(int64_t)v * task.experts + e] + ordinal;
                place = task.order.wave[e] * task.most + row;
                args.send[row] = a;
            }
        }
        args.place[a] = place;
    }
}

/* One thread, behind everything that the host is told. */
__device__ inline void tell(const ragged_task &task, int32_t culprit)
{
    const epx_k_ragged_layout_t &args = task.args;
    verdict_by_notices(args.verdict, args.notices, args.notice_stride, task.rank, culprit);
    if (args.wave_report != nullptr)
        for (int32_t c = 0; c < task.order.chunks; c++)
            args.wave_report[c] = args.wave[c];
    verdict_done(args.verdict);
}

__global__ void __launch_bounds__(ROUTE_THREADS)
    ragged_layout(const __grid_constant__ ragged_task task, int32_t gang_lanes, int32_t range)
{
    extern __shared__ uint32_t counters[];
    __shared__ walk_shared shared;
    team our;
    gang g(gang_lanes);
    int32_t culprit =
        notice_culprit(task.args.notices, task.args.notice_stride, task.rank, task.ranks, shared.room);
    int64_t tokens = culprit < 0 ? task.tokens() : 0;
    count_table counts = task.counts(culprit < 0);

    add_up_wanted(task.accept, our, g, task.virt, counts, task.wanted);
    our.sync();
    accept_all(task, our, g, counts, add_up_valid(task.accept, task.wanted, shared.room));
    our.sync();
    for (int32_t i = our.block; i < task.ranks + task.order.chunks; i += our.blocks) {
        if (i < task.ranks)
            lay_sender(task, counts, i, shared);
        else
            lay_batch(task, i - task.ranks, shared);
    }
    our.sync();
    place_assignments(task, our, tokens);
    if (task.args.rank_wire) {
        our.sync();
        lay_wire(task, our, (int32_t)tokens, counters, range);
    }
    if (our.thread() == 0)
        tell(task, culprit);
}

launch_site site;

ragged_task task_of(const epx_k_ragged_layout_t *args)
{
    const epx_shape_t *shape = args->shape;
    ragged_task task = {};
    task.args = *args;
    task.real = shape->real;
    task.virt = shape->virt;
    task.order = *args->order;
    task.accept = rule_of(shape, args->order->chunks);
    task.rank = shape->rank;
    task.ranks = shape->ranks;
    task.splits = shape->splits;
    task.top_k = shape->top_k;
    task.experts = shape->experts;
    task.most = shape->tokens_max * shape->top_k;
    task.align = shape->row_align;
    int64_t used =
        shape->virtual_ranks > 2 * (int64_t)shape->ranks ? shape->virtual_ranks : 2 * (int64_t)shape->ranks;
    task.wanted = args->scratch + used;
    task.total = (int32_t *)(task.wanted + shape->experts);
    task.before_me = task.total + shape->experts;
    return task;
}

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_ragged_layout(const epx_k_ragged_layout_t *args, epx_stream_t stream)
{
    using namespace epx;
    const epx_shape_t *shape = args->shape;
    ordinals_plan plan = {ROUTE_THREADS, 0, 0};
    if (args->rank_wire) /* two counters for each pair */
        plan = plan_ordinals((shared_limit(current_device())) / 2,
                             (int64_t)args->order->chunks * shape->ranks, ROUTE_THREADS);
    int64_t assignments = (int64_t)shape->tokens_max * shape->top_k;
    int64_t counts = (int64_t)shape->virtual_ranks * shape->experts;
    int64_t walks = ((int64_t)shape->ranks + args->order->chunks) * 4 * ROUTE_THREADS, items = assignments;
    items = counts > items ? counts : walks > items ? walks : items;
    int blocks = cluster_for(cluster_limit(site, ragged_layout), items);
    return launch("ragged_layout", {blocks, plan.threads, 2 * plan.bytes, blocks}, stream, ragged_layout,
                  task_of(args), gang_width(shape->virtual_ranks), (int32_t)plan.range);
}
