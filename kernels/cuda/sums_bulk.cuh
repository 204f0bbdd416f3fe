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

#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/sums.cuh"

namespace epx
{

/* How reductions are built. A slot is free as soon as it was read, so none are ahead. */
typedef bulk_build<8, 8, 2048, 1> reduce_build;

struct reduce_note {
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
template <typename B, typename T, int N> struct bulk_reducer {
    enum { BLOCK = WARP * 16, BLOCKS = B::BYTES / BLOCK };

    const term_list &list;
    char *slots;
    uint64_t *phase;
    reduce_note *note;
    bulk_cursor<B::SLOTS> loaded, used;
    float acc[BLOCKS][N];

    __device__ bulk_reducer(const term_list &of, char *dynamic, bulk_shared<B, reduce_note> &shared)
        : list(of), acc{}
    {
        take_slots<B>(dynamic, shared, slots, phase, note);
    }

    /* acc to memory, rounded; a new piece begins. */
    __device__ void put(char *out, int32_t bytes)
    {
#pragma unroll
        for (int g = 0; g < BLOCKS; g++) {
            int32_t at = g * BLOCK + lane_id() * 16;
            if (at < bytes)
                vector<T, N>::store(out + at, 0, acc[g]);
#pragma unroll
            for (int i = 0; i < N; i++)
                acc[g][i] = 0;
        }
    }

    /* The oldest term on its way is added. */
    __device__ void use_next()
    {
        phase_wait(phase + used.slot, used.parity);
        reduce_note n = note[used.slot];
        const char *slot = slots + used.slot * B::BYTES;
#pragma unroll
        for (int g = 0; g < BLOCKS; g++) {
            int32_t at = g * BLOCK + lane_id() * 16;
            if (at < n.bytes) {
                float value[N];
                vector<T, N>::unpack(*(const uint4 *)(slot + at), value);
#pragma unroll
                for (int i = 0; i < N; i++)
                    acc[g][i] = __fmaf_rn(n.weight, value[i], acc[g][i]);
            }
        }
        if (n.out != nullptr)
            put(n.out, n.bytes);
        used.step();
        __syncwarp();
    }

    __device__ void load(const char *from, float weight, int32_t bytes, char *out)
    {
        if (loaded.item - used.item == B::SLOTS)
            use_next();
        if (lane_id() == 0) {
            note[loaded.slot] = {out, weight, bytes};
            bulk_load(slots + loaded.slot * B::BYTES, from, (uint32_t)bytes, phase + loaded.slot);
        }
        __syncwarp();
        loaded.step();
    }

    /* All terms of a piece; t: the first ones, loaded before. */
    __device__ void add(const reduced_piece &piece, listed_terms t)
    {
        if (piece.count <= 0)
            for (int32_t at = lane_id() * 16; at < piece.bytes; at += BLOCK)
                *(uint4 *)(piece.out + at) = make_uint4(0, 0, 0, 0);
        for (int32_t k = 0; k < piece.count; k++) {
            if (k % WARP == 0 && k > 0)
                t = listed_terms(list, piece, k);
            int64_t row = __shfl_sync(ALL, t.row, k % WARP);
            float weight = __shfl_sync(ALL, t.weight, k % WARP);
            load(list.rows + row * list.stride + piece.from, weight, piece.bytes,
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

    __device__ void finish()
    {
        while (used.item < loaded.item)
            use_next();
    }
};

} // namespace epx

#endif
