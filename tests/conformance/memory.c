/*
 * Memory: told before, requested exactly, never on the data path, and missing without harm.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "support/memory.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/malloc_count.h"
#include "support/drive.h"

TestSuite(memory, .init = clean_environment);

enum { RANKS_MAX = 6 };

typedef struct ledger {
    problem_t *problem;
    oracle_t *oracle;
    memory_t memory[RANKS_MAX];
    int culprit; /* whose allocator fails */
    int64_t fail_at;
} ledger_t;

static void ledger_new(ledger_t *l, problem_t *p)
{
    char text[200];
    *l = (ledger_t){.problem = p};
    for (int r = 0; r < p->ranks; r++)
        memory_new(&l->memory[r]);
    world_note("%s", problem_text(p, text, sizeof(text)));
}

static void ledger_end(ledger_t *l)
{
    for (int r = 0; r < l->problem->ranks; r++)
        memory_end(&l->memory[r], "after everything was closed");
    settle();
    if (l->oracle)
        oracle_free(l->oracle);
    problem_free(l->problem);
}

static epx_group_config_t config_of(const ledger_t *l, int rank)
{
    epx_group_config_t config = problem_config(l->problem);
    config.allocator = &((ledger_t *)(size_t)l)->memory[rank].allocator;
    return config;
}

/* ---- what is told is what is taken -------------------------------------------------------------------------------- */

static void exact_rank(rank_t *self)
{
    ledger_t *l = self->arg;
    memory_t *m = &l->memory[self->rank];
    epx_group_config_t config = config_of(l, self->rank);
    epx_memory_t told = EPX_MEMORY_INIT;
    session_t session;
    epx_plan_h plan = NULL;
    expect_status(self, "epx_group_memory", epx_group_memory(&config, &told), EPX_OK);
    expect(self, m->requests == 0, "epx_group_memory requested memory");
    if (!session_open(&session, self, l->problem, &config))
        return;
    int64_t items = 0, device = 0, elsewhere = 0;
    for (int i = 0; i < told.items; i++) {
        /* Processes share what UCX itself allocates. */
        if (ranks_are_processes() && self->ranks > 1 &&
            (strcmp(told.item[i].name, "segment") == 0 || strcmp(told.item[i].name, "staging") == 0))
            elsewhere += told.item[i].bytes;
        items += told.item[i].bytes;
        device += told.item[i].device_memory ? told.item[i].bytes : 0;
        expect(self, told.item[i].bytes >= 0 && told.item[i].name[0], "item %d has no name or negative bytes",
               i);
    }
    expect(self, items == told.total_bytes && device == told.device_bytes,
           "items do not add up to the total");
    expect(self, m->requested_bytes == told.total_bytes - elsewhere,
           "opening took %lld bytes, %lld were told", (long long)m->requested_bytes,
           (long long)told.total_bytes);
    expect(self, m->device_bytes == told.device_bytes - elsewhere,
           "opening took %lld device bytes, %lld were told", (long long)m->device_bytes,
           (long long)told.device_bytes);
    int64_t before = m->requested_bytes, device_before = m->device_bytes;
    expect_status(self, "epx_plan_create", epx_plan_create(session.group, 0, NULL, &plan), EPX_OK);
    expect(self,
           m->device_bytes - device_before == told.plan_bytes &&
               m->requested_bytes - before == told.plan_bytes + told.plan_handle_bytes &&
               (int64_t)epx_plan_bytes(session.group) == told.plan_bytes,
           "a plan took %lld bytes, %lld + %lld were told", (long long)(m->requested_bytes - before),
           (long long)told.plan_bytes, (long long)told.plan_handle_bytes);
    int64_t live = m->live_bytes;
    epx_plan_destroy(&plan);
    expect(self, m->live_bytes == live - told.plan_bytes - told.plan_handle_bytes,
           "a destroyed plan keeps memory");
    session_close(&session);
}

ParameterizedTestParameters(memory, opening_takes_what_was_told) { return every_arm(); }

ParameterizedTest(int *arm, memory, opening_takes_what_was_told)
{
    for (int i = 0; i < 8; i++) {
        problem_t *p = problem_new(&arms[*arm], 1 + i % 4, 3 + i, 1 + i % 3, 5 + 13 * i, 1 + 4 * i);
        p->row_type = (epx_type_t)(EPX_FP32 + i % 3);
        p->backward = (epx_backward_t)(i % 4);
        p->in_caller = i == 5;
        p->aux_bytes = i % 2 ? 3 : 0;
        p->origin = i % 2;
        p->check = i == 6 ? EPX_CHECK_FULL : i == 7 ? EPX_CHECK_CANARY : EPX_CHECK_OFF;
        p->lanes = 1 + i % 3;
        p->depth = 1 + i % 2;
        p->splits = i == 4 ? 4 : 1;
        ledger_t l;
        ledger_new(&l, p);
        world_run(p->ranks, exact_rank, &l);
        ledger_end(&l);
    }
}

/* kept needs no gradient slots of its own, none needs none, recompute has both. */
Test(memory, less_backward_takes_less)
{
    for (int arm = 0; arm < arms_basic; arm++) {
        epx_memory_t none = EPX_MEMORY_INIT, kept = EPX_MEMORY_INIT, recompute = EPX_MEMORY_INIT,
                     caller = EPX_MEMORY_INIT;
        problem_t *p = problem_new(&arms[arm], 4, 8, 2, 64, 32);
        epx_group_config_t config = problem_config(p);
        config.backward = EPX_BACKWARD_NONE;
        cr_assert_eq(epx_group_memory(&config, &none), EPX_OK);
        config.backward = EPX_BACKWARD_KEPT;
        cr_assert_eq(epx_group_memory(&config, &kept), EPX_OK);
        config.batch_in_caller = 1;
        cr_assert_eq(epx_group_memory(&config, &caller), EPX_OK);
        config.batch_in_caller = 0;
        config.backward = EPX_BACKWARD_RECOMPUTE;
        cr_assert_eq(epx_group_memory(&config, &recompute), EPX_OK);
        cr_assert(none.total_bytes <= kept.total_bytes && kept.total_bytes < recompute.total_bytes,
                  "%s: none %lld, kept %lld, recompute %lld", arms[arm].name, (long long)none.total_bytes,
                  (long long)kept.total_bytes, (long long)recompute.total_bytes);
        cr_assert(caller.total_bytes <= kept.total_bytes);
        problem_free(p);
    }
}

/* Sizes past 2^31 and 2^32 are computed in 64 bits, and no memory is touched to tell them. */
Test(memory, sizes_beyond_32_bits)
{
    for (int arm = 0; arm < arms_basic; arm++) {
        epx_memory_t small = EPX_MEMORY_INIT, large = EPX_MEMORY_INIT;
        problem_t *p = problem_new(&arms[arm], 64, 256, 8, 7168, 512);
        p->row_type = EPX_BF16;
        epx_group_config_t config = problem_config(p);
        cr_assert_eq(epx_group_memory(&config, &small), EPX_OK, "%s", epx_last_error());
        config.tokens_max = 16384;
        cr_assert_eq(epx_group_memory(&config, &large), EPX_OK, "%s", epx_last_error());
        double ratio = (double)large.device_bytes / (double)small.device_bytes;
        cr_assert(large.device_bytes > (int64_t)1 << 33 && ratio > 28 && ratio < 33,
                  "%s: %lld and %lld bytes", arms[arm].name, (long long)small.device_bytes,
                  (long long)large.device_bytes);
        problem_free(p);
    }
}

/* ---- none is left ----------------------------------------------------------------------------------------------------- */

static void opens_without_rank(rank_t *self)
{
    ledger_t *l = self->arg;
    memory_t *m = &l->memory[self->rank];
    epx_group_config_t config = config_of(l, self->rank);
    epx_group_h group = NULL;
    self->at = "epx_group_open without memory";
    self->number = (int)l->fail_at;
    m->fail_at = self->rank == l->culprit ? m->requests + l->fail_at : -1;
    epx_status_t status = epx_group_open(self->comm, &config, &group);
    expect_status(self, "epx_group_open without memory", status,
                  self->rank == l->culprit ? EPX_ERR_NO_MEMORY : EPX_ERR_PEER);
    if (self->rank != l->culprit) {
        char word[24];
        snprintf(word, sizeof(word), "rank %d", l->culprit);
        expect_text(self, "epx_group_open beside a rank without memory", word, NULL);
    } else {
        expect_text(self, "epx_group_open without memory", "bytes", NULL);
    }
    expect(self, group == NULL, "the handle was written");
    world_meet(self);
    expect(self, m->live == 0, "request %lld failed on rank %d: %lld blocks are left", (long long)l->fail_at,
           l->culprit, (long long)m->live);
    /* The same comm opens a good group. */
    m->fail_at = -1;
    session_t session;
    if (session_open(&session, self, l->problem, &config))
        session_close(&session);
    world_meet(self);
}

static void count_rank(rank_t *self)
{
    ledger_t *l = self->arg;
    epx_group_config_t config = config_of(l, self->rank);
    session_t session;
    if (session_open(&session, self, l->problem, &config)) {
        world_meet(self);
        if (self->rank == 0)
            l->fail_at = l->memory[0].requests;
        session_close(&session);
    }
}

ParameterizedTestParameters(memory, missing_at_each_request_of_opening) { return basic_arms(); }

ParameterizedTest(int *arm, memory, missing_at_each_request_of_opening)
{
    ledger_t l;
    ledger_new(&l, problem_new(&arms[*arm], 3, 7, 2, 5, 8));
    world_run(3, count_rank, &l);
    int64_t requests = l.fail_at;
    cr_assert(requests >= 3, "opening makes only %lld requests", (long long)requests);
    for (l.culprit = 0; l.culprit < 3; l.culprit++) {
        for (l.fail_at = 0; l.fail_at < requests; l.fail_at++) {
            world_note("%s: request %d of rank %d fails", arms[*arm].name, (int)l.fail_at, l.culprit);
            world_run(3, opens_without_rank, &l);
        }
    }
    ledger_end(&l);
}

static void none_anywhere_rank(rank_t *self)
{
    ledger_t *l = self->arg;
    epx_group_config_t config = config_of(l, self->rank);
    epx_group_h group = NULL;
    l->memory[self->rank].fail_at = l->fail_at;
    expect_status(self, "epx_group_open", epx_group_open(self->comm, &config, &group), EPX_ERR_NO_MEMORY);
}

Test(memory, missing_on_all_ranks)
{
    /* The fabric of processes takes nothing from it. */
    for (int64_t at = 0; at < (ranks_are_processes() ? 4 : 5); at++) {
        ledger_t l;
        ledger_new(&l, problem_new(arm_named("ragged"), 3, 7, 2, 5, 8));
        l.fail_at = at;
        world_run(3, none_anywhere_rank, &l);
        ledger_end(&l);
    }
}

/* More than any machine has: an error with sizes, not a crash. */
static void too_much_rank(rank_t *self)
{
    ledger_t *l = self->arg;
    epx_group_config_t config = config_of(l, self->rank);
    epx_group_h group = NULL;
    config.capacity_factor = EPX_DROPLESS;
    config.tokens_max = 1 << 20;
    config.width = 1 << 16;
    expect_status(self, "epx_group_open of 16 TB", epx_group_open(self->comm, &config, &group),
                  EPX_ERR_NO_MEMORY);
    expect_text(self, "epx_group_open of 16 TB", "bytes", NULL);
}

ParameterizedTestParameters(memory, more_than_there_is) { return basic_arms(); }

ParameterizedTest(int *arm, memory, more_than_there_is)
{
    ledger_t l;
    ledger_new(&l, problem_new(&arms[*arm], 2, 4, 2, 5, 8));
    world_run(2, too_much_rank, &l);
    ledger_end(&l);
}

static void plan_without_rank(rank_t *self)
{
    ledger_t *l = self->arg;
    memory_t *m = &l->memory[self->rank];
    epx_group_config_t config = config_of(l, self->rank);
    session_t session;
    epx_plan_h plan = NULL;
    if (!session_open(&session, self, l->problem, &config))
        return;
    int64_t live = m->live;
    for (int i = 0; i < 2; i++) {
        m->fail_at = m->requests + i;
        expect_status(self, "epx_plan_create", epx_plan_create(session.group, 0, NULL, &plan),
                      EPX_ERR_NO_MEMORY);
        expect(self, plan == NULL && m->live == live, "a plan that was not made left something");
    }
    m->fail_at = -1;
    expect_status(self, "epx_plan_create", epx_plan_create(session.group, 0, NULL, &plan), EPX_OK);
    pass_t pass = {.session = &session, .plan = plan, .o = l->oracle};
    if (expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK))
        pass_forward(&pass);
    pass_free(&pass);
    epx_plan_destroy(&plan);
    session_close(&session);
}

Test(memory, missing_for_a_plan)
{
    ledger_t l;
    ledger_new(&l, problem_new(arm_named("ragged"), 2, 4, 2, 5, 8));
    problem_inputs(l.problem, UNIFORM, NULL, 3);
    l.oracle = oracle_of(l.problem);
    world_run(2, plan_without_rank, &l);
    ledger_end(&l);
}

/* ---- nothing on the data path ------------------------------------------------------------------------------------------- */

static void nothing_taken_rank(rank_t *self)
{
    ledger_t *l = self->arg;
    memory_t *m = &l->memory[self->rank];
    epx_group_config_t config = config_of(l, self->rank);
    session_t session;
    epx_plan_h plan = NULL;
    if (!session_open(&session, self, l->problem, &config))
        return;
    epx_plan_create(session.group, 0, NULL, &plan);
    world_meet(self);
    int64_t before = m->requests, malloc_before = malloc_requests();
    int ok = 1;
    for (int i = 0; ok && i < 4; i++) {
        pass_t pass = {
            .session = &session, .plan = plan, .o = l->oracle, .schedule = (schedule_t)(i % SCHEDULES)};
        pass.into = i % 2;
        ok = expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK) &&
             pass_forward(&pass) && pass_backward(&pass);
        epx_plan_stats_t stats = EPX_PLAN_STATS_INIT;
        calls(self, "epx_plan_stats", 0);
        epx_plan_stats(plan, &stats, rank_stream());
        calls_hook(0);
        pass_free(&pass);
    }
    expect(self, m->requests == before, "%lld requests on the data path", (long long)(m->requests - before));
    expect(self, malloc_requests() == malloc_before, "malloc was called %lld times on the data path",
           (long long)(malloc_requests() - malloc_before));
    epx_plan_destroy(&plan);
    session_close(&session);
}

ParameterizedTestParameters(memory, nothing_is_taken_on_the_data_path) { return every_arm(); }

ParameterizedTest(int *arm, memory, nothing_is_taken_on_the_data_path)
{
    only_on_host("a GPU's driver takes memory when it likes");
    ledger_t l;
    if (!malloc_counted())
        cr_skip_test("a sanitizer's malloc cannot be counted");
    ledger_new(&l, problem_new(&arms[*arm], 4, 7, 2, 5, 8));
    problem_inputs(l.problem, UNIFORM, NULL, 3);
    l.oracle = oracle_of(l.problem);
    calls_hook = malloc_look;
    world_run(4, nothing_taken_rank, &l);
    calls_hook = NULL;
    ledger_end(&l);
}

/* The counter counts: a test of the test. */
Test(memory, the_counter_counts)
{
    if (!malloc_counted())
        cr_skip_test("a sanitizer's malloc cannot be counted");
    int64_t before = malloc_requests();
    malloc_look(1);
    void *volatile a = malloc(3), *volatile b = calloc(2, 5), *volatile c = aligned_alloc(64, 64);
    malloc_look(0);
    free(malloc(7));
    free(a);
    free(b);
    free(c);
    cr_assert_eq(malloc_requests() - before, 3);
}
