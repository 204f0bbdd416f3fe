/*
 * Posts by the kernels that store what they speak of: W5 and W6. SPDX-License-Identifier: Apache-2.0
 *
 * Whoever stores in a block arrives once for each part; the last of a block counts the block in the part's
 * ticket, and the last block posts.
 */
#ifndef EPX_KERNELS_CUDA_SIGNAL_CUH
#define EPX_KERNELS_CUDA_SIGNAL_CUH

#include "kernels/cuda/progress.cuh"
#include "kernels/cuda/words.cuh"

namespace epx
{

/* As a kernel's argument; signal.parts 0: nothing is posted, and there is one part. */
typedef epx_k_signal_t signal_args;

inline signal_args signal_of(const epx_k_signal_t *signal)
{
    return signal != nullptr ? *signal : signal_args{};
}

/* Shared memory of one block: who has arrived, by part. */
struct signal_shared {
    uint32_t arrived[EPX_SIGNAL_PARTS_MAX];
};

__device__ inline int32_t parts_of(const signal_args &signal) { return signal.parts > 0 ? signal.parts : 1; }

/* All threads of the block: before anybody arrives. */
__device__ inline void signal_begin(signal_shared &shared)
{
    if (threadIdx.x < EPX_SIGNAL_PARTS_MAX)
        shared.arrived[threadIdx.x] = 0;
    __syncthreads();
}

/* One thread: the word of part p at all ranks. */
__device__ inline void post_part(const signal_args &signal, int32_t p)
{
    const epx_k_word_post_t &post = signal.post;
    const epx_words_t &words = post.words;
    bool whole = p == signal.parts - 1;
    uint64_t value = begun_value(post.begin, post.epoch);
    if (whole)
        begin_pass(post.begin, value - post.epoch.add);
    const uint64_t *aborts = word_at(words, words.rank, words.aborts, 0);
    uint64_t ended = 0;
#pragma unroll 4
    for (int32_t r = 0; r < words.ranks; r++)
        ended |= look(aborts + r);
    if (ended != 0 || shut(post.gate))
        return;
    int64_t place = (int64_t)(whole ? post.channel : signal.part_channel + p) * words.ranks + words.rank;
    int32_t first = post.peer < 0 ? 0 : post.peer, last = post.peer < 0 ? words.ranks - 1 : post.peer;
    __threadfence_system(); /* W1 */
    for (int32_t r = first; r <= last; r++)
        store_relaxed(word_at(words, r, words.words, place), value);
    if (whole && post.progress != nullptr)
        put_progress(post.progress->posted, value, post.name);
}

/*
 * One thread, for itself and for those whose stores it has seen end by a barrier of the block: what it stores
 * of part p is stored. `of_block`: how many of a block arrive for this part.
 */
__device__ inline void arrive(const signal_args &signal, signal_shared &shared, int32_t p, uint32_t of_block)
{
    if (signal.parts == 0)
        return;
    __threadfence_system();
    if (atomicAdd(&shared.arrived[p], 1u) != of_block - 1)
        return;
    __threadfence_system();
    if (atomicAdd(signal.ticket + p, 1u) != gridDim.x - 1)
        return;
    signal.ticket[p] = 0;
    __threadfence_system();
    post_part(signal, p);
}

} // namespace epx

#endif
