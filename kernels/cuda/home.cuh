/*
 * What ragged_home's warps share: how pieces are dealt, what all of them know, and how they add up. H1 to H5
 * are in include/epx/kernels_ragged.h. SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_KERNELS_CUDA_HOME_CUH
#define EPX_KERNELS_CUDA_HOME_CUH

#include "kernels/cuda/flow.cuh"
#include "kernels/cuda/sums_bulk.cuh"

namespace epx
{

/* Pieces of a warp: of streams `warp`, `warp` + warps .. of all, round by round. */
struct home_deal {
    int32_t warp, warps, streams, own;

    __device__ home_deal(int32_t of, int32_t all, int32_t n)
        : warp(of), warps(all), streams(n), own(of < n ? (n - 1 - of) / all + 1 : 0)
    {
    }
    __device__ int32_t stream(int32_t m) const { return own == 1 ? warp : warp + m % own * warps; }
    __device__ int32_t round(int32_t m) const { return own == 1 ? m : m / own; }
    __device__ int32_t unit(int32_t m) const { return round(m) * streams + stream(m); }
    /* Pieces when units are so many; those of the last round need not be there. */
    __device__ int32_t count(int32_t units) const { return own * ((units + streams - 1) / streams); }
    /* Of the first m pieces, rounds of the j-th of its streams. */
    __device__ int32_t rounds(int32_t m, int32_t j) const { return (m + own - 1 - j) / own; }
};

/* What all warps of a rank know. */
struct home_facts {
    const epx_k_ragged_home_t &args;
    int32_t cut, each, tokens; /* pieces of a row, bytes of one */
    int32_t sends, comes,
        start; /* rows to and from the rank of this lane, and their region; none to my own */
    int32_t own_start, own_rows, shift;
    const char *base = nullptr; /* memory of the rank of this lane */
    uint64_t epoch;             /* as it stands in a word */

    __device__ home_facts(const epx_k_ragged_home_t &of, uint64_t of_call)
        : args(of), sends(0), comes(0), start(0), epoch(of_call << 16)
    {
        int32_t row_bytes = (int32_t)args.row_bytes, lane = lane_id();
        cut = (row_bytes - 1) / EPX_HOME_PIECE + 1, each = bulk_piece(row_bytes, cut);
        tokens = (int32_t)fresh(args.tokens);
        int64_t own_base = fresh(args.own_base);
        if (lane < args.ranks) {
            start = (int32_t)fresh(args.home_start + lane), comes = (int32_t)fresh(args.home_count + lane);
            base = (const char *)fresh((const uint64_t *)args.dst + lane);
            int64_t rows = fresh(args.rows + lane), most = fresh(&args.runs[lane].rows);
            sends = (int32_t)max(rows < most ? rows : most, (int64_t)0);
        }
        own_start = __shfl_sync(ALL, start, args.rank), own_rows = __shfl_sync(ALL, comes, args.rank);
        shift = own_start - (int32_t)own_base;
        if (lane == args.rank)
            sends = 0;
    }
    __device__ const char *base_of(int32_t rank) const
    {
        return (const char *)__shfl_sync(ALL, (unsigned long long)(uintptr_t)base, rank);
    }
    __device__ uint64_t word(int32_t rounds) const { return epoch | (uint32_t)rounds; }
    /* Rounds that a word tells of. */
    __device__ int32_t rounds_of(uint64_t word) const
    {
        return (word ^ epoch) < EPX_HOME_ROUNDS_MAX ? (int32_t)(word ^ epoch) : 0;
    }
    /* Units of the rank that most is sent to. */
    __device__ int32_t sent_units() const { return (int32_t)__reduce_max_sync(ALL, (unsigned)sends) * cut; }
    /* Pieces of a warp that sends, for all ranks in turn. */
    __device__ int32_t pieces(const home_deal &of) const { return of.count(sent_units()) * (args.ranks - 1); }
    __device__ int32_t peer(int32_t x) const { return x + (x >= args.rank); }
};

enum { HOME_RING = 16, HOME_TEAM = 12 };

/* What warps of a block that sends tell each other. */
struct home_shared {
    int32_t progress[HOME_TEAM];        /* of each sender: its pieces that are stored; atomic, no barrier */
    int32_t ring[HOME_TEAM][HOME_RING]; /* of each sender: number of the piece behind each of its next sums */
};

/* Sums for others. */
template <typename B, typename T, int N> struct send_adder : bulk_adder<B, T, N> {
    static_assert((int)B::SLOTS < (int)HOME_RING && (int)B::WARPS <= (int)HOME_TEAM && is_direct<B>::value,
                  "sums under way have a place");
    int32_t puts = 0, given = 0;
    int32_t *progress;
    int32_t *ring;

    __device__ send_adder(char *dynamic, bulk_shared<B, reduce_note> &phases, home_shared &of)
        : bulk_adder<B, T, N>(dynamic, phases), progress(&of.progress[threadIdx.x / WARP]),
          ring(of.ring[threadIdx.x / WARP])
    {
    }
    /* All lanes have stored. The fence is the teller's, which sees this. */
    __device__ void say(int32_t number)
    {
        __syncwarp();
        if (lane_id() == 0) {
            __threadfence_block();
            atomicExch_block(progress, number);
        }
    }
    __device__ void use_next()
    {
        if (bulk_adder<B, T, N>::use_next())
            say(ring[puts++ % HOME_RING]);
    }
    __device__ void load(const char *from, float weight, int32_t bytes, char *out)
    {
        if (this->is_full())
            use_next();
        this->ask(from, {out, weight, bytes});
    }
    __device__ void drain()
    {
        while (!this->is_idle())
            use_next();
    }
};

/* Beside the bytes of a note: the sum of own rows is whole and is rounded; what was rounded is the next term.
 */
enum { WHOLE = 1, NEXT = 2, FLAGS = 15 };

/* Sums of tokens. Terms of two kinds in one sequence: what is added up by itself first (H4), and the rest of
 * the chain. */
template <typename B, typename T, int N> struct home_adder : bulk_adder<B, T, N> {
    typedef bulk_adder<B, T, N> base;

    __device__ home_adder(char *dynamic, bulk_shared<B, reduce_note> &phases) : base(dynamic, phases) {}

    /* acc, rounded, to where sums are stored from; each lane looks only at what it wrote there. */
    __device__ void keep(int32_t bytes)
    {
        if (lane_id() == 0)
            bulk_wait_read<0>();
        __syncwarp();
        this->store_sum(this->sum, bytes);
    }
    __device__ void add_kept(int32_t bytes)
    {
#pragma unroll
        for (int g = 0; g < base::BLOCKS; g++) {
            int32_t at = g * base::BLOCK + lane_id() * 16;
            if (at < bytes)
                base::add_block(this->acc[g], *(const uint4 *)(this->sum + at), 1.0f);
        }
    }
    __device__ void use_next()
    {
        reduce_note n = this->next_note();
        int32_t flags = n.bytes & FLAGS;
        n.bytes -= flags;
        this->add_next(n);
        if (flags & WHOLE)
            keep(n.bytes);
        if (flags & NEXT)
            add_kept(n.bytes);
        if (n.out != nullptr)
            this->put(n.out, n.bytes);
        this->used.step();
        __syncwarp();
    }
    __device__ void load(const char *from, float weight, int32_t bytes, int32_t flags, char *out)
    {
        if (this->is_full())
            use_next();
        this->ask(from, {out, weight, bytes}, flags);
    }
    __device__ void drain()
    {
        while (!this->is_idle())
            use_next();
    }
};

} // namespace epx

#endif
