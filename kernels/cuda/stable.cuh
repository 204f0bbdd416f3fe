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
    int32_t keys, bits; /* of the range; bits that tell its keys apart */
    uint32_t *mine, *total, *before, *all;

    __device__ ordinals(uint32_t *shared, int32_t keys_of_range) : keys(keys_of_range)
    {
        bits = WARP - __clz(keys_of_range - 1);
        int32_t warps = (int32_t)(blockDim.x / WARP), warp = (int32_t)(threadIdx.x / WARP);
        mine = shared + warp * keys;
        total = shared + warps * keys;
        before = total + keys;
        all = before + keys;
    }
    __device__ uint32_t *counters() const { return total - (int32_t)(blockDim.x / WARP) * keys; }
    __device__ bool holds(int32_t k) const { return (uint32_t)k < (uint32_t)keys; }
};

/* A warp's share of items first .. end - 1, a multiple of 32 but for the last. */
struct share {
    int32_t first, end;

    __device__ share(const team &our, int32_t from, int32_t to) : share(our.warp(), our.warps(), from, to) {}
    __device__ share(int32_t warp, int32_t warps, int32_t from, int32_t to)
    {
        int32_t n = to - from, each = n > 0 ? ((n - 1) / warps / WARP + 1) * WARP : 0;
        int64_t start = from + (int64_t)warp * each; /* in 64 bits: the last shares begin far behind `to` */
        first = (int32_t)min(start, (int64_t)to);
        end = (int32_t)min(start + each, (int64_t)to);
    }
};

/*
 * One warp: the lanes whose key is this lane's; of those that do not count, all. A vote for each bit, four at
 * a time (votes about bits that no key has change nothing), is several times faster than the instruction that
 * compares whole words.
 */
__device__ inline unsigned same_key(int32_t k, bool counts, int32_t bits)
{
    unsigned with = __ballot_sync(ALL, counts), same = with, key = (unsigned)k;
#pragma unroll 1
    for (int32_t bit = 0; bit < bits; bit += 4) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            bool set = counts && (key & (1u << j));
            unsigned vote = __ballot_sync(ALL, set);
            same &= set ? vote : ~vote;
        }
        key >>= 4;
    }
    return counts ? same : ~with;
}

/* The number of items of the same key before this one, of the warp's so far; counts them. Counters of a warp
 * are its own. */
__device__ inline uint32_t take_number(uint32_t *counters, int32_t k, bool counts, unsigned same)
{
    int32_t leader = __ffs(same) - 1;
    uint32_t number = 0;
    if (counts && lane_id() == leader) {
        number = counters[k];
        counters[k] = number + __popc(same);
    }
    number = __shfl_sync(ALL, number, leader) + __popc(same & ((1u << lane_id()) - 1));
    __syncwarp();
    return number;
}

__device__ inline void clear_counters(ordinals &o)
{
    for (int32_t k = lane_id(); k < o.keys; k += WARP)
        o.mine[k] = 0;
    __syncwarp();
}

/*
 * Items of a lane that are asked for together: their keys, and their numbers within the warp's share. A share
 * that is no larger stays in registers from counting to placing.
 */
enum { HELD = 4 };
struct held_items {
    int32_t key[HELD];
    uint32_t number[HELD];

    /* Items from `first` on, numbered. key(i): 0 .. keys - 1, or anything else for items that do not count.
     */
    template <typename K> __device__ void take(ordinals &o, int32_t first, int32_t end, const K &key_of)
    {
#pragma unroll
        for (int j = 0; j < HELD; j++) {
            int32_t i = first + j * WARP + lane_id();
            key[j] = i < end ? key_of(i) : -1;
        }
#pragma unroll
        for (int j = 0; j < HELD; j++)
            if (first + j * WARP < end) {
                bool counts = o.holds(key[j]);
                number[j] = take_number(o.mine, key[j], counts, same_key(key[j], counts, o.bits));
            }
    }
};

/* The counters are 0. */
template <typename K>
__device__ inline void count_more(ordinals &o, const share &items, const K &key, held_items &held)
{
#pragma unroll 1
    for (int32_t i0 = items.first; i0 < items.end; i0 += HELD * WARP)
        held.take(o, i0, items.end, key);
}

template <typename K>
__device__ inline void count_items(ordinals &o, const share &items, const K &key, held_items &held)
{
    clear_counters(o);
    count_more(o, items, key, held);
}

/* The counters of all warps of a block become what stands before each warp's share; o.total the sums. All
 * threads. */
__device__ inline void add_up_block(ordinals &o)
{
    enum { TOGETHER = 8 };
    int32_t warps = (int32_t)(blockDim.x / WARP);
    for (int32_t k = (int32_t)threadIdx.x; k < o.keys; k += (int32_t)blockDim.x) {
        uint32_t sum = 0, *counter = o.counters() + k;
#pragma unroll 1
        for (int32_t w0 = 0; w0 < warps; w0 += TOGETHER) {
            uint32_t c[TOGETHER]; /* all asked for before the first is used */
#pragma unroll
            for (int j = 0; j < TOGETHER; j++)
                c[j] = w0 + j < warps ? counter[(w0 + j) * o.keys] : 0;
#pragma unroll
            for (int j = 0; j < TOGETHER; j++) {
                if (w0 + j < warps)
                    counter[(w0 + j) * o.keys] = sum;
                sum += c[j];
            }
        }
        o.total[k] = sum;
        o.before[k] = o.all[k] = 0;
    }
}

/* o.before and o.all from the totals of all blocks of the cluster, behind its barrier; several threads share
 * a key. */
__device__ inline void add_up_cluster(ordinals &o, const team &our)
{
    enum { TOGETHER = 4 };
    int32_t parts = max((int32_t)blockDim.x / o.keys, 1), part = (int32_t)threadIdx.x / o.keys;
    for (int32_t k = (int32_t)threadIdx.x - part * o.keys; part < parts && k < o.keys;
         k += (int32_t)blockDim.x) {
        uint32_t before = 0, all = 0;
#pragma unroll 1
        for (int32_t b0 = part; b0 < our.blocks; b0 += TOGETHER * parts) {
            uint32_t c[TOGETHER];
#pragma unroll
            for (int j = 0; j < TOGETHER; j++)
                c[j] =
                    our.at(o.total, min(b0 + j * parts,
                                        our.blocks - 1))[k]; /* all on their way before the first is used */
#pragma unroll
            for (int j = 0; j < TOGETHER; j++) {
                int32_t b = b0 + j * parts;
                before += b < our.block ? c[j] : 0;
                all += b < our.blocks ? c[j] : 0;
            }
        }
        if (parts == 1) {
            o.before[k] = before;
            o.all[k] = all;
        } else if (all != 0) {
            atomicAdd(&o.before[k], before);
            atomicAdd(&o.all[k], all);
        }
    }
}

/*
 * Contains a barrier of the cluster; total stays readable by other blocks until the next one. also(): done by
 * all threads beside the last sums, with what was written before the barrier.
 */
template <typename F> __device__ inline void add_up_items(ordinals &o, const team &our, const F &also)
{
    __syncthreads();
    add_up_block(o);
    our.sync();
    also();
    add_up_cluster(o, our);
    __syncthreads();
}

__device__ inline void add_up_items(ordinals &o, const team &our)
{
    add_up_items(o, our, [] {});
}

/* put(i, key, ordinal) for every item, those that do not count with ordinal -1. held: as count_items left it.
 */
template <typename K, typename P>
__device__ inline void place_items(ordinals &o, const share &items, const K &key, const P &put,
                                   held_items &held)
{
    bool all_held = items.end - items.first <= HELD * WARP;
#pragma unroll 1
    for (int32_t i0 = items.first; i0 < items.end; i0 += HELD * WARP) {
        if (!all_held)
            held.take(o, i0, items.end, key);
#pragma unroll
        for (int j = 0; j < HELD; j++) {
            int32_t i = i0 + j * WARP + lane_id(), k = held.key[j];
            uint32_t before = 0;
            if (i < items.end && o.holds(k))
                before = o.before[k] + (all_held ? o.mine[k] : 0); /* else counted in already */
            if (i < items.end)
                put(i, k, o.holds(k) ? (int32_t)(held.number[j] + before) : -1);
        }
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
