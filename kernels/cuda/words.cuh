/*
 * What kernels of words share: where words are, the end of a group, a block that waits. The protocol and its
 * invariants W1 to W4 are in include/epx/kernels_words.h. SPDX-License-Identifier: Apache-2.0
 *
 * Waits are blocks whose threads look at the words of some ranks each, and vote. What else may end a wait is
 * looked at only while something is still awaited, and not at every turn, so that a wait whose words are
 * there costs one look, and one whose words are about to come sees them at once.
 */
#ifndef EPX_KERNELS_CUDA_WORDS_CUH
#define EPX_KERNELS_CUDA_WORDS_CUH

#include <epx/kernels_words.h>

#include "kernels/cuda/progress.cuh"
#include "kernels/cuda/system.cuh"
#include "kernels/cuda/table.h"
#include "kernels/cuda/verdict.cuh"

namespace epx
{
namespace
{

enum { WORD_THREADS = 1024, AROUND_LOOKS = 8, HOST_LOOKS = 64, TELL_LOOKS = 2048 };

__device__ inline char *block_of(const epx_words_t &words, int32_t rank)
{
    return (char *)__ldg((const uint64_t *)words.peer + rank);
}

__device__ inline uint64_t *word_at(const epx_words_t &words, int32_t rank, int64_t offset, int64_t index)
{
    return (uint64_t *)(block_of(words, rank) + offset) + index;
}

/* ---- the end of a group (W3) ---- */

/* What a block that gives up says. */
struct ending {
    epx_status_t status;
    int32_t peer, exchange;
    uint64_t word; /* my abort word; 0: another rank has ended the group and told everybody */
    int32_t culprit;
    uint64_t tag, expected, seen;
};

/* The lowest rank whose abort word is set, or -1. One thread. */
__device__ inline int32_t find_abort(const epx_words_t &words)
{
    const uint64_t *aborts = word_at(words, words.rank, words.aborts, 0);
    for (int32_t p = 0; p < words.ranks; p++)
        if (p != words.rank && look(aborts + p) != 0)
            return p;
    return look(aborts + words.rank) != 0 ? words.rank : -1;
}

/* All threads of a block: whether any rank has ended the group. */
__device__ inline bool has_ended(const epx_words_t &words)
{
    const uint64_t *aborts = word_at(words, words.rank, words.aborts, 0);
    int set = 0;
    for (int32_t p = (int32_t)threadIdx.x; p < words.ranks; p += (int32_t)blockDim.x)
        set |= look(aborts + p) != 0;
    return __syncthreads_or(set) != 0;
}

/* One thread: who sets this rank's own abort word first writes down why. */
__device__ inline void write_down(const epx_words_t &words, const ending &why)
{
    uint64_t *mine = word_at(words, words.rank, words.aborts, words.rank);
    uint64_t word = why.word != 0 ? why.word : EPX_ABORT_BIT | (uint64_t)(uint32_t)(why.peer + 1);
    if (atomicCAS((unsigned long long *)mine, 0ull, (unsigned long long)word) != 0)
        return;
    epx_word_halt_t *halt = words.halt;
    halt->status = why.status;
    halt->peer = why.peer;
    halt->culprit = why.culprit;
    halt->exchange = why.exchange;
    halt->tag = why.tag;
    halt->expected = why.expected;
    halt->seen = why.seen;
    publish(&halt->ended, 1);
}

/* All threads: to the other ranks. */
__device__ inline void tell_all(const epx_words_t &words, uint64_t word)
{
    __threadfence_system();
    for (int32_t p = (int32_t)threadIdx.x; p < words.ranks; p += (int32_t)blockDim.x)
        if (p != words.rank)
            store_release(word_at(words, p, words.aborts, words.rank), word);
}

/* ---- waiting ---- */

enum why_t { WHY_ABORT = 1, WHY_FAILURE = 2, WHY_TIME = 4, WHY_HOST = 8 };

/* What a block waits for: words first, first + step, ... below last + 1 of a row of its own. */
struct awaited {
    const uint64_t *row;
    int32_t first, last, step;
    uint64_t epoch;
    bool at_least;
};

__device__ inline bool arrived(const awaited &what, uint64_t word)
{
    return what.at_least ? word >= what.epoch : word == what.epoch;
}

/* All threads of a block: whether something is still to come. */
__device__ inline bool is_pending(const awaited &what)
{
    int pending = 0;
    for (int32_t p = what.first + what.step * (int32_t)threadIdx.x; p <= what.last;
         p += what.step * (int32_t)blockDim.x)
        pending |= !arrived(what, load_acquire(what.row + p));
    return __syncthreads_or(pending) != 0;
}

/* The first in order from my own rank on that has not come, or -1. One thread. */
__device__ inline int32_t find_pending(const epx_words_t &words, const awaited &what, uint64_t *seen)
{
    for (int32_t i = 0; i < words.ranks; i++) {
        int32_t p = (words.rank + i) % words.ranks;
        if (p < what.first || p > what.last || (p - what.first) % what.step != 0)
            continue;
        *seen = load_acquire(what.row + p);
        if (!arrived(what, *seen))
            return p;
    }
    return -1;
}

/* All threads: what else may end the wait. `begin`: when it began. */
__device__ inline int look_around(const epx_words_t &words, int64_t begin, int64_t timeout_ns, uint32_t turn)
{
    const uint64_t *aborts = word_at(words, words.rank, words.aborts, 0);
    int why = 0;
    for (int32_t p = (int32_t)threadIdx.x; p < words.ranks; p += (int32_t)blockDim.x)
        if (look(aborts + p) != 0)
            why |= WHY_ABORT;
    if (threadIdx.x == 0) {
        if (now_ns() - begin > timeout_ns)
            why |= WHY_TIME;
        /* A look at the host's memory takes as long as many turns. */
        if (turn % HOST_LOOKS == HOST_LOOKS - 1 && look(&words.halt->by_host) != 0)
            why |= WHY_HOST;
    }
    return why;
}

/* One thread, in a wait that lasts: whom it waits for. */
__device__ inline void tell_waiting(const epx_words_t &words, const awaited &what,
                                    epx_progress_words_t *progress, int64_t begin, uint32_t name)
{
    uint64_t seen = 0;
    int32_t peer = find_pending(words, what, &seen);
    if (peer < 0)
        return;
    uint64_t since = (uint64_t)begin >> EPX_PROGRESS_TIME_SHIFT << EPX_PROGRESS_NAME_BITS | name;
    put_pair(progress->waiting, what.epoch, seen);
    __threadfence_system();
    put_pair(progress->waiting + 2, ((uint64_t)peer + 1) | (what.at_least ? EPX_PROGRESS_AT_LEAST : 0),
             since);
}

/* One thread: it has ended, after `turns` turns. */
__device__ inline void end_waiting(epx_progress_words_t *progress, uint32_t turns)
{
    if (progress != nullptr && turns >= TELL_LOOKS)
        put_pair(progress->waiting + 2, 0, 0);
}

/* All threads: ends the group, or says that it has ended. expected and seen are epochs of the peer waited
 * for. */
__device__ inline void give_up(const epx_words_t &words, const awaited &what, int why, uint64_t tag,
                               int32_t exchange)
{
    __shared__ uint64_t word;
    __syncthreads();
    if (threadIdx.x == 0) {
        ending end = {.status = EPX_ERR_TIMEOUT, .exchange = exchange, .culprit = -1, .tag = tag};
        int32_t waiting_for = find_pending(words, what, &end.seen);
        end.expected = what.epoch;
        int32_t by = why & WHY_ABORT ? find_abort(words) : -1;
        if (by >= 0) {
            uint64_t theirs = look(word_at(words, words.rank, words.aborts, by));
            end.status = by == words.rank ? EPX_ERR_ABORTED : EPX_ERR_PEER;
            end.peer = by;
            end.culprit = (int32_t)(uint32_t)theirs - 1;
        } else if (why & WHY_HOST) {
            end.status = EPX_ERR_ABORTED;
            end.peer = words.rank;
            end.word = look(&words.halt->by_host);
            end.culprit = (int32_t)(uint32_t)end.word - 1;
        } else {
            end.peer = waiting_for >= 0 ? waiting_for : words.rank;
            end.culprit = end.peer;
            end.word = EPX_ABORT_BIT | (uint64_t)(uint32_t)(end.peer + 1);
        }
        write_down(words, end);
        word = end.word;
    }
    __syncthreads();
    if (word != 0)
        tell_all(words, word);
}

/* All threads: what any of them has seen. */
__device__ inline int vote(int why)
{
    return (__syncthreads_or(why & WHY_ABORT) ? WHY_ABORT : 0) |
           (__syncthreads_or(why & WHY_TIME) ? WHY_TIME : 0) |
           (__syncthreads_or(why & WHY_HOST) ? WHY_HOST : 0);
}

/* As many threads as a row has words, in whole warps. */
int threads_for(int32_t words)
{
    int threads = (words + WARP - 1) / WARP * WARP;
    return threads < WARP ? WARP : threads > WORD_THREADS ? WORD_THREADS : threads;
}

} // namespace
} // namespace epx

#endif
