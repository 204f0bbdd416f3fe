/*
 * Words and bells under stress: what a word promises must be there when it is seen, and no ring may be
 * missed. SPDX-License-Identifier: Apache-2.0
 *
 * Plain stores, then a word with release, then a ring; a sleeper notes the bell, looks at the word with
 * acquire, and sleeps. On a processor that reorders stores (64-bit ARM) a slip shows as an old payload; on
 * any, as a sleep that nobody ends.
 */
#include <criterion/criterion.h>

#include <epx/comm.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/bell.h"
#include "base/fail.h"

enum { PAYLOAD = 24, PAIRS = 2, SECONDS_MOST = 30 };

/* One direction between two threads; words and payload far enough apart to travel on their own. */
typedef struct lane {
    _Alignas(128) uint64_t payload[PAYLOAD];
    _Alignas(128) _Atomic uint64_t word;
    _Alignas(128) epx_bell_t bell;
} lane_t;

typedef struct half {
    pthread_t thread;
    lane_t *in, *out;
    int32_t first; /* sends before it waits */
    uint64_t rounds, seen, bad_at;
    int32_t bad, timed_out;
    uint32_t random;
} half_t;

/* What stands in word i of the payload of round n. */
static uint64_t value_of(uint64_t round, int32_t i) { return round * 0x9e3779b97f4a7c15u + (uint64_t)i; }

static void send(half_t *half, uint64_t round)
{
    for (int32_t i = 0; i < PAYLOAD; i++)
        half->out->payload[i] = value_of(round, i);
    atomic_store_explicit(&half->out->word, round, memory_order_release);
    epx_bell_ring(&half->out->bell);
}

/* Spins now and then before it sleeps, so that rings meet a sleeper at every point of its falling asleep. */
static int32_t await(half_t *half, uint64_t round, int64_t deadline_ns)
{
    half->random = half->random * 1664525u + 1013904223u;
    int32_t spins = (int32_t)(half->random >> 24) % 40;
    for (;;) {
        uint32_t bell = epx_bell_count(&half->in->bell);
        if (atomic_load_explicit(&half->in->word, memory_order_acquire) == round)
            break;
        if (spins-- > 0) {
            epx_spin_pause();
            continue;
        }
        if (epx_clock_ns() > deadline_ns)
            return 0;
        epx_bell_sleep(&half->in->bell, bell, deadline_ns);
    }
    for (int32_t i = 0; i < PAYLOAD; i++)
        if (half->in->payload[i] != value_of(round, i)) {
            half->bad++;
            half->bad_at = round;
        }
    half->seen = round;
    return 1;
}

static void *play(void *argument)
{
    half_t *half = argument;
    int64_t deadline_ns = epx_clock_ns() + (int64_t)SECONDS_MOST * 1000000000;
    for (uint64_t round = 1; round <= half->rounds && !half->timed_out; round++) {
        if (half->first)
            send(half, round);
        half->timed_out = !await(half, round, deadline_ns);
        if (!half->first)
            send(half, round);
    }
    return NULL;
}

/* Pairs of threads throw a payload to and fro. One throw at a time, so the payload may be plain memory. */
Test(bell_stress, what_a_word_promises_is_there)
{
    const uint64_t rounds = 20000;
    lane_t *lanes = aligned_alloc(128, 2 * PAIRS * sizeof(lane_t));
    half_t half[2 * PAIRS];
    cr_assert_not_null(lanes);
    memset(lanes, 0, 2 * PAIRS * sizeof(lane_t));
    for (int32_t h = 0; h < 2 * PAIRS; h++) {
        half[h] = (half_t){.in = &lanes[h],
                           .out = &lanes[h ^ 1],
                           .first = h & 1,
                           .rounds = rounds,
                           .random = 7u + (uint32_t)h};
        cr_assert_eq(pthread_create(&half[h].thread, NULL, play, &half[h]), 0);
    }
    for (int32_t h = 0; h < 2 * PAIRS; h++) {
        pthread_join(half[h].thread, NULL);
        cr_expect_eq(half[h].bad, 0, "thread %d: %d old words, last in round %llu", h, half[h].bad,
                     (unsigned long long)half[h].bad_at);
        cr_expect_eq(half[h].timed_out, 0, "thread %d slept through a ring in round %llu", h,
                     (unsigned long long)half[h].seen + 1);
        cr_expect_eq(half[h].seen, rounds);
    }
    free(lanes);
}

/* ---- one bell, many ringers --------------------------------------------------------------------------------------- */

enum { RINGERS = 3, RINGS = 6000 };

typedef struct crowd {
    _Atomic uint64_t word[RINGERS][16]; /* one in each row of a cache */
    uint64_t note[RINGERS][16];
    epx_bell_t bell;
    _Atomic uint64_t taken; /* by the sleeper: ringers wait until theirs was */
    epx_bell_t back[RINGERS];
} crowd_t;

typedef struct ringer {
    pthread_t thread;
    crowd_t *crowd;
    int32_t number, timed_out;
} ringer_t;

static void *ring_often(void *argument)
{
    ringer_t *ringer = argument;
    crowd_t *crowd = ringer->crowd;
    int64_t deadline_ns = epx_clock_ns() + (int64_t)SECONDS_MOST * 1000000000;
    for (uint64_t round = 1; round <= RINGS; round++) {
        crowd->note[ringer->number][0] = ~round;
        atomic_store_explicit(&crowd->word[ringer->number][0], round, memory_order_release);
        epx_bell_ring(&crowd->bell);
        for (;;) {
            uint32_t bell = epx_bell_count(&crowd->back[ringer->number]);
            if (atomic_load_explicit(&crowd->taken, memory_order_acquire) >= round)
                break;
            if (epx_clock_ns() > deadline_ns) {
                ringer->timed_out = 1;
                return NULL;
            }
            epx_bell_sleep(&crowd->back[ringer->number], bell, deadline_ns);
        }
    }
    return NULL;
}

/* A rank waits for one word per peer on its only bell, as in a wait for all peers. */
Test(bell_stress, one_bell_for_many_words)
{
    crowd_t *crowd = calloc(1, sizeof(*crowd));
    ringer_t ringer[RINGERS];
    int64_t deadline_ns = epx_clock_ns() + (int64_t)SECONDS_MOST * 1000000000;
    int32_t late = 0, old = 0;
    cr_assert_not_null(crowd);
    for (int32_t r = 0; r < RINGERS; r++) {
        ringer[r] = (ringer_t){.crowd = crowd, .number = r};
        cr_assert_eq(pthread_create(&ringer[r].thread, NULL, ring_often, &ringer[r]), 0);
    }
    for (uint64_t round = 1; round <= RINGS && !late; round++) {
        for (int32_t r = 0; r < RINGERS && !late; r++) {
            for (;;) {
                uint32_t bell = epx_bell_count(&crowd->bell);
                if (atomic_load_explicit(&crowd->word[r][0], memory_order_acquire) == round)
                    break;
                late = epx_clock_ns() > deadline_ns;
                if (late)
                    break;
                epx_bell_sleep(&crowd->bell, bell, deadline_ns);
            }
            old += !late && crowd->note[r][0] != ~round;
        }
        atomic_store_explicit(&crowd->taken, round, memory_order_release);
        for (int32_t r = 0; r < RINGERS; r++)
            epx_bell_ring(&crowd->back[r]);
    }
    for (int32_t r = 0; r < RINGERS; r++) {
        pthread_join(ringer[r].thread, NULL);
        cr_expect_eq(ringer[r].timed_out, 0, "ringer %d slept through a ring", r);
    }
    cr_expect_eq(late, 0, "the waiter slept through a ring");
    cr_expect_eq(old, 0, "%d notes were old when their word was seen", old);
    free(crowd);
}
