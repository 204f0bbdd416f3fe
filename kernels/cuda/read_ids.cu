/*
 * read_ids: a router's ids, checked, counted and numbered, and its weights taken along.
 * SPDX-License-Identifier: Apache-2.0
 *
 * One cluster for each virtual sender. With one sender that is the only launch. With several, what they have
 * in common is cleared before and looked at behind. With an id out of range nobody has an assignment: all
 * experts become -1 and all counts 0, so that nothing that works on them can leave its buffers. With a T out
 * of range there are no tokens.
 */
#include "kernels/cuda/stable.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

constexpr uint32_t NONE_BAD = 0xffffffffu;

struct ids_shared {
    uint32_t bad;     /* index of the first bad id of this block's share */
    uint32_t skipped; /* of this block's share */
    uint32_t bad_all;
};

template <typename I> __device__ inline I id_at(const epx_k_read_ids_t &args, int32_t a)
{
    return fresh((const I *)args.ids + a);
}

/* Unsigned, so that id + 1 cannot overflow. */
__device__ inline bool is_bad(int32_t id, int32_t experts) { return (uint32_t)id + 1 > (uint32_t)experts; }
__device__ inline bool is_bad(int64_t id, int32_t experts) { return (uint64_t)id + 1 > (uint64_t)experts; }

__device__ inline int64_t tokens_told(const epx_k_read_ids_t &args)
{
    return args.tokens_device != nullptr ? *args.tokens_device : args.tokens;
}

__device__ inline bool are_sane(const epx_k_read_ids_t &args, int64_t tokens)
{
    return tokens >= 0 && tokens <= args.tokens_max;
}

__device__ inline int64_t tokens_of(const epx_k_read_ids_t &args)
{
    int64_t tokens = tokens_told(args);
    return are_sane(args, tokens) ? tokens : 0;
}

/* One thread. bad: index of the first bad id, or less than 0. */
template <typename I> __device__ inline void write_notice(const epx_k_read_ids_t &args, int64_t bad)
{
    int64_t tokens = tokens_told(args);
    bool sane = are_sane(args, tokens);
    epx_route_notice_t notice = {tokens, EPX_NOTICE_GOOD, 0};
    if (!sane)
        notice.bad_at = EPX_NOTICE_TOKENS, notice.bad_id = tokens;
    else if (bad >= 0)
        notice.bad_at = bad, notice.bad_id = id_at<I>(args, (int32_t)bad);
    *args.notice = notice;
}

static __device__ __noinline__ int32_t column_of(int32_t a, int32_t columns) { return a % columns; }

/* Whether the id at a is one that may count. */
__device__ inline bool is_choice(const epx_k_read_ids_t &args, int32_t a)
{
    return args.columns == args.top_k || column_of(a, args.columns) < args.top_k;
}

/* What a thread saw, into the block's. All threads. */
__device__ inline void add_findings(uint32_t bad, uint32_t skipped, ids_shared &shared)
{
    bad = __reduce_min_sync(ALL, bad);
    skipped = __reduce_add_sync(ALL, skipped);
    if (lane_id() == 0 && bad != NONE_BAD)
        atomicMin(&shared.bad, bad);
    if (lane_id() == 0 && skipped != 0)
        atomicAdd(&shared.skipped, skipped);
}

/* Behind the cluster's barrier: what all blocks found. The sole sender writes it down, others add theirs. By
 * one warp. */
template <typename I>
__device__ inline void report(const epx_k_read_ids_t &args, const team &our, ids_shared &shared)
{
    uint32_t bad = NONE_BAD, skipped = 0;
    if (lane_id() < our.blocks) {
        bad = our.at(&shared.bad, lane_id())[0];
        skipped = our.at(&shared.skipped, lane_id())[0];
    }
    bad = __reduce_min_sync(ALL, bad);
    skipped = __reduce_add_sync(ALL, skipped);
    if (lane_id() == 0)
        shared.bad_all = bad;
    if (lane_id() == 0 && our.block == 0 && args.splits == 1) {
        write_notice<I>(args, bad == NONE_BAD ? -1 : (int64_t)bad);
        *args.skipped = skipped;
    } else if (lane_id() == 0 && our.block == 0) {
        if (bad != NONE_BAD)
            atomicMin((unsigned long long *)&args.notice->bad_at, (unsigned long long)bad);
        atomicAdd((unsigned long long *)args.skipped, (unsigned long long)skipped);
    }
}

template <typename I>
__global__ void __launch_bounds__(ROUTE_THREADS, 1)
    read_ids(const __grid_constant__ epx_k_read_ids_t args, int32_t range)
{
    extern __shared__ uint32_t counters[];
    __shared__ ids_shared shared;
    team our;
    behind_previous();
    let_next_begin();

    int32_t v = our.index();
    int64_t tokens = tokens_of(args);
    share items(our, (int32_t)(split_first(v, tokens, args.splits) * args.columns),
                (int32_t)(split_first(v + 1, tokens, args.splits) * args.columns));
    int32_t *counts = args.counts + (int64_t)v * args.experts;

    if (threadIdx.x == 0)
        shared.bad = NONE_BAD, shared.skipped = 0;
    __syncthreads();
    for (int32_t from = 0; from < args.experts; from += range) {
        int32_t keys = min(args.experts - from, range);
        ordinals o(counters, keys);
        uint32_t bad = NONE_BAD, skipped = 0;
        if (from > 0)
            our.sync(); /* other blocks may still read this one's totals */
        held_items held;
        count_items(
            o, items,
            [&](int32_t a) {
                I id = id_at<I>(args, a);
                bool choice = is_choice(args, a), wrong = is_bad(id, args.experts);
                bad = wrong ? min(bad, (uint32_t)a) : bad;
                skipped += choice && id == -1;
                if (from == 0 && args.weights != nullptr)
                    args.weights_copy[a] = fresh(args.weights + a);
                return choice && !wrong ? (int32_t)id - from : -1;
            },
            held);
        if (from == 0)
            add_findings(bad, skipped, shared);
        add_up_items(o, our, [&] {
            if (from == 0 && threadIdx.x / WARP == blockDim.x / WARP - 1)
                report<I>(args, our, shared);
        });
        if (from + range >= args.experts)
            our.arrive(); /* nobody asks for another block's memory from here on */
        bool good = shared.bad_all == NONE_BAD;
        if (our.block == 0)
            for (int32_t k = (int32_t)threadIdx.x; k < keys; k += (int32_t)blockDim.x)
                counts[from + k] = good ? (int32_t)o.all[k] : 0;
        /* All ids are good, or none counts. */
        auto key = [&](int32_t a) {
            return good && is_choice(args, a) ? (int32_t)id_at<I>(args, a) - from : -1;
        };
        place_items(
            o, items, key,
            [&](int32_t a, int32_t k, int32_t ordinal) {
                ordinal = good ? ordinal : -1;
                if (from == 0)
                    args.expert[a] = !good ? -1 : ordinal >= 0 ? k : (int32_t)id_at<I>(args, a);
                if (args.ordinal != nullptr && (from == 0 || ordinal >= 0))
                    args.ordinal[a] = ordinal;
            },
            held);
    }
    our.wait();
}

/* Several senders: one thread writes the notice. When one of them has a bad id, nobody has an assignment. */
template <typename I>
__global__ void __launch_bounds__(ROUTE_THREADS, 1) look_back(const __grid_constant__ epx_k_read_ids_t args)
{
    /* Whatever thread 0 of the grid makes of it, what the senders found stays negative or not. */
    int64_t bad = *(volatile int64_t *)&args.notice->bad_at, n = tokens_of(args) * args.columns,
            counts = (int64_t)args.splits * args.experts;
    if (blockIdx.x == 0 && threadIdx.x == 0)
        write_notice<I>(args, bad);
    if (bad < 0)
        return;
    int64_t i = (int64_t)blockIdx.x * ROUTE_THREADS + threadIdx.x, step = (int64_t)gridDim.x * ROUTE_THREADS;
    for (int64_t c = i; c < counts; c += step)
        args.counts[c] = 0;
    for (int64_t a = i; a < n; a += step) {
        args.expert[a] = -1;
        if (args.ordinal != nullptr)
            args.ordinal[a] = -1;
    }
}

template <typename I> launch_site site;
template <typename I> launch_site look_site;

template <typename I> epx_status_t start(const epx_k_read_ids_t *args, epx_stream_t stream)
{
    int limit = cluster_limit(site<I>, read_ids<I>);
    int64_t items = args->tokens_device != nullptr ? INT32_MAX : args->tokens * args->columns / args->splits;
    ordinals_plan plan = plan_ordinals(shared_limit(current_device()), args->experts, ROUTE_THREADS);
    int blocks = cluster_for(limit, items);
    epx_status_t status = EPX_OK;
    if (args->splits > 1) {
        cudaStream_t s = (cudaStream_t)stream;
        status = epx_cuda_status(cudaMemsetAsync(args->notice, 0xff, sizeof(*args->notice), s), "read_ids");
        if (status == EPX_OK)
            status = epx_cuda_status(cudaMemsetAsync(args->skipped, 0, sizeof(int64_t), s), "read_ids");
    }
    if (status == EPX_OK)
        status = launch("read_ids", {blocks * args->splits, plan.threads, plan.bytes, blocks, true}, stream,
                        read_ids<I>, *args, (int32_t)plan.range);
    if (status == EPX_OK && args->splits > 1)
        status =
            launch("read_ids",
                   {persistent_blocks(look_site<I>, look_back<I>, ROUTE_THREADS, 0, 0), ROUTE_THREADS, 0, 1},
                   stream, look_back<I>, *args);
    return status;
}

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_read_ids(const epx_k_read_ids_t *args, epx_stream_t stream)
{
    return args->id_type == EPX_INT64 ? epx::start<int64_t>(args, stream) : epx::start<int32_t>(args, stream);
}
