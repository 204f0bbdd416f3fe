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

enum { BATCH = 4 };

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

/* Adds terms to blocks first .. first + G - 1, those before `end`, of `width` elements. */
template <typename T, int N, int G>
__device__ inline void add_terms(float (&acc)[G][N], int32_t first, int32_t end, int32_t width,
                                 const terms &t)
{
    typedef vector<T, N> V;
    unsigned mask = t.mask;
    bool inside[G];
#pragma unroll
    for (int g = 0; g < G; g++)
        inside[g] = first + g < end && element_of<N>(first + g) < width;
    while (mask != 0) {
        typename V::word word[BATCH][G];
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
                for (int g = 0; g < G; g++)
                    if (inside[g])
                        word[b][g] = V::load(from, element_of<N>(first + g));
            }
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            if (b < n) {
#pragma unroll
                for (int g = 0; g < G; g++) {
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
            t.row = rows + fresh(list + i) * stride;
            t.weight = weights != nullptr ? fresh(weights + i) : 1.0f;
        }
        return t;
    }
};

/* Blocks of a reduced row that are worked on side by side. */
enum { REDUCE_THREADS = 128, REDUCE_BLOCKS = 5, REDUCED_TOGETHER = 2 };

/* One reduced row or a part of it: entries of its list, where it goes, and which blocks. */
struct reduction {
    int32_t begin, count, first, end; /* end 0: there is none */
    char *out;
};

/* One warp; t: the first terms, which have been loaded. */
template <typename T, int N>
__device__ inline void reduce_blocks(const term_list &list, const reduction &r, const terms &t, int32_t width)
{
    constexpr int G = REDUCED_TOGETHER;
    for (int32_t block = r.first; block < r.end; block += G) {
        float acc[G][N] = {};
        add_terms<T, N, G>(acc, block, r.end, width, t);
        for (int32_t x = WARP; x < r.count; x += WARP)
            add_terms<T, N, G>(acc, block, r.end, width, list.at(r.begin + x, r.begin + r.count));
#pragma unroll
        for (int g = 0; g < G; g++)
            if (block + g < r.end && element_of<N>(block + g) < width)
                vector<T, N>::store(r.out, element_of<N>(block + g), acc[g]);
    }
}

/*
 * One warp: reductions at(unit), at(unit + step), ... while unit < units. What the next one adds is loaded
 * while this one is added up, and where its list is, before that.
 */
template <typename T, int N, typename F>
__device__ inline void reduce_all(const term_list &list, int32_t unit, int32_t units, int32_t step,
                                  int32_t width, const F &at)
{
    auto get = [&](int32_t u) { return u < units && u >= 0 ? at(u) : reduction{0, 0, 0, 0, nullptr}; };
    auto load = [&](const reduction &r) { return list.at(r.begin, r.begin + r.count); };
    reduction now = get(unit), next = get(unit + step);
    terms t = load(now);
    for (; unit < units; unit += step) {
        terms ahead = load(next);
        reduction after = get(unit + 2 * step);
        reduce_blocks<T, N>(list, now, t, width);
        now = next, next = after, t = ahead;
    }
}

template <int N> __host__ __device__ inline int32_t blocks_of(int32_t width)
{
    return (width - 1) / (WARP * N) + 1;
}

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
