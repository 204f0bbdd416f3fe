/* Records of a job, written by hand at chosen moments. SPDX-License-Identifier: Apache-2.0 */
#include "record_hand.h"

#include <criterion/criterion.h>

#include "base/clock.h"

hand_t hand;

static int64_t now(void) { return hand.now_ns; }

static const epx_clock_ops_t clock_ops = {.now_ns = now};

void hand_begin(int32_t n)
{
    hand.ranks = n;
    hand.now_ns = 100 * SECOND;
    epx_clock_stand_in(&clock_ops);
    for (int32_t r = 0; r < n; r++) {
        epx_recorder_set_up_t set_up = {
            .folder = "", .job = "job", .rank = r, .ranks = n, .hang_ms = HAND_HANG_MS, .timeout_ms = 60000};
        cr_assert_eq(epx_recorder_open(&set_up, &hand.rec[r]), EPX_OK);
        epx_recorder_group_t row = {.name = "world", .key = 1, .ranks = n, .rank = r, .is_comm = 1};
        hand.world[r] = epx_recorder_group_begin(hand.rec[r], &row);
        row = (epx_recorder_group_t){.name = "experts", .key = 2, .ranks = n, .rank = r};
        hand.group[r] = epx_recorder_group_begin(hand.rec[r], &row);
        row = (epx_recorder_group_t){.name = "others", .key = 3, .ranks = n, .rank = r};
        hand.second[r] = epx_recorder_group_begin(hand.rec[r], &row);
        epx_record_step(hand.rec[r]);
        size_t bytes;
        hand.evidence[r] =
            (epx_rank_evidence_t){.record = epx_recorder_bytes(hand.rec[r], &bytes), .life = EPX_LIFE_SLEEPS};
    }
}

void hand_end(void)
{
    for (int32_t r = 0; r < hand.ranks; r++)
        epx_recorder_close(&hand.rec[r]);
    epx_clock_stand_in(NULL);
}

epx_verdict_t hand_judge(void)
{
    epx_verdict_t v = EPX_VERDICT_INIT;
    epx_job_evidence_t job = {.rank = hand.evidence, .ranks = hand.ranks, .now_ns = hand.now_ns};
    epx_classify(&job, hand.facts, &v);
    return v;
}

uint64_t hand_start(int32_t r, int32_t id, epx_record_kind_t kind, uint64_t sequence, int32_t wave)
{
    epx_recorder_call_t call = {
        .group_id = id, .sequence = sequence, .kind = kind, .wave = wave, .signature = 7};
    uint64_t op = epx_recorder_enqueue(hand.rec[r], &call);
    epx_recorder_begin(hand.rec[r], op);
    epx_recorder_sent(hand.rec[r], EPX_RECORD_EVERYBODY, sequence);
    epx_recorder_posted(hand.rec[r], op);
    return op;
}

void hand_wait_for(int32_t r, int32_t channel, int32_t peer, uint64_t expected, uint64_t seen)
{
    epx_record_wait_t own,
        *live = epx_recorder_wait_begin(hand.rec[r], channel, EPX_RECORD_EVERYBODY, expected, 0, &own);
    cr_assert_neq(live, &own);
    live->peer = peer;
    live->seen = seen;
}

void hand_good(epx_record_kind_t kind, uint64_t sequence, int32_t wave, int32_t channel)
{
    for (int32_t r = 0; r < hand.ranks; r++) {
        uint64_t op = hand_start(r, hand.group[r], kind, sequence, wave);
        hand_wait_for(r, channel, 0, sequence, sequence);
        epx_recorder_wait_end(hand.rec[r], channel, 1);
        epx_recorder_end(hand.rec[r], op, EPX_OK);
    }
}

void hand_in_dispatch(int32_t ranks)
{
    hand_begin(ranks);
    hand_good(EPX_RECORD_DISPATCH, 1, 0, 0);
    for (int32_t r = 0; r < ranks; r++)
        hand_start(r, hand.group[r], EPX_RECORD_DISPATCH, 2, 0);
}

void hand_call_and_wait(int32_t r, int32_t id, uint64_t sequence, int32_t peer, uint64_t seen)
{
    hand_start(r, id, EPX_RECORD_DISPATCH, sequence, 0);
    hand_wait_for(r, 0, peer, sequence, seen);
}

void hand_collective(int32_t r, uint64_t sequence, int32_t peer)
{
    epx_recorder_call_t call = {
        .group_id = hand.world[r], .sequence = sequence, .kind = EPX_RECORD_ALLREDUCE};
    uint64_t op = epx_recorder_enqueue(hand.rec[r], &call);
    epx_recorder_begin(hand.rec[r], op);
    epx_recorder_sent(hand.rec[r], EPX_RECORD_EVERYBODY, sequence);
    epx_record_wait_t own, *live = epx_recorder_wait_begin(hand.rec[r], -1, EPX_RECORD_EVERYBODY, sequence,
                                                           EPX_RECORD_EXCHANGE, &own);
    live->peer = peer;
}

void hand_expect(epx_verdict_kind_t kind, int32_t rank, int32_t peer)
{
    epx_verdict_t v = hand_judge();
    char title[128];
    epx_verdict_title(&v, title, sizeof(title));
    cr_expect_eq(v.kind, kind, "the verdict is %s: %s", title, v.text);
    if (kind != EPX_VERDICT_NONE && kind != EPX_VERDICT_UNKNOWN)
        cr_expect_eq(v.rank, rank, "the culprit is rank %d: %s", v.rank, v.text);
    if (peer >= 0)
        cr_expect_eq(v.peer, peer, "the peer is rank %d: %s", v.peer, v.text);
}

void hand_pass(double seconds) { hand.now_ns += (int64_t)(seconds * 1e9); }
