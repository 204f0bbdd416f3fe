/*
 * Waits of fabric `local` for all ranks where work is in streams: a rank sleeps once for all of them, and is
 * woken by the last one. Nothing wakes it by accident: a sleep here lasts until the bell rings, so a ring
 * that is missing is seen. Streams are sets of what is done ahead of them. SPDX-License-Identifier:
 * Apache-2.0
 */
#include <criterion/criterion.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "base/bell.h"
#include "base/clock.h"
#include "core/comm_make.h"
#include "fabric/registry.h"

enum { RANKS = 6, TIMEOUT_MS = 1000, LOST_S = 20, EPOCH = 5, BEGIN_NS = 1000 };

/* ---- a device whose streams are sets: bit r is rank r's work of this round ---- */

typedef _Atomic uint64_t set_t;

static epx_status_t stream_create(epx_stream_t *stream_p)
{
    *stream_p = calloc(1, sizeof(set_t));
    return *stream_p != NULL ? EPX_OK : EPX_ERR_NO_MEMORY;
}
static void stream_destroy(epx_stream_t stream) { free(stream); }
static epx_status_t event_create(int32_t timed, epx_event_t *event_p)
{
    (void)timed;
    *event_p = calloc(1, sizeof(set_t));
    return *event_p != NULL ? EPX_OK : EPX_ERR_NO_MEMORY;
}
static void event_destroy(epx_event_t event) { free(event); }
static epx_status_t event_record(epx_event_t event, epx_stream_t stream)
{
    atomic_store((set_t *)event, atomic_load((set_t *)stream));
    return EPX_OK;
}
static epx_status_t stream_wait(epx_stream_t stream, epx_event_t event)
{
    atomic_fetch_or((set_t *)stream, atomic_load((set_t *)event));
    return EPX_OK;
}

static const epx_device_ops_t device = {.name = "sets",
                                        .stream_create = stream_create,
                                        .stream_destroy = stream_destroy,
                                        .event_create = event_create,
                                        .event_destroy = event_destroy,
                                        .event_record = event_record,
                                        .stream_wait = stream_wait};

/* ---- ranks ---- */

static struct {
    epx_fabric_t *fabric[RANKS];
    set_t stream[RANKS];
    int64_t now_ns;
    atomic_int lost;
    uint64_t rounds;
    /* what happens while one sleeps, one after the other, until its bell rings */
    struct {
        void (*act)(int rank);
        int rank;
    } step[2 * RANKS];
    int steps, done, sleeps;
} stage;

static int64_t now_ns(void) { return atomic_load(&stage.lost) ? INT64_MAX / 2 : stage.now_ns; }
static void nap_ns(int64_t ns) { stage.now_ns += ns; }

static void open_ranks(const epx_clock_ops_t *clock)
{
    epx_fabric_config_t config = epx_comm_fabric_config(NULL);
    config.channels = 1;
    config.failure_channels = 1;
    config.device = &device;
    stage.now_ns = BEGIN_NS;
    epx_clock_stand_in(clock);
    cr_assert_eq(epx_fabric_threads(&config, RANKS, stage.fabric), EPX_OK, "%s", epx_last_error());
    for (int r = 0; r < RANKS; r++)
        atomic_store(&stage.stream[r], (uint64_t)1 << r);
}

static void close_ranks(void)
{
    for (int r = 0; r < RANKS; r++)
        stage.fabric[r]->ops->close(&stage.fabric[r]);
    epx_clock_stand_in(NULL);
}

static epx_status_t post(int rank, uint64_t epoch)
{
    epx_post_t post = {.channel = 0, .epoch = {.add = epoch}, .peer = EPX_ALL_PEERS};
    return stage.fabric[rank]->ops->post(stage.fabric[rank], &post, &stage.stream[rank]);
}

static epx_status_t wait_all(int rank, uint64_t epoch, epx_wait_result_t *result)
{
    epx_watch_t watch = {.channel = 0, .epoch = {.add = epoch}};
    epx_wait_t wait = {.channel = 0,
                       .epoch = {.add = epoch},
                       .peer = EPX_ALL_PEERS,
                       .mode = EPX_WAIT_AT_LEAST,
                       .watch = {watch},
                       .watches = 1,
                       .timeout_ms = TIMEOUT_MS};
    return stage.fabric[rank]->ops->wait(stage.fabric[rank], &wait, result, &stage.stream[rank]);
}

/* ---- one thread plays all ---- */

static void sleep_and_play(epx_bell_t *bell, uint32_t count, int64_t deadline_ns)
{
    stage.sleeps++;
    while (epx_bell_count(bell) == count && stage.done < stage.steps) {
        int i = stage.done++;
        stage.step[i].act(stage.step[i].rank);
    }
    if (epx_bell_count(bell) == count)
        stage.now_ns = deadline_ns;
}
static void pause_nothing(void) {}

static const epx_clock_ops_t played = {
    .now_ns = now_ns, .nap_ns = nap_ns, .bell_sleep = sleep_and_play, .spin_pause = pause_nothing};

static void meanwhile(void (*act)(int rank), int rank)
{
    stage.step[stage.steps].act = act;
    stage.step[stage.steps++].rank = rank;
}

static void posts(int rank) { cr_assert_eq(post(rank, EPOCH), EPX_OK); }
static void posts_next(int rank) { cr_assert_eq(post(rank, EPOCH + 1), EPX_OK); }
static void fails(int rank)
{
    epx_epoch_t epoch = {.add = EPOCH};
    stage.fabric[rank]->ops->post_failure(stage.fabric[rank], 0, epoch, NULL);
}
static void aborts(int rank) { stage.fabric[rank]->ops->abort(stage.fabric[rank], -1); }

static void expect_all_done(int rank)
{
    cr_expect_eq(atomic_load(&stage.stream[rank]), ((uint64_t)1 << RANKS) - 1, "rank %d has %llx", rank,
                 (unsigned long long)atomic_load(&stage.stream[rank]));
}

/* In whatever order the others come. */
Test(joins_stress, who_waits_for_all_sleeps_once)
{
    for (int turn = 1; turn < RANKS; turn++) {
        epx_wait_result_t result;
        stage.steps = stage.done = stage.sleeps = 0;
        open_ranks(&played);
        posts(0);
        for (int i = 1; i < RANKS; i++)
            meanwhile(posts, 1 + (i + turn) % (RANKS - 1));
        cr_expect_eq(wait_all(0, EPOCH, &result), EPX_OK);
        cr_expect_eq(stage.sleeps, 1, "%d sleeps", stage.sleeps);
        cr_expect_eq(stage.now_ns, BEGIN_NS, "a ring was missing");
        expect_all_done(0);
        for (int r = 1; r < RANKS; r++) {
            cr_expect_eq(wait_all(r, EPOCH, &result), EPX_OK);
            expect_all_done(r);
        }
        close_ranks();
    }
}

/* Those that came while it slept are not blamed. */
Test(joins_stress, the_one_that_is_missing_is_named)
{
    for (int missing = 1; missing < RANKS; missing++) {
        epx_wait_result_t result;
        stage.steps = stage.done = 0;
        open_ranks(&played);
        posts(0);
        for (int r = 1; r < RANKS; r++)
            if (r != missing)
                meanwhile(posts, r);
        cr_expect_eq(wait_all(0, EPOCH, &result), EPX_ERR_TIMEOUT);
        cr_expect_eq(result.peer, missing, "rank %d is blamed for %d", result.peer, missing);
        cr_expect_eq(result.expected, EPOCH);
        cr_expect_eq(result.seen, 0);
        cr_expect_eq(stage.now_ns, BEGIN_NS + (int64_t)TIMEOUT_MS * 1000000);
        close_ranks();
    }
}

static void expect_ended(void (*act)(int rank), int by)
{
    epx_wait_result_t result;
    stage.steps = stage.done = 0;
    open_ranks(&played);
    posts(0);
    meanwhile(posts, 1);
    meanwhile(act, by);
    cr_expect_eq(wait_all(0, EPOCH, &result), EPX_ERR_PEER);
    cr_expect_eq(result.peer, by);
    cr_expect_eq(stage.now_ns, BEGIN_NS, "it was not woken");
    close_ranks();
}

Test(joins_stress, a_failure_wakes) { expect_ended(fails, 3); }
Test(joins_stress, an_abort_wakes) { expect_ended(aborts, 4); }

/* Then nobody is the last one of that epoch: it is found out after a while, long before time is up. */
Test(joins_stress, a_rank_that_goes_ahead_keeps_nobody_asleep)
{
    epx_wait_result_t result;
    open_ranks(&played);
    posts(0);
    meanwhile(posts, 1);
    meanwhile(posts_next, 1);
    for (int r = 2; r < RANKS; r++)
        meanwhile(posts, r);
    cr_expect_eq(wait_all(0, EPOCH, &result), EPX_OK);
    cr_expect_lt(stage.now_ns, (int64_t)TIMEOUT_MS * 1000000 / 10);
    expect_all_done(0);
    close_ranks();
}

/* Counted already, told later (here: another one is counted twice): its own word ends the wait. */
Test(joins_stress, who_was_counted_before_it_told_is_slept_for)
{
    epx_wait_result_t result;
    open_ranks(&played);
    posts(0);
    meanwhile(posts, 1);
    for (int r = 1; r < RANKS; r++)
        if (r != 3)
            meanwhile(posts, r);
    meanwhile(posts, 3);
    cr_expect_eq(wait_all(0, EPOCH, &result), EPX_OK);
    cr_expect_eq(stage.done, stage.steps);
    cr_expect_eq(stage.now_ns, BEGIN_NS, "a ring was missing");
    close_ranks();
}

/* ---- threads ---- */

static void sleep_until_rung(epx_bell_t *bell, uint32_t count, int64_t deadline_ns)
{
    (void)deadline_ns;
    time_t begun = time(NULL);
    while (epx_bell_count(bell) == count && !atomic_load(&stage.lost)) {
        sched_yield();
        if (time(NULL) - begun > LOST_S)
            atomic_store(&stage.lost, 1);
    }
}
static const epx_clock_ops_t threaded = {
    .now_ns = now_ns, .nap_ns = nap_ns, .bell_sleep = sleep_until_rung, .spin_pause = pause_nothing};

static void *play(void *argument)
{
    int rank = *(const int *)argument;
    epx_wait_result_t result;
    for (uint64_t round = 1; round <= stage.rounds && !atomic_load(&stage.lost); round++) {
        if (post(rank, round) != EPX_OK || wait_all(rank, round, &result) != EPX_OK)
            atomic_store(&stage.lost, 1);
    }
    return NULL;
}

Test(joins_stress, the_last_one_wakes_all, .timeout = 240)
{
    pthread_t thread[RANKS];
    int rank[RANKS];
    stage.rounds = getenv("STRESS_ROUNDS") != NULL ? strtoull(getenv("STRESS_ROUNDS"), NULL, 10) : 3000;
    open_ranks(&threaded);
    for (int r = 0; r < RANKS; r++) {
        rank[r] = r;
        cr_assert_eq(pthread_create(&thread[r], NULL, play, &rank[r]), 0);
    }
    for (int r = 0; r < RANKS; r++)
        pthread_join(thread[r], NULL);
    cr_expect_eq(atomic_load(&stage.lost), 0, "a ring was missing");
    close_ranks();
}
