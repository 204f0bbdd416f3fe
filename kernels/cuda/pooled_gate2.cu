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

/* Shared memory of a block. */
struct gate2_shared {
    unsigned long long bad, valid; /* lowest number of what is wrong; V over the group */
    int64_t limit;
    int32_t failed, slots; /* lowest source whose route failed */
};

/* One virtual destination at work. */
struct receiver {
    const epx_k_pooled_gate2_t &args;
    const pooled_layout &layout;
    gate2_shared &shared;
    int32_t v, local_experts, expert_offset, sources;
    const int32_t *block; /* [N] shared: home row at the source of slot 0, from the beginning of the slab */

    __device__ int32_t real(int32_t s) const { return layout.splits == 1 ? s : s / layout.splits; }
};

/* Item i of the walk: slot i / N of source i mod N. */
struct incoming {
    int32_t source, q; /* real, and where in its slab */

    __device__ incoming(const receiver &r, int32_t i)
    {
        int32_t slot = i / r.sources, s = i - slot * r.sources;
        source = r.real(s);
        q = r.block[s] + slot;
    }
};

/* All that headers say of their senders, and the table of blocks; by all threads of a block. */
__device__ inline void look_at_headers(const receiver &r, uint32_t *block)
{
    const pooled_layout &layout = r.layout;
    int32_t m = layout.splits, mine = layout.base[layout.rank];
    for (int32_t i = (int32_t)threadIdx.x; i < r.sources; i += (int32_t)blockDim.x) {
        int32_t s = r.real(i), j = i - s * m;
        const unsigned char *header = header_of(r.args, layout, s);
        int64_t valid = ((const int64_t *)(header + EPX_POOLED_HEADER_VALID))[j];
        int32_t status = ((const int32_t *)header)[0];
        uint32_t stamp = ((const uint32_t *)header)[1];
        block[i] = (uint32_t)(pooled_block(layout, j, r.v) - mine);
        atomicAdd(&r.shared.valid, (unsigned long long)valid);
        if (status < 0)
            atomicMin(&r.shared.failed, s);
        if (stamp != r.args.stamp)
            atomicMin(&r.shared.bad, number_of(layout, s, -1));
    }
    if (threadIdx.x == 0)
        r.shared.slots = (int32_t)pooled_slots(pooled_rule(layout), r.local_experts);
}

/* By one warp behind the cluster's barrier: the lowest number of what is wrong. */
__device__ inline void report_bad(const receiver &r, const team &our)
{
    unsigned long long lowest = lane_id() < our.blocks ? *our.at(&r.shared.bad, lane_id()) : NONE_BAD;
    for (int32_t d = CLUSTER_MAX / 2; d > 0; d /= 2)
        lowest = min(lowest, __shfl_xor_sync(ALL, lowest, d));
    if (our.block != 0 || lane_id() != 0)
        return;
    if (r.layout.splits == 1)
        name_bad(r.args, r.layout, lowest);
    else if (lowest != NONE_BAD)
        atomicMin((unsigned long long *)r.args.bad, lowest);
}

__device__ inline void find_limit(const receiver &r)
{
    rule rules = pooled_rule(r.layout);
    r.shared.limit =
        r.layout.extra_wave ? pooled_rows(rules) : pooled_receiver_limit(rules, (int64_t)r.shared.valid);
}

__device__ inline void put_row(const receiver &r, int32_t i, int32_t k, int32_t ordinal)
{
    incoming in(r, i);
    int32_t q = in.source * r.layout.slab_rows + in.q, g = -1;
    if (ordinal >= 0 && ordinal < r.shared.limit)
        g = (r.expert_offset + k) * r.layout.rows_per_expert + ordinal;
    r.args.to[q] = g;
    r.args.kept[q] = g >= 0;
    if (g >= 0)
        r.args.from[g] = q;
}

/* Starts, counts and totals of a range of local experts, by one block. */
__device__ inline void count_kept(const receiver &r, const ordinals &o, int32_t from)
{
    for (int32_t k0 = 0; k0 < o.keys && from + k0 < r.local_experts; k0 += (int32_t)blockDim.x) {
        int32_t k = k0 + (int32_t)threadIdx.x;
        bool there = k < o.keys && from + k < r.local_experts;
        uint32_t all = there ? o.all[k] : 0, count = (uint32_t)min((int64_t)all, r.shared.limit);
        int64_t e = r.expert_offset + from + k;
        if (there) {
            r.args.start[e] = e * r.layout.rows_per_expert;
            r.args.count[e] = count;
        }
        uint32_t kept = __reduce_add_sync(ALL, count), refused = __reduce_add_sync(ALL, all - count);
        if (lane_id() == 0 && r.args.counts && kept + refused != 0) {
            atomicAdd((unsigned long long *)&r.args.verdict.head->kept, (unsigned long long)kept);
            atomicAdd((unsigned long long *)&r.args.verdict.head->dropped_receiver,
                      (unsigned long long)refused);
        }
    }
}

/* Some source's route failed: nothing has come. By all clusters; with several the verdict is named behind. */
__device__ inline void die(const receiver &r, const team &our)
{
    const epx_k_pooled_gate2_t &args = r.args;
    const pooled_layout &layout = r.layout;
    int32_t m = layout.splits, experts = layout.first[(layout.rank + 1) * m] - layout.first[layout.rank * m];
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
        verdict_dead(args.verdict, EPX_ERR_PEER, r.shared.failed, nullptr);
    if (m == 1)
        verdict_done(args.verdict);
}

/* All items of one destination. */
__device__ inline void gate(const receiver &r, const team &our, uint32_t *counters, int32_t range)
{
    share items(our, 0, r.shared.slots * r.sources);
    int32_t experts = max(r.local_experts, 1);
    for (int32_t from = 0; from < experts; from += range) {
        ordinals o(counters, min(experts - from, range));
        auto key_of = [&](uint32_t tag) {
            return tag >= 1 && tag <= (uint32_t)r.local_experts ? (int32_t)tag - 1 - from : -1;
        };
        auto key = [&](int32_t i) {
            incoming in(r, i);
            return key_of(tag_at(r.args, r.layout, in.source, in.q));
        };
        if (from > 0)
            our.sync();
        held_items held;
        count_items(
            o, items,
            [&](int32_t i) {
                incoming in(r, i);
                uint32_t tag = tag_at(r.args, r.layout, in.source, in.q);
                if (tag > (uint32_t)r.layout.experts)
                    atomicMin(&r.shared.bad, number_of(r.layout, in.source, in.q));
                return key_of(tag);
            },
            held);
        add_up_items(o, our, [&] {
            if (from == 0 && threadIdx.x < WARP)
                report_bad(r, our);
            if (from == 0 && threadIdx.x == WARP)
                find_limit(r);
        });
        if (our.block == 0)
            count_kept(r, o, from);
        place_items(
            o, items, key,
            [&](int32_t i, int32_t k, int32_t ordinal) {
                if (from == 0 || ordinal >= 0)
                    put_row(r, i, from + k, ordinal);
            },
            held);
    }
}

__global__ void __launch_bounds__(ROUTE_THREADS, 1)
    pooled_gate2(const __grid_constant__ epx_k_pooled_gate2_t args,
                 const __grid_constant__ pooled_layout layout, int32_t range)
{
    extern __shared__ uint32_t tables[];
    __shared__ gate2_shared shared;
    team our;
    behind_previous();
    let_next_begin();
    int32_t v = layout.rank * layout.splits + our.index();
    receiver r = {args,
                  layout,
                  shared,
                  v,
                  local_experts_of(layout, v),
                  layout.first[v] - layout.first[layout.rank * layout.splits],
                  layout.virtual_ranks,
                  (const int32_t *)tables};
    if (threadIdx.x == 0)
        shared.bad = NONE_BAD, shared.valid = 0,
        shared.failed = args.verdict.head->valid < 0 ? layout.rank : INT32_MAX;
    __syncthreads();
    look_at_headers(r, tables);
    if (our.thread() == 0 && our.index() == 0) {
        if (args.confirmed != nullptr)
            *args.confirmed = 1;
        if (args.counts == 2 && layout.splits == 1) /* added to behind the cluster's barrier */
            args.verdict.head->kept = args.verdict.head->dropped_receiver = 0;
    }
    __syncthreads();
    if (shared.failed != INT32_MAX) {
        die(r, our);
        return; /* all blocks do */
    }
    gate(r, our, tables + TABLES * r.sources, range);
    our.sync(); /* counts of the head are block 0's: behind this all are there */
    if (layout.splits == 1 && our.thread() == 0)
        verdict_done(args.verdict);
}

/* Several virtual destinations: each adds its own. */
__global__ void clear_counts(const __grid_constant__ epx_k_pooled_gate2_t args)
{
    args.verdict.head->kept = args.verdict.head->dropped_receiver = 0;
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
    if (status == EPX_OK && layout.splits > 1 && args->counts == 2)
        status = launch("pooled_gate2", {1, 1, 0, 1}, stream, clear_counts, *args);
    if (status == EPX_OK)
        status = launch("pooled_gate2",
                        {blocks * layout.splits, plan.threads,
                         plan.bytes + TABLES * (size_t)layout.virtual_ranks * sizeof(uint32_t), blocks, true},
                        stream, pooled_gate2, *args, layout, (int32_t)plan.range);
    if (status == EPX_OK && layout.splits > 1)
        status = launch("pooled_gate2", {1, 1, 0, 1}, stream, end_of_all, *args, layout);
    return status;
}
