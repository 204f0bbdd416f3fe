/*
 * Stable ordinals: how many items of the same key stand before each item. SPDX-License-Identifier: Apache-2.0
 *
 * One cluster. Every warp has a contiguous share of the items and a counter for each key. count: each warp
 * counts its share. add_up: counters become the number of items before the warp's within its block, and
 * `before` those of the blocks before this one; `all` is the total. place: each warp walks its share again,
 * 32 items at a time; those of one key find each other and take their numbers in order. Keys that do not fit
 * into shared memory at once are done range by range.
 */
#ifndef EPX_KERNELS_CUDA_STABLE_CUH
#define EPX_KERNELS_CUDA_STABLE_CUH

#include "kernels/cuda/cluster.cuh"

namespace epx
{

/* Shared memory of a block: [warps, keys], then [keys] each of total, before, all. */
struct ordinals {
    int32_t keys; /* of the range */
    uint32_t *mine, *total, *before, *all;

    __device__ ordinals(uint32_t *shared, int32_t keys_of_range) : keys(keys_of_range)
    {
        int32_t warps = (int32_t)(blockDim.x / WARP), warp = (int32_t)(threadIdx.x / WARP);
        mine = shared + warp * keys;
        total = shared + warps * keys;
        before = total + keys;
        all = before + keys;
    }
    __device__ uint32_t *counters() const { return total - (int32_t)(blockDim.x / WARP) * keys; }
};

/* A warp's share of items first .. end - 1, a multiple of 32 but for the last. */
struct share {
    int32_t first, end;

    __device__ share(const team &our, int32_t from, int32_t to)
    {
        int32_t n = to - from, each = n > 0 ? ((n - 1) / our.warps() / WARP + 1) * WARP : 0;
        int64_t start =
            from + (int64_t)our.warp() * each; /* in 64 bits: the last shares begin far behind `to` */
        first = (int32_t)min(start, (int64_t)to);
        end = (int32_t)min(start + each, (int64_t)to);
    }
};

/* key(i): 0 .. keys - 1, or anything else for items that do not count. */
template <typename K> __device__ inline void count_items(ordinals &o, const share &items, const K &key)
{
    for (int32_t k = lane_id(); k < o.keys; k += WARP)
        o.mine[k] = 0;
    __syncwarp();
#pragma unroll 4
    for (int32_t i = items.first + lane_id(); i < items.end; i += WARP) {
        int32_t k = key(i);
        if ((uint32_t)k < (uint32_t)o.keys)
            atomicAdd(&o.mine[k], 1u);
    }
}

/* Contains a barrier of the cluster; total stays readable by other blocks until the next one. */
__device__ inline void add_up_items(ordinals &o, const team &our)
{
    __syncthreads();
    int32_t warps = (int32_t)(blockDim.x / WARP);
    for (int32_t k = (int32_t)threadIdx.x; k < o.keys; k += (int32_t)blockDim.x) {
        uint32_t sum = 0, *counter = o.counters() + k;
#pragma unroll 8
        for (int32_t w = 0; w < warps; w++) {
            uint32_t c = counter[w * o.keys];
            counter[w * o.keys] = sum;
            sum += c;
        }
        o.total[k] = sum;
    }
    our.sync();
    for (int32_t k = (int32_t)threadIdx.x; k < o.keys; k += (int32_t)blockDim.x) {
        uint32_t before = 0, all = 0;
#pragma unroll 4
        for (int32_t b = 0; b < our.blocks; b++) {
            uint32_t c = our.at(o.total, b)[k];
            before += b < our.block ? c : 0;
            all += c;
        }
        o.before[k] = before;
        o.all[k] = all;
    }
    __syncthreads();
}

/* put(i, key, ordinal) for every item, those that do not count with ordinal -1. */
template <typename K, typename P>
__device__ inline void place_items(ordinals &o, const share &items, const K &key, const P &put)
{
    int32_t next = items.first + lane_id() < items.end ? key(items.first + lane_id()) : -1;
    for (int32_t i0 = items.first; i0 < items.end; i0 += WARP) {
        int32_t i = i0 + lane_id(), k = next;
        next = i + WARP < items.end ? key(i + WARP) : -1; /* on its way while this one is dealt with */
        bool counts = (uint32_t)k < (uint32_t)o.keys;
        unsigned same = __match_any_sync(ALL, counts ? k : -1);
        uint32_t number = 0;
        if (counts && lane_id() == __ffs(same) - 1) {
            number = o.mine[k];
            o.mine[k] = number + __popc(same);
        }
        number = __shfl_sync(ALL, number, __ffs(same) - 1);
        if (counts)
            number += o.before[k] + __popc(same & ((1u << lane_id()) - 1));
        if (i < items.end)
            put(i, k, counts ? (int32_t)number : -1);
        __syncwarp();
    }
}

/* Threads of a block, keys of a range, and bytes of shared memory, for so many keys. */
struct ordinals_plan {
    int threads, range;
    size_t bytes;
};

inline ordinals_plan plan_ordinals(size_t limit, int64_t keys, int threads)
{
    int warps = threads / WARP;
    int64_t words = (int64_t)(limit / sizeof(uint32_t));
    keys = keys < 1 ? 1 : keys;
    while (warps > 8 && (warps + 3) * keys > words)
        warps /= 2;
    int64_t range = (warps + 3) * keys <= words ? keys : words / (warps + 3);
    return {warps * WARP, (int)range, (size_t)((warps + 3) * range) * sizeof(uint32_t)};
}

} // namespace epx

#endif
