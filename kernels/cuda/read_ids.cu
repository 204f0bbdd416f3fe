/*
 * read_ids: a router's ids, checked, counted and numbered, and its weights taken along.
 * SPDX-License-Identifier: Apache-2.0
 *
 * One sender and not too many experts: blocks of the whole grid, which hand their counts on. Otherwise one
 * cluster for each virtual sender; with several, what they have in common is cleared before and looked at
 * behind. With an id out of range nobody has an assignment: that id becomes -1 (in clusters all do) and all
 * counts 0, so that nothing that works on them can leave its buffers. With a T out of range there are no
 * tokens.
 */
#include "kernels/cuda/lane.cuh"
#include "kernels/cuda/relay.cuh"
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
template <typename I>
__device__ inline epx_route_notice_t notice_of(const epx_k_read_ids_t &args, int64_t bad)
{
    int64_t tokens = tokens_told(args);
    bool sane = are_sane(args, tokens);
    epx_route_notice_t notice = {tokens, EPX_NOTICE_GOOD, 0};
    if (!sane)
        notice.bad_at = EPX_NOTICE_TOKENS, notice.bad_id = tokens;
    else if (bad >= 0)
        notice.bad_at = bad, notice.bad_id = id_at<I>(args, (int32_t)bad);
    return notice;
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
        *args.notice = notice_of<I>(args, bad == NONE_BAD ? -1 : (int64_t)bad);
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

/* ---- by the whole grid ------------------------------------------------------------------------------------------ */

enum {
    GRID_THREADS = 512,
    GRID_ITEMS = GRID_THREADS * 2, /* of a block, where there are blocks enough */
    GRID_BLOCKS = 64,
    GRID_KEYS = 1024,
    GRID_SUMS = GRID_THREADS / WARP + 3 /* of ordinals, for each key */
};

/* Weights of a warp's share. They are on their way while other blocks are waited for, where the share is
 * small. */
struct weights_copy {
    const epx_k_read_ids_t &args;
    int32_t first, end;
    float held[HELD];

    __device__ weights_copy(const epx_k_read_ids_t &of, const share &items)
        : args(of), first(items.first + lane_id()), end(of.weights != nullptr ? items.end : items.first)
    {
        take(first);
    }
    __device__ void take(int32_t a)
    {
#pragma unroll
        for (int j = 0; j < HELD; j++)
            held[j] = a + j * WARP < end ? fresh(args.weights + a + j * WARP) : 0;
    }
    __device__ void write()
    {
#pragma unroll 1
        for (int32_t a = first; a < end; a += HELD * WARP) {
            if (a > first)
                take(a);
#pragma unroll
            for (int j = 0; j < HELD; j++)
                if (a + j * WARP < end)
                    args.weights_copy[a + j * WARP] = held[j];
        }
    }
};

/* What all blocks found, by one warp of the last one: asked for before it looks back, and taken behind that.
 * Their words stand behind `words` words of counts. */
template <typename I> struct all_findings {
    enum { TOGETHER = GRID_BLOCKS / WARP };
    const relay &r;
    int32_t words;
    unsigned long long bad[TOGETHER], skipped[TOGETHER];

    __device__ all_findings(const relay &of, int32_t counts, bool wanted) : r(of), words(counts)
    {
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            int32_t b = lane_id() + j * WARP;
            bad[j] = wanted && b < r.block ? *r.at(b, words) : 0;
            skipped[j] = wanted && b < r.block ? *r.at(b, words + 1) : 0;
        }
    }
    __device__ void report(const epx_k_read_ids_t &args, ids_shared &shared) const
    {
        uint32_t lowest = lane_id() == 0 ? shared.bad : NONE_BAD, none = lane_id() == 0 ? shared.skipped : 0;
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            int32_t b = lane_id() + j * WARP;
            if (b < r.block) {
                lowest = min(lowest, r.get(b, words, bad[j]));
                none += r.get(b, words + 1, skipped[j]);
            }
        }
        lowest = __reduce_min_sync(ALL, lowest);
        none = __reduce_add_sync(ALL, none);
        if (lane_id() != 0)
            return;
        shared.bad_all = lowest;
        *args.notice = notice_of<I>(args, lowest == NONE_BAD ? -1 : (int64_t)lowest);
        *args.skipped = none;
    }
};

/* The counts of word k. */
template <int EACH> __device__ inline uint32_t word_of(const ordinals &o, int32_t k)
{
    return EACH == 1            ? o.total[k]
           : 2 * k + 1 < o.keys ? o.total[2 * k] | o.total[2 * k + 1] << 16
                                : o.total[2 * k];
}

/* All threads: the block's counts to the blocks behind it. EACH: counts of a word. */
template <int EACH> __device__ inline void hand_on(const relay &r, ordinals &o, const ids_shared &shared)
{
    int32_t words = (o.keys + EACH - 1) / EACH;
    __syncthreads();
    add_up_block(o);
    __syncthreads();
    if (r.is_last())
        return;
#pragma unroll 1
    for (int32_t k = (int32_t)threadIdx.x; k < words; k += (int32_t)blockDim.x)
        r.put(k, word_of<EACH>(o, k));
    if (threadIdx.x == 0)
        r.put(words, shared.bad), r.put(words + 1, shared.skipped);
}

/* All threads: the counts of the blocks before to o.before. The last block says what all come to. */
template <typename I, int EACH>
__device__ inline void take_over(const epx_k_read_ids_t &args, const relay &r, ordinals &o,
                                 ids_shared &shared)
{
    int32_t words = (o.keys + EACH - 1) / EACH;
    bool reports = r.is_last() && threadIdx.x / WARP == blockDim.x / WARP - 1;
    all_findings<I> findings(r, words, reports);
    look_back<EACH>(r, words, o.before);
    if (reports)
        findings.report(args, shared);
    __syncthreads();
    if (!r.is_last())
        return;
#pragma unroll 1
    for (int32_t k = (int32_t)threadIdx.x; k < o.keys; k += (int32_t)blockDim.x)
        args.counts[k] = shared.bad_all == NONE_BAD ? (int32_t)(o.before[k] + o.total[k]) : 0;
    if (threadIdx.x == 0)
        r.move_on();
}

template <typename I, int EACH>
__global__ void __launch_bounds__(GRID_THREADS, 1)
    read_ids_by_grid(const __grid_constant__ epx_k_read_ids_t args, const __grid_constant__ epx_k_lane_t lane)
{
    extern __shared__ uint32_t counters[];
    __shared__ ids_shared shared;
    ordinals o(counters, args.experts);
    if (threadIdx.x == 0)
        shared.bad = NONE_BAD, shared.skipped = 0;
    clear_counters(o);
    __syncthreads();
    behind_previous();
    let_next_begin();

    relay r(args.room, (args.experts + EACH - 1) / EACH + 2);
    /* The plan's head: `skipped` in it is the last block's. Its count is on its way while ids are looked at.
     */
    bool begins = lane.words != nullptr && r.block == 0 && threadIdx.x / WARP == 0;
    uint64_t routes = begins ? lane.words->routes : 0;
    int32_t warps = (int32_t)(blockDim.x / WARP);
    share items(r.block * warps + (int32_t)threadIdx.x / WARP, r.blocks * warps, 0,
                (int32_t)(tokens_of(args) * args.columns));
    uint32_t bad = NONE_BAD, skipped = 0;
    held_items held;
    count_more(
        o, items,
        [&](int32_t a) {
            I id = id_at<I>(args, a);
            bool choice = is_choice(args, a), wrong = is_bad(id, args.experts);
            bad = wrong ? min(bad, (uint32_t)a) : bad;
            skipped += choice && id == -1;
            return choice && !wrong ? (int32_t)id : -1;
        },
        held);
    add_findings(bad, skipped, shared);
    if (begins)
        begin_route(lane, routes + 1, args.skipped);
    hand_on<EACH>(r, o, shared);
    weights_copy weights(args, items);
    take_over<I, EACH>(args, r, o, shared);
    auto valid = [&](int32_t a) {
        I id = id_at<I>(args, a);
        return is_bad(id, args.experts) ? -1 : (int32_t)id;
    };
    place_items(
        o, items, [&](int32_t a) { return is_choice(args, a) ? valid(a) : -1; },
        [&](int32_t a, int32_t k, int32_t ordinal) {
            args.expert[a] = ordinal >= 0 ? k : valid(a);
            if (args.ordinal != nullptr)
                args.ordinal[a] = ordinal;
        },
        held);
    weights.write();
}

template <typename I, int EACH> launch_site grid_site;

/* Blocks for that, or 0: the other way. */
template <typename I, int EACH> int grid_blocks(const epx_k_read_ids_t *args)
{
    int64_t tokens = args->tokens_device != nullptr ? args->tokens_max : args->tokens;
    int64_t wanted = (tokens * args->columns + GRID_ITEMS - 1) / GRID_ITEMS;
    if (args->splits > 1 || args->experts > GRID_KEYS)
        return 0;
    int most = persistent_blocks(grid_site<I, EACH>, read_ids_by_grid<I, EACH>, GRID_THREADS,
                                 GRID_SUMS * GRID_KEYS * sizeof(uint32_t), 0);
    int64_t words = (args->experts + EACH - 1) / EACH + 2;
    int blocks =
        at_most(GRID_BLOCKS, relay_blocks(args->room != nullptr ? args->room_words : 0, words, wanted));
    if (EACH > 1 && tokens * args->columns / min(most, blocks) > RELAY_COUNT_MAX - GRID_THREADS)
        return 0;
    return blocks == 1 && wanted > HELD ? 0 : at_most(min(most, (int)GRID_BLOCKS), blocks);
}

template <typename I, int EACH>
epx_status_t start_grid(const epx_k_read_ids_t *args, int blocks, epx_stream_t stream)
{
    size_t bytes = (size_t)GRID_SUMS * (size_t)args->experts * sizeof(uint32_t);
    epx_k_lane_t lane = args->lane != nullptr ? *args->lane : epx_k_lane_t{};
    return launch("read_ids", {blocks, GRID_THREADS, bytes, 1, true}, stream, read_ids_by_grid<I, EACH>,
                  *args, lane);
}

/* ---- by clusters ------------------------------------------------------------------------------------------------ */

/* Several senders: one thread writes the notice. When one of them has a bad id, nobody has an assignment. */
template <typename I>
__global__ void __launch_bounds__(ROUTE_THREADS, 1) look_again(const __grid_constant__ epx_k_read_ids_t args)
{
    /* Whatever thread 0 of the grid makes of it, what the senders found stays negative or not. */
    int64_t bad = *(volatile int64_t *)&args.notice->bad_at, n = tokens_of(args) * args.columns,
            counts = (int64_t)args.splits * args.experts;
    if (blockIdx.x == 0 && threadIdx.x == 0)
        *args.notice = notice_of<I>(args, bad);
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

template <typename I> epx_status_t start_clusters(const epx_k_read_ids_t *args, epx_stream_t stream)
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
                   {persistent_blocks(look_site<I>, look_again<I>, ROUTE_THREADS, 0, 0), ROUTE_THREADS, 0, 1},
                   stream, look_again<I>, *args);
    return status;
}

template <typename I> epx_status_t start(const epx_k_read_ids_t *args, epx_stream_t stream)
{
    int blocks = grid_blocks<I, 2>(args);
    if (blocks > 0)
        return start_grid<I, 2>(args, blocks, stream);
    blocks = grid_blocks<I, 1>(args);
    if (blocks > 0)
        return start_grid<I, 1>(args, blocks, stream);
    epx_status_t status = args->lane != nullptr ? epx_cuda_lane(args->lane, stream) : EPX_OK;
    return status == EPX_OK ? start_clusters<I>(args, stream) : status;
}

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_read_ids(const epx_k_read_ids_t *args, epx_stream_t stream)
{
    return args->id_type == EPX_INT64 ? epx::start<int64_t>(args, stream) : epx::start<int32_t>(args, stream);
}
