/*
 * ragged_flow: a dispatch in parts, and their expansion while the rest travels; F1 to F5 are in
 * include/epx/kernels_ragged.h. SPDX-License-Identifier: Apache-2.0
 *
 * A warp is on its own: it takes a few units at a time, of what is to be sent, of what stays, or of what has
 * come. Few blocks send, as many as fill a link, spread over the multiprocessors; the others have the memory.
 */
#include "kernels/cuda/flow.cuh"
#include "kernels/cuda/places.cuh"
#include "kernels/cuda/progress.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

enum { SEND = 0, OWN = 1, USE = 2, GRAB = 8, SENDERS_OF_8 = 3, NAP_NS = 1500 };
static_assert((int)GRAB <= 32, "each is a lane's");

/* One warp. */
template <typename B> struct flow {
    const epx_k_ragged_flow_t &args;
    place_mover<B> &mover;
    int32_t sends, comes; /* rows that I send to, or get from, the rank of this lane; of my own lane none */
    int32_t owns, cut, each;
    int32_t sending = 0, using_part = 0, unsaid = 0;
    bool own_left;
    uint64_t epoch;

    __device__ flow(const epx_k_ragged_flow_t &of, place_mover<B> &with, uint64_t of_call)
        : args(of), mover(with), sends(0), comes(0), owns(0), own_left(!of.here), epoch(of_call)
    {
        cut = (int32_t)((args.row_bytes - 1) / B::BYTES) + 1, each = bulk_piece((int32_t)args.row_bytes, cut);
        int32_t rows = lane_id() < args.ranks ? fresh(&args.runs[lane_id()].rows) : 0;
        owns = __shfl_sync(ALL, rows, args.rank);
        sends = lane_id() != args.rank ? rows : 0;
        if (args.here)
            learn_comes();
    }
    __device__ bool is_other() const { return lane_id() < args.ranks && lane_id() != args.rank; }
    __device__ void learn_comes() { comes = is_other() ? (int32_t)fresh(args.count + lane_id()) : 0; }
    __device__ uint64_t *word(int32_t rank, int32_t part, int32_t sender) const
    {
        return part_word(args.dst, args.words, args.ranks, rank, part, sender);
    }
    __device__ int32_t rows_of(int32_t kind, int32_t part) const
    {
        if (kind == OWN)
            return owns;
        return (int32_t)__reduce_add_sync(ALL, (unsigned)part_rows(kind == SEND ? sends : comes, part));
    }

    /* F3. */
    __device__ bool has_come(int32_t part)
    {
        bool here = !is_other() || load_acquire(word(args.rank, part, lane_id())) == epoch;
        if (!__all_sync(ALL, here))
            return false;
        __syncwarp();
        to_bulk_copies();
        if (part == 0)
            learn_comes();
        return true;
    }
    /* F2: what this warp has stored of part `sending` is told. */
    __device__ void tell()
    {
        if (unsaid == 0)
            return;
        mover.finish();
        __syncwarp();
        int32_t units = rows_of(SEND, sending) * cut, last = 0;
        if (lane_id() == 0) {
            fence_system();
            last = atomicAdd(&args.counters->done[sending], (uint32_t)unsaid) + (uint32_t)unsaid ==
                   (uint32_t)units;
        }
        if (__shfl_sync(ALL, last, 0)) {
            __syncwarp();
            fence_system();
            if (is_other())
                store_word(word(lane_id(), sending, args.rank), epoch);
        }
        __syncwarp();
        unsaid = 0;
    }

    /* The piece of a row that stays: of entry i of the runs. */
    __device__ placed_piece own_piece(int64_t i, int32_t from) const
    {
        int32_t shift = (int32_t)(fresh(args.own.start) - fresh(args.own.base));
        return {(char *)args.own.dst + from,
                (const char *)args.x + (int64_t)fresh(args.index + i) * args.row_bytes + from,
                fresh(args.own.first + i) + shift, fresh(args.own.count + i),
                min((int32_t)args.row_bytes - from, each)};
    }
    /* Row i of the run to, or of those from, a rank. */
    __device__ placed_piece piece_of(int32_t kind, int32_t rank, int32_t i, int32_t from) const
    {
        int32_t bytes = min((int32_t)args.row_bytes - from, each);
        if (kind == USE) {
            int64_t g = fresh(args.start + rank) + i;
            return {(char *)args.own.dst + from, (const char *)args.src + g * args.row_bytes + from,
                    fresh(args.first + g), fresh(args.places + g), bytes};
        }
        const epx_run_t &run = args.runs[rank];
        int64_t entry = fresh(&run.first) + i;
        if (kind == OWN)
            return own_piece(entry, from);
        return {(char *)fresh((const uint64_t *)args.dst + rank) + args.rows +
                    (fresh(&run.row) + i) * args.row_bytes + from,
                (const char *)args.x + (int64_t)fresh(args.index + entry) * args.row_bytes + from, -1, 1,
                bytes};
    }
    /* All lanes: the piece of the unit of this lane, of `rows` rows; valid: there is one. */
    __device__ placed_piece find(int32_t kind, int32_t part, int32_t unit, int32_t rows, bool valid) const
    {
        int32_t row = unit / cut, from = (unit - row * cut) * each;
        int32_t r = kind == USE || !valid ? row : spread(row, rows), rank = args.rank, i = r;
        for (int32_t q = 0; kind != OWN && q < args.ranks; q++) {
            int32_t n = __shfl_sync(ALL, kind == SEND ? sends : comes, q), of_part = part_rows(n, part);
            if (r >= 0 && r < of_part)
                rank = q, i = part_first(n, part) + r;
            r -= of_part;
        }
        placed_piece none = {nullptr, nullptr, -1, 0, 0};
        return valid ? piece_of(kind, rank, i, from) : none;
    }
    /* Some units; false: there are none left. F1. */
    __device__ bool some(int32_t kind, int32_t part)
    {
        uint32_t *next = kind == OWN    ? args.counters->own
                         : kind == SEND ? args.counters->sent + part
                                        : args.counters->used + part;
        uint32_t first = 0;
        if (lane_id() == 0)
            first = atomicAdd(next, (uint32_t)GRAB);
        first = __shfl_sync(ALL, first, 0);
        int32_t rows = rows_of(kind, part), n = min(rows * cut - (int32_t)first, (int32_t)GRAB);
        if (n <= 0)
            return false;
        mover.table.list = kind == OWN ? args.own.list : args.list;
        mover.put_all(find(kind, part, (int32_t)first + lane_id(), rows, lane_id() < n));
        unsaid += kind == SEND ? n : 0;
        return true;
    }

    __device__ bool send()
    {
        for (; !args.here && sending < PARTS; sending++) {
            if (some(SEND, sending))
                return true;
            tell();
        }
        return false;
    }
    __device__ bool own() { return own_left = own_left && some(OWN, 0); }
    __device__ bool use()
    {
        for (; using_part < PARTS && (args.here || has_come(using_part)); using_part++)
            if (some(USE, using_part))
                return true;
        return false;
    }
    /* Whether all units of what is sent have been taken, by anybody. */
    __device__ bool all_taken() const
    {
        uint32_t taken = *(const volatile uint32_t *)&args.counters->sent[PARTS - 1];
        return args.here || __shfl_sync(ALL, taken, 0) >= (uint32_t)(rows_of(SEND, PARTS - 1) * cut);
    }
    /* Parts of which something is left to be used begin here: the second call's. */
    __device__ void skip_used()
    {
        int32_t units = 0;
        for (int32_t q = 0; q < args.ranks; q++)
            units += part_rows(__shfl_sync(ALL, comes, q), min(lane_id(), PARTS - 1)) * cut;
        uint32_t taken = lane_id() < PARTS ? *(const volatile uint32_t *)&args.counters->used[lane_id()] : 0;
        unsigned left = __ballot_sync(ALL, lane_id() < PARTS && taken < (uint32_t)units);
        using_part = left != 0 ? __ffs(left) - 1 : PARTS;
    }
    /* F4. */
    __device__ void go(bool sender)
    {
        if (args.here)
            skip_used();
        while (sender && send())
            ;
        for (;;) {
            if (use() || own()) {
                tell(); /* of what it has sent before */
                continue;
            }
            if (all_taken() || using_part == PARTS)
                break;
            __nanosleep(NAP_NS); /* the next part may come while others still send; many look at one word */
        }
        tell();
        mover.finish();
    }
};

template <typename B>
__global__ void __launch_bounds__(B::THREADS, 1) flow_rows(const __grid_constant__ epx_k_ragged_flow_t args)
{
    extern __shared__ __align__(128) char dynamic[];
    __shared__ typename place_mover<B>::shared shared;
    place_mover<B> mover(dynamic, shared);
    behind_previous();
    let_next_begin();
    say_begun(args.call);
    if (args.gate != nullptr && *(const volatile int32_t *)args.gate != 1)
        return;
    uint64_t base =
        args.call.lane != nullptr ? lane_base(args.call.lane, args.call.head, args.call.generation) : 0;
    mover.table = {args.list, args.row_bytes};
    flow<B> of_warp(args, mover, base + args.call.add);
    of_warp.go(!args.here && (int32_t)(blockIdx.x * 3 % 8) < SENDERS_OF_8);
}

template <typename B> launch_site flow_site;

template <typename B> epx_status_t launch_flow(const epx_k_ragged_flow_t *args, epx_stream_t stream)
{
    int blocks = persistent_blocks(flow_site<B>, flow_rows<B>, B::THREADS, B::SHARED, 0);
    return launch("dispatch", {blocks, B::THREADS, B::SHARED, 1, true}, stream, flow_rows<B>, *args);
}

} // namespace
} // namespace epx

/* 8 MiB: the whole of a dispatch is then some 50 us, of which an expansion that overlaps saves a third. 28
 * MiB: a combine is 124 us for 128 from there on, and nothing is to be had below. */
extern "C" const epx_flow_limits_t epx_cuda_flow_limits = {(int64_t)8 << 20, 16, (int64_t)28 << 20, 1};

extern "C" epx_status_t epx_cuda_ragged_flow(const epx_k_ragged_flow_t *args, epx_stream_t stream)
{
    return epx::launch_flow<epx::move_build>(args, stream);
}
