/* The classifier on record sets written by hand: every verdict, and what looks like one and is none.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "record/classify.h"
#include "record/recorder.h"

enum { RANKS_MAX = 8, HANG_MS = 5000 };

#define SECOND ((int64_t)1000000000)

/* A time of our own: records are written at chosen moments. */
static int64_t now_ns;

static int64_t now(void) { return now_ns; }

static const epx_clock_ops_t clock_ops = {.now_ns = now};

static epx_recorder_h rec[RANKS_MAX];
static int32_t ranks, world[RANKS_MAX], group[RANKS_MAX], second[RANKS_MAX];
static epx_rank_evidence_t evidence[RANKS_MAX];
static epx_rank_facts_t facts[RANKS_MAX];

/* n ranks in steady state with a world comm and two groups of all of them, at second 100. */
static void begin(int32_t n)
{
    ranks = n;
    now_ns = 100 * SECOND;
    epx_clock_stand_in(&clock_ops);
    for (int32_t r = 0; r < n; r++) {
        epx_recorder_set_up_t set_up = {
            .folder = "", .job = "job", .rank = r, .ranks = n, .hang_ms = HANG_MS, .timeout_ms = 60000};
        cr_assert_eq(epx_recorder_open(&set_up, &rec[r]), EPX_OK);
        epx_recorder_group_t row = {.name = "world", .key = 1, .ranks = n, .rank = r, .is_comm = 1};
        world[r] = epx_recorder_group_begin(rec[r], &row);
        row = (epx_recorder_group_t){.name = "experts", .key = 2, .ranks = n, .rank = r};
        group[r] = epx_recorder_group_begin(rec[r], &row);
        row = (epx_recorder_group_t){.name = "others", .key = 3, .ranks = n, .rank = r};
        second[r] = epx_recorder_group_begin(rec[r], &row);
        epx_record_step(rec[r]);
        size_t bytes;
        evidence[r] =
            (epx_rank_evidence_t){.record = epx_recorder_bytes(rec[r], &bytes), .life = EPX_LIFE_SLEEPS};
    }
}

static void end(void)
{
    for (int32_t r = 0; r < ranks; r++)
        epx_recorder_close(&rec[r]);
    epx_clock_stand_in(NULL);
}

static epx_verdict_t judge(void)
{
    epx_verdict_t v = EPX_VERDICT_INIT;
    epx_job_evidence_t job = {.rank = evidence, .ranks = ranks, .now_ns = now_ns};
    epx_classify(&job, facts, &v);
    return v;
}

/* A data call of the group on lane 0, up to where its start returns. */
static uint64_t start(int32_t r, int32_t id, epx_record_kind_t kind, uint64_t sequence, int32_t wave)
{
    epx_recorder_call_t call = {
        .group_id = id, .sequence = sequence, .kind = kind, .wave = wave, .signature = 7};
    uint64_t op = epx_recorder_enqueue(rec[r], &call);
    epx_recorder_begin(rec[r], op);
    epx_recorder_sent(rec[r], EPX_RECORD_EVERYBODY, sequence);
    epx_recorder_posted(rec[r], op);
    return op;
}

/* Its finish waits for a peer whose word holds `seen`. */
static void wait_for(int32_t r, int32_t channel, int32_t peer, uint64_t expected, uint64_t seen)
{
    epx_record_wait_t own,
        *live = epx_recorder_wait_begin(rec[r], channel, EPX_RECORD_EVERYBODY, expected, 0, &own);
    cr_assert_neq(live, &own);
    live->peer = peer;
    live->seen = seen;
}

/* A whole call that went well on all ranks: words of the channel hold its epoch from then on. */
static void good(epx_record_kind_t kind, uint64_t sequence, int32_t wave, int32_t channel)
{
    for (int32_t r = 0; r < ranks; r++) {
        uint64_t op = start(r, group[r], kind, sequence, wave);
        wait_for(r, channel, 0, sequence, sequence);
        epx_recorder_wait_end(rec[r], channel, 1);
        epx_recorder_end(rec[r], op, EPX_OK);
    }
}

static void call_and_wait(int32_t r, int32_t id, uint64_t sequence, int32_t peer, uint64_t seen)
{
    start(r, id, EPX_RECORD_DISPATCH, sequence, 0);
    wait_for(r, 0, peer, sequence, seen);
}

/* A collective of the world; peer -1: nobody says for whom it waits. */
static void collective(int32_t r, uint64_t sequence, int32_t peer)
{
    epx_recorder_call_t call = {.group_id = world[r], .sequence = sequence, .kind = EPX_RECORD_ALLREDUCE};
    uint64_t op = epx_recorder_enqueue(rec[r], &call);
    epx_recorder_begin(rec[r], op);
    epx_recorder_sent(rec[r], EPX_RECORD_EVERYBODY, sequence);
    epx_record_wait_t own, *live = epx_recorder_wait_begin(rec[r], -1, EPX_RECORD_EVERYBODY, sequence,
                                                           EPX_RECORD_EXCHANGE, &own);
    live->peer = peer;
}

static void expect(epx_verdict_kind_t kind, int32_t rank, int32_t peer)
{
    epx_verdict_t v = judge();
    char title[128];
    epx_verdict_title(&v, title, sizeof(title));
    cr_expect_eq(v.kind, kind, "the verdict is %s: %s", title, v.text);
    if (kind != EPX_VERDICT_NONE && kind != EPX_VERDICT_UNKNOWN)
        cr_expect_eq(v.rank, rank, "the culprit is rank %d: %s", v.rank, v.text);
    if (peer >= 0)
        cr_expect_eq(v.peer, peer, "the peer is rank %d: %s", v.peer, v.text);
}

static void pass(double seconds) { now_ns += (int64_t)(seconds * 1e9); }

TestSuite(record_rules, .init = NULL, .fini = end);

/* ---- host ------------------------------------------------------------------------------------------------------- */

/* All but rank 2 are in a dispatch that rank 2 has not made. */
static void without_rank_2(void)
{
    good(EPX_RECORD_DISPATCH, 1, 0, 0);
    for (int32_t r = 0; r < ranks; r++)
        if (r != 2)
            call_and_wait(r, group[r], 2, 2, 1);
}

Test(record_rules, nothing_before_the_budget)
{
    begin(4);
    without_rank_2();
    pass(4.9);
    expect(EPX_VERDICT_NONE, -1, -1);
    pass(0.1);
    expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
}

Test(record_rules, gone_is_named_at_once_and_stopped_after_a_second)
{
    begin(4);
    without_rank_2();
    evidence[2].life = EPX_LIFE_GONE;
    pass(0.4);
    expect(EPX_VERDICT_NONE, -1, -1);
    pass(0.2);
    expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
    evidence[2].life = EPX_LIFE_STOPPED;
    expect(EPX_VERDICT_NONE, -1, -1);
    pass(0.5);
    expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
}

/* Two are stopped: what one of them waits for has come, and it does not look. */
Test(record_rules, who_is_stopped_has_lost_no_signal)
{
    begin(4);
    good(EPX_RECORD_DISPATCH, 1, 0, 0);
    for (int32_t r = 0; r < 4; r++)
        start(r, group[r], EPX_RECORD_DISPATCH, 2, 0);
    wait_for(1, 0, 2, 2, 1);
    pass(4.5);
    for (int32_t r = 0; r < 4; r += 2)
        collective(r, 1, 3);
    evidence[1].life = evidence[3].life = EPX_LIFE_STOPPED;
    pass(0.8);
    expect(EPX_VERDICT_NONE, -1, -1);
    pass(0.4);
    expect(EPX_VERDICT_HOST_ABSENT, 3, -1);
    /* The same of one that lives. */
    evidence[1].life = evidence[3].life = EPX_LIFE_SLEEPS;
    expect(EPX_VERDICT_SIGNAL_LOST, 2, 1);
}

/* The same where nobody can ask: its watchdog has not written since. */
Test(record_rules, who_has_fallen_silent_has_lost_no_signal)
{
    begin(4);
    good(EPX_RECORD_DISPATCH, 1, 0, 0);
    for (int32_t r = 0; r < 4; r++)
        start(r, group[r], EPX_RECORD_DISPATCH, 2, 0);
    wait_for(1, 0, 2, 2, 1);
    pass(5);
    epx_record_head_t *head = (epx_record_head_t *)(uintptr_t)evidence[1].record;
    head->watched_ns = now_ns;
    evidence[1].life = EPX_LIFE_UNKNOWN;
    expect(EPX_VERDICT_SIGNAL_LOST, 2, 1);
    head->watched_ns = now_ns - 2 * SECOND;
    expect(EPX_VERDICT_UNKNOWN, -1, -1);
    evidence[1].life = EPX_LIFE_SLEEPS; /* its thread was seen, only the watchdog is late */
    expect(EPX_VERDICT_SIGNAL_LOST, 2, 1);
}

Test(record_rules, gone_and_not_waited_for_is_no_hang)
{
    begin(4);
    good(EPX_RECORD_DISPATCH, 1, 0, 0);
    evidence[2].life = EPX_LIFE_GONE;
    pass(100);
    expect(EPX_VERDICT_NONE, -1, -1);
}

Test(record_rules, warm_up_has_twenty_times_the_budget)
{
    begin(4);
    for (int32_t r = 0; r < 4; r++)
        epx_phase(rec[r], "warm-up", 0);
    without_rank_2();
    pass(99);
    expect(EPX_VERDICT_NONE, -1, -1);
    pass(2);
    expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
}

Test(record_rules, an_announced_pause_is_waited_for)
{
    begin(4);
    without_rank_2();
    epx_phase(rec[2], "checkpoint", 180000);
    pass(179);
    expect(EPX_VERDICT_NONE, -1, -1);
    pass(2);
    expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
}

Test(record_rules, who_moves_is_slow)
{
    begin(4);
    without_rank_2();
    pass(7);
    epx_heartbeat(rec[2]);
    pass(1);
    expect(EPX_VERDICT_SLOW, 2, -1);
    epx_verdict_t v = judge();
    cr_expect_float_eq(v.factor, 1.6, 0.01, "factor %g", v.factor);
    pass(5);
    expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
}

/* A compilation that nobody announced: the thread runs, or its children do. */
Test(record_rules, a_running_thread_without_a_marker_has_patience)
{
    begin(4);
    without_rank_2();
    evidence[2].life = EPX_LIFE_RUNS;
    pass(14);
    expect(EPX_VERDICT_SLOW, 2, -1);
    evidence[2].life = EPX_LIFE_SLEEPS;
    evidence[2].works = 1;
    expect(EPX_VERDICT_SLOW, 2, -1);
    pass(2);
    expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
}

Test(record_rules, a_marker_and_a_running_thread_is_a_foreign_kernel)
{
    begin(4);
    without_rank_2();
    pass(0.01);
    epx_mark(rec[2], epx_record_text(rec[2], "expert gemm, layer 17"), NULL);
    evidence[2].life = EPX_LIFE_RUNS;
    pass(5);
    expect(EPX_VERDICT_STUCK_BEFORE_OP, 2, -1);
    epx_verdict_t v = judge();
    cr_expect_str_eq(v.marker, "expert gemm, layer 17");
    cr_expect_eq(v.exit_code, 75);
    /* The same asleep is a host that is elsewhere. */
    evidence[2].life = EPX_LIFE_SLEEPS;
    expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
    /* Nobody has looked: no name. */
    evidence[2].life = EPX_LIFE_UNKNOWN;
    expect(EPX_VERDICT_UNKNOWN, -1, -1);
}

Test(record_rules, called_and_not_begun)
{
    begin(4);
    without_rank_2();
    epx_recorder_call_t call = {
        .group_id = group[2], .sequence = 2, .kind = EPX_RECORD_DISPATCH, .signature = 7};
    epx_recorder_enqueue(rec[2], &call);
    pass(5);
    evidence[2].life = EPX_LIFE_RUNS;
    expect(EPX_VERDICT_STUCK_BEFORE_OP, 2, -1);
    evidence[2].life = EPX_LIFE_SLEEPS;
    expect(EPX_VERDICT_STREAM_BLOCKED, 2, -1);
    /* The device's own word counts more than the thread's. */
    epx_record_evidence(rec[2], EPX_EVIDENCE_DEVICE_BUSY, 0, 100, 0);
    expect(EPX_VERDICT_STUCK_BEFORE_OP, 2, -1);
    epx_record_evidence(rec[2], EPX_EVIDENCE_DEVICE_IDLE, 0, 0, 0);
    expect(EPX_VERDICT_STREAM_BLOCKED, 2, -1);
}

Test(record_rules, skipped)
{
    begin(4);
    without_rank_2();
    call_and_wait(2, group[2], 3, 0, 1);
    pass(5);
    expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
}

Test(record_rules, a_rank_without_a_record_is_unknown)
{
    begin(4);
    without_rank_2();
    evidence[2].record = NULL;
    pass(60);
    expect(EPX_VERDICT_UNKNOWN, -1, -1);
}

/* ---- signals ---------------------------------------------------------------------------------------------------- */

Test(record_rules, a_lost_signal_names_both_ends)
{
    begin(4);
    good(EPX_RECORD_DISPATCH, 1, 0, 0);
    for (int32_t r = 0; r < 4; r++)
        start(r, group[r], EPX_RECORD_DISPATCH, 2, 0);
    wait_for(3, 0, 1, 2, 1);
    pass(4);
    expect(EPX_VERDICT_NONE, -1, -1);
    pass(1);
    expect(EPX_VERDICT_SIGNAL_LOST, 1, 3);
    cr_expect_eq(judge().action, EPX_ACTION_RECOVER);
}

/* Others wait for the rank that misses a signal: they are victims. */
Test(record_rules, a_lost_signal_behind_other_waits)
{
    begin(4);
    good(EPX_RECORD_DISPATCH, 1, 0, 0);
    for (int32_t r = 0; r < 4; r++) {
        uint64_t op = start(r, group[r], EPX_RECORD_DISPATCH, 2, 0);
        if (r == 3)
            continue;
        wait_for(r, 0, 0, 2, 2);
        epx_recorder_wait_end(rec[r], 0, 1);
        epx_recorder_end(rec[r], op, EPX_OK);
    }
    wait_for(3, 0, 1, 2, 1);
    for (int32_t r = 0; r < 3; r++)
        collective(r, 1, 3);
    pass(6);
    expect(EPX_VERDICT_SIGNAL_LOST, 1, 3);
}

Test(record_rules, a_signal_that_was_never_sent_is_lost_too_when_the_sender_says_it_is_through)
{
    begin(4);
    good(EPX_RECORD_DISPATCH, 1, 0, 0);
    for (int32_t r = 0; r < 4; r++) {
        epx_recorder_call_t call = {
            .group_id = group[r], .sequence = 2, .kind = EPX_RECORD_DISPATCH, .signature = 7};
        uint64_t op = epx_recorder_enqueue(rec[r], &call);
        epx_recorder_begin(rec[r], op);
        for (int32_t p = 0; p < 4; p++)
            if (r != 1 || p != 3)
                epx_recorder_sent(rec[r], p, 2);
        epx_recorder_posted(rec[r], op);
    }
    wait_for(3, 0, 1, 2, 1);
    pass(5);
    expect(EPX_VERDICT_SIGNAL_LOST, 1, 3);
}

Test(record_rules, stale_and_ahead_are_skew)
{
    begin(4);
    for (uint64_t pass_number = 1; pass_number < 4; pass_number++)
        good(EPX_RECORD_DISPATCH, pass_number << 24 | 1, 0, 0);
    uint64_t expected = (uint64_t)4 << 24 | 1;
    for (int32_t r = 0; r < 4; r++)
        start(r, group[r], EPX_RECORD_DISPATCH, expected, 0);
    wait_for(3, 0, 1, expected, (uint64_t)2 << 24 | 1);
    pass(5);
    expect(EPX_VERDICT_EPOCH_SKEW, 1, 3);
}

Test(record_rules, ahead_is_skew)
{
    begin(4);
    good(EPX_RECORD_DISPATCH, 1 << 24 | 1, 0, 0);
    for (int32_t r = 0; r < 4; r++)
        start(r, group[r], EPX_RECORD_DISPATCH, 2 << 24 | 1, 0);
    wait_for(3, 0, 1, 2 << 24 | 1, 5 << 24 | 1);
    pass(5);
    expect(EPX_VERDICT_EPOCH_SKEW, 1, 3);
}

/* What a pass that died has left in the word: same pass, another route. It is neither behind nor ahead. */
Test(record_rules, leftovers_of_a_dead_pass_are_no_skew)
{
    begin(4);
    good(EPX_RECORD_DISPATCH, 1 << 24 | 1 << 14 | 1, 0, 0);
    for (int32_t r = 0; r < 4; r++)
        start(r, group[r], EPX_RECORD_DISPATCH, 2 << 24 | 3 << 14 | 1, 0);
    wait_for(3, 0, 1, 2 << 24 | 3 << 14 | 1, 2 << 24 | 2 << 14 | 1);
    pass(5);
    expect(EPX_VERDICT_SIGNAL_LOST, 1, 3);
}

/* ---- calls that do not fit -------------------------------------------------------------------------------------- */

Test(record_rules, another_kind_and_another_wave_are_desync)
{
    begin(4);
    good(EPX_RECORD_DISPATCH, 1, 0, 0);
    for (int32_t r = 0; r < 3; r++)
        call_and_wait(r, group[r], 2, 3, 1);
    start(3, group[3], EPX_RECORD_COMBINE_BACKWARD, 2, 0);
    wait_for(3, 2, 0, 2, 1);
    pass(5);
    expect(EPX_VERDICT_DESYNC, 3, -1);
    cr_expect_str_eq(judge().field, "kind");
    cr_expect_eq(judge().exit_code, 77);
}

Test(record_rules, another_wave_is_desync)
{
    begin(4);
    good(EPX_RECORD_DISPATCH, 1, 0, 0);
    start(0, group[0], EPX_RECORD_DISPATCH, 2, 1);
    wait_for(0, 0, 1, 2, 1);
    for (int32_t r = 1; r < 4; r++)
        call_and_wait(r, group[r], 2, 0, 1);
    pass(5);
    expect(EPX_VERDICT_DESYNC, 0, -1);
    cr_expect_str_eq(judge().field, "wave");
}

/* Half of the ranks are in one group's call, half in the other's. */
Test(record_rules, opposite_orders_are_a_deadlock)
{
    begin(4);
    call_and_wait(0, group[0], 1, 2, 0);
    call_and_wait(1, group[1], 1, 2, 0);
    call_and_wait(2, second[2], 1, 0, 0);
    call_and_wait(3, second[3], 1, 0, 0);
    pass(5);
    expect(EPX_VERDICT_DEADLOCK, 0, -1);
    epx_verdict_t v = judge();
    cr_assert_eq(v.cycle_count, 2);
    cr_expect_eq(v.cycle[0], 0);
    cr_expect_eq(v.cycle[1], 2);
}

/* One alone is elsewhere: it has left out what all others are in. */
Test(record_rules, one_of_four_elsewhere_is_absent)
{
    begin(4);
    for (int32_t r = 0; r < 3; r++)
        call_and_wait(r, group[r], 1, 3, 0);
    collective(3, 1, 0);
    pass(5);
    expect(EPX_VERDICT_HOST_ABSENT, 3, -1);
}

Test(record_rules, lanes_in_different_orders_are_desync)
{
    begin(2);
    epx_recorder_call_t call = {
        .group_id = group[0], .sequence = 1, .kind = EPX_RECORD_DISPATCH, .stream = 0};
    for (int32_t r = 0; r < 2; r++) {
        call.group_id = group[r];
        call.stream = r == 0 ? 0 : 2;
        uint64_t op = epx_recorder_enqueue(rec[r], &call);
        epx_recorder_begin(rec[r], op);
        epx_recorder_posted(rec[r], op);
        wait_for(r, 0, 1 - r, 1, 0);
    }
    pass(5);
    expect(EPX_VERDICT_DESYNC, 0, -1);
}

/* ---- domains ---------------------------------------------------------------------------------------------------- */

/* Ranks 0-3 and 4-7 are two domains; rank 6 stalls before its domain's dispatch; domain 0 has gone on to the
 * all-reduce of the world, where nobody says for whom it waits. */
Test(record_rules, a_rack_behind_is_told_from_the_racks_that_wait_for_it)
{
    begin(8);
    int32_t half[8];
    for (int32_t r = 0; r < 8; r++) {
        int32_t members[4];
        for (int32_t i = 0; i < 4; i++)
            members[i] = r / 4 * 4 + i;
        epx_recorder_group_t row = {
            .name = "rack", .key = 10 + (uint64_t)(r / 4), .members = members, .ranks = 4, .rank = r % 4};
        half[r] = epx_recorder_group_begin(rec[r], &row);
    }
    for (int32_t r = 0; r < 4; r++)
        collective(r, 1, -1);
    for (int32_t r = 4; r < 8; r++)
        if (r != 6)
            call_and_wait(r, half[r], 1, 2, 0);
    pass(5.1);
    expect(EPX_VERDICT_HOST_ABSENT, 6, -1);
    cr_expect_eq(judge().stuck, 7);
}

/* ---- the rest --------------------------------------------------------------------------------------------------- */

Test(record_rules, links_that_failed_first_are_the_origin)
{
    begin(4);
    epx_record_evidence(rec[3], EPX_EVIDENCE_LINK_ERROR, epx_record_text(rec[3], "mlx5_1 port 1"), 9, 0);
    without_rank_2();
    pass(1);
    epx_record_evidence(rec[0], EPX_EVIDENCE_LINK_ERROR, epx_record_text(rec[0], "mlx5_0 port 1"), 1, 0);
    pass(5);
    expect(EPX_VERDICT_LINK, 3, -1);
    cr_expect_eq(judge().exit_code, 76);
}

Test(record_rules, an_old_flap_is_not_the_cause)
{
    begin(4);
    epx_record_evidence(rec[3], EPX_EVIDENCE_LINK_DOWN, 0, 0, 0);
    epx_record_evidence(rec[3], EPX_EVIDENCE_LINK_UP, 0, 0, 0);
    pass(600);
    without_rank_2();
    pass(5);
    expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
}

Test(record_rules, a_recovering_link_is_no_verdict)
{
    begin(4);
    epx_record_evidence(rec[3], EPX_EVIDENCE_LINK_RECOVERING, 0, 3, 0);
    pass(60);
    expect(EPX_VERDICT_NONE, -1, -1);
}

Test(record_rules, an_empty_pool_is_a_resource)
{
    begin(4);
    without_rank_2();
    epx_record_evidence(rec[2], EPX_EVIDENCE_RESOURCE_EMPTY, epx_record_text(rec[2], "send slots"), 0, 0);
    pass(5);
    expect(EPX_VERDICT_RESOURCE, 2, -1);
    cr_expect_str_eq(judge().field, "send slots");
    epx_record_evidence(rec[2], EPX_EVIDENCE_RESOURCE_BACK, epx_record_text(rec[2], "send slots"), 0, 0);
    expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
}

/* It has never said that the pool came back, and made calls since. */
Test(record_rules, a_pool_that_was_empty_some_calls_ago_is_none)
{
    begin(4);
    good(EPX_RECORD_DISPATCH, 1, 0, 0);
    epx_record_evidence(rec[2], EPX_EVIDENCE_RESOURCE_EMPTY, epx_record_text(rec[2], "send slots"), 0, 0);
    pass(1);
    good(EPX_RECORD_DISPATCH, 2, 0, 0);
    for (int32_t r = 0; r < 4; r++)
        if (r != 2)
            call_and_wait(r, group[r], 3, 2, 2);
    pass(5);
    expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
}

Test(record_rules, blocks_that_did_not_arrive)
{
    begin(4);
    without_rank_2();
    epx_recorder_call_t call = {
        .group_id = group[2], .sequence = 2, .kind = EPX_RECORD_DISPATCH, .signature = 7};
    uint64_t op = epx_recorder_enqueue(rec[2], &call);
    epx_recorder_begin(rec[2], op);
    epx_record_operation_t row;
    const epx_record_peer_t *peers;
    cr_assert(epx_record_operation(evidence[2].record, op, &row));
    /* The words that a device stores. */
    epx_record_progress_t *words =
        (epx_record_progress_t *)(uintptr_t)epx_record_progress(evidence[2].record, &row, &peers);
    words->blocks = 12;
    words->blocks_arrived = 5;
    pass(5);
    expect(EPX_VERDICT_NOT_RESIDENT, 2, -1);
    cr_expect_str_eq(judge().field, "5 of 12");
    words->blocks_arrived = 12;
    expect(EPX_VERDICT_UNKNOWN, -1, -1);
}

Test(record_rules, a_payload_check_names_the_writer)
{
    begin(4);
    start(1, group[1], EPX_RECORD_DISPATCH, 1, 0);
    epx_recorder_error(
        rec[1], EPX_ERR_CORRUPT,
        "g: rank 1, dispatch, wave 0: row 3 of expert 5 from rank 2 was not written: the exchange left "
        "it out; epx_group_recover, or try another fabric");
    expect(EPX_VERDICT_CORRUPT, 2, 1);
    cr_expect_eq(judge().exit_code, 77);
}

Test(record_rules, a_failed_route_is_no_hang)
{
    begin(4);
    epx_recorder_error(rec[1], EPX_ERR_ROUTING, "g: rank 1, token 0, k 0: expert id 99 is outside -1..7");
    pass(60);
    expect(EPX_VERDICT_NONE, -1, -1);
}

/* Everybody has made the call and no word says who is missing. */
Test(record_rules, a_collective_that_all_have_made_is_unknown)
{
    begin(4);
    for (int32_t r = 0; r < 4; r++)
        collective(r, 1, -1);
    pass(60);
    expect(EPX_VERDICT_UNKNOWN, -1, -1);
    cr_expect_eq(judge().exit_code, 78);
}

/* Who has just left a call is not stuck, however long the others wait for what was before. */
Test(record_rules, a_rank_that_has_just_moved_is_late_not_absent)
{
    begin(4);
    without_rank_2();
    pass(20);
    uint64_t op = start(2, second[2], EPX_RECORD_DISPATCH, 1, 0);
    epx_recorder_end(rec[2], op, EPX_OK);
    pass(1);
    expect(EPX_VERDICT_NONE, -1, -1);
}

/* ---- words that go on from rank to rank ---------------------------------------------------------------------------- */

/* A data call up to where its first half has returned, without any word sent: the second half passes them on.
 */
static uint64_t start_of_hop(int32_t r, uint64_t sequence)
{
    epx_recorder_call_t call = {
        .group_id = group[r], .sequence = sequence, .kind = EPX_RECORD_COMBINE, .signature = 7};
    uint64_t op = epx_recorder_enqueue(rec[r], &call);
    epx_recorder_begin(rec[r], op);
    epx_recorder_posted(rec[r], op);
    epx_recorder_leave(rec[r]);
    return op;
}

/* Call 1 of all has ended; rank 2 waits in call 2 for rank 1, for the word of call `epoch`; mode 1: a credit.
 */
static uint64_t hop(uint64_t epoch, int32_t mode)
{
    good(EPX_RECORD_COMBINE, 1, 0, 0);
    uint64_t op = start_of_hop(1, 2);
    epx_recorder_resume(rec[2], start_of_hop(2, 2));
    epx_record_wait_t own, *live = epx_recorder_wait_begin(rec[2], 1, 1, epoch, mode, &own);
    live->peer = 1;
    return op;
}

/* It has begun its second half, and has not come to passing anything on. */
Test(record_rules, what_the_second_half_has_to_send_is_not_lost_before)
{
    begin(4);
    epx_recorder_resume(rec[1], hop(2, 0));
    pass(6);
    expect(EPX_VERDICT_UNKNOWN, -1, -1);
    evidence[1].life = EPX_LIFE_RUNS; /* and is at work there, in its call: not elsewhere either */
    pass(60);
    expect(EPX_VERDICT_UNKNOWN, -1, -1);
}

Test(record_rules, a_word_of_the_call_before_is_lost)
{
    begin(4);
    epx_recorder_resume(rec[1], hop(1, 0));
    pass(6);
    expect(EPX_VERDICT_SIGNAL_LOST, 1, 2);
}

Test(record_rules, a_credit_of_a_call_that_has_ended_is_lost)
{
    begin(4);
    epx_recorder_resume(rec[1], hop(1, 1));
    /* Whoever gave it waits for the one who misses it: no circle, and no calls in another order. */
    epx_record_wait_t own, *live = epx_recorder_wait_begin(rec[1], 1, 2, 2, 0, &own);
    live->peer = 2;
    pass(6);
    expect(EPX_VERDICT_SIGNAL_LOST, 1, 2);
}

/* Between its halves it is in no call. */
Test(record_rules, who_has_left_the_first_half_is_elsewhere)
{
    begin(4);
    hop(2, 0);
    pass(6);
    expect(EPX_VERDICT_HOST_ABSENT, 1, -1);
}

Test(record_rules, who_shares_its_processor_gets_more_patience)
{
    begin(4);
    without_rank_2();
    evidence[2].life = EPX_LIFE_RUNS;
    evidence[2].starves = 1;
    pass(40);
    expect(EPX_VERDICT_SLOW, 2, -1);
    evidence[2].starves = 0;
    expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
    evidence[2].starves = 1;
    pass(6);
    expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
}

/* Who gives up is a victim: the late one that comes then waits for it, and nothing says any more for whom it
 * had waited. */
Test(record_rules, who_has_given_up_is_not_absent)
{
    begin(4);
    good(EPX_RECORD_DISPATCH, 1, 0, 0);
    for (int32_t r = 0; r < 4; r++) {
        if (r == 2)
            continue;
        uint64_t op = start(r, group[r], EPX_RECORD_DISPATCH, 2, 0);
        pass(0.01);
        epx_recorder_end(rec[r], op, r == 0 ? EPX_ERR_TIMEOUT : EPX_ERR_PEER);
    }
    collective(2, 1, 0);
    pass(20);
    expect(EPX_VERDICT_UNKNOWN, -1, -1);
    evidence[0].life = EPX_LIFE_GONE; /* its program has left over it */
    expect(EPX_VERDICT_UNKNOWN, -1, -1);
    /* Its own error is another story. */
    evidence[0].life = EPX_LIFE_SLEEPS;
    uint64_t own = start(0, second[0], EPX_RECORD_DISPATCH, 1, 0);
    epx_recorder_end(rec[0], own, EPX_ERR_ROUTING);
    pass(6);
    expect(EPX_VERDICT_HOST_ABSENT, 0, -1);
}
