/*
 * Verdicts where a group does not open over NCCL, which says of nobody that it waits.
 * SPDX-License-Identifier: Apache-2.0
 */
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "multi/record_stage.h"
#include "support/guarded.h"

TestSuite(record_open, .init = clean_environment);

enum { HELD_MS = 4000 }; /* twenty budgets, which memory and libraries have, are half of it */

static atomic_int turns;
static int held_turn;
static epx_verdict_t told_of_opening;

/* Rank 1 stays where it comes by for the n-th time. */
static void come_by(int rank)
{
    if (rank == 1 && atomic_fetch_add(&turns, 1) == held_turn)
        sleep_ms(HELD_MS);
}

static void *slow_allocate(size_t bytes, size_t alignment)
{
    come_by(stage_number);
    return guarded_device.allocate(bytes, alignment);
}

static void open_slowly(rank_t *self)
{
    stage_player_t p = {.self = self};
    epx_recorder_h recorder = epx_comm_recorder(self->comm);
    stage_number = self->rank;
    world_meet(self); /* all have a record by then */
    epx_phase(recorder, "steady", 0);
    expect(self, stage_open(&p, self->arg), "the group did not open");
    epx_verdict_t verdict = EPX_VERDICT_INIT;
    epx_record_verdict(recorder, &verdict);
    if (self->rank == 0)
        told_of_opening = verdict;
    stage_close(&p);
}

/* `name` of the library takes `value` at its n-th turn; NULL: EPX_FAULT holds rank 1. */
static void open_held(const char *name, const void *value, int turn)
{
    stage_begin("nccl", 0);
    setenv("EPX_HANG_MS", "100", 1);
    held_turn = turn;
    if (name != NULL)
        stage_fake_takes(name, value, sizeof(void (*)(void)));
    world_may_warn();
    world_run(RANKS, open_slowly, (void *)(size_t)stage_transports[0]);
    stage_seen = told_of_opening;
    stage_end();
}

/* Of what NCCL is given, words come first, and the segment; it meets for the communicator and for each of the
 * two. */
static void memory_held(int turn)
{
    void *(*allocate)(size_t, size_t) = slow_allocate;
    open_held("fake_allocate", &allocate, turn);
    stage_expect(EPX_VERDICT_STREAM_BLOCKED, 1, -1, "open");
}

Test(record_open, a_rank_that_stays_with_its_words_while_the_others_open) { memory_held(0); }
Test(record_open, a_rank_that_stays_with_its_segment_while_the_others_open) { memory_held(1); }

Test(record_open, a_rank_that_stays_in_front_of_its_registration)
{
    setenv("EPX_FAULT", "rank=1 at=register do=delay:4000", 1);
    open_held(NULL, NULL, 0);
    stage_expect(EPX_VERDICT_STREAM_BLOCKED, 1, -1, "open");
}

/* All have called it, and nothing is known of what it does: nobody is named, and not before twenty budgets.
 */
static void call_held(int turn)
{
    void (*comes)(int) = come_by;
    open_held("fake_comes", &comes, turn);
    stage_expect(EPX_VERDICT_UNKNOWN, -1, -1, "open");
    cr_expect(strstr(stage_seen.text, "everybody of its group has made the call") != NULL, "%s",
              stage_seen.text);
    cr_expect_geq(stage_seen.stuck_ns, (int64_t)1800 * 1000000);
}

Test(record_open, a_rank_that_stays_inside_of_ncclCommInitRank) { call_held(0); }
Test(record_open, a_rank_that_stays_inside_of_ncclCommWindowRegister) { call_held(2); }
