/*
 * Words in memory that the host reaches: see include/epx/kernels_words.h, kernels/cuda/words.cu and
 * exchange.cu are the twins.
 * What ends a wait is looked at in the same order. SPDX-License-Identifier: Apache-2.0
 */
#include <epx/kernels_words.h>

#include <string.h>
#include <time.h>

#include "kernels/host/lane.h"
#include "kernels/host/progress.h"
#include "kernels/host/table.h"
#include "kernels/host/verdict.h"

static uint64_t load(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

static void store(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static uint64_t epoch_value(epx_epoch_t epoch)
{
    return (epoch.base != NULL ? load(epoch.base) : 0) + epoch.add;
}

static int is_shut(const int32_t *gate)
{
    return gate != NULL && __atomic_load_n(gate, __ATOMIC_ACQUIRE) != 1;
}

static int has_failed(const int32_t *gate) { return __atomic_load_n(gate, __ATOMIC_ACQUIRE) < 0; }

static uint64_t *word_at(const epx_words_t *words, int32_t rank, int64_t offset, int64_t index)
{
    return (uint64_t *)(void *)((char *)words->peer[rank] + offset) + index;
}

/* The lowest other rank whose abort word is set, this rank itself, or -1. */
static int32_t find_abort(const epx_words_t *words)
{
    const uint64_t *aborts = word_at(words, words->rank, words->aborts, 0);
    for (int32_t p = 0; p < words->ranks; p++)
        if (p != words->rank && load(aborts + p) != 0)
            return p;
    return load(aborts + words->rank) != 0 ? words->rank : -1;
}

static void tell_all(const epx_words_t *words, uint64_t word)
{
    for (int32_t p = 0; p < words->ranks; p++)
        if (p != words->rank)
            store(word_at(words, p, words->aborts, words->rank), word);
}

/* Sets this rank's own abort word, if nobody has; 1: it was not set. */
static int claim(const epx_words_t *words, uint64_t word)
{
    uint64_t none = 0, *mine = word_at(words, words->rank, words->aborts, words->rank);
    return __atomic_compare_exchange_n(mine, &none, word, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/* What is waited for: the words of ranks first .. last in a row of mine. */
typedef struct awaited {
    const uint64_t *row;
    int32_t first, last;
    uint64_t epoch;
    int at_least;
} awaited_t;

/* The first in order from my own rank on that has not come, or -1. */
static int32_t find_pending(const epx_words_t *words, const awaited_t *what, uint64_t *seen)
{
    for (int32_t i = 0; i < words->ranks; i++) {
        int32_t p = (words->rank + i) % words->ranks;
        if (p < what->first || p > what->last)
            continue;
        *seen = load(what->row + p);
        if (what->at_least ? *seen < what->epoch : *seen != what->epoch)
            return p;
    }
    return -1;
}

/* W3. `by`: who ended the group, or -1; word: this rank's own, 0: another rank told everybody. */
static void write_down(const epx_words_t *words, epx_word_halt_t why, uint64_t word)
{
    epx_word_halt_t *halt = words->halt;
    if (!claim(words, word != 0 ? word : EPX_ABORT_BIT | (uint64_t)(uint32_t)(why.peer + 1)))
        return;
    halt->status = why.status;
    halt->peer = why.peer;
    halt->culprit = why.culprit;
    halt->exchange = why.exchange;
    halt->tag = why.tag;
    halt->expected = why.expected;
    halt->seen = why.seen;
    store(&halt->ended, 1);
}

/* Ends the group where time is up or the host asks for it, or says that it has ended; 0: the wait goes on. */
static int gives_up(const epx_words_t *words, const awaited_t *what, int32_t pending, int64_t deadline,
                    epx_word_halt_t why)
{
    int32_t by = find_abort(words);
    uint64_t word = 0, asked = load(&words->halt->by_host);
    if (by >= 0) {
        why.status = by == words->rank ? EPX_ERR_ABORTED : EPX_ERR_PEER;
        why.peer = by;
        why.culprit = (int32_t)(uint32_t)load(word_at(words, words->rank, words->aborts, by)) - 1;
    } else if (asked != 0) {
        why.status = EPX_ERR_ABORTED;
        why.peer = words->rank;
        word = asked;
        why.culprit = (int32_t)(uint32_t)word - 1;
    } else if (now_ns() > deadline) {
        why.status = EPX_ERR_TIMEOUT;
        why.peer = why.culprit = pending;
        word = EPX_ABORT_BIT | (uint64_t)(uint32_t)(pending + 1);
    } else {
        return 0;
    }
    why.expected = what->epoch;
    why.seen = load(what->row + pending);
    write_down(words, why, word);
    if (word != 0)
        tell_all(words, word);
    return 1;
}

/* A wait says whom it waits for once it has lasted so long, and again as often. */
#define TELL_NS ((int64_t)2000000)

static void tell_waiting(epx_progress_words_t *progress, int64_t *told_ns, const awaited_t *what,
                         int32_t peer, uint64_t seen, uint32_t name)
{
    int64_t now = now_ns();
    if (progress == NULL || now - *told_ns < TELL_NS)
        return;
    if (progress->waiting[3] == 0)
        store(&progress->waiting[3], epx_host_progress_time(name));
    *told_ns = now;
    store(&progress->waiting[0], what->epoch);
    store(&progress->waiting[1], seen);
    store(&progress->waiting[2], ((uint64_t)peer + 1) | (what->at_least ? EPX_PROGRESS_AT_LEAST : 0));
}

static void end_waiting(epx_progress_words_t *progress)
{
    if (progress != NULL && progress->waiting[3] != 0)
        store(&progress->waiting[3], 0);
}

static void rest(void) { nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL); }

epx_status_t epx_host_word_post(const epx_k_word_post_t *args, epx_stream_t stream)
{
    const epx_words_t *words = &args->words;
    int32_t first = args->peer < 0 ? 0 : args->peer, last = args->peer < 0 ? words->ranks - 1 : args->peer;
    int64_t place = (int64_t)args->channel * words->ranks + words->rank;
    (void)stream;
    if (args->begin.words != NULL)
        __atomic_store_n(&args->begin.words->base, epx_host_lane_base(&args->begin), __ATOMIC_RELEASE);
    if ((args->only_failed ? !has_failed(args->gate) : is_shut(args->gate)) || find_abort(words) >= 0)
        return EPX_OK;
    uint64_t value = epoch_value(args->epoch);
    if (args->failure_rows > 0)
        place += (int64_t)(value % (uint64_t)args->failure_rows) * words->ranks;
    for (int32_t p = first; p <= last; p++)
        store(word_at(words, p, args->failure ? words->failures : words->words, place), value);
    if (args->progress != NULL)
        epx_host_progress(args->progress->posted, value, args->name);
    return EPX_OK;
}

/* The lowest rank with a failure word that counts, of the first watch that has one; -1: none. */
static int32_t find_failure(const epx_k_word_wait_t *args)
{
    const epx_words_t *words = &args->words;
    for (int32_t w = 0; w < args->watches; w++) {
        uint64_t value = epoch_value(args->watch[w].epoch);
        int64_t channel = args->watch[w].channel;
        if (args->watch[w].rows > 0)
            channel += (int64_t)(value % (uint64_t)args->watch[w].rows);
        const uint64_t *row = word_at(words, words->rank, words->failures, channel * words->ranks);
        for (int32_t p = 0; p < words->ranks; p++)
            if (load(row + p) == value)
                return p;
    }
    return -1;
}

/* Words that the host may look at one by one. */
static void do_beside(const epx_word_beside_t *beside)
{
    const uint64_t *from = beside->tell_from;
    uint64_t *to = beside->tell_to;
    for (int64_t i = 0; i < beside->tell_bytes / (int64_t)sizeof(*to); i++)
        store(&to[i], from[i]);
    if (beside->words != NULL)
        epx_host_lane_end(beside->words, beside->head, beside->acknowledged);
}

/* W3: what stands behind in the stream moves no rows. The report, which tells of routes, has nothing to tell.
 */
static void shut_behind(const epx_k_verdict_t *verdict)
{
    epx_k_verdict_t plan = {.head = verdict->head};
    if (plan.head != NULL)
        epx_verdict_dead(&plan, EPX_ERR_ABORTED, -1, NULL);
}

epx_status_t epx_host_word_wait(const epx_k_word_wait_t *args, epx_stream_t stream)
{
    const epx_words_t *words = &args->words;
    uint64_t seen = 0;
    (void)stream;
    if (is_shut(args->gate))
        return EPX_OK;
    awaited_t what = {.row = word_at(words, words->rank, words->words, (int64_t)args->channel * words->ranks),
                      .first = args->peer < 0 ? 0 : args->peer,
                      .last = args->peer < 0 ? words->ranks - 1 : args->peer,
                      .epoch = epoch_value(args->epoch),
                      .at_least = args->at_least};
    int64_t begin = now_ns(), deadline = begin + args->timeout_ns, told = begin;
    for (int32_t pending; (pending = find_pending(words, &what, &seen)) >= 0; rest()) {
        tell_waiting(args->progress, &told, &what, pending, seen, args->name);
        int32_t failed = find_failure(args);
        if (failed >= 0) {
            /* Data that has arrived wins. */
            if (find_pending(words, &what, &seen) < 0)
                break;
            if (args->verdict.head != NULL)
                epx_verdict_dead(&args->verdict, EPX_ERR_PEER, failed, NULL);
            end_waiting(args->progress);
            return EPX_OK;
        }
        if (gives_up(words, &what, pending, deadline, (epx_word_halt_t){.tag = args->tag})) {
            shut_behind(&args->verdict);
            return EPX_OK;
        }
    }
    end_waiting(args->progress);
    if (args->progress != NULL && args->seen)
        epx_host_progress(args->progress->seen, what.epoch, args->name);
    do_beside(&args->beside);
    return EPX_OK;
}

epx_status_t epx_host_word_abort(const epx_k_word_abort_t *args, epx_stream_t stream)
{
    (void)stream;
    if (claim(&args->words, args->word))
        tell_all(&args->words, args->word);
    return EPX_OK;
}

static char *box_at(const epx_k_word_exchange_t *args, int32_t rank, uint64_t step, int32_t sender)
{
    const epx_words_t *words = &args->words;
    int64_t box = ((int64_t)args->channel * 2 + (int64_t)(step & 1)) * words->ranks + sender;
    return (char *)words->peer[rank] + words->boxes + box * words->box_bytes;
}

static awaited_t steps_of(const epx_k_word_exchange_t *args, uint64_t step)
{
    const epx_words_t *words = &args->words;
    return (awaited_t){.row =
                           word_at(words, words->rank, words->steps, (int64_t)args->channel * words->ranks),
                       .last = words->ranks - 1,
                       .epoch = step,
                       .at_least = 1};
}

/* The group has ended before: says so. */
static void gives_up_exchange(const epx_k_word_exchange_t *args, uint64_t step)
{
    awaited_t what = steps_of(args, step);
    gives_up(&args->words, &what, args->words.rank, now_ns(),
             (epx_word_halt_t){.tag = args->tag, .exchange = 1});
}

/* 1: the step has come of all ranks. */
static int await_step(const epx_k_word_exchange_t *args, uint64_t step)
{
    awaited_t what = steps_of(args, step);
    int64_t begin = now_ns(), deadline = begin + args->timeout_ns, told = begin;
    uint64_t seen = 0;
    for (int32_t pending; (pending = find_pending(&args->words, &what, &seen)) >= 0; rest()) {
        tell_waiting(args->progress, &told, &what, pending, seen, args->name);
        if (gives_up(&args->words, &what, pending, deadline,
                     (epx_word_halt_t){.tag = args->tag, .exchange = 1}))
            return 0;
    }
    end_waiting(args->progress);
    if (args->progress != NULL)
        epx_host_progress(args->progress->step_seen, step, args->name);
    return 1;
}

epx_status_t epx_host_word_exchange(const epx_k_word_exchange_t *args, epx_stream_t stream)
{
    const epx_words_t *words = &args->words;
    uint64_t step = *args->step + 1;
    int good = find_abort(words) < 0;
    (void)stream;
    for (int32_t p = 0; p < words->ranks && good; p++) {
        if (args->send != NULL)
            memcpy(box_at(args, p, step, words->rank), args->send, (size_t)args->bytes);
        else
            memset(box_at(args, p, step, words->rank), 0x80, (size_t)args->bytes);
        store(word_at(words, p, words->steps, (int64_t)args->channel * words->ranks + words->rank), step);
    }
    if (good && args->progress != NULL)
        epx_host_progress(args->progress->step_sent, step, args->name);
    if (!good)
        gives_up_exchange(args, step);
    good = good && await_step(args, step);
    for (int32_t p = 0; p < words->ranks; p++) {
        char *to = (char *)args->receive + p * args->stride;
        if (good)
            memcpy(to, box_at(args, words->rank, step, p), (size_t)args->bytes);
        else
            memset(to, 0x80, (size_t)args->bytes);
    }
    *args->step = step;
    return EPX_OK;
}
