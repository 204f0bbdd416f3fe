/*
 * Rows on the GPU: copying them by warps, and their elements as floats. SPDX-License-Identifier: Apache-2.0
 *
 * Conversions are the hardware's: to fp32 exact, from fp32 to nearest even, infinities and subnormals as IEEE
 * 754 has them; a NaN becomes the canonical one.
 */
#ifndef EPX_KERNELS_CUDA_ROWS_CUH
#define EPX_KERNELS_CUDA_ROWS_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/launch.cuh"

namespace epx
{

enum { WARP = 32 };
constexpr unsigned ALL = 0xffffffffu;

__device__ inline int lane_id() { return (int)(threadIdx.x % WARP); }
__device__ inline int warp_of_grid() { return (int)((blockIdx.x * blockDim.x + threadIdx.x) / WARP); }
__device__ inline int warps_of_grid() { return (int)(gridDim.x * blockDim.x / WARP); }

/*
 * Loads of what kernels before this one wrote and no thread of this one writes, past the first-level cache: a
 * kernel that begins early may share it with those that still write.
 */
template <typename V> __device__ inline V fresh(const V *from) { return __ldcg(from); }

/* Stores of what this kernel does not read again: they are the first to leave the caches. */
template <typename V> __device__ inline void store_once(V *to, V value) { __stcs(to, value); }

/* One warp copies n values; UNROLL loads are in flight on each lane before the first store. */
template <int UNROLL, typename V> __device__ inline void copy_values(V *to, const V *from, int32_t n)
{
    constexpr int REST = UNROLL / 2;
    int32_t i = lane_id();
#pragma unroll 1
    for (; i + (UNROLL - 1) * WARP < n; i += UNROLL * WARP) {
        V v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            v[u] = fresh(from + i + u * WARP);
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            store_once(to + i + u * WARP, v[u]);
    }
#pragma unroll 1
    for (; i < n; i += REST * WARP) {
        V v[REST];
#pragma unroll
        for (int u = 0; u < REST; u++)
            if (i + u * WARP < n)
                v[u] = fresh(from + i + u * WARP);
#pragma unroll
        for (int u = 0; u < REST; u++)
            if (i + u * WARP < n)
                store_once(to + i + u * WARP, v[u]);
    }
}

/*
 * One warp copies bytes: with ALIGNED both addresses and the length are multiples of 16, else in the widest
 * accesses that these ones allow.
 */
template <bool ALIGNED> __device__ inline void copy_bytes(char *to, const char *from, int32_t bytes)
{
    unsigned bits = (unsigned)((uintptr_t)to | (uintptr_t)from | (uintptr_t)bytes);
    if constexpr (ALIGNED)
        copy_values<8>((uint4 *)to, (const uint4 *)from, bytes / 16);
    else if (bits % 8 == 0)
        copy_values<4>((uint2 *)to, (const uint2 *)from, bytes / 8);
    else if (bits % 4 == 0)
        copy_values<4>((uint32_t *)to, (const uint32_t *)from, bytes / 4);
    else if (bits % 2 == 0)
        copy_values<4>((uint16_t *)to, (const uint16_t *)from, bytes / 2);
    else
        copy_values<4>((uint8_t *)to, (const uint8_t *)from, bytes);
}

/* One thread copies a few bytes. */
__device__ inline void copy_few(char *to, const char *from, int64_t bytes)
{
    unsigned bits = (unsigned)((uintptr_t)to | (uintptr_t)from | (uintptr_t)bytes);
    if (bits % 16 == 0)
        for (int64_t i = 0; i < bytes; i += 16)
            *(uint4 *)(to + i) = fresh((const uint4 *)(from + i));
    else if (bits % 4 == 0)
        for (int64_t i = 0; i < bytes; i += 4)
            *(uint32_t *)(to + i) = fresh((const uint32_t *)(from + i));
    else
        for (int64_t i = 0; i < bytes; i++)
            to[i] = fresh(from + i);
}

/* ---- elements --------------------------------------------------------------------------------------------------- */

struct fp32 {
    enum { BYTES = 4 };
    static __device__ float load(const void *row, int64_t h) { return fresh((const float *)row + h); }
    static __device__ void store(void *row, int64_t h, float value) { ((float *)row)[h] = value; }
    static __device__ float rounded(float value) { return value; }
};

struct bf16 {
    enum { BYTES = 2 };
    static __device__ float load(const void *row, int64_t h)
    {
        return __uint_as_float((uint32_t)fresh((const uint16_t *)row + h) << 16);
    }
    static __device__ void store(void *row, int64_t h, float value)
    {
        ((__nv_bfloat16 *)row)[h] = __float2bfloat16_rn(value);
    }
    static __device__ float rounded(float value) { return __bfloat162float(__float2bfloat16_rn(value)); }
    /* Two at a time, from the halves of a word. */
    static __device__ void unpack(uint32_t word, float *value)
    {
        value[0] = __uint_as_float(word << 16);
        value[1] = __uint_as_float(word & 0xffff0000u);
    }
    static __device__ uint32_t pack(const float *value)
    {
        __nv_bfloat162 two = __floats2bfloat162_rn(value[0], value[1]);
        return *(uint32_t *)&two;
    }
};

struct fp16 {
    enum { BYTES = 2 };
    static __device__ float load(const void *row, int64_t h)
    {
        return __half2float(__ushort_as_half(fresh((const uint16_t *)row + h)));
    }
    static __device__ void store(void *row, int64_t h, float value)
    {
        ((__half *)row)[h] = __float2half_rn(value);
    }
    static __device__ float rounded(float value) { return __half2float(__float2half_rn(value)); }
    static __device__ void unpack(uint32_t word, float *value)
    {
        float2 two = __half22float2(*(__half2 *)&word);
        value[0] = two.x;
        value[1] = two.y;
    }
    static __device__ uint32_t pack(const float *value)
    {
        __half2 two = __floats2half2_rn(value[0], value[1]);
        return *(uint32_t *)&two;
    }
};

/*
 * How a lane holds N neighbouring elements: N = 16 bytes' worth with rows at multiples of 16 bytes, else 1.
 * `word` is what one load brings.
 */
template <typename T, int N> struct vector;

template <typename T> struct vector<T, 1> {
    typedef float word;
    static __device__ word load(const char *row, int64_t h) { return T::load(row, h); }
    static __device__ void unpack(word v, float *value) { value[0] = v; }
    static __device__ void store(char *row, int64_t h, const float *value) { T::store(row, h, value[0]); }
};

template <> struct vector<fp32, 4> {
    typedef uint4 word;
    static __device__ word load(const char *row, int64_t h) { return fresh((const uint4 *)(row + h * 4)); }
    static __device__ void unpack(word v, float *value)
    {
        value[0] = __uint_as_float(v.x), value[1] = __uint_as_float(v.y);
        value[2] = __uint_as_float(v.z), value[3] = __uint_as_float(v.w);
    }
    static __device__ void store(char *row, int64_t h, const float *value)
    {
        *(float4 *)(row + h * 4) = make_float4(value[0], value[1], value[2], value[3]);
    }
};

template <typename T> struct vector<T, 8> {
    typedef uint4 word;
    static __device__ word load(const char *row, int64_t h) { return fresh((const uint4 *)(row + h * 2)); }
    static __device__ void unpack(word v, float *value)
    {
        T::unpack(v.x, value), T::unpack(v.y, value + 2), T::unpack(v.z, value + 4),
            T::unpack(v.w, value + 6);
    }
    static __device__ void store(char *row, int64_t h, const float *value)
    {
        *(uint4 *)(row + h * 2) =
            make_uint4(T::pack(value), T::pack(value + 2), T::pack(value + 4), T::pack(value + 6));
    }
};

/* fp32 values of N elements, in their own memory. */
template <int N> __device__ inline void load_floats(const float *from, float *value)
{
    if constexpr (N % 4 == 0) {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            float4 v = *(const float4 *)(from + i);
            value[i] = v.x, value[i + 1] = v.y, value[i + 2] = v.z, value[i + 3] = v.w;
        }
    } else {
        value[0] = from[0];
    }
}

template <int N> __device__ inline void store_floats(float *to, const float *value)
{
    if constexpr (N % 4 == 0) {
#pragma unroll
        for (int i = 0; i < N; i += 4)
            *(float4 *)(to + i) = make_float4(value[i], value[i + 1], value[i + 2], value[i + 3]);
    } else {
        to[0] = value[0];
    }
}

/* Whether rows that begin at `base`, `stride` apart, may be accessed by 16 bytes. */
inline bool by_16(const void *base, int64_t stride)
{
    return ((uintptr_t)base | (uintptr_t)stride) % 16 == 0;
}

} // namespace epx

#endif
