/*
 * Words: post, wait and abort of a fabric whose words live in device memory. The protocol is in
 * include/epx/kernels_words.h, a wait's turns in words.cuh. SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/lane.cuh"
#include "kernels/cuda/words.cuh"

namespace epx
{
namespace
{

__device__ inline uint64_t epoch_value(const epx_epoch_t &epoch)
{
    return (epoch.base != nullptr ? look(epoch.base) : 0) + epoch.add;
}

__device__ inline bool shut(const int32_t *gate)
{
    return gate != nullptr && *(const volatile int32_t *)gate != 1;
}

/* The row that watch w looks at, and the value that counts there. */
__device__ inline const uint64_t *watched_row(const epx_k_word_wait_t &args, int32_t w, uint64_t *value)
{
    const epx_words_t &words = args.words;
    int64_t channel = args.watch[w].channel;
    *value = epoch_value(args.watch[w].epoch);
    if (args.watch[w].rows > 0)
        channel += (int64_t)(*value % (uint64_t)args.watch[w].rows);
    return word_at(words, words.rank, words.failures, channel * words.ranks);
}

/* The lowest rank with a failure word that counts, of the first watch that has one; -1: none. One thread. */
__device__ inline int32_t find_failure(const epx_k_word_wait_t &args)
{
    for (int32_t w = 0; w < args.watches; w++) {
        uint64_t value;
        const uint64_t *row = watched_row(args, w, &value);
        for (int32_t p = 0; p < args.words.ranks; p++)
            if (load_acquire(row + p) == value)
                return p;
    }
    return -1;
}

__device__ inline int look_for_failures(const epx_k_word_wait_t &args)
{
    int failed = 0;
    for (int32_t w = 0; w < args.watches; w++) {
        uint64_t value;
        const uint64_t *row = watched_row(args, w, &value);
        for (int32_t p = (int32_t)threadIdx.x; p < args.words.ranks; p += (int32_t)blockDim.x)
            failed |= load_acquire(row + p) == value ? WHY_FAILURE : 0;
    }
    return failed;
}

/* W3: what stands behind in the stream moves no rows. The report, which tells of routes, has nothing to tell.
 */
__device__ inline void shut_behind(const epx_k_verdict_t &verdict)
{
    epx_k_verdict_t plan = {verdict.head, nullptr, 0};
    if (threadIdx.x == 0 && plan.head != nullptr)
        verdict_dead(plan, EPX_ERR_ABORTED, -1, nullptr);
}

/* Words that the host may look at one by one. */
__device__ inline void do_beside(const epx_word_beside_t &beside)
{
    const unsigned long long *from = (const unsigned long long *)beside.tell_from;
    for (int64_t i = threadIdx.x; i < beside.tell_bytes / 8; i += blockDim.x)
        ((volatile unsigned long long *)beside.tell_to)[i] = __ldcg(from + i);
    if (threadIdx.x == 0 && beside.words != nullptr)
        end_pass(beside.words, beside.head, beside.acknowledged);
}

/* All threads: whether the words have come. turn: looks taken. */
__device__ inline bool wait_for(const epx_k_word_wait_t &args, const awaited &what, uint32_t &turn)
{
    const epx_words_t &words = args.words;
    int64_t begin = now_ns();
    for (turn = 0; is_pending(what); turn++) {
        if (turn % AROUND_LOOKS != AROUND_LOOKS - 1)
            continue;
        if (turn % TELL_LOOKS == TELL_LOOKS - 1 && threadIdx.x == 0 && args.progress != nullptr)
            tell_waiting(words, what, args.progress, begin, args.name);
        int why = look_around(words, begin, args.timeout_ns, turn) | look_for_failures(args);
        why = (__syncthreads_or(why & WHY_ABORT) ? WHY_ABORT : 0) |
              (__syncthreads_or(why & WHY_FAILURE) ? WHY_FAILURE : 0) |
              (__syncthreads_or(why & WHY_TIME) ? WHY_TIME : 0) |
              (__syncthreads_or(why & WHY_HOST) ? WHY_HOST : 0);
        if (why == 0)
            continue;
        /* Data that has arrived wins: the failure may be of a later route, the abort of a later pass. */
        if (!is_pending(what))
            break;
        if (why & WHY_FAILURE) {
            int32_t culprit = threadIdx.x == 0 ? find_failure(args) : -1;
            if (threadIdx.x == 0 && culprit >= 0 && args.verdict.head != nullptr)
                verdict_dead(args.verdict, EPX_ERR_PEER, culprit, nullptr);
            if (threadIdx.x == 0)
                end_waiting(args.progress, turn + 1);
        } else {
            give_up(words, what, why, args.tag, 0);
            shut_behind(args.verdict);
        }
        return false;
    }
    return true;
}

/*
 * Behind this rank's own post nothing is waited for before the words are looked at: all that stands before
 * the post has ended when it lets this kernel begin, and the post writes nothing that is read here, the base
 * of the epochs excepted, which is reckoned instead. Whoever follows finds the post ended, since this one
 * ends behind it. With next_begins it is let in at once: it too begins behind all that stands before the
 * post.
 */
__global__ void __launch_bounds__(WORD_THREADS) wait_words(const __grid_constant__ epx_k_word_wait_t args)
{
    const epx_words_t &words = args.words;
    const epx_lane_begin_of_t &pass = args.begin;
    const uint64_t *row = word_at(words, words.rank, words.words, (int64_t)args.channel * words.ranks);
    uint32_t turn = 0;
    if (!args.behind_post)
        behind_previous();
    else if (args.next_begins)
        let_next_begin();
    bool reckoned = args.behind_post && pass.words != nullptr;
    uint64_t epoch = reckoned ? lane_base(pass.words, pass.head, pass.generation) + args.epoch.add
                              : epoch_value(args.epoch);
    awaited what = {row,   max(args.peer, 0), args.peer < 0 ? words.ranks - 1 : args.peer, 1,
                    epoch, args.at_least != 0};
    bool arrived = !shut(args.gate) && wait_for(args, what, turn);
    behind_previous();
    let_next_begin(); /* what is left to do here is done by the time that it has begun */
    if (!arrived)
        return;
    if (threadIdx.x == 0) {
        end_waiting(args.progress, turn + 1);
        if (args.progress != nullptr && args.seen)
            put_progress(args.progress->seen, what.epoch, args.name);
    }
    do_beside(args.beside);
}

/* ---- posting ---- */

/* The epoch of a post, which may be the one that begins a pass. */
__device__ inline uint64_t begin_or_value(const epx_k_word_post_t &args)
{
    const epx_lane_begin_of_t &begin = args.begin;
    if (begin.words == nullptr)
        return epoch_value(args.epoch);
    uint64_t base = lane_base(begin.words, begin.head, begin.generation);
    if (threadIdx.x == 0)
        begin.words->base = base;
    return base + args.epoch.add;
}

/*
 * What does not depend on the kernel ahead is looked up while that one ends: where the blocks of words are,
 * and whether the group has ended. Who ends it a moment later finds one more word set, as ever: looks and
 * posts of ranks are in no order.
 */
__global__ void __launch_bounds__(WORD_THREADS) post_words(const __grid_constant__ epx_k_word_post_t args)
{
    const epx_words_t &words = args.words;
    int32_t first = args.peer < 0 ? 0 : args.peer, last = args.peer < 0 ? words.ranks - 1 : args.peer;
    int32_t p = first + (int32_t)threadIdx.x;
    char *block = p <= last ? block_of(words, p) : nullptr;
    bool ended = has_ended(words);
    behind_previous();
    let_next_begin();
    bool closed = args.only_failed ? *(const volatile int32_t *)args.gate >= 0 : shut(args.gate);
    uint64_t value = begin_or_value(args);
    if (ended || closed)
        return;
    int64_t offset = args.failure ? words.failures : words.words;
    int64_t row = args.channel;
    if (args.failure_rows > 0)
        row += (int64_t)(value % (uint64_t)args.failure_rows);
    int64_t place = row * words.ranks + words.rank;
    /* W1: a release is a fence of the whole system, and the kernels ahead have ended for this thread. */
    while (p <= last) {
        store_release((uint64_t *)(block + offset) + place, value);
        p += (int32_t)blockDim.x;
        if (p <= last)
            block = block_of(words, p);
    }
    if (threadIdx.x == 0 && args.progress != nullptr)
        put_progress(args.progress->posted, value, args.name);
}

__global__ void __launch_bounds__(WORD_THREADS) abort_words(const __grid_constant__ epx_k_word_abort_t args)
{
    const epx_words_t &words = args.words;
    __shared__ int first;
    if (threadIdx.x == 0) {
        uint64_t *mine = word_at(words, words.rank, words.aborts, words.rank);
        first = atomicCAS((unsigned long long *)mine, 0ull, (unsigned long long)args.word) == 0;
    }
    __syncthreads();
    if (first)
        tell_all(words, args.word);
}

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_word_post(const epx_k_word_post_t *args, epx_stream_t stream)
{
    using namespace epx;
    shape1 shape = {1, threads_for(args->words.ranks), 0, 1, true};
    return launch("post", shape, stream, post_words, *args);
}

extern "C" epx_status_t epx_cuda_word_wait(const epx_k_word_wait_t *args, epx_stream_t stream)
{
    using namespace epx;
    shape1 shape = {1, threads_for(args->words.ranks), 0, 1, true};
    return launch("wait", shape, stream, wait_words, *args);
}

extern "C" epx_status_t epx_cuda_word_abort(const epx_k_word_abort_t *args, epx_stream_t stream)
{
    using namespace epx;
    shape1 shape = {1, threads_for(args->words.ranks), 0, 1};
    return launch("abort", shape, stream, abort_words, *args);
}
