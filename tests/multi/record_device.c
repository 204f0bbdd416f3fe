/*
 * What a device writes into the flight record, and verdicts where streams hold ranks up and hosts have gone
 * on: on a simulated device, with ranks that share it (hosts meet, streams wait for events) and ranks that
 * have one each (kernels wait). SPDX-License-Identifier: Apache-2.0
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "multi/record_stage.h"
#include "record/classify.h"
#include "record/recorder.h"
#include "support/guarded.h"

TestSuite(record_device, .init = clean_environment);

/* ---- without a fault -------------------------------------------------------------------------------------------- */

/* The lane's row of a rank's file, read as another process would. */
static epx_record_lane_row_t row_of(int rank)
{
    char path[256];
    epx_record_head_t head;
    epx_record_lane_row_t row = {0};
    snprintf(path, sizeof(path), "%s/rank%05d.epxr", stage_folder, rank);
    FILE *file = fopen(path, "rb");
    if (file == NULL || fread(&head, sizeof(head), 1, file) != 1 || head.maps_device != 1 ||
        fseek(file, (long)(head.device_at + sizeof(epx_record_device_t)), SEEK_SET) != 0 ||
        fread(&row, sizeof(row), 1, file) != 1)
        row.use = 0;
    if (file != NULL)
        fclose(file);
    return row;
}

static uint32_t kind_of(const uint64_t pair[2]) { return (uint32_t)(pair[1] >> 10 & 7); }

static void play_clean(rank_t *self)
{
    stage_player_t p = {.self = self};
    if (!stage_open(&p, self->arg))
        return;
    for (int step = 0; step < STEPS; step++) {
        expect(self, stage_step(&p, step), "step %d: %s", step, epx_last_error());
        world_meet(self);
        epx_record_lane_row_t row = row_of(self->rank);
        const epx_progress_words_t *w = &row.words;
        expect(self, row.use != 0, "no lane in the file of rank %d", self->rank);
        expect(self, w->begun[0] != 0, "nothing has begun");
        expect(self, kind_of(w->begun) == EPX_RECORD_COMBINE, "begun kind %u", kind_of(w->begun));
        expect(self, (w->begun[1] & 1023) == WAVES - 1, "begun wave %u", (unsigned)(w->begun[1] & 1023));
        expect(self, (epx_record_call_of(w->begun[0]) >> 16) == (uint64_t)step, "pass %u in step %d",
               (unsigned)(epx_record_call_of(w->begun[0]) >> 16), step);
        if (row.resident) {
            expect(self, w->posted[0] == w->begun[0] && w->seen[0] == w->begun[0],
                   "posted %llx, seen %llx, begun %llx", (unsigned long long)w->posted[0],
                   (unsigned long long)w->seen[0], (unsigned long long)w->begun[0]);
            expect(self, w->posted[1] >= w->begun[1] && w->seen[1] >= w->posted[1], "out of order");
        }
        expect(self, row.asked_call == epx_record_call_of(w->begun[0]), "asked %llx, told %llx",
               (unsigned long long)row.asked_call, (unsigned long long)epx_record_call_of(w->begun[0]));
        expect(self,
               row.asked_step == (w->step_seen[0] > w->step_sent[0] ? w->step_seen[0] : w->step_sent[0]),
               "steps asked %llu, sent %llu", (unsigned long long)row.asked_step,
               (unsigned long long)w->step_sent[0]);
        world_meet(self);
    }
    epx_verdict_t verdict = EPX_VERDICT_INIT;
    epx_record_verdict(stage_recorders[self->rank], &verdict);
    expect(self, verdict.kind == EPX_VERDICT_NONE, "%s: %s", epx_verdict_name(verdict.kind), verdict.text);
    stage_close(&p);
}

Test(record_device, words_of_every_call_are_in_the_file)
{
    static const char *fabrics[] = {"local", "nccl"};
    for (int f = 0; f < 2; f++)
        for (int t = 0; t < 2; t++) {
            world_reset();
            stage_begin(fabrics[f], 0);
            world_run(RANKS, play_clean, (void *)(size_t)stage_transports[t]);
            stage_end();
        }
}

/* ---- faults ----------------------------------------------------------------------------------------------------- */

#define SEQ(op) ((op) + FAULT_STEP * STEP_OPS)
#define TEXT_OF(n) #n
#define TEXT(n) TEXT_OF(n)

/* The device of rank 1 executes something of the caller's ahead of a call. */
static void stuck(const char *on, const char *transport, const char *fault, int percent,
                  epx_verdict_kind_t kind, const char *op)
{
    stage_begin(on, percent);
    stage_run(transport, fault);
    stage_expect(kind, 1, -1, op);
    char line[120];
    char shared[64] = "";
    if (stage_others != 0)
        snprintf(shared, sizeof(shared), " (%d%% this process, of %d there)", stage_own >= 0 ? stage_own : 0,
                 2);
    snprintf(line, sizeof(line), "%d%% busy%s, 412 W, 1755 MHz; median of its domain %d%%", percent, shared,
             percent);
    cr_expect(stage_reported != NULL && strstr(stage_reported, line) != NULL, "no '%s' in: %s", line,
              stage_reported);
    free(stage_reported);
    stage_end();
}

/* The second operation of the seventh step is its first dispatch, the third that wave's combine. */
#define AHEAD_OF_DISPATCH "rank=1 op=dispatch seq=32 at=begin do=spin:600000"
#define AHEAD_OF_COMBINE "rank=1 op=combine seq=33 at=begin do=spin:600000"
#define AHEAD_OF_ROUTE "rank=1 op=route seq=31 at=begin do=spin:600000"

Test(record_device, a_kernel_ahead_of_a_dispatch_shared)
{
    stuck("local", "ragged", AHEAD_OF_DISPATCH, 99, EPX_VERDICT_STUCK_BEFORE_OP, "dispatch");
    cr_expect_str_eq(stage_seen.marker, "attention");
}

Test(record_device, a_kernel_ahead_of_a_dispatch_apart)
{
    stuck("nccl", "ragged", AHEAD_OF_DISPATCH, 99, EPX_VERDICT_STUCK_BEFORE_OP, "dispatch");
    cr_expect_str_eq(stage_seen.marker, "attention");
}

Test(record_device, a_kernel_ahead_of_a_combine_shared)
{
    stuck("local", "ragged", AHEAD_OF_COMBINE, 99, EPX_VERDICT_STUCK_BEFORE_OP, "combine");
}

Test(record_device, a_kernel_ahead_of_a_combine_apart)
{
    stuck("nccl", "pooled_wave", AHEAD_OF_COMBINE, 99, EPX_VERDICT_STUCK_BEFORE_OP, "combine");
}

Test(record_device, a_kernel_ahead_of_a_route_shared)
{
    stuck("local", "ragged", AHEAD_OF_ROUTE, 99, EPX_VERDICT_STUCK_BEFORE_OP, "route");
}

Test(record_device, a_kernel_ahead_of_a_route_apart)
{
    stuck("nccl", "ragged", AHEAD_OF_ROUTE, 99, EPX_VERDICT_STUCK_BEFORE_OP, "route");
}

Test(record_device, a_stream_that_does_not_go_on_while_the_device_is_idle)
{
    stuck("local", "ragged", AHEAD_OF_DISPATCH, 0, EPX_VERDICT_STREAM_BLOCKED, "dispatch");
}

Test(record_device, a_stream_that_does_not_go_on_while_the_device_is_idle_apart)
{
    stuck("nccl", "ragged", AHEAD_OF_DISPATCH, 0, EPX_VERDICT_STREAM_BLOCKED, "dispatch");
}

/* Another process keeps the GPU busy: what this one does there counts. */
Test(record_device, a_stream_that_does_not_go_on_while_others_have_the_device)
{
    stage_others = 1;
    stuck("nccl", "ragged", AHEAD_OF_DISPATCH, 99, EPX_VERDICT_STREAM_BLOCKED, "dispatch");
}

/* With more of them it may only not have been seen: nobody is named. */
Test(record_device, a_device_that_many_have)
{
    stage_others = MANY;
    stage_begin("nccl", 99);
    stage_run("pooled_wave", AHEAD_OF_COMBINE);
    stage_expect(EPX_VERDICT_UNKNOWN, -1, -1, "combine");
    stage_end();
}

Test(record_device, processes_of_another_namespace_are_not_taken_for_this_one)
{
    stage_others = HIDDEN;
    stage_own = 60;
    stage_begin("nccl", 99); /* looks at what is known */
    stage_end();
}

Test(record_device, a_foreign_kernel_on_a_device_that_others_have_too)
{
    stage_others = 1;
    stage_own = 60;
    stuck("nccl", "ragged", AHEAD_OF_DISPATCH, 99, EPX_VERDICT_STUCK_BEFORE_OP, "dispatch");
}

static void lost(const char *on, const char *transport)
{
    stage_begin(on, 99);
    stage_run(transport, "rank=1 op=dispatch seq=32 peer=2 at=signal.pre do=drop");
    stage_expect(EPX_VERDICT_SIGNAL_LOST, 1, 2, "dispatch");
    stage_end();
}

Test(record_device, a_signal_is_lost_shared) { lost("local", "ragged"); }
Test(record_device, a_signal_is_lost_apart) { lost("nccl", "ragged"); }
Test(record_device, a_signal_is_lost_apart_pooled) { lost("nccl", "pooled_wave"); }

/* The word of two passes ago, once more. */
static void stale(const char *on, const char *transport)
{
    stage_begin(on, 99);
    stage_run(transport, "rank=1 op=dispatch seq=32 peer=2 at=signal.pre do=stale");
    stage_expect(EPX_VERDICT_EPOCH_SKEW, 1, 2, "dispatch");
    stage_end();
}

Test(record_device, a_word_goes_back_apart) { stale("nccl", "ragged"); }
Test(record_device, a_word_goes_back_apart_pooled) { stale("nccl", "pooled_wave"); }

/* The host stands in the call, and others use the device. */
Test(record_device, a_call_that_was_not_given_to_a_busy_device)
{
    stage_begin("local", 99);
    stage_run("ragged", "rank=1 op=dispatch seq=32 at=begin do=delay:600000");
    stage_expect(EPX_VERDICT_STREAM_BLOCKED, 1, -1, "dispatch");
    stage_end();
}

static void leaves(const char *on)
{
    stage_begin(on, 0);
    stage_absent = 1;
    stage_run("ragged", NULL);
    stage_expect(EPX_VERDICT_HOST_ABSENT, 1, -1, "route");
    stage_end();
}

/* Its stream has come to its last mark long after the host has made the calls behind it: that is no mark of
 * work that goes on. */
static void computes(const char *on)
{
    stage_begin(on, 0);
    stage_busy = 1;
    stage_run("ragged", NULL);
    cr_expect_eq(stage_through, RANKS, "%d ranks are through: %s", stage_through, stage_seen.text);
    cr_expect_eq(stage_seen.kind, EPX_VERDICT_NONE, "%s: %s", epx_verdict_name(stage_seen.kind),
                 stage_seen.text);
    stage_end();
}

Test(record_device, a_host_computes_for_two_budgets_shared) { computes("local"); }
Test(record_device, a_host_computes_for_two_budgets_apart) { computes("nccl"); }

/* Everything is in one stream: calls of the second group stand behind the first one's wait. */
Test(record_device, two_groups_in_opposite_order_apart)
{
    stage_begin("nccl", 99);
    stage_turned = 1;
    stage_run("ragged", NULL);
    stage_expect(EPX_VERDICT_DEADLOCK, stage_seen.rank, -1, "route");
    stage_end();
}

Test(record_device, a_rank_never_launches_shared) { leaves("local"); }
Test(record_device, a_rank_never_launches_apart) { leaves("nccl"); }
