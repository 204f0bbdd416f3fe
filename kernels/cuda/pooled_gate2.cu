/*
 * pooled_gate2: who is kept at the receiver, and where his row stands; one cluster for each virtual
 * destination of this rank. SPDX-License-Identifier: Apache-2.0
 *
 * The walk is round-robin over sources: item i is slot i / N of source i mod N, its key the local expert, and
 * its ordinal decides. With one virtual destination this is the only launch. With several, a header that is
 * not right is named behind.
 */
#include "kernels/cuda/pooled.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

enum { TABLES = 1 };
constexpr unsigned long long NONE_BAD = ~0ull;

__device__ inline const unsigned char *header_of(const epx_k_pooled_gate2_t &args,
                                                 const pooled_layout &layout, int32_t source)
{
    return args.headers + source * layout.header_bytes;
}

__device__ inline uint32_t tag_at(const epx_k_pooled_gate2_t &args, const pooled_layout &layout,
                                  int32_t source, int32_t q)
{
    const unsigned char *tags =
        header_of(args, layout, source) + EPX_POOLED_HEADER_VALID + (size_t)layout.splits * sizeof(int64_t);
    return layout.tag_bytes == 2 ? ((const uint16_t *)tags)[q] : ((const uint32_t *)tags)[q];
}

__device__ inline uint32_t stamp_of(const epx_k_pooled_gate2_t &args, const pooled_layout &layout,
                                    int32_t source)
{
    return ((const uint32_t *)header_of(args, layout, source))[1];
}

/* What can be wrong, in the order of the search: a source's stamp, then its tags. */
__device__ inline unsigned long long number_of(const pooled_layout &layout, int32_t source, int32_t q)
{
    return (unsigned long long)source * ((unsigned long long)layout.slab_rows + 1) +
           (unsigned long long)(q + 1);
}

__device__ inline void name_bad(const epx_k_pooled_gate2_t &args, const pooled_layout &layout,
                                unsigned long long bad)
{
    int32_t source = (int32_t)(bad / ((unsigned long long)layout.slab_rows + 1));
    int32_t q = (int32_t)(bad % ((unsigned long long)layout.slab_rows + 1)) - 1;
    args.bad[0] = bad == NONE_BAD ? -1 : source;
    args.bad[1] = bad == NONE_BAD ? -1
                  : q < 0         ? (int64_t)stamp_of(args, layout, source)
                                  : -(int64_t)tag_at(args, layout, source, q);
}

/* One virtual destination at work. */
struct receiver {
    const epx_k_pooled_gate2_t &args;
    const pooled_layout &layout;
    int32_t v, local_experts, expert_offset, sources;
    const int32_t *block; /* [N] shared: home row at the source of slot 0, from the beginning of the slab */
    int64_t limit;

    __device__ int32_t source(int32_t i) const { return i % sources; }
    __device__ int32_t incoming(int32_t i) const
    {
        return source(i) / layout.splits * layout.slab_rows + block[source(i)] + i / sources;
    }
    __device__ uint32_t tag(int32_t i) const
    {
        return tag_at(args, layout, source(i) / layout.splits, block[source(i)] + i / sources);
    }
};

/* V over the group, by all threads of a block. */
__device__ inline int64_t sum_valid(const epx_k_pooled_gate2_t &args, const pooled_layout &layout,
                                    int64_t *room)
{
    int64_t sum = 0;
    for (int32_t i = (int32_t)threadIdx.x; i < layout.virtual_ranks; i += (int32_t)blockDim.x) {
        const unsigned char *header = header_of(args, layout, i / layout.splits);
        sum += ((const int64_t *)(header + EPX_POOLED_HEADER_VALID))[i % layout.splits];
    }
    return block_sum(sum, room);
}

__device__ inline void put_row(const receiver &r, int32_t i, int32_t k, int32_t ordinal)
{
    int32_t q = r.incoming(i), g = -1;
    if (ordinal >= 0 && ordinal < r.limit)
        g = (r.expert_offset + k) * r.layout.rows_per_expert + ordinal;
    r.args.to[q] = g;
    r.args.kept[q] = g >= 0;
    if (g >= 0)
        r.args.from[g] = q;
}

/* Starts, counts and totals of a range of local experts, by one block. */
__device__ inline void count_kept(const receiver &r, const ordinals &o, int32_t from, int64_t *room)
{
    int64_t kept = 0, refused = 0;
    for (int32_t k = (int32_t)threadIdx.x; k < o.keys && from + k < r.local_experts;
         k += (int32_t)blockDim.x) {
        int64_t all = o.all[k], count = min(all, r.limit), e = r.expert_offset + from + k;
        r.args.start[e] = e * r.layout.rows_per_expert;
        r.args.count[e] = count;
        kept += count;
        refused += all - count;
    }
    kept = block_sum(kept, room);
    refused = block_sum(refused, room);
    if (threadIdx.x == 0 && r.args.counts) {
        atomicAdd((unsigned long long *)&r.args.verdict.head->kept, (unsigned long long)kept);
        atomicAdd((unsigned long long *)&r.args.verdict.head->dropped_receiver, (unsigned long long)refused);
    }
}

/* The lowest number of what is wrong, of all blocks; behind a barrier of the cluster. */
__device__ inline void report_bad(const receiver &r, const team &our, unsigned long long *bad)
{
    unsigned long long lowest = NONE_BAD;
    if (our.thread() != 0)
        return;
    for (int32_t b = 0; b < our.blocks; b++)
        lowest = min(lowest, *our.at(bad, b));
    if (r.layout.splits == 1)
        name_bad(r.args, r.layout, lowest);
    else if (lowest != NONE_BAD)
        atomicMin((unsigned long long *)r.args.bad, lowest);
}

/* All threads of a block: the lowest source whose header says that its route failed, or -1. */
__device__ inline int32_t failed_source(const epx_k_pooled_gate2_t &args, const pooled_layout &layout,
                                        int64_t *room)
{
    int32_t lowest = INT32_MAX;
    for (int32_t s = (int32_t)threadIdx.x; s < layout.ranks; s += (int32_t)blockDim.x)
        if (((const int32_t *)header_of(args, layout, s))[0] < 0)
            lowest = min(lowest, s);
    lowest = __reduce_min_sync(ALL, lowest);
    if (lane_id() == 0)
        room[threadIdx.x / WARP] = lowest;
    __syncthreads();
    lowest =
        __reduce_min_sync(ALL, lane_id() < (int)(blockDim.x / WARP) ? (int32_t)room[lane_id()] : INT32_MAX);
    return lowest == INT32_MAX ? -1 : lowest;
}

/* Some source's route failed: nothing has come. By all clusters; with several the verdict is named behind. */
__device__ inline void die(const epx_k_pooled_gate2_t &args, const pooled_layout &layout, const team &our,
                           int32_t source)
{
    int32_t m = layout.splits, first = layout.first[layout.rank * m],
            experts = layout.first[(layout.rank + 1) * m] - first;
    int64_t thread = (int64_t)our.index() * our.threads() + our.thread(),
            threads = (int64_t)m * our.threads();
    for (int64_t q = thread; q < (int64_t)layout.ranks * layout.slab_rows; q += threads) {
        args.to[q] = -1;
        args.kept[q] = 0;
    }
    for (int64_t e = thread; e < experts; e += threads) {
        args.start[e] = e * layout.rows_per_expert;
        args.count[e] = 0;
    }
    if (thread != 0)
        return;
    args.bad[0] = args.bad[1] = -1;
    if (args.verdict.head->valid >= 0)
        verdict_dead(args.verdict, EPX_ERR_PEER, source, nullptr);
    if (m == 1)
        verdict_done(args.verdict);
}

__global__ void __launch_bounds__(ROUTE_THREADS)
    pooled_gate2(const __grid_constant__ epx_k_pooled_gate2_t args,
                 const __grid_constant__ pooled_layout layout, int32_t range)
{
    extern __shared__ uint32_t tables[];
    __shared__ int64_t room[WARP];
    __shared__ unsigned long long bad;
    team our;
    int32_t m = layout.splits, v = layout.rank * m + our.index(), mine = layout.base[layout.rank];
    rule rules = pooled_rule(layout);
    receiver r = {args,
                  layout,
                  v,
                  local_experts_of(layout, v),
                  layout.first[v] - layout.first[layout.rank * m],
                  layout.virtual_ranks,
                  (const int32_t *)tables,
                  0};
    int32_t source = failed_source(args, layout, room);
    if (source >= 0) {
        die(args, layout, our, source);
        return; /* all blocks do */
    }
    if (threadIdx.x == 0)
        bad = NONE_BAD;
    for (int32_t s = (int32_t)threadIdx.x; s < r.sources; s += (int32_t)blockDim.x)
        tables[s] = (uint32_t)(pooled_block(layout, s % m, v) - mine);
    r.limit =
        layout.extra_wave ? pooled_rows(rules) : pooled_receiver_limit(rules, sum_valid(args, layout, room));
    __syncthreads();
    if (our.index() == 0 && our.block == 0)
        for (int32_t s = (int32_t)threadIdx.x; s < layout.ranks; s += (int32_t)blockDim.x)
            if (stamp_of(args, layout, s) != args.stamp)
                atomicMin(&bad, number_of(layout, s, -1));

    share items(our, 0, (int32_t)pooled_slots(rules, r.local_experts) * r.sources);
    for (int32_t from = 0; from < max(r.local_experts, 1); from += range) {
        ordinals o(tables + TABLES * r.sources, min(max(r.local_experts, 1) - from, range));
        auto key = [&](int32_t i) {
            uint32_t tag = r.tag(i);
            return tag >= 1 && tag <= (uint32_t)r.local_experts ? (int32_t)tag - 1 - from : -1;
        };
        if (from > 0)
            our.sync();
        count_items(o, items, [&](int32_t i) {
            uint32_t tag = r.tag(i);
            if (tag > (uint32_t)layout.experts)
                atomicMin(&bad, number_of(layout, r.source(i) / m, r.block[r.source(i)] + i / r.sources));
            return tag >= 1 && tag <= (uint32_t)r.local_experts ? (int32_t)tag - 1 - from : -1;
        });
        add_up_items(o, our);
        if (our.block == 0)
            count_kept(r, o, from, room);
        place_items(o, items, key, [&](int32_t i, int32_t k, int32_t ordinal) {
            if (from == 0 || ordinal >= 0)
                put_row(r, i, from + k, ordinal);
        });
    }
    report_bad(r, our, &bad);
    our.sync(); /* counts of the head are block 0's: behind this all are there */
    if (m == 1 && our.thread() == 0)
        verdict_done(args.verdict);
}

/* Several virtual destinations: bad[0] is still the number of what is wrong, or all ones. */
__global__ void end_of_all(const __grid_constant__ epx_k_pooled_gate2_t args,
                           const __grid_constant__ pooled_layout layout)
{
    name_bad(args, layout, (unsigned long long)args.bad[0]);
    verdict_done(args.verdict);
}

launch_site site;

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_pooled_gate2(const epx_k_pooled_gate2_t *args, epx_stream_t stream)
{
    using namespace epx;
    const pooled_layout &layout = *args->layout;
    ordinals_plan plan;
    if (!plan_pooled(layout.virtual_ranks, TABLES, layout.local_experts_max, &plan))
        return epx_fail(EPX_ERR_UNSUPPORTED, "cuda: pooled_wave has no room for the tables of %d ranks",
                        layout.virtual_ranks);
    int64_t items = (int64_t)layout.slab_rows * layout.ranks / layout.splits;
    int blocks = cluster_for(cluster_limit(site, pooled_gate2), items);
    epx_status_t status = EPX_OK;
    if (layout.splits > 1)
        status = epx_cuda_status(cudaMemsetAsync(args->bad, 0xff, sizeof(int64_t), (cudaStream_t)stream),
                                 "pooled_gate2");
    if (status == EPX_OK)
        status = launch("pooled_gate2",
                        {blocks * layout.splits, plan.threads,
                         plan.bytes + TABLES * (size_t)layout.virtual_ranks * sizeof(uint32_t), blocks},
                        stream, pooled_gate2, *args, layout, (int32_t)plan.range);
    if (status == EPX_OK && layout.splits > 1)
        status = launch("pooled_gate2", {1, 1, 0, 1}, stream, end_of_all, *args, layout);
    return status;
}
