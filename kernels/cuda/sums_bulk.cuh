/*
 * Reduced rows whose terms come by bulk copies: see sums.cuh for the arithmetic, bulk.cuh for the copies.
 * SPDX-License-Identifier: Apache-2.0
 *
 * A warp's work is a sequence of terms: piece by piece of its reduced rows, and of each piece its terms in
 * the order of the chain. The sequence runs through the warp's slots, so that as many terms are on their way
 * as there are slots, whatever a row has of them. Beside a slot stands what is to be done with it.
 */
#ifndef EPX_KERNELS_CUDA_SUMS_BULK_CUH
#define EPX_KERNELS_CUDA_SUMS_BULK_CUH

#include <type_traits>

#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/sums.cuh"

namespace epx
{

/*
 * How reductions are built: a slot is free as soon as it was read, so none are ahead. Each warp has one more
 * slot, from which a sum is stored by a bulk copy while the next one is added.
 */
template <int OF_WARPS, int OF_SLOTS, int OF_BYTES>
struct sum_build : bulk_build<OF_WARPS, OF_SLOTS, OF_BYTES, 1> {
    enum { SHARED = OF_WARPS * (OF_SLOTS + 1) * OF_BYTES };
};
typedef sum_build<16, 3, 3584> reduce_build;

/*
 * The same with sums stored from registers, and the room of these slots for loads. A bulk store to a peer
 * waits in the copy engine of its multiprocessor for the link, and loads wait behind it; where few
 * multiprocessors share the link that is most of the time.
 */
template <int OF_WARPS, int OF_SLOTS, int OF_BYTES>
struct direct_build : bulk_build<OF_WARPS, OF_SLOTS, OF_BYTES, 1> {
};
typedef direct_build<12, 5, 3584> budget_build;

template <typename B> struct is_direct : std::false_type {
};
template <int WARPS, int SLOTS, int BYTES>
struct is_direct<direct_build<WARPS, SLOTS, BYTES>> : std::true_type {
};

/* Bytes of sums for each of the blocks: fewer are sooner there without bulk copies. */
constexpr int64_t BULK_ENOUGH = 32 * 1024;

/* What is to be done with a slot: one load. */
struct alignas(16) reduce_note {
    char *out; /* NULL: the piece has more terms */
    float weight;
    int32_t bytes;
};

/* A piece of a reduced row: entries of its list, and where it is. */
struct reduced_piece {
    char *out; /* NULL: there is none */
    int32_t begin, count, from, bytes;

    __device__ reduced_piece of_lane(int x) const
    {
        return {(char *)__shfl_sync(ALL, (unsigned long long)(uintptr_t)out, x), __shfl_sync(ALL, begin, x),
                __shfl_sync(ALL, count, x), __shfl_sync(ALL, from, x), __shfl_sync(ALL, bytes, x)};
    }
};

/* Terms of a piece, 32 at a time, one on each lane; their rows are not looked at before they are wanted. */
struct listed_terms {
    int32_t row;
    float weight;

    __device__ listed_terms(const term_list &list, const reduced_piece &piece, int32_t from)
        : row(0), weight(1.0f)
    {
        int32_t x = from + lane_id();
        if (x < piece.count) {
            row = fresh(list.list + piece.begin + x);
            if (list.weights != nullptr)
                weight = fresh(list.weights + piece.begin + x);
        }
    }
};

/* One warp. T: the rows' type, N: elements in 16 bytes. */
template <typename B, typename T, int N> struct bulk_adder {
    enum { BLOCK = WARP * 16, BLOCKS = B::BYTES / BLOCK, TOGETHER = 4 };

    char *slots, *sum;
    uint64_t *phase;
    reduce_note *note;
    bulk_cursor<B::SLOTS> loaded, used;
    float acc[BLOCKS][N];

    __device__ bulk_adder(char *dynamic, bulk_shared<B, reduce_note> &shared) : sum(nullptr), acc{}
    {
        if constexpr (!is_direct<B>::value)
            sum = dynamic + (B::WARPS * B::SLOTS + threadIdx.x / WARP) * B::BYTES;
        take_slots<B>(dynamic, shared, slots, phase, note);
    }

    /* acc, rounded, to a place for `bytes` bytes; a new piece begins. */
    __device__ void store_sum(char *to, int32_t bytes)
    {
#pragma unroll
        for (int g = 0; g < BLOCKS; g++) {
            int32_t at = g * BLOCK + lane_id() * 16;
            if (at < bytes)
                vector<T, N>::store(to + at, 0, acc[g]);
#pragma unroll
            for (int i = 0; i < N; i++)
                acc[g][i] = 0;
        }
    }
    /* acc to memory. */
    __device__ void put(char *out, int32_t bytes)
    {
        if constexpr (is_direct<B>::value) {
            store_sum(out, bytes);
        } else {
            if (lane_id() == 0)
                bulk_wait_read<0>();
            __syncwarp();
            store_sum(sum, bytes);
            lanes_wrote();
            __syncwarp();
            if (lane_id() == 0) {
                bulk_store(out, sum, (uint32_t)bytes);
                bulk_close_group();
            }
        }
    }

    static __device__ void add_block(float (&to)[N], uint4 word, float weight)
    {
        float value[N];
        vector<T, N>::unpack(word, value);
#pragma unroll
        for (int i = 0; i < N; i++)
            to[i] = __fmaf_rn(weight, value[i], to[i]);
    }

    /* A slot of lane's: TOGETHER loads go before the first of their sums. */
    template <bool WHOLE> __device__ void add_slot(const char *slot, const reduce_note &n)
    {
#pragma unroll
        for (int from = 0; from < BLOCKS; from += TOGETHER) {
            uint4 word[TOGETHER];
#pragma unroll
            for (int g = from; g < from + TOGETHER && g < BLOCKS; g++) {
                if constexpr (!WHOLE)
                    word[g - from] = make_uint4(0, 0, 0, 0);
                if (WHOLE || g * BLOCK + lane_id() * 16 < n.bytes)
                    word[g - from] = *(const uint4 *)(slot + g * BLOCK);
            }
#pragma unroll
            for (int g = from; g < from + TOGETHER && g < BLOCKS; g++)
                if (WHOLE || g * BLOCK < n.bytes)
                    add_block(acc[g], word[g - from], n.weight);
        }
    }

    /* The note of the oldest term on its way, which is here then. */
    __device__ reduce_note next_note()
    {
        phase_wait(phase + used.slot, used.parity);
        return note[used.slot];
    }
    __device__ void add_next(const reduce_note &n)
    {
        const char *slot = slots + used.slot * B::BYTES + lane_id() * 16;
        if (n.bytes == B::BYTES)
            add_slot<true>(slot, n);
        else
            add_slot<false>(slot, n);
    }
    /* The oldest term on its way is added; whether it was a piece's last one. */
    __device__ bool use_next()
    {
        reduce_note n = next_note();
        add_next(n);
        if (n.out != nullptr)
            put(n.out, n.bytes);
        used.step();
        __syncwarp();
        return n.out != nullptr;
    }

    __device__ bool is_full() const { return loaded.item - used.item == B::SLOTS; }
    __device__ bool is_idle() const { return loaded.item == used.item; }
    /* One more term on its way; not when slots are full. No barrier of the warp is needed behind it: who sees
     * the phase complete sees the note, which the arrival releases. */
    __device__ void ask(const char *from, const reduce_note &n, int32_t flags = 0)
    {
        if (lane_id() == 0) {
            note[loaded.slot] = {n.out, n.weight, n.bytes | flags};
            bulk_load(slots + loaded.slot * B::BYTES, from, (uint32_t)n.bytes, phase + loaded.slot);
        }
        loaded.step();
    }
    __device__ void load(const char *from, float weight, int32_t bytes, char *out)
    {
        if (is_full())
            use_next();
        ask(from, {out, weight, bytes});
    }

    /* A piece without a term. */
    __device__ void clear(char *out, int32_t bytes)
    {
        for (int32_t at = lane_id() * 16; at < bytes; at += BLOCK)
            *(uint4 *)(out + at) = make_uint4(0, 0, 0, 0);
    }

    __device__ void finish()
    {
        while (!is_idle())
            use_next();
        bulk_wait_all();
    }
};

/* Terms by lists. */
template <typename B, typename T, int N> struct bulk_reducer : bulk_adder<B, T, N> {
    const term_list &list;

    __device__ bulk_reducer(const term_list &of, char *dynamic, bulk_shared<B, reduce_note> &shared)
        : bulk_adder<B, T, N>(dynamic, shared), list(of)
    {
    }

    /* All terms of a piece; t: the first ones, loaded before. */
    __device__ void add(const reduced_piece &piece, listed_terms t)
    {
        if (piece.count <= 0)
            this->clear(piece.out, piece.bytes);
        for (int32_t k = 0; k < piece.count; k++) {
            if (k % WARP == 0 && k > 0)
                t = listed_terms(list, piece, k);
            int64_t row = __shfl_sync(ALL, t.row, k % WARP);
            float weight = __shfl_sync(ALL, t.weight, k % WARP);
            this->load(list.rows + row * list.stride + piece.from, weight, piece.bytes,
                       k + 1 == piece.count ? piece.out : nullptr);
        }
    }

    /* A piece for each lane that has one, in the order of lanes. */
    __device__ void add_pieces(const reduced_piece &piece)
    {
        unsigned mask = __ballot_sync(ALL, piece.out != nullptr);
        if (mask == 0)
            return;
        reduced_piece next = piece.of_lane(__ffs(mask) - 1);
        listed_terms t(list, next, 0);
        while (mask != 0) {
            reduced_piece now = next;
            listed_terms of_now = t;
            mask &= mask - 1;
            if (mask != 0) {
                next = piece.of_lane(__ffs(mask) - 1);
                t = listed_terms(list, next, 0); /* on their way while these are dealt with */
            }
            add(now, of_now);
        }
    }
};

} // namespace epx

#endif
