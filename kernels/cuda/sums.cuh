/*
 * Chains of fused multiply-adds over rows, in the order of the terms. SPDX-License-Identifier: Apache-2.0
 *
 * Lanes run across the row, 16 bytes each; 32 lanes make a block, and a warp works on a few blocks side by
 * side. Terms are handed over 32 at a time, one on each lane; their rows are loaded a few at a time before
 * the first is added, which leaves the order of the additions as it is.
 */
#ifndef EPX_KERNELS_CUDA_SUMS_CUH
#define EPX_KERNELS_CUDA_SUMS_CUH

#include <type_traits>

#include "kernels/cuda/segments.cuh"

namespace epx
{

enum { BATCH = 4, SIDE_BY_SIDE = 2 };

/* Up to 32 terms, one on each lane of `mask`: the address of its row and its weight. */
struct terms {
    unsigned mask;
    const char *row;
    float weight;
};

/* The element of this lane in block b of a row, and whether there is one. */
template <int N> __device__ inline int32_t element_of(int32_t block)
{
    return (block * WARP + lane_id()) * N;
}

/* Adds terms to blocks first .. first + SIDE_BY_SIDE - 1, those before `end`, of `width` elements. */
template <typename T, int N>
__device__ inline void add_terms(float (&acc)[SIDE_BY_SIDE][N], int32_t first, int32_t end, int32_t width,
                                 const terms &t)
{
    typedef vector<T, N> V;
    unsigned mask = t.mask;
    bool inside[SIDE_BY_SIDE];
#pragma unroll
    for (int g = 0; g < SIDE_BY_SIDE; g++)
        inside[g] = first + g < end && element_of<N>(first + g) < width;
    while (mask != 0) {
        typename V::word word[BATCH][SIDE_BY_SIDE];
        float w[BATCH];
        int32_t n = min(__popc(mask), (int32_t)BATCH);
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            if (b < n) {
                int k = __ffs(mask) - 1;
                mask &= mask - 1;
                const char *from = (const char *)__shfl_sync(ALL, (unsigned long long)(uintptr_t)t.row, k);
                w[b] = __shfl_sync(ALL, t.weight, k);
#pragma unroll
                for (int g = 0; g < SIDE_BY_SIDE; g++)
                    if (inside[g])
                        word[b][g] = V::load(from, element_of<N>(first + g));
            }
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            if (b < n) {
#pragma unroll
                for (int g = 0; g < SIDE_BY_SIDE; g++) {
                    if (inside[g]) {
                        float value[N];
                        V::unpack(word[b][g], value);
#pragma unroll
                        for (int i = 0; i < N; i++)
                            acc[g][i] = __fmaf_rn(w[b], value[i], acc[g][i]);
                    }
                }
            }
        }
    }
}

/* out[h..] in a type that is known at run time. */
template <int N> __device__ inline void store_as(char *row, int32_t h, epx_type_t type, const float *value)
{
    if (type == EPX_FP32)
        store_floats<N>((float *)row + h, value);
    else if (type == EPX_BF16) {
        if constexpr (N == 8)
            vector<bf16, 8>::store(row, h, value);
        else
            for (int i = 0; i < N; i++)
                bf16::store(row, h + i, value[i]);
    } else {
        if constexpr (N == 8)
            vector<fp16, 8>::store(row, h, value);
        else
            for (int i = 0; i < N; i++)
                fp16::store(row, h + i, value[i]);
    }
}

/* A list of terms in memory: entry i is row list[i], weight weights[i] or 1. */
struct term_list {
    const int32_t *list;
    const float *weights;
    const char *rows;
    int64_t stride;

    /* Entries `from` .. `end` - 1, as far as there are lanes. */
    __device__ terms at(int32_t from, int32_t end) const
    {
        int32_t i = from + lane_id();
        bool there = i < end;
        terms t = {__ballot_sync(ALL, there), nullptr, 1.0f};
        if (there) {
            t.row = rows + __ldg(list + i) * stride;
            t.weight = weights != nullptr ? __ldg(weights + i) : 1.0f;
        }
        return t;
    }
};

/* One warp: blocks first .. end - 1 of one reduced row, rounded once into `out`. */
template <typename T, int N>
__device__ inline void reduce_blocks(const term_list &list, int32_t begin, int32_t count, int32_t width,
                                     char *out, int32_t first, int32_t end)
{
    terms t = list.at(begin, begin + count);
    for (int32_t block = first; block < end; block += SIDE_BY_SIDE) {
        float acc[SIDE_BY_SIDE][N] = {};
        add_terms<T, N>(acc, block, end, width, t);
        for (int32_t x = WARP; x < count; x += WARP)
            add_terms<T, N>(acc, block, end, width, list.at(begin + x, begin + count));
#pragma unroll
        for (int g = 0; g < SIDE_BY_SIDE; g++)
            if (block + g < end && element_of<N>(block + g) < width)
                vector<T, N>::store(out, element_of<N>(block + g), acc[g]);
    }
}

template <int N> __device__ inline int32_t blocks_of(int32_t width) { return (width - 1) / (WARP * N) + 1; }

/* Calls fn with the row type, and how many elements a lane takes, as compile-time values. */
template <typename F> inline epx_status_t by_type(epx_type_t type, bool aligned, const F &fn)
{
    switch (type) {
    case EPX_BF16:
        return aligned ? fn(bf16(), std::integral_constant<int, 8>())
                       : fn(bf16(), std::integral_constant<int, 1>());
    case EPX_FP16:
        return aligned ? fn(fp16(), std::integral_constant<int, 8>())
                       : fn(fp16(), std::integral_constant<int, 1>());
    default:
        return aligned ? fn(fp32(), std::integral_constant<int, 4>())
                       : fn(fp32(), std::integral_constant<int, 1>());
    }
}

inline int32_t element_bytes(epx_type_t type) { return type == EPX_FP32 ? 4 : 2; }

} // namespace epx

#endif
