/*
 * Words: post, wait, exchange and abort of a fabric whose words live in device memory. The protocol and its
 * invariants W1 to W4 are in include/epx/kernels_words.h. SPDX-License-Identifier: Apache-2.0
 *
 * Waits are one block: every thread looks at the words of some ranks, and the block votes. What else may end
 * a wait is looked at only while something is still awaited, and not at every turn, so that a wait whose
 * words are there costs one look, and one whose words are about to come sees them at once.
 */
#include <epx/kernels_words.h>

#include "kernels/cuda/lane.cuh"
#include "kernels/cuda/progress.cuh"
#include "kernels/cuda/table.h"
#include "kernels/cuda/verdict.cuh"

namespace epx
{
namespace
{

enum {
    WORD_THREADS = 1024,
    BOX_THREADS = 512,
    BOX_BLOCKS = 16,
    AROUND_LOOKS = 8,
    HOST_LOOKS = 64,
    TELL_LOOKS = 2048
};

__device__ inline uint64_t load_acquire(const uint64_t *word)
{
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

__device__ inline void store_release(uint64_t *word, uint64_t value)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
}

__device__ inline uint64_t look(const uint64_t *word) { return *(const volatile uint64_t *)word; }

__device__ inline int64_t now_ns()
{
    int64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

__device__ inline uint64_t epoch_value(const epx_epoch_t &epoch)
{
    return (epoch.base != nullptr ? look(epoch.base) : 0) + epoch.add;
}

__device__ inline bool shut(const int32_t *gate)
{
    return gate != nullptr && *(const volatile int32_t *)gate != 1;
}

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
        }
        return false;
    }
    return true;
}

/*
 * Behind this rank's own post nothing is waited for before the words are looked at: all that stands before
 * the post has ended when it lets this kernel begin, and the post writes nothing that is read here, the base
 * of the epochs excepted, which is reckoned instead. Whoever follows finds the post ended, since this one
 * ends behind it.
 */
__global__ void __launch_bounds__(WORD_THREADS) wait_words(const __grid_constant__ epx_k_word_wait_t args)
{
    const epx_words_t &words = args.words;
    const epx_lane_begin_of_t &pass = args.begin;
    const uint64_t *row = word_at(words, words.rank, words.words, (int64_t)args.channel * words.ranks);
    uint32_t turn = 0;
    if (!args.behind_post)
        behind_previous();
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

/* ---- exchange (W4) ---- */

/* All threads of a block. Boxes are written by others while this kernel runs: nothing of them is cached. */
__device__ inline void copy_block(char *to, const char *from, int64_t bytes)
{
    int64_t done = 0;
    if ((((uintptr_t)to | (uintptr_t)from) & 7) == 0) {
        done = bytes & ~(int64_t)7;
        for (int64_t i = threadIdx.x * 8; i < done; i += (int64_t)blockDim.x * 8)
            *(uint64_t *)(to + i) = __ldcg((const unsigned long long *)(from + i));
    }
    for (int64_t i = done + threadIdx.x; i < bytes; i += blockDim.x)
        to[i] = __ldcg(from + i);
}

__device__ inline char *box_at(const epx_words_t &words, int32_t rank, int32_t channel, uint64_t step,
                               int32_t sender)
{
    int64_t box = ((int64_t)channel * 2 + (int64_t)(step & 1)) * words.ranks + sender;
    return block_of(words, rank) + words.boxes + box * words.box_bytes;
}

/* `from` NULL: this rank's step is bad. */
__device__ inline void fill_box(char *box, const char *from, int64_t bytes)
{
    if (from != nullptr)
        copy_block(box, from, bytes);
    else
        for (int64_t i = threadIdx.x; i < bytes; i += blockDim.x)
            box[i] = (char)0x80;
}

/* All threads: the last block to end moves the sequence on; until then every block has read the old number.
 */
__device__ inline void end_step(const epx_k_word_exchange_t &args, uint64_t step, bool good)
{
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    if (gridDim.x > 1) {
        __threadfence();
        if (atomicAdd(args.done, 1u) != gridDim.x - 1)
            return;
        *args.done = 0;
    }
    *args.step = step;
    if (args.progress != nullptr && good)
        put_progress(args.progress->step_seen, step, args.name);
}

/* Each block serves the ranks blockIdx.x, blockIdx.x + gridDim.x, ...; all of a block's own are sent before
 * it waits for any. */
__global__ void __launch_bounds__(BOX_THREADS)
    exchange_words(const __grid_constant__ epx_k_word_exchange_t args)
{
    const epx_words_t &words = args.words;
    int32_t first = (int32_t)blockIdx.x, by = (int32_t)gridDim.x, last = words.ranks - 1;
    behind_previous();
    uint64_t step = look(args.step) + 1;
    awaited what = {word_at(words, words.rank, words.steps, (int64_t)args.channel * words.ranks),
                    first,
                    last,
                    by,
                    step,
                    true};
    bool good = !has_ended(words);
    if (good) {
        for (int32_t p = first; p <= last; p += by)
            fill_box(box_at(words, p, args.channel, step, words.rank), (const char *)args.send, args.bytes);
        __threadfence_system();
        __syncthreads();
        __threadfence_system();
        int64_t place = (int64_t)args.channel * words.ranks + words.rank;
        for (int32_t p = first + by * (int32_t)threadIdx.x; p <= last; p += by * (int32_t)blockDim.x)
            store_release(word_at(words, p, words.steps, place), step);
        if (first == 0 && threadIdx.x == 0 && args.progress != nullptr)
            put_progress(args.progress->step_sent, step, args.name);
    } else {
        give_up(words, what, WHY_ABORT, args.tag, 1);
    }
    int64_t begin = now_ns();
    uint32_t turn = 0;
    for (; good && is_pending(what); turn++) {
        if (turn % TELL_LOOKS == TELL_LOOKS - 1 && threadIdx.x == 0 && args.progress != nullptr)
            tell_waiting(words, what, args.progress, begin, args.name);
        int why = look_around(words, begin, args.timeout_ns, turn);
        why = (__syncthreads_or(why & WHY_ABORT) ? WHY_ABORT : 0) |
              (__syncthreads_or(why & WHY_TIME) ? WHY_TIME : 0) |
              (__syncthreads_or(why & WHY_HOST) ? WHY_HOST : 0);
        if (why == 0 || !is_pending(what))
            continue;
        give_up(words, what, why, args.tag, 1);
        good = false;
    }
    for (int32_t p = first; p <= last; p += by) {
        char *to = (char *)args.receive + p * args.stride;
        if (good)
            copy_block(to, box_at(words, words.rank, args.channel, step, p), args.bytes);
        else
            for (int64_t i = threadIdx.x; i < args.bytes; i += blockDim.x)
                to[i] = (char)0x80;
    }
    if (threadIdx.x == 0 && good)
        end_waiting(args.progress, turn + 1);
    end_step(args, step, good);
}

/* ---- exchange by lines: one way over the link, and no fence ---- */

enum { LINE_THREADS = 1024, LINE_ALONE = 4 * LINE_THREADS };

__device__ inline uint64_t *line_at(const epx_words_t &words, int32_t rank, int32_t channel, uint64_t step,
                                    int32_t sender)
{
    int64_t line = ((int64_t)channel * 2 + (int64_t)(step & 1)) * words.ranks + sender;
    return (uint64_t *)(block_of(words, rank) + words.lines) + line * (words.box_bytes / 4);
}

/* Four bytes of a block, or what is left of it. */
__device__ inline uint32_t piece_of(const char *from, int64_t bytes, int32_t i)
{
    uint32_t piece = 0x80808080u;
    if (from == nullptr)
        return piece;
    if ((uintptr_t)from % 4 == 0 && 4 * (int64_t)i + 4 <= bytes)
        return __ldcg((const unsigned *)from + i);
    for (int64_t at = 4 * (int64_t)i + 3; at >= 4 * (int64_t)i; at--)
        piece = piece << 8 | (at < bytes ? (unsigned char)__ldcg(from + at) : 0);
    return piece;
}

__device__ inline void put_piece(char *to, int64_t bytes, int32_t i, uint32_t piece)
{
    if ((uintptr_t)to % 4 == 0 && 4 * (int64_t)i + 4 <= bytes) {
        ((uint32_t *)to)[i] = piece;
        return;
    }
    for (int64_t at = 4 * (int64_t)i; at < bytes && at < 4 * (int64_t)i + 4; at++, piece >>= 8)
        to[at] = (char)piece;
}

/* All threads: the lines of the ranks first, first + by, ... go out. */
__device__ inline void send_lines(const epx_k_word_exchange_t &args, uint64_t step, int32_t first, int32_t by,
                                  int32_t pieces)
{
    const epx_words_t &words = args.words;
    for (int32_t i = (int32_t)threadIdx.x; i < pieces; i += (int32_t)blockDim.x) {
        uint64_t word = step << 32 | piece_of((const char *)args.send, args.bytes, i);
        for (int32_t p = first; p < words.ranks; p += by)
            *(volatile uint64_t *)(line_at(words, p, args.channel, step, words.rank) + i) = word;
    }
    int64_t place = (int64_t)args.channel * words.ranks + words.rank;
    for (int32_t p = first + by * (int32_t)threadIdx.x; p < words.ranks; p += by * (int32_t)blockDim.x)
        *(volatile uint64_t *)word_at(words, p, words.steps, place) = step;
}

/* One thread: takes what has come of its words; whether some have not. */
__device__ inline bool take_lines(const epx_k_word_exchange_t &args, uint64_t step, int32_t first, int32_t by,
                                  int32_t pieces)
{
    const epx_words_t &words = args.words;
    bool pending = false;
    for (int32_t p = first; p < words.ranks; p += by) {
        const uint64_t *line = line_at(words, words.rank, args.channel, step, p);
        char *to = (char *)args.receive + p * args.stride;
        for (int32_t i = (int32_t)threadIdx.x; i < pieces; i += (int32_t)blockDim.x) {
            uint64_t word = look(line + i);
            if ((uint32_t)(word >> 32) == (uint32_t)step)
                put_piece(to, args.bytes, i, (uint32_t)word);
            else
                pending = true;
        }
    }
    return pending;
}

/* All threads: whether all has come. */
__device__ inline bool await_lines(const epx_k_word_exchange_t &args, const awaited &what, int32_t by,
                                   int32_t pieces)
{
    int64_t begin = now_ns();
    uint32_t turn = 0;
    bool leaves = false;
    for (; __syncthreads_or(take_lines(args, what.epoch, what.first, by, pieces)); turn++) {
        if (turn % TELL_LOOKS == TELL_LOOKS - 1 && threadIdx.x == 0 && args.progress != nullptr)
            tell_waiting(args.words, what, args.progress, begin, args.name);
        if (turn % AROUND_LOOKS != AROUND_LOOKS - 1)
            continue;
        int why = look_around(args.words, begin, args.timeout_ns, turn);
        why = (__syncthreads_or(why & WHY_ABORT) ? WHY_ABORT : 0) |
              (__syncthreads_or(why & WHY_TIME) ? WHY_TIME : 0) |
              (__syncthreads_or(why & WHY_HOST) ? WHY_HOST : 0);
        if (why != 0 && leaves) {
            give_up(args.words, what, why, args.tag, 1);
            return false;
        }
        leaves = why != 0; /* data that has arrived wins: some more looks */
    }
    if (threadIdx.x == 0)
        end_waiting(args.progress, turn + 1);
    return true;
}

__global__ void __launch_bounds__(LINE_THREADS)
    exchange_lines(const __grid_constant__ epx_k_word_exchange_t args)
{
    const epx_words_t &words = args.words;
    int32_t first = (int32_t)blockIdx.x, by = (int32_t)gridDim.x, last = words.ranks - 1;
    int32_t pieces = (int32_t)((args.bytes + 3) / 4);
    behind_previous();
    uint64_t step = look(args.step) + 1;
    awaited what = {word_at(words, words.rank, words.steps, (int64_t)args.channel * words.ranks),
                    first,
                    last,
                    by,
                    step,
                    true};
    bool good = !has_ended(words);
    if (good) {
        send_lines(args, step, first, by, pieces);
        if (first == 0 && threadIdx.x == 0 && args.progress != nullptr)
            put_progress(args.progress->step_sent, step, args.name);
        good = await_lines(args, what, by, pieces);
    } else {
        give_up(words, what, WHY_ABORT, args.tag, 1);
    }
    let_next_begin();
    for (int32_t p = first; !good && p <= last; p += by)
        for (int64_t i = threadIdx.x; i < args.bytes; i += blockDim.x)
            ((char *)args.receive)[p * args.stride + i] = (char)0x80;
    end_step(args, step, good);
}

/* As many threads as a row has words, in whole warps. */
int threads_for(int32_t words)
{
    int threads = (words + WARP - 1) / WARP * WARP;
    return threads < WARP ? WARP : threads > WORD_THREADS ? WORD_THREADS : threads;
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

extern "C" epx_status_t epx_cuda_word_exchange(const epx_k_word_exchange_t *args, epx_stream_t stream)
{
    using namespace epx;
    int blocks = at_most(BOX_BLOCKS, args->words.ranks);
    if (args->words.lines == 0)
        return launch("exchange", shape1{blocks, BOX_THREADS, 0, 1, true}, stream, exchange_words, *args);
    int64_t pieces = (args->bytes + 3) / 4;
    if (pieces * args->words.ranks <= LINE_ALONE)
        blocks = 1;
    return launch("exchange", shape1{blocks, threads_for((int32_t)pieces), 0, 1, true}, stream,
                  exchange_lines, *args);
}

extern "C" epx_status_t epx_cuda_word_abort(const epx_k_word_abort_t *args, epx_stream_t stream)
{
    using namespace epx;
    shape1 shape = {1, threads_for(args->words.ranks), 0, 1};
    return launch("abort", shape, stream, abort_words, *args);
}
