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

    __device__ relay(uint64_t *words, int32_t keys_of_block)
        : room((volatile unsigned long long *)words), keys(keys_of_block), block((int32_t)blockIdx.x),
          blocks((int32_t)gridDim.x), tag(0)
    {
        if (blocks > 1)
            tag = (uint32_t)room[0] + 1;
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
        while ((uint32_t)(word >> 32) != tag)
            word = *at(b, k);
        return (uint32_t)word;
    }
    __device__ uint32_t get(int32_t b, int32_t k) const { return get(b, k, *at(b, k)); }
    /* One thread of the last block, behind all that the block gets. */
    __device__ void move_on() const
    {
        if (blocks > 1)
            room[0] = room[0] + 1;
    }
};

/* Blocks that the room has words for, of `wanted`. */
inline int relay_blocks(int64_t room_words, int64_t keys, int64_t wanted)
{
    int64_t fit = (room_words - 1) / keys;
    return wanted <= 1 || fit < 1 ? 1 : (int)(wanted < fit ? wanted : fit);
}

/* before[k], 0 until now and behind a barrier, becomes what the blocks before have put for key k < n; several
 * threads share a key. All threads; the caller puts a barrier behind it. */
__device__ inline void look_back(const relay &r, int32_t n, uint32_t *before)
{
    enum { TOGETHER = 16 };
    int32_t parts = max((int32_t)blockDim.x / n, 1), part = (int32_t)threadIdx.x / n;
    for (int32_t k = (int32_t)threadIdx.x - part * n; part < parts && k < n; k += (int32_t)blockDim.x) {
        uint32_t sum = 0;
        for (int32_t b0 = part; b0 < r.block; b0 += TOGETHER * parts) {
            unsigned long long word[TOGETHER];
#pragma unroll
            for (int j = 0; j < TOGETHER; j++) /* all on their way before the first is used */
                word[j] = *r.at(min(b0 + j * parts, r.block), k);
#pragma unroll
            for (int j = 0; j < TOGETHER; j++)
                if (b0 + j * parts < r.block)
                    sum += r.get(b0 + j * parts, k, word[j]);
        }
        if (parts == 1)
            before[k] = sum;
        else if (sum != 0)
            atomicAdd(&before[k], sum);
    }
}

} // namespace epx

#endif
