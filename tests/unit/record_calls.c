/* The classifier: calls and signals that do not fit together. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include "record/read.h"
#include "record_hand.h"

TestSuite(record_calls, .init = NULL, .fini = hand_end);

/* ---- signals ---------------------------------------------------------------------------------------------------- */

/* Nothing stands between the call and its work: one look at the clock. */
Test(record_calls, what_is_entered_has_begun_when_it_was_made)
{
    hand_begin(2);
    epx_recorder_call_t call = {.group_id = hand.group[0], .sequence = 1, .kind = EPX_RECORD_DISPATCH};
    epx_record_operation_t op;
    uint64_t number = epx_recorder_enter(hand.rec[0], &call);
    hand_pass(1);
    epx_recorder_begin(hand.rec[0], number); /* it has */
    cr_assert(epx_record_operation(hand.evidence[0].record, number, &op));
    cr_expect_eq(op.state, EPX_RECORD_BEGUN);
    cr_expect_eq(op.begun_ns, op.enqueued_ns);
    cr_expect_eq(op.begun_ns, hand.now_ns - SECOND);
}

Test(record_calls, a_lost_signal_names_both_ends)
{
    hand_in_dispatch(4);
    hand_wait_for(3, 0, 1, 2, 1);
    hand_pass(4);
    hand_expect(EPX_VERDICT_NONE, -1, -1);
    hand_pass(1);
    hand_expect(EPX_VERDICT_SIGNAL_LOST, 1, 3);
    cr_expect_eq(hand_judge().action, EPX_ACTION_RECOVER);
}

/* Others wait for the rank that misses a signal: they are victims. */
Test(record_calls, a_lost_signal_behind_other_waits)
{
    hand_begin(4);
    hand_good(EPX_RECORD_DISPATCH, 1, 0, 0);
    for (int32_t r = 0; r < 4; r++) {
        uint64_t op = hand_start(r, hand.group[r], EPX_RECORD_DISPATCH, 2, 0);
        if (r == 3)
            continue;
        hand_wait_for(r, 0, 0, 2, 2);
        epx_recorder_wait_end(hand.rec[r], 0, 1);
        epx_recorder_end(hand.rec[r], op, EPX_OK);
    }
    hand_wait_for(3, 0, 1, 2, 1);
    for (int32_t r = 0; r < 3; r++)
        hand_collective(r, 1, 3);
    hand_pass(6);
    hand_expect(EPX_VERDICT_SIGNAL_LOST, 1, 3);
}

Test(record_calls, a_signal_that_was_never_sent_is_lost_too_when_the_sender_says_it_is_through)
{
    hand_begin(4);
    hand_good(EPX_RECORD_DISPATCH, 1, 0, 0);
    for (int32_t r = 0; r < 4; r++) {
        epx_recorder_call_t call = {
            .group_id = hand.group[r], .sequence = 2, .kind = EPX_RECORD_DISPATCH, .signature = 7};
        uint64_t op = epx_recorder_enqueue(hand.rec[r], &call);
        epx_recorder_begin(hand.rec[r], op);
        for (int32_t p = 0; p < 4; p++)
            if (r != 1 || p != 3)
                epx_recorder_sent(hand.rec[r], p, 2);
        epx_recorder_posted(hand.rec[r], op);
    }
    hand_wait_for(3, 0, 1, 2, 1);
    hand_pass(5);
    hand_expect(EPX_VERDICT_SIGNAL_LOST, 1, 3);
}

Test(record_calls, stale_and_ahead_are_skew)
{
    hand_begin(4);
    for (uint64_t pass_number = 1; pass_number < 4; pass_number++)
        hand_good(EPX_RECORD_DISPATCH, pass_number << 24 | 1, 0, 0);
    uint64_t expected = (uint64_t)4 << 24 | 1;
    for (int32_t r = 0; r < 4; r++)
        hand_start(r, hand.group[r], EPX_RECORD_DISPATCH, expected, 0);
    hand_wait_for(3, 0, 1, expected, (uint64_t)2 << 24 | 1);
    hand_pass(5);
    hand_expect(EPX_VERDICT_EPOCH_SKEW, 1, 3);
}

Test(record_calls, ahead_is_skew)
{
    hand_begin(4);
    hand_good(EPX_RECORD_DISPATCH, 1 << 24 | 1, 0, 0);
    for (int32_t r = 0; r < 4; r++)
        hand_start(r, hand.group[r], EPX_RECORD_DISPATCH, 2 << 24 | 1, 0);
    hand_wait_for(3, 0, 1, 2 << 24 | 1, 5 << 24 | 1);
    hand_pass(5);
    hand_expect(EPX_VERDICT_EPOCH_SKEW, 1, 3);
}

/* What a pass that died has left in the word: same pass, another route. It is neither behind nor ahead. */
Test(record_calls, leftovers_of_a_dead_pass_are_no_skew)
{
    hand_begin(4);
    hand_good(EPX_RECORD_DISPATCH, 1 << 24 | 1 << 14 | 1, 0, 0);
    for (int32_t r = 0; r < 4; r++)
        hand_start(r, hand.group[r], EPX_RECORD_DISPATCH, 2 << 24 | 3 << 14 | 1, 0);
    hand_wait_for(3, 0, 1, 2 << 24 | 3 << 14 | 1, 2 << 24 | 2 << 14 | 1);
    hand_pass(5);
    hand_expect(EPX_VERDICT_SIGNAL_LOST, 1, 3);
}

/* ---- calls that do not fit -------------------------------------------------------------------------------------- */

Test(record_calls, another_kind_and_another_wave_are_desync)
{
    hand_begin(4);
    hand_good(EPX_RECORD_DISPATCH, 1, 0, 0);
    for (int32_t r = 0; r < 3; r++)
        hand_call_and_wait(r, hand.group[r], 2, 3, 1);
    hand_start(3, hand.group[3], EPX_RECORD_COMBINE_BACKWARD, 2, 0);
    hand_wait_for(3, 2, 0, 2, 1);
    hand_pass(5);
    hand_expect(EPX_VERDICT_DESYNC, 3, -1);
    cr_expect_str_eq(hand_judge().field, "kind");
    cr_expect_eq(hand_judge().exit_code, 77);
}

Test(record_calls, another_wave_is_desync)
{
    hand_begin(4);
    hand_good(EPX_RECORD_DISPATCH, 1, 0, 0);
    hand_start(0, hand.group[0], EPX_RECORD_DISPATCH, 2, 1);
    hand_wait_for(0, 0, 1, 2, 1);
    for (int32_t r = 1; r < 4; r++)
        hand_call_and_wait(r, hand.group[r], 2, 0, 1);
    hand_pass(5);
    hand_expect(EPX_VERDICT_DESYNC, 0, -1);
    cr_expect_str_eq(hand_judge().field, "wave");
}

/* Half of the ranks are in one group's call, half in the other's. */
Test(record_calls, opposite_orders_are_a_deadlock)
{
    hand_begin(4);
    hand_call_and_wait(0, hand.group[0], 1, 2, 0);
    hand_call_and_wait(1, hand.group[1], 1, 2, 0);
    hand_call_and_wait(2, hand.second[2], 1, 0, 0);
    hand_call_and_wait(3, hand.second[3], 1, 0, 0);
    hand_pass(5);
    hand_expect(EPX_VERDICT_DEADLOCK, 0, -1);
    epx_verdict_t v = hand_judge();
    cr_assert_eq(v.cycle_count, 2);
    cr_expect_eq(v.cycle[0], 0);
    cr_expect_eq(v.cycle[1], 2);
}

/* One alone is elsewhere: it has left out what all others are in. */
Test(record_calls, one_of_four_elsewhere_is_absent)
{
    hand_begin(4);
    for (int32_t r = 0; r < 3; r++)
        hand_call_and_wait(r, hand.group[r], 1, 3, 0);
    hand_collective(3, 1, 0);
    hand_pass(5);
    hand_expect(EPX_VERDICT_HOST_ABSENT, 3, -1);
}

Test(record_calls, lanes_in_different_orders_are_desync)
{
    hand_begin(2);
    epx_recorder_call_t call = {
        .group_id = hand.group[0], .sequence = 1, .kind = EPX_RECORD_DISPATCH, .stream = 0};
    for (int32_t r = 0; r < 2; r++) {
        call.group_id = hand.group[r];
        call.stream = r == 0 ? 0 : 2;
        uint64_t op = epx_recorder_enqueue(hand.rec[r], &call);
        epx_recorder_begin(hand.rec[r], op);
        epx_recorder_posted(hand.rec[r], op);
        hand_wait_for(r, 0, 1 - r, 1, 0);
    }
    hand_pass(5);
    hand_expect(EPX_VERDICT_DESYNC, 0, -1);
}

/* ---- domains ---------------------------------------------------------------------------------------------------- */

/* Ranks 0-3 and 4-7 are two domains; rank 6 stalls before its domain's dispatch; domain 0 has gone on to the
 * all-reduce of the world, where nobody says for whom it waits. */
Test(record_calls, a_rack_behind_is_told_from_the_racks_that_wait_for_it)
{
    hand_begin(8);
    int32_t half[8];
    for (int32_t r = 0; r < 8; r++) {
        int32_t members[4];
        for (int32_t i = 0; i < 4; i++)
            members[i] = r / 4 * 4 + i;
        epx_recorder_group_t row = {
            .name = "rack", .key = 10 + (uint64_t)(r / 4), .members = members, .ranks = 4, .rank = r % 4};
        half[r] = epx_recorder_group_begin(hand.rec[r], &row);
    }
    for (int32_t r = 0; r < 4; r++)
        hand_collective(r, 1, -1);
    for (int32_t r = 4; r < 8; r++)
        if (r != 6)
            hand_call_and_wait(r, half[r], 1, 2, 0);
    hand_pass(5.1);
    hand_expect(EPX_VERDICT_HOST_ABSENT, 6, -1);
    cr_expect_eq(hand_judge().stuck, 7);
}

/* ---- words that go on from rank to rank ---------------------------------------------------------------------------- */

/* A data call up to where its first half has returned, without any word sent: the second half passes them on.
 */
static uint64_t start_of_hop(int32_t r, uint64_t sequence)
{
    epx_recorder_call_t call = {
        .group_id = hand.group[r], .sequence = sequence, .kind = EPX_RECORD_COMBINE, .signature = 7};
    uint64_t op = epx_recorder_enqueue(hand.rec[r], &call);
    epx_recorder_begin(hand.rec[r], op);
    epx_recorder_posted(hand.rec[r], op);
    epx_recorder_leave(hand.rec[r]);
    return op;
}

/* Call 1 of all has ended; rank 2 waits in call 2 for rank 1, for the word of call `epoch`; mode 1: a credit.
 */
static uint64_t hop(uint64_t epoch, int32_t mode)
{
    hand_good(EPX_RECORD_COMBINE, 1, 0, 0);
    uint64_t op = start_of_hop(1, 2);
    epx_recorder_resume(hand.rec[2], start_of_hop(2, 2));
    epx_record_wait_t own, *live = epx_recorder_wait_begin(hand.rec[2], 1, 1, epoch, mode, &own);
    live->peer = 1;
    return op;
}

/* It has begun its second half, and has not come to passing anything on. */
Test(record_calls, what_the_second_half_has_to_send_is_not_lost_before)
{
    hand_begin(4);
    epx_recorder_resume(hand.rec[1], hop(2, 0));
    hand_pass(6);
    hand_expect(EPX_VERDICT_UNKNOWN, -1, -1);
    hand.evidence[1].life = EPX_LIFE_RUNS; /* and is at work there, in its call: not elsewhere either */
    hand_pass(60);
    hand_expect(EPX_VERDICT_UNKNOWN, -1, -1);
}

Test(record_calls, a_word_of_the_call_before_is_lost)
{
    hand_begin(4);
    epx_recorder_resume(hand.rec[1], hop(1, 0));
    hand_pass(6);
    hand_expect(EPX_VERDICT_SIGNAL_LOST, 1, 2);
}

Test(record_calls, a_credit_of_a_call_that_has_ended_is_lost)
{
    hand_begin(4);
    epx_recorder_resume(hand.rec[1], hop(1, 1));
    /* Whoever gave it waits for the one who misses it: no circle, and no calls in another order. */
    epx_record_wait_t own, *live = epx_recorder_wait_begin(hand.rec[1], 1, 2, 2, 0, &own);
    live->peer = 2;
    hand_pass(6);
    hand_expect(EPX_VERDICT_SIGNAL_LOST, 1, 2);
}

/* Between its halves it is in no call. */
Test(record_calls, who_has_left_the_first_half_is_elsewhere)
{
    hand_begin(4);
    hop(2, 0);
    hand_pass(6);
    hand_expect(EPX_VERDICT_HOST_ABSENT, 1, -1);
}
