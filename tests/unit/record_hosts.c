/* Records of several hosts in one view: their monotonic clocks began at different times, and what a host
 * tells of its ranks grows old. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include "base/clock.h"
#include "record/recorder.h"
#include "record/summary.h"
#include "record/view.h"

enum { HANG_MS = 5000, SUMMARY_BYTES = 1 << 16 };

#define SECOND ((int64_t)1000000000)

/* Rank 0 is on a host that was started so much earlier; rank 1 is here. */
#define EARLIER (900000 * SECOND)

static int64_t here_ns, ahead_ns; /* of this host, and of the host whose turn it is to stamp */

static int64_t now(void) { return here_ns + ahead_ns; }

static const epx_clock_ops_t clock_ops = {.now_ns = now};

static epx_recorder_h rec[2];
static int32_t group[2];
static epx_job_view_t *view;
static _Alignas(64) uint8_t summary[SUMMARY_BYTES];

static epx_record_head_t *head_of(int32_t r)
{
    size_t bytes;
    return (epx_record_head_t *)(uintptr_t)epx_recorder_bytes(rec[r], &bytes);
}

static void begin(void)
{
    here_ns = 100 * SECOND;
    epx_clock_stand_in(&clock_ops);
    for (int32_t r = 0; r < 2; r++) {
        ahead_ns = r == 0 ? EARLIER : 0;
        epx_recorder_set_up_t set_up = {
            .folder = "", .job = "job", .rank = r, .ranks = 2, .hang_ms = HANG_MS, .timeout_ms = 60000};
        cr_assert_eq(epx_recorder_open(&set_up, &rec[r]), EPX_OK);
        epx_recorder_group_t row = {.name = "world", .key = 1, .ranks = 2, .rank = r, .is_comm = 1};
        group[r] = epx_recorder_group_begin(rec[r], &row);
        epx_record_step(rec[r]);
    }
    head_of(0)->boot ^= 1;
    view = epx_view_open("/no/such/folder", "job", 2);
    cr_assert_not_null(view);
    epx_view_take(view, 1, head_of(1), head_of(1)->file_bytes);
}

static void end(void)
{
    epx_view_drop(view, 1, head_of(1));
    epx_view_close(&view);
    epx_recorder_close(&rec[0]);
    epx_recorder_close(&rec[1]);
    epx_clock_stand_in(NULL);
}

TestSuite(record_hosts, .init = begin, .fini = end);

/* Both call; `late` does not begin, and the other waits for it. */
static void call(int32_t late)
{
    for (int32_t r = 0; r < 2; r++) {
        epx_recorder_call_t call = {.group_id = group[r], .sequence = 1, .kind = EPX_RECORD_ALLREDUCE};
        ahead_ns = r == 0 ? EARLIER : 0;
        uint64_t op = epx_recorder_enqueue(rec[r], &call);
        if (r == late)
            continue;
        epx_record_wait_t own, *live;
        epx_recorder_begin(rec[r], op);
        epx_recorder_sent(rec[r], EPX_RECORD_EVERYBODY, 1);
        live = epx_recorder_wait_begin(rec[r], -1, EPX_RECORD_EVERYBODY, 1, EPX_RECORD_EXCHANGE, &own);
        live->peer = late;
    }
    ahead_ns = 0;
}

/* Rank 0 tells how it stands, and that its thread sleeps. */
static void tell(void)
{
    head_of(0)->life_seen = EPX_LIFE_SLEEPS;
    head_of(0)->watched++;
    head_of(0)->watched_ns = here_ns + EARLIER;
    size_t bytes = epx_summary_make(head_of(0), summary, sizeof(summary));
    cr_assert_gt(bytes, 0);
    epx_view_hear(view, 0, 0, summary, bytes);
}

static epx_verdict_t judge(void)
{
    epx_verdict_t v = EPX_VERDICT_INIT;
    epx_view_look(view, here_ns);
    epx_view_classify(view, here_ns, &v);
    return v;
}

Test(record_hosts, a_budget_is_one_by_every_clock)
{
    call(0);
    here_ns += 4 * SECOND;
    tell();
    cr_expect_eq(judge().kind, EPX_VERDICT_NONE, "%s", judge().text);
    here_ns += 2 * SECOND;
    tell();
    epx_verdict_t v = judge();
    cr_expect_eq(v.kind, EPX_VERDICT_STREAM_BLOCKED, "%s", v.text);
    cr_expect_eq(v.rank, 0);
    cr_expect_float_eq((double)v.stuck_ns * 1e-9, 6, 0.1, "%g s", (double)v.stuck_ns * 1e-9);
}

/* That it slept was so when it said so; it says nothing any more. */
Test(record_hosts, what_was_told_a_while_ago_does_not_hold)
{
    call(0);
    tell();
    here_ns += 6 * SECOND;
    cr_expect_eq(judge().kind, EPX_VERDICT_UNKNOWN, "%s", judge().text);
}
