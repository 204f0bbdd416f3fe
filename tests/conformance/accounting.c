/*
 * What is counted: identities over the group, bytes, once for each routing. SPDX-License-Identifier:
 * Apache-2.0
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/drive.h"
#include "support/folder.h"

TestSuite(accounting, .init = clean_environment);

enum { RANKS = 4 };

typedef struct books {
    problem_t *problem;
    oracle_t *oracle;
    epx_plan_stats_t first[RANKS], third[RANKS]; /* after one forward pass, after two more and one backward */
    int64_t remote[RANKS];                       /* exchange_bytes_remote */
} books_t;

static void books_rank(rank_t *self)
{
    books_t *b = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    if (!session_open(&session, self, b->problem, NULL))
        return;
    expect(self, session.info.exchange_bytes_remote == 0, "bytes were sent before any step");
    epx_plan_create(session.group, 0, NULL, &plan);
    pass_t pass = {.session = &session, .plan = plan, .o = b->oracle};
    epx_plan_stats_t *first = &b->first[self->rank], *third = &b->third[self->rank];
    *first = *third = (epx_plan_stats_t)EPX_PLAN_STATS_INIT;
    int ok = expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK);
    /* What the sender knows is complete after the route. */
    ok = ok && expect_status(self, "epx_plan_stats", epx_plan_stats(plan, first, rank_stream()), EPX_OK);
    expect(self,
           first->routed == b->oracle->stats[self->rank].routed &&
               first->tokens == b->problem->tokens[self->rank],
           "after the route: %lld routed", (long long)first->routed);
    expect(self, first->sent_bytes == 0 && first->received_bytes == 0, "a route sends no payload");
    ok = ok && pass_forward(&pass) &&
         expect_status(self, "epx_plan_stats", epx_plan_stats(plan, first, rank_stream()), EPX_OK);
    ok = ok && pass_forward(&pass) && pass_backward(&pass);
    ok = ok && expect_status(self, "epx_plan_stats", epx_plan_stats(plan, third, rank_stream()), EPX_OK);
    if (ok)
        pass_stats(&pass);
    epx_group_info(session.group, &session.info);
    b->remote[self->rank] = session.info.exchange_bytes_remote;
    if (!ok)
        epx_group_abort(session.group, "test failed");
    pass_free(&pass);
    epx_plan_destroy(&plan);
    int64_t remote = session.info.exchange_bytes_remote;
    epx_group_info(session.group, &session.info);
    expect(self, session.info.exchange_bytes_remote == remote, "a destroyed plan takes its bytes with it");
    session_close(&session);
}

static epx_plan_stats_t sum_of(const epx_plan_stats_t *stats, int ranks)
{
    epx_plan_stats_t sum = {0};
    for (int r = 0; r < ranks; r++) {
        sum.routed += stats[r].routed;
        sum.skipped += stats[r].skipped;
        sum.kept += stats[r].kept;
        sum.spilled += stats[r].spilled;
        sum.dropped_sender += stats[r].dropped_sender;
        sum.dropped_receiver += stats[r].dropped_receiver;
        sum.sent_bytes += stats[r].sent_bytes;
        sum.received_bytes += stats[r].received_bytes;
        sum.sent_meta_bytes += stats[r].sent_meta_bytes;
        sum.received_meta_bytes += stats[r].received_meta_bytes;
    }
    return sum;
}

static void check_books(const books_t *b)
{
    const problem_t *p = b->problem;
    epx_plan_stats_t first = sum_of(b->first, p->ranks), third = sum_of(b->third, p->ranks);
    int64_t assignments = 0;
    for (int r = 0; r < p->ranks; r++)
        assignments += p->tokens[r] * p->top_k;
    cr_assert_eq(first.routed + first.skipped, assignments);
    cr_assert_eq(first.routed, first.kept + first.dropped_sender + first.dropped_receiver,
                 "%lld of %lld, %lld, %lld", (long long)first.routed, (long long)first.kept,
                 (long long)first.dropped_sender, (long long)first.dropped_receiver);
    cr_assert(p->arm.kind == POOLED_WAVE || first.dropped_receiver == 0);
    cr_assert(!p->arm.dropless || first.kept == first.routed);
    /* Once, whatever the number of passes. */
    cr_assert(third.routed == first.routed && third.kept == first.kept &&
              third.dropped_sender == first.dropped_sender &&
              third.dropped_receiver == first.dropped_receiver && third.skipped == first.skipped);
    cr_assert_eq(first.sent_bytes, first.received_bytes, "%lld bytes sent, %lld received",
                 (long long)first.sent_bytes, (long long)first.received_bytes);
    cr_assert_eq(third.sent_bytes, third.received_bytes);
    cr_assert_eq(first.sent_meta_bytes, first.received_meta_bytes,
                 "%lld bytes of metadata sent, %lld received", (long long)first.sent_meta_bytes,
                 (long long)first.received_meta_bytes);
    cr_assert_eq(third.sent_meta_bytes, third.received_meta_bytes);
    /* Two forward passes and one backward pass move the rows three times as often as one. */
    cr_assert_eq(third.sent_bytes, 3 * first.sent_bytes, "%lld bytes after one pass, %lld after three",
                 (long long)first.sent_bytes, (long long)third.sent_bytes);
    int64_t remote = 0;
    for (int r = 0; r < p->ranks; r++)
        remote += b->remote[r];
    cr_assert_eq(remote, third.sent_bytes, "exchange_bytes_remote is %lld, the plans sent %lld",
                 (long long)remote, (long long)third.sent_bytes);
    cr_assert(p->ranks > 1 || third.sent_bytes + third.sent_meta_bytes == 0,
              "one rank sends nothing to others");
}

/* How many rows rank `from` sends rank `to` in a dispatch: one for each kept assignment, or for each (token,
 * rank, wave). */
static int64_t rows_sent(const oracle_t *o, int from, int to)
{
    const problem_t *p = o->p;
    int64_t rows = 0;
    for (int64_t t = 0; t < p->tokens[from]; t++) {
        for (int k = 0; k < p->columns; k++) {
            const seat_t *seat = oracle_seat(o, from, t, k);
            int counts = seat->fate == KEPT && seat->owner == to;
            for (int earlier = 0; o->rank_wire && counts && earlier < k; earlier++) {
                const seat_t *other = oracle_seat(o, from, t, earlier);
                counts = !(other->fate == KEPT && other->owner == to && other->wave == seat->wave);
            }
            rows += counts;
        }
    }
    return rows;
}

/* ragged sends exactly the rows that are kept, and gets as many home. */
static void check_rows(const books_t *b)
{
    const problem_t *p = b->problem;
    for (int r = 0; r < p->ranks; r++) {
        int64_t rows = 0;
        for (int other = 0; other < p->ranks; other++)
            rows += other == r ? 0 : rows_sent(b->oracle, r, other) + rows_sent(b->oracle, other, r);
        cr_assert_eq(b->first[r].sent_bytes, rows * (int64_t)problem_row_bytes(p),
                     "rank %d sent %lld bytes, not %lld rows", r, (long long)b->first[r].sent_bytes,
                     (long long)rows);
    }
}

ParameterizedTestParameters(accounting, identities) { return every_arm(); }

ParameterizedTest(int *arm, accounting, identities)
{
    for (int i = 0; i < 2 * PATTERNS; i++) {
        books_t b = {.problem = problem_new(&arms[*arm], 1 + i % RANKS, 7, 1 + i % 3, 5, 8)};
        char text[200];
        b.problem->cf = i % 5 == 4 ? 0.4 : 1.15;
        b.problem->cs = i % 7 == 6 ? 0.5 : 1.15;
        b.problem->row_type = i % 2 ? EPX_BF16 : EPX_FP32;
        problem_inputs(b.problem, (pattern_t)(i % PATTERNS), NULL, 700 + (uint64_t)i);
        b.oracle = oracle_of(b.problem);
        world_note("%s", problem_text(b.problem, text, sizeof(text)));
        world_run(b.problem->ranks, books_rank, &b);
        check_books(&b);
        if (b.problem->arm.kind == RAGGED)
            check_rows(&b);
        oracle_free(b.oracle);
        problem_free(b.problem);
    }
}

/* What a dead plan has counted is nobody's. */
static void dead_rank(rank_t *self)
{
    books_t *b = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    epx_plan_stats_t stats = EPX_PLAN_STATS_INIT;
    if (!session_open(&session, self, b->problem, NULL))
        return;
    epx_plan_create(session.group, 0, NULL, &plan);
    expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK);
    expect_status(self, "epx_plan_route", epx_plan_route(plan, NULL, rank_stream()), EPX_ERR_ARG);
    expect(self, epx_plan_stats(plan, &stats, rank_stream()) != EPX_OK, "a dead plan has statistics");
    expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK);
    pass_t pass = {.session = &session, .plan = plan, .o = b->oracle};
    if (pass_forward(&pass))
        pass_stats(&pass);
    pass_free(&pass);
    epx_plan_destroy(&plan);
    session_close(&session);
}

ParameterizedTestParameters(accounting, a_dead_plan_counts_nothing) { return basic_arms(); }

ParameterizedTest(int *arm, accounting, a_dead_plan_counts_nothing)
{
    books_t b = {.problem = problem_new(&arms[*arm], 2, 7, 2, 5, 8)};
    problem_inputs(b.problem, UNIFORM, NULL, 3);
    b.oracle = oracle_of(b.problem);
    if (errors_come_late()) /* nobody asks for them before the plan is routed again */
        world_may_warn();
    world_run(2, dead_rank, &b);
    oracle_free(b.oracle);
    problem_free(b.problem);
}

/* EPX_STATS: one JSON line per step and rank, whose numbers add up to the plans'. */
static void steps_rank(rank_t *self)
{
    books_t *b = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    if (!session_open(&session, self, b->problem, NULL))
        return;
    epx_plan_create(session.group, 0, NULL, &plan);
    for (int i = 0; i < 3; i++) {
        pass_t pass = {.session = &session, .plan = plan, .o = b->oracle};
        expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK);
        pass_forward(&pass);
        pass_free(&pass);
        expect_status(self, "epx_step", epx_step(session.group), EPX_OK);
        pass_t between = {.session = &session, .plan = plan, .o = b->oracle}; /* counts in no step */
        expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK);
        pass_forward(&between);
        pass_free(&between);
        expect_status(self, "epx_step_discard", epx_step_discard(session.group), EPX_OK);
    }
    epx_plan_destroy(&plan);
    session_close(&session);
}

Test(accounting, steps_are_written_as_json_lines)
{
    char folder[FOLDER_BYTES], command[200], line[600];
    folder_make(folder, "/tmp");
    setenv("EPX_STATS", folder, 1);
    books_t b = {.problem = problem_new(arm_named("ragged"), 2, 7, 2, 5, 8)};
    problem_inputs(b.problem, UNIFORM, NULL, 3);
    b.oracle = oracle_of(b.problem);
    world_run(2, steps_rank, &b);
    snprintf(command, sizeof(command), "cat %s/*", folder);
    FILE *all = popen(command, "r");
    cr_assert_not_null(all);
    int lines = 0;
    long long routed = 0, wanted = 0;
    while (fgets(line, sizeof(line), all)) {
        long long value = -1;
        const char *at = strstr(line, "\"routed\":");
        cr_assert(line[0] == '{' && strchr(line, '\n') && at, "not a line of JSON: %s", line);
        cr_assert_eq(sscanf(at, "\"routed\":%lld", &value), 1, "%s", line);
        routed += value;
        lines++;
    }
    pclose(all);
    for (int r = 0; r < 2; r++)
        wanted += 3 * b.oracle->stats[r].routed;
    cr_assert_eq(lines, 6, "%d lines for two ranks and three steps", lines);
    cr_assert_eq(routed, wanted, "%lld routed in the lines, %lld in the plans", routed, wanted);
    cr_assert_eq(folder_remove(folder), 0, "%s stays", folder);
    oracle_free(b.oracle);
    problem_free(b.problem);
}
