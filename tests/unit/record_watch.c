/* The watchdog's thread comes with the first recorder and goes with the last one. SPDX-License-Identifier:
 * Apache-2.0
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/bell.h"
#include "base/clock.h"
#include "record/recorder.h"
#include "support/folder.h"

enum { TIMES = 1000, LIMIT_MS = 10000 };

static char folder[FOLDER_BYTES];

typedef struct closing {
    epx_recorder_h recorder;
    atomic_int begins, is_over;
} closing_t;

static epx_recorder_h open_one(int32_t rank)
{
    epx_recorder_h recorder = NULL;
    char own[FOLDER_BYTES + 16];
    snprintf(own, sizeof(own), "%s/%d", folder, (int)rank);
    epx_recorder_set_up_t set_up = {.folder = own,
                                    .job = "job",
                                    .rank = rank,
                                    .ranks = 2,
                                    .hang_ms = 60000,
                                    .timeout_ms = 60000,
                                    .watched = 1};
    cr_assert_eq(epx_recorder_open(&set_up, &recorder), EPX_OK);
    return recorder;
}

static void *closes(void *of)
{
    closing_t *closing = of;
    atomic_store(&closing->begins, 1);
    epx_recorder_close(&closing->recorder);
    atomic_store(&closing->is_over, 1);
    return NULL;
}

/* One comes while the thread of the last one is still ending: who closed that one waits for no thread that
 * goes on. */
Test(record_watch, a_recorder_comes_while_the_last_one_goes, .timeout = 60)
{
    uint32_t random = 1;
    folder_make(folder, "/dev/shm");
    for (int i = 0; i < TIMES; i++) {
        closing_t closing = {.recorder = open_one(0)};
        pthread_t thread;
        cr_assert_eq(pthread_create(&thread, NULL, closes, &closing), 0);
        while (!atomic_load(&closing.begins))
            epx_spin_pause();
        random = random * 1664525u + 1013904223u;
        for (uint32_t n = random >> 18; n > 0; n--)
            epx_spin_pause();
        epx_recorder_h other = open_one(1);
        int64_t until = epx_clock_ns() + (int64_t)LIMIT_MS * 1000000;
        while (!atomic_load(&closing.is_over) && epx_clock_ns() < until)
            sched_yield();
        int is_over = atomic_load(&closing.is_over);
        epx_recorder_close(&other);
        pthread_join(thread, NULL);
        cr_assert(is_over, "round %d: the recorder was not closed within %d ms", i, LIMIT_MS);
    }
    cr_expect_eq(folder_remove(folder), 0);
}
