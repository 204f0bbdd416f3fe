/* Meetings of a group that opens or recovers are operations of the record: who stays away, or stops in the
 * middle, is named while the others wait. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <epx/record.h>

#include "record/act.h"
#include "record/recorder.h"
#include "support/folder.h"
#include "support/world.h"

enum { RANKS = 4, AWAY = 2, LIMIT_MS = 30000 };

static char folder[FOLDER_BYTES];

static void begin(void)
{
    clean_environment();
    folder_make(folder, "/dev/shm");
    setenv("EPX_RECORD", folder, 1);
    setenv("EPX_HANG_MS", "300", 1);
}

static void end(void) { cr_assert_eq(folder_remove(folder), 0, "%s stays", folder); }

TestSuite(record_meet, .init = begin, .fini = end, .timeout = 90);

/* Budgets are not those of a warm-up, from when all have a record: of a thread that waits for its processor
 * longer than a budget before it has one nothing else is known. */
static epx_group_config_t shape(rank_t *self, epx_recorder_h recorder)
{
    epx_group_config_t config = EPX_GROUP_CONFIG_INIT;
    world_meet(self);
    epx_phase(recorder, "steady", 0);
    config.name = "experts";
    config.experts = 8;
    config.top_k = 2;
    config.width = 8;
    config.tokens_max = 4;
    config.row_type = EPX_FP32;
    return config;
}

/* What the watchdog says, in bounded time. */
static epx_verdict_t hear(epx_recorder_h recorder)
{
    epx_verdict_t verdict = EPX_VERDICT_INIT;
    for (int64_t until = now_ms() + LIMIT_MS; now_ms() < until && verdict.kind == EPX_VERDICT_NONE;
         sleep_ms(100))
        epx_record_verdict(recorder, &verdict);
    return verdict;
}

static void expect_verdict(rank_t *self, const epx_verdict_t *verdict, epx_verdict_kind_t kind,
                           const char *op, const char *group)
{
    expect(self, verdict->kind == kind && verdict->rank == AWAY, "%s of rank %d: %s",
           epx_verdict_name(verdict->kind), verdict->rank, verdict->text);
    expect(self, strcmp(verdict->op, op) == 0 && strcmp(verdict->group, group) == 0, "in %s of %s",
           verdict->op, verdict->group);
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

static void late_to_open(rank_t *self)
{
    epx_recorder_h recorder = epx_comm_recorder(self->comm);
    epx_group_config_t config = shape(self, recorder);
    epx_group_h group = NULL;
    if (self->rank == AWAY) {
        epx_verdict_t verdict = hear(recorder);
        expect_verdict(self, &verdict, EPX_VERDICT_HOST_ABSENT, "open", "world");
    }
    expect_status(self, "epx_group_open", epx_group_open(self->comm, &config, &group), EPX_OK);
    epx_group_close(&group);
}

Test(record_meet, a_rank_that_does_not_come_to_an_opening)
{
    world_may_warn();
    world_run(RANKS, late_to_open, NULL);
    settle();
}

/* It has told the others that all is well, and sleeps where memory is registered. */
static void stops_while_opening(rank_t *self)
{
    epx_recorder_h recorder = epx_comm_recorder(self->comm);
    epx_group_config_t config = shape(self, recorder);
    epx_group_h group = NULL;
    expect_status(self, "epx_group_open", epx_group_open(self->comm, &config, &group), EPX_OK);
    epx_verdict_t verdict = hear(recorder);
    expect_verdict(self, &verdict, EPX_VERDICT_STREAM_BLOCKED, "open", "world");
    epx_group_close(&group);
}

Test(record_meet, a_rank_that_stops_in_the_middle_of_an_opening)
{
    setenv("EPX_HANG_MS", "100", 1);
    setenv("EPX_FAULT", "rank=2 at=register do=delay:4000", 1);
    world_may_warn();
    world_run(RANKS, stops_while_opening, NULL);
    settle();
}

/* ---- recovering ------------------------------------------------------------------------------------------------- */

static void late_to_recover(rank_t *self)
{
    epx_recorder_h recorder = epx_comm_recorder(self->comm);
    epx_group_config_t config = shape(self, recorder);
    epx_group_h group = NULL;
    epx_group_info_t info = EPX_GROUP_INFO_INIT;
    if (!expect_status(self, "epx_group_open", epx_group_open(self->comm, &config, &group), EPX_OK))
        return;
    for (int turn = 1; turn <= 2; turn++) {
        if (self->rank == AWAY) {
            epx_verdict_t verdict = hear(recorder);
            expect_verdict(self, &verdict, EPX_VERDICT_HOST_ABSENT, "recover", "experts");
        }
        expect_status(self, "epx_group_recover", epx_group_recover(group, NULL), EPX_OK);
        epx_group_info(group, &info);
        expect(self, info.ranks == RANKS && (int)info.generation == turn + 1, "%d ranks, generation %d",
               info.ranks, (int)info.generation);
    }
    epx_group_close(&group);
}

Test(record_meet, a_rank_that_does_not_come_to_a_recovery)
{
    world_may_warn();
    world_run(RANKS, late_to_recover, NULL);
    settle();
}

typedef struct asleep {
    epx_allocator_t allocator;
    int32_t sleeps;
} asleep_t;

/* A rank that does not come through with its memory, at its first request while it is told to sleep. */
static void *sleepy_allocate(void *context, size_t bytes, size_t alignment, int device_memory)
{
    asleep_t *a = context;
    void *memory = NULL;
    (void)device_memory;
    if (a->sleeps)
        sleep_ms(4000);
    a->sleeps = 0;
    return posix_memalign(&memory, alignment, bytes) == 0 ? memory : NULL;
}

static void sleepy_release(void *context, void *memory, size_t bytes, int device_memory)
{
    (void)context, (void)bytes, (void)device_memory;
    free(memory);
}

static void stops_while_recovering(rank_t *self)
{
    epx_recorder_h recorder = epx_comm_recorder(self->comm);
    epx_group_config_t config = shape(self, recorder);
    epx_group_h group = NULL;
    asleep_t a = {.allocator = {.allocate = sleepy_allocate, .release = sleepy_release, .context = &a}};
    config.allocator = &a.allocator;
    if (!expect_status(self, "epx_group_open", epx_group_open(self->comm, &config, &group), EPX_OK))
        return;
    a.sleeps = self->rank == AWAY;
    expect_status(self, "epx_group_recover", epx_group_recover(group, NULL), EPX_OK);
    epx_verdict_t verdict = hear(recorder);
    expect_verdict(self, &verdict, EPX_VERDICT_STREAM_BLOCKED, "recover", "experts");
    epx_group_close(&group);
}

Test(record_meet, a_rank_that_stops_in_the_middle_of_a_recovery)
{
    setenv("EPX_HANG_MS", "100", 1);
    world_may_warn();
    world_run(RANKS, stops_while_recovering, NULL);
    settle();
}

/* ---- the job is left while ranks meet ---------------------------------------------------------------------------- */

static epx_recorder_h of_rank[RANKS];
static atomic_int came_back;

/* In the middle of a recovery, where all others wait for this rank: the watchdog ends their waits, then this
 * one's. */
static void *ending_allocate(void *context, size_t bytes, size_t alignment, int device_memory)
{
    asleep_t *a = context;
    epx_verdict_t verdict = EPX_VERDICT_INIT;
    verdict.kind = EPX_VERDICT_HOST_ABSENT;
    verdict.action = EPX_ACTION_SHRINK;
    void *memory = NULL;
    (void)device_memory;
    if (a->sleeps) {
        sleep_ms(200);
        for (int32_t r = 0; r < RANKS; r++)
            if (r != AWAY)
                epx_act_end(of_rank[r], &verdict);
        for (int64_t until = now_ms() + 5000; now_ms() < until && atomic_load(&came_back) < RANKS - 1;)
            sleep_ms(10);
        a->sleeps = atomic_load(&came_back);
        epx_act_end(of_rank[AWAY], &verdict);
    }
    return posix_memalign(&memory, alignment, bytes) == 0 ? memory : NULL;
}

static void left_while_recovering(rank_t *self)
{
    epx_group_config_t config = shape(self, epx_comm_recorder(self->comm));
    epx_group_h group = NULL;
    asleep_t a = {.allocator = {.allocate = ending_allocate, .release = sleepy_release, .context = &a}};
    config.allocator = &a.allocator;
    of_rank[self->rank] = epx_comm_recorder(self->comm);
    if (!expect_status(self, "epx_group_open", epx_group_open(self->comm, &config, &group), EPX_OK))
        return;
    world_meet(self);
    a.sleeps = self->rank == AWAY;
    epx_status_t status = epx_group_recover(group, NULL);
    if (self->rank != AWAY)
        atomic_fetch_add(&came_back, 1);
    expect(self, status == EPX_ERR_ABORTED || status == EPX_ERR_PEER, "recover: %s", epx_status_name(status));
    if (self->rank == AWAY)
        expect(self, a.sleeps == RANKS - 1, "%d ranks came back before this one", a.sleeps);
    epx_group_close(&group);
    world_meet(self); /* recorders stay until the last one was told to end */
}

Test(record_meet, a_job_that_is_left_waits_for_no_recovery)
{
    setenv("EPX_ON_HANG", "abort", 1);
    setenv("EPX_HANG_MS", "20000", 1);
    world_may_warn();
    world_run(RANKS, left_while_recovering, NULL);
    settle();
}

/* ---- the watchdog ends a group that recovers -------------------------------------------------------------------- */

static int reader;

/* Standard error as a pipe without room: who logs stays in the middle of it. Returns what it was. */
static int close_the_log(void)
{
    int ends[2], before = dup(2);
    char blank[512] = {0};
    cr_assert_eq(pipe(ends), 0);
    reader = ends[0];
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    while (write(ends[1], blank, sizeof(blank)) > 0 || write(ends[1], blank, 1) > 0)
        continue;
    fcntl(ends[1], F_SETFL, 0);
    dup2(ends[1], 2);
    close(ends[1]);
    return before;
}

static void *end_group(void *recorder)
{
    epx_verdict_t verdict = EPX_VERDICT_INIT;
    verdict.kind = EPX_VERDICT_SIGNAL_LOST;
    verdict.action = EPX_ACTION_RECOVER;
    epx_act_end(recorder, &verdict);
    return NULL;
}

/* Until nobody writes any more. */
static void *open_the_log(void *unused)
{
    char text[4096];
    sleep_ms(500);
    while (read(reader, text, sizeof(text)) > 0)
        continue;
    return unused;
}

static void ended_while_recovering(rank_t *self)
{
    epx_recorder_h recorder = epx_comm_recorder(self->comm);
    epx_group_config_t config = shape(self, recorder);
    epx_group_h group = NULL;
    pthread_t ends, opens;
    int before = -1;
    expect_status(self, "epx_group_open", epx_group_open(self->comm, &config, &group), EPX_OK);
    world_meet(self);
    if (self->rank == 0) {
        before = close_the_log();
        pthread_create(&ends, NULL, end_group, recorder);
        pthread_create(&opens, NULL, open_the_log, NULL);
        sleep_ms(200);
    }
    world_meet(self);
    expect_status(self, "epx_group_recover", epx_group_recover(group, NULL), EPX_OK);
    world_meet(self);
    if (self->rank == 0) {
        pthread_join(ends, NULL);
        dup2(before, 2);
        close(before);
        pthread_join(opens, NULL);
        close(reader);
    }
    expect_status(self, "epx_group_check", epx_group_check(group), EPX_OK);
    epx_group_close(&group);
}

Test(record_meet, the_watchdog_that_ends_waits_is_done_before_the_group_goes)
{
    setenv("EPX_ON_HANG", "failover:ragged", 1);
    setenv("EPX_HANG_MS", "20000", 1);
    world_may_warn();
    world_run(2, ended_while_recovering, NULL);
    settle();
}
