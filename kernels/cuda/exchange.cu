/*
 * The exchange of a fabric whose words live in device memory: W4 of include/epx/kernels_words.h.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/words.cuh"

namespace epx
{
namespace
{

enum { BOX_THREADS = 512, BOX_BLOCKS = 16 };

/* ---- by boxes ---- */

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
    const uint64_t *row = word_at(words, words.rank, words.steps, (int64_t)args.channel * words.ranks);
    awaited what = {row, first, last, by, step, true};
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
        int why = vote(look_around(words, begin, args.timeout_ns, turn));
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

/* ---- by lines: one way over the link, and no fence ---- */

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
        int why = vote(look_around(args.words, begin, args.timeout_ns, turn));
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
    const uint64_t *row = word_at(words, words.rank, words.steps, (int64_t)args.channel * words.ranks);
    awaited what = {row, first, last, by, step, true};
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

} // namespace
} // namespace epx

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
