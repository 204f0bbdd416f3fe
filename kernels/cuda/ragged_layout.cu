/*
 * ragged_layout: everything about a routing that the counts decide. SPDX-License-Identifier: Apache-2.0
 *
 * Of few ranks one launch does it all, since each of its blocks decides for itself (ragged_whole.cuh). Else
 * two. The first decides: one block where the counts fit into it, else a cluster, with its barrier between
 * what each expert is wanted by; who is accepted, and the totals; cursors and runs. The second gives
 * assignments their places, on the whole GPU, and on the rank wire it numbers wire rows and list entries. It
 * begins early, and waits. Few assignments are the first one's too.
 */
extern "C" {
#include "base/fail.h"
}
#include "kernels/cuda/ragged_whole.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

__device__ inline void accept(const ragged_task &task, const team &our, const gang &g,
                              const count_table &counts, int64_t *room)
{
    bool real = task.splits == 1; /* what a sender of the rule takes is what a rank takes */
    accept_all(
        task.accept, our, g, task.virt, task.order.wave, counts, task.wanted, room, task.args.accepted,
        [&](const expert_facts &f, int32_t s, int64_t before, int64_t rows) {
            if (real)
                set_accepted(task, f.e, own_slot(task, f.e, f.c), s, before, rows);
        },
        [&](const expert_facts &f, int64_t quota, bool ascending) {
            int64_t total = quota;
            if (!real || !ascending)
                total = add_up_expert(task, g, f.e, own_slot(task, f.e, f.c));
            if (g.lane == 0)
                task.total[f.e] = (int32_t)total;
        });
}

/* Some assignments of a thread, `step` apart, loaded before it is known who is kept. */
enum { AHEAD = 4, PLACE_THREADS = 512, PLACED_ALONE = 4 * ROUTE_THREADS };
struct loaded {
    int32_t e[AHEAD], ordinal[AHEAD];

    __device__ loaded(const ragged_task &task, int32_t a0, int32_t step, int32_t n)
    {
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            int32_t a = a0 + j * step;
            e[j] = a < n ? fresh(task.args.expert + a) : -1;
            ordinal[j] = a < n ? fresh(task.args.ordinal + a) : -1;
        }
    }
};

/* Assignments a0, a0 + step, ... of this rank get their return rows, or none. */
__device__ inline void place_loaded(const ragged_task &task, const loaded &l, int32_t a0, int32_t step,
                                    int32_t n, int64_t tokens)
{
    const epx_k_ragged_layout_t &args = task.args;
    int32_t row[AHEAD], wave[AHEAD];
#pragma unroll
    for (int j = 0; j < AHEAD; j++) {
        int32_t a = a0 + j * step, e = l.e[j];
        row[j] = -1;
        if (e >= 0) {
            int32_t v = task.splits == 1 ? 0 : split_of(a / task.top_k, tokens, task.splits);
            int32_t accepted = args.accepted[((int64_t)task.rank * task.splits + v) * task.experts + e];
            int32_t first = args.first_row[(int64_t)v * task.experts + e];
            wave[j] = __ldg(task.order.wave + e);
            row[j] = l.ordinal[j] < accepted ? first + l.ordinal[j] : -1;
        }
    }
#pragma unroll
    for (int j = 0; j < AHEAD; j++) {
        int32_t a = a0 + j * step;
        if (row[j] >= 0)
            args.send[row[j]] = a;
        if (a < n)
            args.place[a] = row[j] >= 0 ? wave[j] * task.most + row[j] : -1;
    }
}

/* Assignments thread, thread + threads, ... below n; the first ones are loaded. */
__device__ inline void place_from(const ragged_task &task, const loaded &first, int32_t thread,
                                  int32_t threads, int32_t n, int64_t tokens)
{
    place_loaded(task, first, thread, threads, n, tokens);
    for (int64_t a = thread + (int64_t)AHEAD * threads; a < n; a += (int64_t)AHEAD * threads)
        place_loaded(task, loaded(task, (int32_t)a, threads, n), (int32_t)a, threads, n, tokens);
}

/* All assignments, by threads `thread`, `thread` + 1, ... of `threads`. ready: between the first loads and
 * what is decided. */
template <typename F>
__device__ inline void place_all(const ragged_task &task, int64_t tokens, int32_t thread, int32_t threads,
                                 const F &ready)
{
    int32_t n = (int32_t)tokens * task.top_k;
    loaded first(task, thread, threads, n);
    ready();
    place_from(task, first, thread, threads, n, tokens);
}

/* One thread, behind everything that the host is told. */
__device__ inline void tell(const ragged_task &task, int32_t culprit)
{
    const epx_k_ragged_layout_t &args = task.args;
    verdict_by_notices(args.verdict, args.notices, args.notice_stride, task.rank, culprit);
    if (args.wave_report != nullptr)
        for (int32_t c = 0; c < task.order.chunks; c++) {
            const volatile epx_ragged_wave_t &wave = args.wave[c]; /* added to by atomics */
            args.wave_report[c] = {wave.sent_rows, wave.sent_places, wave.received_places};
        }
    verdict_done(args.verdict);
}

/* Rank wire: warps of a block, and how many blocks hand counts on. */
enum { WIRE_THREADS = 512, WIRE_FEW_WARPS = 4, WIRE_BLOCKS = 128 };

/* T of this rank, or 0 where somebody's route is bad; by all threads of a block. */
__device__ inline int64_t tokens_of(const ragged_task &task, int64_t *room, int32_t *culprit_p)
{
    const epx_k_ragged_layout_t &args = task.args;
    *culprit_p = notice_culprit(args.notices, args.notice_stride, task.rank, task.ranks, room);
    return *culprit_p < 0 ? task.tokens() : 0;
}

__global__ void __launch_bounds__(ROUTE_THREADS, 1) decide_by_block(const __grid_constant__ ragged_task task)
{
    extern __shared__ __align__(16) char all[];
    alone_shared &shared = *(alone_shared *)all;
    const epx_k_ragged_layout_t &args = task.args;
    bool bad = false;
    alone_facts facts(task, (int32_t)threadIdx.x);
    behind_previous();
    for (int32_t r = (int32_t)threadIdx.x; r < task.ranks; r += (int32_t)blockDim.x)
        bad |= bad_at(args.notices, args.notice_stride, r) != EPX_NOTICE_GOOD;
    int32_t culprit = -1;
    if (__syncthreads_or(bad))
        culprit = notice_culprit(args.notices, args.notice_stride, task.rank, task.ranks, shared.walk.room);
    int64_t tokens = culprit < 0 ? task.tokens() : 0;
    let_next_begin();
    bool placed_here = !args.rank_wire && tokens * task.top_k <= PLACED_ALONE;
    int32_t assignments = placed_here ? (int32_t)tokens * task.top_k : 0;
    loaded first(task, (int32_t)threadIdx.x, (int32_t)blockDim.x, assignments);
    decide_alone({task, shared, (int32_t *)(all + sizeof(alone_shared))}, task.counts(culprit < 0), facts);
    if (args.rank_wire)
        return;
    if (threadIdx.x == 0)
        tell(task, culprit);
    place_from(task, first, (int32_t)threadIdx.x, (int32_t)blockDim.x, assignments, tokens);
}

__global__ void __launch_bounds__(ROUTE_THREADS, 1)
    decide_by_cluster(const __grid_constant__ ragged_task task, int32_t gang_lanes)
{
    __shared__ walk_shared shared;
    team our;
    gang g(gang_lanes);
    int32_t culprit;
    entry_facts entry(task, (int32_t)threadIdx.x);
    tokens_of(task, shared.room, &culprit);
    let_next_begin();
    count_table counts = task.counts(culprit < 0);
    accept(task, our, g, counts, shared.room);
    our.sync();
    for (int32_t i = our.block; i < task.ranks + task.order.chunks; i += our.blocks) {
        if (i < task.ranks)
            lay_sender(task, counts, i, entry, shared);
        else
            lay_batch(task, i - task.ranks, shared);
    }
    our.sync();
    if (!task.args.rank_wire && our.thread() == 0)
        tell(task, culprit);
}

__global__ void __launch_bounds__(PLACE_THREADS)
    place_assignments(const __grid_constant__ ragged_task task, bool few_are_placed)
{
    __shared__ int64_t room[WARP];
    int32_t culprit;
    int64_t tokens = tokens_of(task, room, &culprit);
    if (few_are_placed && tokens * task.top_k <= PLACED_ALONE)
        tokens = 0;
    place_all(task, tokens, (int32_t)(blockIdx.x * PLACE_THREADS + threadIdx.x),
              (int32_t)(gridDim.x * PLACE_THREADS), [] {
                  behind_previous();
                  let_next_begin();
              });
}

__global__ void __launch_bounds__(WIRE_THREADS, 1) place_on_wire(const __grid_constant__ ragged_task task)
{
    extern __shared__ int32_t dynamic[];
    __shared__ int64_t room[WARP];
    int32_t culprit;
    wire_tables tables(dynamic, task.experts, task.order.chunks * task.ranks);
    relay r(task.args.room, 2 * tables.pairs);
    int64_t tokens = tokens_of(task, room, &culprit);
    lay_wire(task, r, tables, tokens, [] {
        behind_previous();
        let_next_begin();
    });
    __syncthreads();
    if (r.is_last() && threadIdx.x == 0)
        tell(task, culprit);
}

/* All of a layout, of at most RANKS ranks; dynamic shared memory: the tables and counters of the rank wire.
 */
template <int RANKS>
__global__ void __launch_bounds__(WHOLE_THREADS, 1)
    lay_whole(const __grid_constant__ ragged_task task, int32_t placers)
{
    extern __shared__ int32_t dynamic[];
    __shared__ whole_shared shared;
    const epx_k_ragged_layout_t &args = task.args;
    whole_part our(task, placers);
    wire_tables tables(dynamic, task.experts, task.order.chunks * task.ranks);
    ordinals o(tables.counters, 2 * tables.pairs);
    int32_t x = (int32_t)threadIdx.x, thread = (int32_t)(blockIdx.x * blockDim.x) + x;
    whole_facts f(task, x);
    if (x == 0)
        shared.routed = 0;
    behind_previous();
    let_next_begin();
    whole_wants<RANKS> wants(task, f.e);
    int64_t tokens = task.tokens();
    bool bad = x < task.ranks && bad_at(args.notices, args.notice_stride, x) != EPX_NOTICE_GOOD;
    relay r(args.rank_wire ? args.room : nullptr, 2 * tables.pairs);
    if (!our.places)
        r.block = placers; /* behind all that count */
    bad = __syncthreads_or(bad) != 0;
    if (bad)
        tokens = 0, wants.forget();
    /* On their way while all is decided. */
    int32_t n = our.places ? (int32_t)tokens * task.top_k : 0, e = -1, ordinal = -1;
    wire_step step(task.top_k);
    wire_choice choice = {};
    if (args.rank_wire)
        choice = choice_at(task, step, thread / WARP, n);
    else if (thread < n)
        e = fresh(args.expert + thread), ordinal = fresh(args.ordinal + thread);
    entry_walk walk;
    whole_entry entry = decide_whole(task, f, wants, our.sender, shared, walk);
    if (our.places || our.is_last)
        fill_whole(task, f, entry, walk, shared.walk, tables);
    if (our.places) {
        clear_counters(o);
        __syncthreads();
        if (args.rank_wire)
            place_whole(task, tables, step, choice, tokens, r, o);
        else if (thread < n)
            place_one(task, tables, thread, e, ordinal);
        for (int64_t a = thread + (int64_t)placers * blockDim.x; !args.rank_wire && a < n;
             a += (int64_t)placers * blockDim.x)
            place_one(task, tables, (int32_t)a, fresh(args.expert + a), fresh(args.ordinal + a));
        return;
    }
    write_sender(task, f, entry, our.sender, walk, shared.walk);
    if (!our.is_last)
        return;
    write_own(task, f, entry, (uint32_t)own_of(wants, task.rank), walk, shared);
    if (args.rank_wire) {
        count_whole(r, o);
        set_wire_runs(task, tables, o);
    }
    __syncthreads();
    int32_t culprit =
        bad ? notice_culprit(args.notices, args.notice_stride, task.rank, task.ranks, shared.walk.room) : -1;
    if (x == 0)
        tell(task, culprit);
}

launch_site cluster_site, wire_site, place_site;

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

namespace epx
{
namespace
{

/* Shared memory that one block has for its tables and counts; asked once for each device. */
size_t alone_limit()
{
    static std::atomic<size_t> asked[DEVICES_REMEMBERED];
    int device = current_device();
    std::atomic<size_t> *known = device < DEVICES_REMEMBERED ? &asked[device] : nullptr;
    size_t bytes = known != nullptr ? known->load(std::memory_order_relaxed) : 0;
    if (bytes != 0)
        return bytes;
    bytes = shared_limit(device);
    if (cudaFuncSetAttribute(decide_by_block, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes) !=
        cudaSuccess)
        bytes = 1;
    if (known != nullptr)
        known->store(bytes, std::memory_order_relaxed);
    return bytes;
}

/* What it needs of it. */
size_t alone_bytes(const epx_shape_t *shape)
{
    return sizeof(alone_shared) + (size_t)shape->virtual_ranks * (size_t)shape->experts * sizeof(int32_t);
}

/* Steps of a warp that takes whole tokens. */
int64_t wire_steps(const epx_shape_t *shape)
{
    int64_t step = shape->top_k <= WARP ? WARP / shape->top_k * shape->top_k : WARP;
    return ((int64_t)shape->tokens_max * shape->top_k - 1) / step + 1;
}

/* Whether one launch does it all: `blocks` that place, of `threads` threads. */
struct whole_plan {
    bool fits;
    int blocks, threads;
    size_t bytes;
};

whole_plan plan_whole(const ragged_task &task, const epx_shape_t *shape)
{
    int64_t assignments = (int64_t)shape->tokens_max * shape->top_k, steps = wire_steps(shape),
            pairs = (int64_t)task.order.chunks * shape->ranks;
    whole_plan plan = {false, 0, shape->experts <= 256 ? 256 : WHOLE_THREADS, 0};
    if (!task.args.rank_wire)
        steps = (assignments - 1) / WARP + 1;
    if (steps > (int64_t)WHOLE_BLOCKS * plan.threads / WARP)
        plan.threads = WHOLE_THREADS;
    int64_t warps = plan.threads / WARP, wanted = (steps - 1) / warps + 1;
    plan.blocks = at_most(WHOLE_BLOCKS, wanted);
    plan.bytes = (size_t)wire_words(shape->experts, pairs, warps) * sizeof(int32_t);
    plan.fits = shape->splits == 1 && shape->ranks <= WHOLE_RANKS && shape->experts <= WHOLE_THREADS &&
                shape->accept != EPX_ACCEPT_FAIR && assignments <= INT32_MAX / WHOLE_RANKS &&
                plan.bytes <= 20 * 1024 && wanted <= (int64_t)plan.blocks * (task.args.rank_wire ? 1 : 4);
    if (task.args.rank_wire)
        plan.fits = plan.fits && shape->top_k <= WARP && task.args.room != nullptr &&
                    relay_blocks(task.args.room_words, 2 * pairs, plan.blocks + 1) == plan.blocks + 1;
    return plan;
}

epx_status_t start_deciding(const ragged_task &task, const epx_shape_t *shape, bool alone,
                            epx_stream_t stream)
{
    int threads = shape->experts <= 256 ? 256 : (shape->experts + WARP - 1) / WARP * WARP;
    if (alone)
        return launch("ragged_layout", {1, threads, alone_bytes(shape), 1, true}, stream, decide_by_block,
                      task);
    int64_t walks = ((int64_t)shape->ranks + task.order.chunks) * 4 * ROUTE_THREADS,
            items = (int64_t)shape->virtual_ranks * shape->experts;
    int blocks = cluster_for(cluster_limit(cluster_site, decide_by_cluster), walks > items ? walks : items);
    return launch("ragged_layout", {blocks, ROUTE_THREADS, 0, blocks}, stream, decide_by_cluster, task,
                  gang_width(shape->virtual_ranks));
}

epx_status_t start_placing(const ragged_task &task, const epx_shape_t *shape, bool alone, epx_stream_t stream)
{
    int64_t assignments = (int64_t)shape->tokens_max * shape->top_k, steps = wire_steps(shape);
    if (!task.args.rank_wire) {
        if (alone && assignments <= PLACED_ALONE)
            return EPX_OK;
        int blocks = at_most(persistent_blocks(place_site, place_assignments, PLACE_THREADS, 0, 0),
                             (assignments - 1) / (AHEAD * PLACE_THREADS) + 1);
        return launch("ragged_layout", {blocks, PLACE_THREADS, 0, 1, true}, stream, place_assignments, task,
                      alone);
    }
    int64_t pairs = (int64_t)task.order.chunks * shape->ranks;
    size_t limit = shared_limit(current_device()) / sizeof(int32_t);
    int most = persistent_blocks(wire_site, place_on_wire, WIRE_THREADS, limit * sizeof(int32_t), 0);
    int64_t room = task.args.room != nullptr ? task.args.room_words : 0;
    /* Instructions of one warp are what takes longest: a step for each, as far as there are blocks. */
    int64_t wanted = (steps + WIRE_FEW_WARPS - 1) / WIRE_FEW_WARPS;
    int blocks = at_most(min(most, (int)WIRE_BLOCKS), relay_blocks(room, 2 * pairs, wanted)),
        warps = WIRE_FEW_WARPS;
    while (warps < WIRE_THREADS / WARP && (int64_t)blocks * warps < steps)
        warps *= 2;
    while (warps > 1 && (size_t)wire_words(shape->experts, pairs, warps) > limit)
        warps /= 2;
    if ((size_t)wire_words(shape->experts, pairs, warps) > limit)
        return epx_fail(EPX_ERR_UNSUPPORTED, "cuda: the rank wire has no room for the tables of %d experts",
                        shape->experts);
    size_t bytes = (size_t)wire_words(shape->experts, pairs, warps) * sizeof(int32_t);
    return launch("ragged_layout", {blocks, warps * WARP, bytes, 1, true}, stream, place_on_wire, task);
}

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_ragged_layout(const epx_k_ragged_layout_t *args, epx_stream_t stream)
{
    using namespace epx;
    const epx_shape_t *shape = args->shape;
    ragged_task task = task_of(args);
    whole_plan plan = plan_whole(task, shape);
    if (plan.fits)
        return launch("ragged_layout", {plan.blocks + shape->ranks, plan.threads, plan.bytes, 1, true},
                      stream, shape->ranks <= 2 ? lay_whole<2> : lay_whole<WHOLE_RANKS>, task, plan.blocks);
    bool alone = shape->experts <= ROUTE_THREADS && shape->accept != EPX_ACCEPT_FAIR &&
                 alone_bytes(shape) <= alone_limit();
    epx_status_t status = start_deciding(task, shape, alone, stream);
    return status == EPX_OK ? start_placing(task, shape, alone, stream) : status;
}
