/*
 * Chains of fused multiply-adds over rows, in the order of the terms. SPDX-License-Identifier: Apache-2.0
 *
 * Lanes run across the row, 16 bytes each. Terms are handed over 32 at a time, one on each lane; their rows
 * are loaded a few at a time before the first is added, which leaves the order of the additions as it is.
 */
#ifndef EPX_KERNELS_CUDA_SUMS_CUH
#define EPX_KERNELS_CUDA_SUMS_CUH

#include "kernels/cuda/segments.cuh"

namespace epx
{

enum { BATCH = 4 };

/* `mask`: lanes that hold a term; each has the address of its row and its weight. inside: this lane's
 * elements exist. */
template <typename T, int N>
__device__ inline void add_terms(float (&acc)[N], int32_t h, bool inside, unsigned mask, const char *row,
                                 float weight)
{
    typedef vector<T, N> V;
    while (mask != 0) {
        typename V::word word[BATCH];
        float w[BATCH];
        int32_t terms = min(__popc(mask), (int32_t)BATCH);
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            if (b < terms) {
                int k = __ffs(mask) - 1;
                mask &= mask - 1;
                const char *from = (const char *)__shfl_sync(ALL, (unsigned long long)(uintptr_t)row, k);
                w[b] = __shfl_sync(ALL, weight, k);
                if (inside)
                    word[b] = V::load(from, h);
            }
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            if (b < terms && inside) {
                float value[N];
                V::unpack(word[b], value);
#pragma unroll
                for (int i = 0; i < N; i++)
                    acc[i] = __fmaf_rn(w[b], value[i], acc[i]);
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
};

/* One warp: blocks first .. end - 1 of 32 * N elements of one reduced row, rounded once into `out`. */
template <typename T, int N>
__device__ inline void reduce_blocks(const term_list &terms, int32_t begin, int32_t count, int32_t width,
                                     char *out, int32_t first, int32_t end)
{
    for (int32_t block = first; block < end; block++) {
        int32_t h = (block * WARP + lane_id()) * N;
        bool inside = h < width;
        float acc[N] = {};
        for (int32_t x = 0; x < count; x += WARP) {
            int32_t i = begin + x + lane_id();
            bool there = x + lane_id() < count;
            const char *row = there ? terms.rows + __ldg(terms.list + i) * terms.stride : nullptr;
            float weight = there && terms.weights != nullptr ? __ldg(terms.weights + i) : 1.0f;
            add_terms<T, N>(acc, h, inside, __ballot_sync(ALL, there), row, weight);
        }
        if (inside)
            vector<T, N>::store(out, h, acc);
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
