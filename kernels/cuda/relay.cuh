/*
 * Blocks of one launch that hand their counts on: each learns what the blocks before it have counted.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Every block puts its count of every key into the room, then adds up those of all blocks before it, as soon
 * as they are there. A word carries its count and the number of the launch, so nothing else has to be
 * ordered, and nothing is cleared between launches. Blocks begin in the order of their numbers and put their
 * counts before they wait for any, so a block waits only for blocks that are at work: the wait ends whatever
 * else runs on the GPU. The last block is done when it has looked at all others, so all of them know the
 * number by then, and it moves it on.
 */
#ifndef EPX_KERNELS_CUDA_RELAY_CUH
#define EPX_KERNELS_CUDA_RELAY_CUH

#include "kernels/cuda/cluster.cuh"

namespace epx
{

/* One launch's: [1] number of launches so far, [blocks, keys] words. A block alone needs no room. */
struct relay {
    volatile unsigned long long *room;
    int32_t keys, block, blocks;
    uint32_t tag;
    unsigned long long launches;

    __device__ relay(uint64_t *words, int32_t keys_of_block)
        : room((volatile unsigned long long *)words), keys(keys_of_block), block((int32_t)blockIdx.x),
          blocks((int32_t)gridDim.x), tag(0), launches(0)
    {
        if (blocks > 1 && room != nullptr)
            launches = room[0], tag = (uint32_t)launches + 1;
    }
    __device__ bool is_last() const { return block == blocks - 1; }
    __device__ volatile unsigned long long *at(int32_t b, int32_t k) const
    {
        return room + 1 + (int64_t)b * keys + k;
    }
    __device__ void put(int32_t k, uint32_t count) const
    {
        if (blocks > 1)
            *at(block, k) = (unsigned long long)tag << 32 | count;
    }
    /* word: what was seen there at first. */
    __device__ uint32_t get(int32_t b, int32_t k, unsigned long long word) const
    {
#pragma unroll 1
        while ((uint32_t)(word >> 32) != tag)
            word = *at(b, k);
        return (uint32_t)word;
    }
    __device__ uint32_t get(int32_t b, int32_t k) const { return get(b, k, *at(b, k)); }
    /* One thread of the last block, behind all that the block gets. */
    __device__ void move_on() const
    {
        if (blocks > 1)
            room[0] = launches + 1;
    }
};

/* Blocks that the room has words for, of `wanted`. */
inline int relay_blocks(int64_t room_words, int64_t keys, int64_t wanted)
{
    int64_t fit = (room_words - 1) / keys;
    return wanted <= 1 || fit < 1 ? 1 : (int)(wanted < fit ? wanted : fit);
}

/*
 * EACH counts to a word, of 32 / EACH bits; the sums of TOGETHER of them fit as well. All words are on their
 * way before the first is looked at, and all are asked for again while one has not come: code that is short
 * counts here, since each block executes it once and waits for it to be fetched.
 */
template <int TOGETHER, int EACH>
__device__ inline void look_back_by(const relay &r, int32_t n, uint32_t *before, int32_t parts)
{
    int32_t part = (int32_t)threadIdx.x / n;
#pragma unroll 1
    for (int32_t k = (int32_t)threadIdx.x - part * n; part < parts && k < n; k += (int32_t)blockDim.x) {
        uint32_t sum[EACH] = {};
#pragma unroll 1
        for (int32_t b0 = part; b0 < r.block; b0 += TOGETHER * parts) {
            volatile unsigned long long *from = r.at(b0, k);
            int64_t step = (int64_t)parts * r.keys;
            unsigned long long word[TOGETHER];
            bool missing;
            do {
                missing = false;
#pragma unroll
                for (int j = 0; j < TOGETHER; j++)
                    word[j] = b0 + j * parts < r.block ? from[j * step] : (unsigned long long)r.tag << 32;
#pragma unroll
                for (int j = 0; j < TOGETHER; j++)
                    missing |= (uint32_t)(word[j] >> 32) != r.tag;
            } while (missing);
            uint32_t all = 0;
#pragma unroll
            for (int j = 0; j < TOGETHER; j++)
                all += (uint32_t)word[j];
            sum[0] += EACH == 1 ? all : all & 0xffff;
            if (EACH == 2)
                sum[EACH - 1] += all >> 16;
        }
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (parts == 1)
                before[EACH * k + i] = sum[i];
            else if (sum[i] != 0)
                atomicAdd(&before[EACH * k + i], sum[i]);
    }
}

/* What a block may count at most for two counts to a word. */
enum { RELAY_MANY = 16, RELAY_COUNT_MAX = 0xffff / RELAY_MANY };

/* before[k], 0 until now and behind a barrier, becomes what the blocks before have put for key k; n: words of
 * EACH keys. Several threads share a word. All threads; the caller puts a barrier behind it. */
template <int EACH = 1> __device__ inline void look_back(const relay &r, int32_t n, uint32_t *before)
{
    enum { FEW = 2 };
    int32_t parts = max((int32_t)blockDim.x / n, 1);
    if (r.block <= FEW * parts)
        look_back_by<FEW, EACH>(r, n, before, parts);
    else
        look_back_by<RELAY_MANY, EACH>(r, n, before, parts);
}

} // namespace epx

#endif
