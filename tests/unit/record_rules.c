/* The classifier: ranks that do not come, and what only looks like it. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include "record_hand.h"

TestSuite(record_rules, .init = NULL, .fini = hand_end);

/* ---- host ------------------------------------------------------------------------------------------------------- */

/* All but rank 2 are in a dispatch that rank 2 has not made. */
static void without_rank_2(void)
{
    hand_good(EPX_RECORD_DISPATCH, 1, 0, 0);
    for (int32_t r = 0; r < hand.ranks; r++)
        if (r != 2)
            hand_call_and_wait(r, hand.group[r], 2, 2, 1);
}

Test(record_rules, nothing_before_the_budget)
{
    hand_begin(4);
    without_rank_2();
    hand_pass(4.9);
    hand_expect(EPX_VERDICT_NONE, -1, -1);
    hand_pass(0.1);
    hand_expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
}

Test(record_rules, gone_is_named_at_once_and_stopped_after_a_second)
{
    hand_begin(4);
    without_rank_2();
    hand.evidence[2].life = EPX_LIFE_GONE;
    hand_pass(0.4);
    hand_expect(EPX_VERDICT_NONE, -1, -1);
    hand_pass(0.2);
    hand_expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
    hand.evidence[2].life = EPX_LIFE_STOPPED;
    hand_expect(EPX_VERDICT_NONE, -1, -1);
    hand_pass(0.5);
    hand_expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
}

/* A budget of half a second is over before the rank that is stopped can be called that: somebody else, of
 * whom nothing is known, does not end the search. */
Test(record_rules, nothing_is_unknown_while_a_stopped_rank_is_about_to_be_named)
{
    hand_begin(6);
    for (int32_t r = 0; r < 6; r++)
        epx_recorder_budgets(hand.rec[r], 500, 60000);
    hand_good(EPX_RECORD_DISPATCH, 1, 0, 0);
    for (int32_t r = 0; r < 6; r++)
        if (r != 4) /* which stands in the middle of its call */
            hand_call_and_wait(r, hand.group[r], 2, r < 3 ? 4 : 5, 1);
    epx_recorder_call_t call = {
        .group_id = hand.group[4], .sequence = 2, .kind = EPX_RECORD_DISPATCH, .signature = 7};
    epx_recorder_begin(hand.rec[4], epx_recorder_enqueue(hand.rec[4], &call));
    hand.evidence[5].life = EPX_LIFE_STOPPED;
    hand_pass(0.9);
    hand_expect(EPX_VERDICT_NONE, -1, -1);
    hand_pass(0.2);
    hand_expect(EPX_VERDICT_HOST_ABSENT, 5, -1);
}

/* Others may make calls of which it is no part, and wait later on: what is named is the call that it left
 * out. */
Test(record_rules, the_operation_is_the_first_that_is_missing)
{
    hand_begin(3);
    hand_good(EPX_RECORD_DISPATCH, 1, 0, 0);
    for (int32_t r = 0; r < 3; r++) {
        if (r == 2)
            continue;
        for (uint64_t sequence = 2; sequence < 4; sequence++)
            epx_recorder_end(hand.rec[r],
                             hand_start(r, hand.group[r],
                                        sequence == 2 ? EPX_RECORD_COMBINE : EPX_RECORD_COMBINE_BACKWARD,
                                        sequence, 1),
                             EPX_OK);
        hand_call_and_wait(r, hand.group[r], 4, 2, 1);
    }
    hand_pass(5);
    hand_expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
    epx_verdict_t v = hand_judge();
    cr_expect_str_eq(v.op, "combine");
    cr_expect_eq(v.sequence, 2);
    cr_expect_eq(v.wave, 1);
}

/* All are inside of a library, which says of nobody that it waits. */
static void in_a_library(void)
{
    hand_begin(4);
    for (int32_t r = 0; r < 4; r++) {
        epx_recorder_call_t call = {
            .group_id = hand.world[r], .stream = 1, .sequence = 1, .kind = EPX_RECORD_OPEN};
        uint64_t op = epx_recorder_enqueue(hand.rec[r], &call);
        epx_record_wait_t own;
        epx_recorder_begin(hand.rec[r], op);
        epx_recorder_sent(hand.rec[r], EPX_RECORD_EVERYBODY, 1);
        epx_recorder_wait_begin(hand.rec[r], -1, EPX_RECORD_EVERYBODY, 1, EPX_RECORD_EXCHANGE, &own);
    }
}

Test(record_rules, a_library_that_takes_its_time_holds_nobody_up)
{
    in_a_library();
    hand_pass(99);
    hand_expect(EPX_VERDICT_NONE, -1, -1);
    hand_pass(2);
    hand_expect(EPX_VERDICT_UNKNOWN, -1, -1);
}

Test(record_rules, who_is_gone_in_the_middle_of_what_all_are_in)
{
    in_a_library();
    hand.evidence[2].life = EPX_LIFE_GONE;
    hand_pass(0.6);
    hand_expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
    cr_expect_str_eq(hand_judge().op, "open");
    hand.evidence[2].life = EPX_LIFE_STOPPED;
    hand_expect(EPX_VERDICT_NONE, -1, -1);
    hand_pass(0.5);
    hand_expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
    hand.evidence[2].life = EPX_LIFE_THREAD_GONE;
    hand_pass(5);
    hand_expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
}

/* Two are stopped: what one of them waits for has come, and it does not look. */
Test(record_rules, who_is_stopped_has_lost_no_signal)
{
    hand_in_dispatch(4);
    hand_wait_for(1, 0, 2, 2, 1);
    hand_pass(4.5);
    for (int32_t r = 0; r < 4; r += 2)
        hand_collective(r, 1, 3);
    hand.evidence[1].life = hand.evidence[3].life = EPX_LIFE_STOPPED;
    hand_pass(0.8);
    hand_expect(EPX_VERDICT_NONE, -1, -1);
    hand_pass(0.4);
    hand_expect(EPX_VERDICT_HOST_ABSENT, 3, -1);
    /* The same of one that lives. */
    hand.evidence[1].life = hand.evidence[3].life = EPX_LIFE_SLEEPS;
    hand_expect(EPX_VERDICT_SIGNAL_LOST, 2, 1);
}

/* The same where nobody can ask: its watchdog has not written since. */
Test(record_rules, who_has_fallen_silent_has_lost_no_signal)
{
    hand_in_dispatch(4);
    hand_wait_for(1, 0, 2, 2, 1);
    hand_pass(5);
    epx_record_head_t *head = (epx_record_head_t *)(uintptr_t)hand.evidence[1].record;
    head->watched_ns = hand.now_ns;
    hand.evidence[1].life = EPX_LIFE_UNKNOWN;
    hand_expect(EPX_VERDICT_SIGNAL_LOST, 2, 1);
    head->watched_ns = hand.now_ns - 2 * SECOND;
    hand_expect(EPX_VERDICT_UNKNOWN, -1, -1);
    hand.evidence[1].life = EPX_LIFE_SLEEPS; /* its thread was seen, only the watchdog is late */
    hand_expect(EPX_VERDICT_SIGNAL_LOST, 2, 1);
}

Test(record_rules, gone_and_not_waited_for_is_no_hang)
{
    hand_begin(4);
    hand_good(EPX_RECORD_DISPATCH, 1, 0, 0);
    hand.evidence[2].life = EPX_LIFE_GONE;
    hand_pass(100);
    hand_expect(EPX_VERDICT_NONE, -1, -1);
}

Test(record_rules, warm_up_has_twenty_times_the_budget)
{
    hand_begin(4);
    for (int32_t r = 0; r < 4; r++)
        epx_phase(hand.rec[r], "warm-up", 0);
    without_rank_2();
    hand_pass(99);
    hand_expect(EPX_VERDICT_NONE, -1, -1);
    hand_pass(2);
    hand_expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
}

Test(record_rules, an_announced_pause_is_waited_for)
{
    hand_begin(4);
    without_rank_2();
    epx_phase(hand.rec[2], "checkpoint", 180000);
    hand_pass(179);
    hand_expect(EPX_VERDICT_NONE, -1, -1);
    hand_pass(2);
    hand_expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
}

Test(record_rules, who_moves_is_slow)
{
    hand_begin(4);
    without_rank_2();
    hand_pass(7);
    epx_heartbeat(hand.rec[2]);
    hand_pass(1);
    hand_expect(EPX_VERDICT_SLOW, 2, -1);
    epx_verdict_t v = hand_judge();
    cr_expect_float_eq(v.factor, 1.6, 0.01, "factor %g", v.factor);
    hand_pass(5);
    hand_expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
}

/* A compilation that nobody announced: the thread runs, or its children do. */
Test(record_rules, a_running_thread_without_a_marker_has_patience)
{
    hand_begin(4);
    without_rank_2();
    hand.evidence[2].life = EPX_LIFE_RUNS;
    hand_pass(14);
    hand_expect(EPX_VERDICT_SLOW, 2, -1);
    hand.evidence[2].life = EPX_LIFE_SLEEPS;
    hand.evidence[2].works = 1;
    hand_expect(EPX_VERDICT_SLOW, 2, -1);
    hand_pass(2);
    hand_expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
}

Test(record_rules, a_marker_and_a_running_thread_is_a_foreign_kernel)
{
    hand_begin(4);
    without_rank_2();
    hand_pass(0.01);
    epx_mark(hand.rec[2], epx_record_text(hand.rec[2], "expert gemm, layer 17"), NULL);
    hand.evidence[2].life = EPX_LIFE_RUNS;
    hand_pass(5);
    hand_expect(EPX_VERDICT_STUCK_BEFORE_OP, 2, -1);
    epx_verdict_t v = hand_judge();
    cr_expect_str_eq(v.marker, "expert gemm, layer 17");
    cr_expect_eq(v.exit_code, 75);
    /* The same asleep is a host that is elsewhere. */
    hand.evidence[2].life = EPX_LIFE_SLEEPS;
    hand_expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
    /* Nobody has looked: no name. */
    hand.evidence[2].life = EPX_LIFE_UNKNOWN;
    hand_expect(EPX_VERDICT_UNKNOWN, -1, -1);
}

Test(record_rules, called_and_not_begun)
{
    hand_begin(4);
    without_rank_2();
    epx_recorder_call_t call = {
        .group_id = hand.group[2], .sequence = 2, .kind = EPX_RECORD_DISPATCH, .signature = 7};
    epx_recorder_enqueue(hand.rec[2], &call);
    hand_pass(5);
    hand.evidence[2].life = EPX_LIFE_RUNS;
    hand_expect(EPX_VERDICT_STUCK_BEFORE_OP, 2, -1);
    hand.evidence[2].life = EPX_LIFE_SLEEPS;
    hand_expect(EPX_VERDICT_STREAM_BLOCKED, 2, -1);
    /* The device's own word counts more than the thread's. */
    epx_record_evidence(hand.rec[2], EPX_EVIDENCE_DEVICE_BUSY, 0, 100, 0);
    hand_expect(EPX_VERDICT_STUCK_BEFORE_OP, 2, -1);
    epx_record_evidence(hand.rec[2], EPX_EVIDENCE_DEVICE_IDLE, 0, 0, 0);
    hand_expect(EPX_VERDICT_STREAM_BLOCKED, 2, -1);
}

Test(record_rules, skipped)
{
    hand_begin(4);
    without_rank_2();
    hand_call_and_wait(2, hand.group[2], 3, 0, 1);
    hand_pass(5);
    hand_expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
}

Test(record_rules, a_rank_without_a_record_is_unknown)
{
    hand_begin(4);
    without_rank_2();
    hand.evidence[2].record = NULL;
    hand_pass(60);
    hand_expect(EPX_VERDICT_UNKNOWN, -1, -1);
}

/* ---- the rest --------------------------------------------------------------------------------------------------- */

Test(record_rules, links_that_failed_first_are_the_origin)
{
    hand_begin(4);
    epx_record_evidence(hand.rec[3], EPX_EVIDENCE_LINK_ERROR, epx_record_text(hand.rec[3], "mlx5_1 port 1"),
                        9, 0);
    without_rank_2();
    hand_pass(1);
    epx_record_evidence(hand.rec[0], EPX_EVIDENCE_LINK_ERROR, epx_record_text(hand.rec[0], "mlx5_0 port 1"),
                        1, 0);
    hand_pass(5);
    hand_expect(EPX_VERDICT_LINK, 3, -1);
    cr_expect_eq(hand_judge().exit_code, 76);
}

Test(record_rules, an_old_flap_is_not_the_cause)
{
    hand_begin(4);
    epx_record_evidence(hand.rec[3], EPX_EVIDENCE_LINK_DOWN, 0, 0, 0);
    epx_record_evidence(hand.rec[3], EPX_EVIDENCE_LINK_UP, 0, 0, 0);
    hand_pass(600);
    without_rank_2();
    hand_pass(5);
    hand_expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
}

/* A budget of half a second, and a flap 4 s before what was lost: a fabric's retries last longer than that.
 */
Test(record_rules, a_flap_some_seconds_ago_has_lost_the_signal)
{
    hand_begin(4);
    for (int32_t r = 0; r < 4; r++)
        epx_recorder_budgets(hand.rec[r], 500, 60000);
    hand_good(EPX_RECORD_DISPATCH, 1, 0, 0);
    epx_record_evidence(hand.rec[1], EPX_EVIDENCE_LINK_DOWN, 0, 0, 0);
    epx_record_evidence(hand.rec[1], EPX_EVIDENCE_LINK_UP, 0, 0, 0);
    hand_pass(4);
    for (int32_t r = 0; r < 4; r++)
        hand_start(r, hand.group[r], EPX_RECORD_DISPATCH, 2, 0);
    hand_wait_for(3, 0, 1, 2, 1);
    hand_pass(0.6);
    hand_expect(EPX_VERDICT_LINK, 1, -1);
    cr_expect_str_eq(hand_judge().field, "flap");
    hand_pass(0.4); /* who does not come has nothing to do with it */
    epx_recorder_wait_end(hand.rec[3], 0, 1);
    for (int32_t r = 0; r < 4; r++)
        if (r != 2)
            hand_call_and_wait(r, hand.group[r], 3, 2, 2);
    hand_pass(0.6);
    hand_expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
}

Test(record_rules, a_recovering_link_is_no_verdict)
{
    hand_begin(4);
    epx_record_evidence(hand.rec[3], EPX_EVIDENCE_LINK_RECOVERING, 0, 3, 0);
    hand_pass(60);
    hand_expect(EPX_VERDICT_NONE, -1, -1);
}

Test(record_rules, an_empty_pool_is_a_resource)
{
    hand_begin(4);
    without_rank_2();
    epx_record_evidence(hand.rec[2], EPX_EVIDENCE_RESOURCE_EMPTY, epx_record_text(hand.rec[2], "send slots"),
                        0, 0);
    hand_pass(5);
    hand_expect(EPX_VERDICT_RESOURCE, 2, -1);
    cr_expect_str_eq(hand_judge().field, "send slots");
    epx_record_evidence(hand.rec[2], EPX_EVIDENCE_RESOURCE_BACK, epx_record_text(hand.rec[2], "send slots"),
                        0, 0);
    hand_expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
}

/* It has never said that the pool came back, and made calls since. */
Test(record_rules, a_pool_that_was_empty_some_calls_ago_is_none)
{
    hand_begin(4);
    hand_good(EPX_RECORD_DISPATCH, 1, 0, 0);
    epx_record_evidence(hand.rec[2], EPX_EVIDENCE_RESOURCE_EMPTY, epx_record_text(hand.rec[2], "send slots"),
                        0, 0);
    hand_pass(1);
    hand_good(EPX_RECORD_DISPATCH, 2, 0, 0);
    for (int32_t r = 0; r < 4; r++)
        if (r != 2)
            hand_call_and_wait(r, hand.group[r], 3, 2, 2);
    hand_pass(5);
    hand_expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
}

Test(record_rules, blocks_that_did_not_arrive)
{
    hand_begin(4);
    without_rank_2();
    epx_recorder_call_t call = {
        .group_id = hand.group[2], .sequence = 2, .kind = EPX_RECORD_DISPATCH, .signature = 7};
    uint64_t op = epx_recorder_enqueue(hand.rec[2], &call);
    epx_recorder_begin(hand.rec[2], op);
    epx_record_operation_t row;
    const epx_record_peer_t *peers;
    cr_assert(epx_record_operation(hand.evidence[2].record, op, &row));
    /* The words that a device stores. */
    epx_record_progress_t *words =
        (epx_record_progress_t *)(uintptr_t)epx_record_progress(hand.evidence[2].record, &row, &peers);
    words->blocks = 12;
    words->blocks_arrived = 5;
    hand_pass(5);
    hand_expect(EPX_VERDICT_NOT_RESIDENT, 2, -1);
    cr_expect_str_eq(hand_judge().field, "5 of 12");
    words->blocks_arrived = 12;
    hand_expect(EPX_VERDICT_UNKNOWN, -1, -1);
}

Test(record_rules, a_payload_check_names_the_writer)
{
    hand_begin(4);
    hand_start(1, hand.group[1], EPX_RECORD_DISPATCH, 1, 0);
    epx_recorder_error(
        hand.rec[1], EPX_ERR_CORRUPT,
        "g: rank 1, dispatch, wave 0: row 3 of expert 5 from rank 2 was not written: the exchange left "
        "it out; epx_group_recover, or try another fabric");
    hand_expect(EPX_VERDICT_CORRUPT, 2, 1);
    cr_expect_eq(hand_judge().exit_code, 77);
}

Test(record_rules, a_failed_route_is_no_hang)
{
    hand_begin(4);
    epx_recorder_error(hand.rec[1], EPX_ERR_ROUTING,
                       "g: rank 1, token 0, k 0: expert id 99 is outside -1..7");
    hand_pass(60);
    hand_expect(EPX_VERDICT_NONE, -1, -1);
}

/* Everybody has made the call and no word says who is missing. */
Test(record_rules, a_collective_that_all_have_made_is_unknown)
{
    hand_begin(4);
    for (int32_t r = 0; r < 4; r++)
        hand_collective(r, 1, -1);
    hand_pass(60);
    hand_expect(EPX_VERDICT_UNKNOWN, -1, -1);
    cr_expect_eq(hand_judge().exit_code, 78);
}

/* Who has just left a call is not stuck, however long the others wait for what was before. */
Test(record_rules, a_rank_that_has_just_moved_is_late_not_absent)
{
    hand_begin(4);
    without_rank_2();
    hand_pass(20);
    uint64_t op = hand_start(2, hand.second[2], EPX_RECORD_DISPATCH, 1, 0);
    epx_recorder_end(hand.rec[2], op, EPX_OK);
    hand_pass(1);
    hand_expect(EPX_VERDICT_NONE, -1, -1);
}

Test(record_rules, who_shares_its_processor_gets_more_patience)
{
    hand_begin(4);
    without_rank_2();
    hand.evidence[2].life = EPX_LIFE_RUNS;
    hand.evidence[2].starves = 1;
    hand_pass(40);
    hand_expect(EPX_VERDICT_SLOW, 2, -1);
    hand.evidence[2].starves = 0;
    hand_expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
    hand.evidence[2].starves = 1;
    hand_pass(6);
    hand_expect(EPX_VERDICT_HOST_ABSENT, 2, -1);
}

/* Who gives up is a victim: the late one that comes then waits for it, and nothing says any more for whom it
 * had waited. */
Test(record_rules, who_has_given_up_is_not_absent)
{
    hand_begin(4);
    hand_good(EPX_RECORD_DISPATCH, 1, 0, 0);
    for (int32_t r = 0; r < 4; r++) {
        if (r == 2)
            continue;
        uint64_t op = hand_start(r, hand.group[r], EPX_RECORD_DISPATCH, 2, 0);
        hand_pass(0.01);
        epx_recorder_end(hand.rec[r], op, r == 0 ? EPX_ERR_TIMEOUT : EPX_ERR_PEER);
    }
    hand_collective(2, 1, 0);
    hand_pass(20);
    hand_expect(EPX_VERDICT_UNKNOWN, -1, -1);
    hand.evidence[0].life = EPX_LIFE_GONE; /* its program has left over it */
    hand_expect(EPX_VERDICT_UNKNOWN, -1, -1);
    /* Its own error is another story. */
    hand.evidence[0].life = EPX_LIFE_SLEEPS;
    uint64_t own = hand_start(0, hand.second[0], EPX_RECORD_DISPATCH, 1, 0);
    epx_recorder_end(hand.rec[0], own, EPX_ERR_ROUTING);
    hand_pass(6);
    hand_expect(EPX_VERDICT_HOST_ABSENT, 0, -1);
}
