/*
 * A million operations that nothing is wrong with, in virtual time: random skew, announced pauses of three
 * minutes, unannounced recompilations. The recorder's own writer stamps them, the classifier judges them four
 * times a second, and must be silent. The same run with one rank that sleeps unannounced must not be.
 * SPDX-License-Identifier: Apache-2.0
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "record/classify.h"
#include "record/recorder.h"

enum { RANKS = 8, HANG_MS = 5000, OPERATIONS = 1000000 };

#define MS ((int64_t)1000000)
#define LOOK_NS (250 * MS)

static int64_t now_ns;

static int64_t now(void) { return now_ns; }

static const epx_clock_ops_t clock_ops = {.now_ns = now};

typedef struct soak {
    epx_recorder_h rec[RANKS];
    int32_t group[RANKS], mark[RANKS];
    epx_rank_evidence_t evidence[RANKS];
    epx_rank_facts_t facts[RANKS];
    epx_record_wait_t *live[RANKS];
    uint64_t op[RANKS], sequence, dice;
    int64_t looked_ns, looks, late, pauses, recompilations;
    epx_verdict_t wrong; /* the first that should not be */
} soak_t;

/* splitmix64 */
static uint64_t draw(soak_t *s, uint64_t below)
{
    uint64_t z = s->dice += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % below;
}

static void begin(soak_t *s, uint64_t seed)
{
    *s = (soak_t){.dice = seed, .wrong = EPX_VERDICT_INIT};
    now_ns = s->looked_ns = 1000 * 1000 * MS;
    epx_clock_stand_in(&clock_ops);
    for (int32_t r = 0; r < RANKS; r++) {
        epx_recorder_set_up_t set_up = {
            .folder = "", .job = "job", .rank = r, .ranks = RANKS, .hang_ms = HANG_MS, .timeout_ms = 60000};
        epx_recorder_group_t row = {.name = "experts", .key = 7, .ranks = RANKS, .rank = r};
        size_t bytes;
        cr_assert_eq(epx_recorder_open(&set_up, &s->rec[r]), EPX_OK);
        s->group[r] = epx_recorder_group_begin(s->rec[r], &row);
        s->mark[r] = epx_record_text(s->rec[r], "expert gemm");
        s->evidence[r] =
            (epx_rank_evidence_t){.record = epx_recorder_bytes(s->rec[r], &bytes), .life = EPX_LIFE_SLEEPS};
        epx_record_step(s->rec[r]);
    }
}

static void end(soak_t *s)
{
    for (int32_t r = 0; r < RANKS; r++)
        epx_recorder_close(&s->rec[r]);
    epx_clock_stand_in(NULL);
}

/* Time goes on to `until`; the watchdog looks on the way. Its early judgment is 0.45 s of 5. */
static void pass(soak_t *s, int64_t until)
{
    while (s->looked_ns + LOOK_NS <= until) {
        epx_verdict_t verdict = EPX_VERDICT_INIT;
        s->looked_ns += LOOK_NS;
        now_ns = s->looked_ns;
        epx_job_evidence_t job = {
            .rank = s->evidence, .ranks = RANKS, .now_ns = now_ns, .early_ns = 450 * MS};
        epx_classify(&job, s->facts, &verdict);
        s->looks++;
        s->late += verdict.kind == EPX_VERDICT_SLOW;
        if (verdict.kind != EPX_VERDICT_NONE && verdict.kind != EPX_VERDICT_SLOW &&
            s->wrong.kind == EPX_VERDICT_NONE)
            s->wrong = verdict;
    }
    now_ns = until;
}

/* What a rank does before its next call: how long, and what is seen of it meanwhile. */
typedef enum work { WORK_SHORT, WORK_SKEW, WORK_PAUSE, WORK_RECOMPILE, WORK_SLEEP } work_t;

static int64_t work_of(soak_t *s, work_t work)
{
    switch (work) {
    case WORK_SKEW: return (int64_t)draw(s, 4300) * MS;
    case WORK_PAUSE: return (178000 + (int64_t)draw(s, 4000)) * MS;
    case WORK_RECOMPILE: return (1000 + (int64_t)draw(s, 11500)) * MS;
    case WORK_SLEEP: return 20000 * MS;
    case WORK_SHORT: break;
    }
    return (int64_t)draw(s, 3000000);
}

static work_t choose(soak_t *s)
{
    uint64_t chance = draw(s, 200000);
    return chance < 8 ? WORK_PAUSE : chance < 40 ? WORK_RECOMPILE : chance < 1200 ? WORK_SKEW : WORK_SHORT;
}

static void leave(soak_t *s, int32_t r, work_t work)
{
    s->evidence[r].life =
        work == WORK_RECOMPILE || (work == WORK_SKEW && draw(s, 2)) ? EPX_LIFE_RUNS : EPX_LIFE_SLEEPS;
    s->evidence[r].works = work == WORK_RECOMPILE;
    if (draw(s, 4) == 0)
        epx_mark(s->rec[r], s->mark[r], NULL);
    if (work == WORK_PAUSE)
        epx_phase(s->rec[r], "checkpoint", 185000);
    s->pauses += work == WORK_PAUSE;
    s->recompilations += work == WORK_RECOMPILE;
}

/* It makes the call, sends, and waits for who has not come. */
static void arrive(soak_t *s, int32_t r, work_t work)
{
    epx_recorder_h rec = s->rec[r];
    epx_recorder_call_t call = {
        .group_id = s->group[r], .sequence = s->sequence, .kind = EPX_RECORD_DISPATCH, .signature = 7};
    epx_record_wait_t own;
    if (work == WORK_PAUSE)
        epx_phase(rec, "steady", 0);
    s->evidence[r].life = EPX_LIFE_SLEEPS;
    s->evidence[r].works = 0;
    s->op[r] = epx_recorder_enqueue(rec, &call);
    epx_recorder_begin(rec, s->op[r]);
    epx_recorder_sent(rec, EPX_RECORD_EVERYBODY, s->sequence);
    epx_recorder_posted(rec, s->op[r]);
    s->live[r] = epx_recorder_wait_begin(rec, 0, EPX_RECORD_EVERYBODY, s->sequence, 0, &own);
}

/* One operation of all ranks. */
static void round_of(soak_t *s, work_t forced)
{
    work_t work[RANKS];
    int64_t at[RANKS];
    uint32_t came = 0;
    s->sequence++;
    for (int32_t r = 0; r < RANKS; r++) {
        work[r] = r == 3 && forced != WORK_SHORT ? forced : choose(s);
        leave(s, r, work[r]);
        at[r] = now_ns + work_of(s, work[r]);
    }
    for (int32_t i = 0; i < RANKS; i++) {
        int32_t next = -1;
        for (int32_t r = 0; r < RANKS; r++)
            if ((came >> r & 1u) == 0 && (next < 0 || at[r] < at[next]))
                next = r;
        pass(s, at[next]);
        arrive(s, next, work[next]);
        came |= 1u << next;
        for (int32_t r = 0; r < RANKS; r++) {
            int32_t peer = 0;
            while (peer < RANKS && (came >> peer & 1u) != 0)
                peer++;
            if ((came >> r & 1u) != 0 && peer < RANKS)
                *s->live[r] =
                    (epx_record_wait_t){.peer = peer, .expected = s->sequence, .seen = s->sequence - 1};
        }
    }
    for (int32_t r = 0; r < RANKS; r++) {
        epx_recorder_wait_end(s->rec[r], 0, 1);
        epx_recorder_end(s->rec[r], s->op[r], EPX_OK);
    }
}

Test(record_soak, a_million_clean_operations)
{
    static soak_t s;
    const char *text = getenv("TEST_SEED");
    uint64_t seed = text != NULL ? strtoull(text, NULL, 10) : 1;
    int64_t begun = (begin(&s, seed), now_ns);
    const char *fewer = getenv("TEST_OPERATIONS"); /* for an emulated processor */
    int64_t operations = fewer != NULL ? atoll(fewer) : OPERATIONS;
    for (int64_t made = 0; made < operations && s.wrong.kind == EPX_VERDICT_NONE; made += RANKS)
        round_of(&s, WORK_SHORT);
    printf("soak: %llu operations, %.1f virtual hours, %lld pauses, %lld recompilations, %lld looks, %lld of "
           "them SLOW\n",
           (unsigned long long)s.sequence * RANKS, (double)(now_ns - begun) / 3.6e12, (long long)s.pauses,
           (long long)s.recompilations, (long long)s.looks, (long long)s.late);
    cr_expect_eq(s.wrong.kind, EPX_VERDICT_NONE, "TEST_SEED=%llu: %s of rank %d in operation %llu: %s",
                 (unsigned long long)seed, epx_verdict_name(s.wrong.kind), s.wrong.rank,
                 (unsigned long long)s.sequence, s.wrong.text);
    cr_expect(s.pauses > operations / 50000 && s.recompilations > operations / 20000 && s.late > 0);
    end(&s);
}

Test(record_soak, a_rank_that_sleeps_among_them_is_noticed)
{
    static soak_t s;
    begin(&s, 2);
    for (int i = 0; i < 500; i++)
        round_of(&s, i == 400 ? WORK_SLEEP : WORK_SHORT);
    cr_expect_eq(s.wrong.kind, EPX_VERDICT_HOST_ABSENT, "%s: %s", epx_verdict_name(s.wrong.kind),
                 s.wrong.text);
    cr_expect_eq(s.wrong.rank, 3);
    end(&s);
}
