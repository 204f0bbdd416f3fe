/*
 * Ranks that do not come, are gone, or give up: a named error in bounded time, and the way back.
 * SPDX-License-Identifier: Apache-2.0
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/drive.h"

TestSuite(failures, .init = clean_environment);

enum { RANKS = 3, ABSENT = 1, BOUND_MS = 8000 };

/* So long ranks wait for one that stays away, and no call of the others may take. TEST_WAIT_MS: more, for an
 * emulated processor. */
static int wait_ms(void)
{
    const char *value = getenv("TEST_WAIT_MS");
    return value != NULL && atoi(value) > 0 ? atoi(value) : 300;
}

/* The call that rank ABSENT leaves out. */
typedef enum missed {
    NO_ROUTE,
    NO_DISPATCH,
    NO_COMBINE,
    NO_COMBINE_BACKWARD,
    NO_DISPATCH_BACKWARD,
    MISSED
} missed_t;

static const char *const missed_names[MISSED] = {"route", "dispatch", "combine", "combine_backward",
                                                 "dispatch_backward"};

/* How it leaves it out. */
typedef enum way { STAYS_AWAY, ABORTS, CLOSES, WAYS } way_t;

static const char *const way_names[WAYS] = {"stays away", "aborts", "closes its group"};

typedef struct scene {
    problem_t *problem;
    oracle_t *oracle;
    missed_t missed;
    way_t way;
    int recover, lost; /* after that: all recover, or all but ABSENT */
    const arm_t *to;   /* recover into this arm; NULL: the same */
    problem_t *after;  /* what holds after recovery: other arm, or fewer ranks */
    oracle_t *oracle_after;
} scene_t;

static void scene_new(scene_t *s, const arm_t *arm)
{
    *s = (scene_t){.problem = problem_new(arm, RANKS, 7, 2, 5, 8)};
    s->problem->timeout_ms = wait_ms();
    problem_inputs(s->problem, UNIFORM, (int[]){8, 7, 8}, 6);
    s->oracle = oracle_of(s->problem);
    world_may_warn();
}

static void scene_free(scene_t *s)
{
    oracle_free(s->oracle);
    problem_free(s->problem);
    if (s->after) {
        oracle_free(s->oracle_after);
        problem_free(s->after);
    }
}

/* One wave 0 of forward and one of backward; the call of each kind in turn, until one fails or is to be
 * missed. */
static epx_status_t until(session_t *session, epx_plan_h plan, const scene_t *s, wave_buffers_t *wave,
                          buffer_t *sum, missed_t stop, missed_t *reached)
{
    rank_t *self = session->self;
    const problem_t *p = session->p;
    epx_status_t status = EPX_OK;
    pass_t pass = {.session = session, .plan = plan, .o = s->oracle, .quiet = 1};
    for (int call = NO_ROUTE; call < MISSED && status == EPX_OK; call++) {
        *reached = (missed_t)call;
        if (*reached == stop)
            return EPX_OK;
        self->at = missed_names[call];
        epx_batch_t batch = wave_batch(&pass, wave);
        unsigned char *y = wave->y.data;
        switch (*reached) {
        case NO_ROUTE: status = session_route(session, plan); break;
        case NO_DISPATCH: status = epx_dispatch(plan, 0, p->x[self->rank], &batch, rank_stream()); break;
        case NO_COMBINE:
            status = epx_combine(plan, 0, y, sum->data, rank_stream());
            for (int w = 1; status == EPX_OK && w < epx_plan_waves(plan) && stop > NO_COMBINE; w++) {
                status = epx_dispatch(plan, w, p->x[self->rank], &batch, rank_stream());
                if (status == EPX_OK)
                    status = epx_combine(plan, w, y, sum->data, rank_stream());
            }
            break;
        case NO_COMBINE_BACKWARD:
            status = epx_combine_backward(plan, 0, p->dout[self->rank], y, &batch, rank_stream());
            break;
        default: /* in a ring nobody waits before the second wave */
            status = epx_dispatch_backward(plan, 0, y, sum->data, NULL, rank_stream());
            for (int w = 1; status == EPX_OK && w < epx_plan_waves(plan); w++) {
                status = epx_combine_backward(plan, w, p->dout[self->rank], y, &batch, rank_stream());
                if (status == EPX_OK)
                    status = epx_dispatch_backward(plan, w, y, sum->data, NULL, rank_stream());
            }
            break;
        }
        if (status == EPX_OK && errors_come_late()) {
            drained();
            status = epx_group_check(session->group);
        }
    }
    return status;
}

/* What the others see: in bounded time an error that names the absent rank and the operation. */
static void others_see(session_t *session, const scene_t *s, epx_status_t status, missed_t reached,
                       int64_t began)
{
    rank_t *self = session->self;
    int64_t ms = now_ms() - began;
    const char *what = missed_names[s->missed];
    expect(self, status == EPX_ERR_TIMEOUT || status == EPX_ERR_PEER, "%s, rank 1 %s: %s (%s)", what,
           way_names[s->way], epx_status_name(status), epx_last_error());
    if (s->way == ABORTS)
        expect_status(self, "beside an abort", status, EPX_ERR_PEER);
    expect_text(self, what, "rank 1", NULL);
    /* Whoever is in another call than the one that was missed has not waited for it yet: ring, and waves in
     * flight. */
    if (s->way == STAYS_AWAY) /* a combine here dispatches the next waves too, backward likewise */
        expect_text(self, what,
                    reached == NO_COMBINE || reached == NO_DISPATCH_BACKWARD ? "wave" : missed_names[reached],
                    NULL);
    expect(self, ms < BOUND_MS + wait_ms(), "%s: it took %d ms", what, (int)ms);
    expect(self, s->way != STAYS_AWAY || ms >= wait_ms() - 20 || status == EPX_ERR_PEER,
           "%s: given up after %d ms", what, (int)ms);
    expect(self, epx_group_check(session->group) != EPX_OK, "%s: the group still counts as good", what);
}

static void recovered_step(session_t *session, const scene_t *s)
{
    rank_t *self = session->self;
    const problem_t *p = s->after ? s->after : s->problem;
    rank_t as = *self; /* ranks may have been renumbered */
    epx_plan_h plan = NULL;
    session->info = (epx_group_info_t)EPX_GROUP_INFO_INIT;
    if (!expect_status(self, "epx_group_info", epx_group_info(session->group, &session->info), EPX_OK))
        return;
    expect(self, session->info.ranks == p->ranks, "%d ranks after recovery", session->info.ranks);
    expect(self, session->info.rank == self->rank - (s->lost && self->rank > ABSENT),
           "rank %d after recovery", session->info.rank);
    expect(self, session->info.generation == 2, "generation %d", (int)session->info.generation);
    expect(self, strcmp(session->info.transport, p->arm.transport) == 0, "%s after recovery",
           session->info.transport);
    for (int e = 0; e < p->experts; e++)
        expect(self, session->info.owner[e] == p->owner[e], "expert %d is owned by %d", e,
               session->info.owner[e]);
    as.rank = session->info.rank;
    as.ranks = p->ranks;
    session_t renumbered = *session;
    renumbered.self = &as;
    session_problem(&renumbered, p);
    expect_status(self, "epx_group_check", epx_group_check(session->group), EPX_OK);
    for (int lane = 0; lane < 2 && !failures(); lane++) {
        epx_plan_create(session->group, lane, NULL, &plan);
        pass_t pass = {.session = &renumbered, .plan = plan, .o = s->after ? s->oracle_after : s->oracle};
        if (expect_status(self, "epx_plan_route", session_route(&renumbered, plan), EPX_OK) &&
            pass_forward(&pass) && pass_backward(&pass))
            pass_stats(&pass);
        pass_free(&pass);
        epx_plan_destroy(&plan);
    }
}

static void recover(session_t *session, epx_plan_h plan, const scene_t *s)
{
    rank_t *self = session->self;
    epx_group_config_t config = problem_config(s->after ? s->after : s->problem);
    config.ranks = 0;
    self->at = "epx_group_recover";
    epx_status_t status = epx_group_recover(session->group, s->to ? &config : NULL);
    if (!expect_status(self, "epx_group_recover", status, EPX_OK))
        return;
    epx_batch_t batch = EPX_BATCH_INIT;
    expect_status(self, "a plan of before",
                  epx_dispatch(plan, 0, s->problem->x[self->rank], &batch, rank_stream()), EPX_ERR_ABORTED);
    expect_status(self, "a route of a plan of before", session_route(session, plan), EPX_ERR_ABORTED);
    recovered_step(session, s);
}

static void scene_rank(rank_t *self)
{
    const scene_t *s = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    wave_buffers_t wave;
    buffer_t sum;
    missed_t reached = NO_ROUTE;
    if (!session_open(&session, self, s->problem, NULL))
        return;
    expect_status(self, "epx_plan_create", epx_plan_create(session.group, 0, NULL, &plan), EPX_OK);
    wave_new(&wave, &session);
    buffer_new(&sum, 8 * problem_row_bytes(s->problem), 4);
    memset(wave.y.data, 0, wave.y.bytes);
    world_meet(self);
    int64_t began = now_ms();
    missed_t stop = self->rank == ABSENT ? s->missed : MISSED;
    epx_status_t status = until(&session, plan, s, &wave, &sum, stop, &reached);
    if (self->rank != ABSENT)
        others_see(&session, s, status, reached, began);
    else if (s->way == ABORTS)
        epx_group_abort(session.group, "the test asks for it");
    else if (s->way == CLOSES)
        epx_group_close(&session.group);
    world_meet(self);
    if (self->rank == ABSENT && s->way == STAYS_AWAY && !s->lost) {
        /* It comes too late, and learns that the others have gone. */
        status = until(&session, plan, s, &wave, &sum, MISSED, &reached);
        /* What only the device could tell it does not know yet, nor what is still on its way through a
         * network: it is in the middle of its pass. */
        int in_flight = (errors_come_late() || ranks_are_processes() || over_sends()) &&
                        reached == NO_ROUTE && status == EPX_ERR_ARG;
        expect(self,
               status == EPX_ERR_PEER || status == EPX_ERR_ABORTED || status == EPX_ERR_TIMEOUT || in_flight,
               "a late %s: %s (%s)", missed_names[reached], epx_status_name(status), epx_last_error());
    }
    if (s->recover && !(s->lost && self->rank == ABSENT))
        recover(&session, plan, s);
    wave_free(&wave, self);
    buffer_free(&sum, self, "out or dx");
    epx_plan_destroy(&plan);
    session_close(&session);
}

static int is_known_at_route(const arm_t *arm)
{
    return arm->kind != POOLED_WAVE || arm->overflow == EPX_OVERFLOW_EXTRA_WAVE;
}

ParameterizedTestParameters(failures, a_rank_that_skips_a_call) { return basic_arms(); }

ParameterizedTest(int *arm, failures, a_rank_that_skips_a_call)
{
    for (int missed = 0; missed < MISSED; missed++) {
        if (missed == NO_ROUTE && !is_known_at_route(&arms[*arm]))
            continue; /* nobody waits in that route: the first dispatch does */
        scene_t s;
        scene_new(&s, &arms[*arm]);
        s.missed = (missed_t)missed;
        world_note("%s: rank 1 makes no %s", arms[*arm].name, missed_names[missed]);
        world_run(RANKS, scene_rank, &s);
        scene_free(&s);
    }
}

ParameterizedTestParameters(failures, a_rank_that_aborts_or_closes) { return basic_arms(); }

ParameterizedTest(int *arm, failures, a_rank_that_aborts_or_closes)
{
    for (int way = ABORTS; way < WAYS; way++) {
        for (int missed = NO_DISPATCH; missed < MISSED; missed += 1 + (way == CLOSES)) {
            scene_t s;
            scene_new(&s, &arms[*arm]);
            s.missed = (missed_t)missed;
            s.way = (way_t)way;
            if (way == ABORTS)
                s.problem->timeout_ms = 60000; /* it must not be the time-out that ends the wait */
            world_note("%s: rank 1 %s instead of %s", arms[*arm].name, way_names[way], missed_names[missed]);
            world_run(RANKS, scene_rank, &s);
            scene_free(&s);
        }
    }
}

/* ---- recovery ----------------------------------------------------------------------------------------------------------- */

ParameterizedTestParameters(failures, recover_with_all_ranks) { return every_arm(); }

ParameterizedTest(int *arm, failures, recover_with_all_ranks)
{
    scene_t s;
    scene_new(&s, &arms[*arm]);
    s.problem->timeout_ms = 2000; /* for the step after it too, on a busy machine */
    s.missed = NO_DISPATCH;
    s.way = ABORTS;
    s.recover = 1;
    world_note("%s: recover in place", arms[*arm].name);
    world_run(RANKS, scene_rank, &s);
    scene_free(&s);
}

ParameterizedTestParameters(failures, recover_into_another_transport) { return basic_arms(); }

ParameterizedTest(int *arm, failures, recover_into_another_transport)
{
    static const char *const others[] = {"ragged_rank", "ring_fair", "pooled_wave_spill"};
    scene_t s;
    scene_new(&s, &arms[*arm]);
    s.problem->timeout_ms = 2000;
    s.missed = NO_COMBINE;
    s.way = STAYS_AWAY;
    s.recover = 1;
    s.to = arm_named(others[*arm]);
    s.after = problem_new(s.to, RANKS, 7, 2, 5, 8);
    problem_inputs(s.after, UNIFORM, NULL, 8);
    s.oracle_after = oracle_of(s.after);
    world_note("%s fails over to %s", arms[*arm].name, s.to->name);
    world_run(RANKS, scene_rank, &s);
    scene_free(&s);
}

/* The survivors renumber, own the experts in blocks again, and go on. */
static void lose_rank_1(const arm_t *arm, int with_config)
{
    scene_t s;
    scene_new(&s, arm);
    problem_scatter_owners(s.problem, 11);
    problem_inputs(s.problem, UNIFORM, (int[]){8, 7, 8}, 6);
    oracle_free(s.oracle);
    s.oracle = oracle_of(s.problem);
    s.problem->timeout_ms =
        with_config ? 400 : 1500; /* without, the step after it has no more time than that */
    s.missed = NO_DISPATCH;
    s.way = STAYS_AWAY;
    s.recover = s.lost = 1;
    s.to = with_config ? arm : NULL;
    s.after = problem_new(arm, RANKS - 1, 7, 2, 5, 8);
    problem_inputs(s.after, UNIFORM, NULL, 8);
    s.oracle_after = oracle_of(s.after);
    world_note("%s goes on without rank 1", arm->name);
    world_run(RANKS, scene_rank, &s);
    scene_free(&s);
}

ParameterizedTestParameters(failures, recover_without_a_lost_rank) { return every_arm(); }

ParameterizedTest(int *arm, failures, recover_without_a_lost_rank) { lose_rank_1(&arms[*arm], 1); }

Test(failures, recover_without_a_lost_rank_as_before) { lose_rank_1(arm_named("ragged"), 0); }

/* ---- opening, and slow ranks --------------------------------------------------------------------------------------------- */

static void absent_at_open_rank(rank_t *self)
{
    problem_t *p = self->arg;
    epx_group_config_t config = problem_config(p);
    epx_group_h group = NULL;
    epx_comm_set_timeout(self->comm, wait_ms());
    int64_t began = now_ms();
    if (self->rank != ABSENT) {
        self->at = "epx_group_open without rank 1";
        epx_status_t status = epx_group_open(self->comm, &config, &group);
        expect(self, status == EPX_ERR_TIMEOUT || status == EPX_ERR_PEER, "epx_group_open without rank 1: %s",
               epx_status_name(status));
        expect_text(self, "epx_group_open without rank 1", "rank 1", NULL);
        expect(self, group == NULL, "the handle was written");
    }
    expect(self, now_ms() - began < BOUND_MS, "it took %d ms", (int)(now_ms() - began));
    world_meet(self);
}

Test(failures, a_rank_that_does_not_open)
{
    problem_t *p = problem_new(arm_named("ragged"), RANKS, 7, 2, 5, 8);
    world_may_warn();
    world_run(RANKS, absent_at_open_rank, p);
    problem_free(p);
}

/* EPX_TIMEOUT_MS is what ends the wait. */
Test(failures, the_time_out_of_the_environment)
{
    scene_t s;
    scene_new(&s, arm_named("ragged"));
    s.problem->timeout_ms = 0;
    setenv("EPX_TIMEOUT_MS", "300", 1);
    world_run(RANKS, scene_rank, &s);
    scene_free(&s);
}

/* A slow rank is no error: each rank in turn sleeps before each of its calls. */
static void slow_rank(rank_t *self)
{
    trial_t *trial = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    if (!session_open(&session, self, trial->problem, NULL))
        return;
    epx_plan_create(session.group, 0, NULL, &plan);
    int ok = 1;
    for (int i = 0; ok && i < 2 * RANKS; i++) {
        pass_t pass = {
            .session = &session, .plan = plan, .o = trial->oracle, .schedule = (schedule_t)(i % SCHEDULES)};
        sleep_ms(i % RANKS == self->rank ? 15 : 0);
        ok = expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK);
        sleep_ms(i % RANKS == self->rank ? 15 : 0);
        ok = ok && pass_forward(&pass);
        sleep_ms((i + 1) % RANKS == self->rank ? 15 : 0);
        ok = ok && pass_backward(&pass);
        pass_free(&pass);
        epx_plan_stats_t stats = EPX_PLAN_STATS_INIT;
        epx_plan_stats(plan, &stats, rank_stream());
        /* Who waits notes for whom: at least 10 of the 15 ms. */
        if (ok && i % RANKS != self->rank && trial->problem->arm.kind == RAGGED)
            expect(self, stats.wait_ns > 5000000, "waited %lld ns", (long long)stats.wait_ns);
    }
    if (!ok)
        epx_group_abort(session.group, "test failed");
    epx_plan_destroy(&plan);
    session_close(&session);
}

ParameterizedTestParameters(failures, slow_ranks) { return every_arm(); }

ParameterizedTest(int *arm, failures, slow_ranks)
{
    trial_t trial = {.problem = problem_new(&arms[*arm], RANKS, 7, 2, 5, 8)};
    problem_inputs(trial.problem, UNIFORM, (int[]){8, 7, 8}, 6);
    trial.oracle = oracle_of(trial.problem);
    world_note("%s", arms[*arm].name);
    world_run(RANKS, slow_rank, &trial);
    oracle_free(trial.oracle);
    problem_free(trial.problem);
}

/* epx_group_abort may come from any thread, and ends the waits of its own rank as EPX_ERR_ABORTED. */
static void *abort_soon(void *arg)
{
    sleep_ms(100);
    epx_group_abort(arg, "from another thread");
    return NULL;
}

static void aborted_rank(rank_t *self)
{
    const scene_t *s = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    wave_buffers_t wave;
    buffer_t sum;
    missed_t reached;
    pthread_t thread;
    if (!session_open(&session, self, s->problem, NULL))
        return;
    epx_plan_create(session.group, 0, NULL, &plan);
    wave_new(&wave, &session);
    buffer_new(&sum, 8 * problem_row_bytes(s->problem), 4);
    memset(wave.y.data, 0, wave.y.bytes);
    if (self->rank == 0)
        pthread_create(&thread, NULL, abort_soon, session.group);
    if (self->rank != ABSENT) {
        epx_status_t status = until(&session, plan, s, &wave, &sum, MISSED, &reached);
        expect_status(self, "a wait that is aborted", status,
                      self->rank == 0 ? EPX_ERR_ABORTED : EPX_ERR_PEER);
        if (self->rank != 0)
            expect_text(self, "a wait that is aborted", "rank 0", NULL);
    }
    if (self->rank == 0)
        pthread_join(thread, NULL);
    world_meet(self);
    epx_batch_t batch = EPX_BATCH_INIT;
    expect(self, epx_dispatch(plan, 0, s->problem->x[self->rank], &batch, rank_stream()) != EPX_OK,
           "a call after an abort");
    wave_free(&wave, self);
    buffer_free(&sum, self, "out or dx");
    epx_plan_destroy(&plan);
    session_close(&session);
}

ParameterizedTestParameters(failures, aborted_from_another_thread) { return basic_arms(); }

ParameterizedTest(int *arm, failures, aborted_from_another_thread)
{
    scene_t s;
    scene_new(&s, &arms[*arm]);
    s.problem->timeout_ms = 60000;
    world_run(RANKS, aborted_rank, &s);
    scene_free(&s);
}

/* The last of its ranks frees a group: one rank may be far behind the others, whose groups are closed
 * already. */
static void far_behind_rank(rank_t *self)
{
    trial_t *trial = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    if (!session_open(&session, self, trial->problem, NULL))
        return;
    epx_plan_create(session.group, 0, NULL, &plan);
    pass_t pass = {.session = &session, .plan = plan, .o = trial->oracle};
    if (expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK) && pass_forward(&pass)) {
        if (self->rank == 2)
            sleep_ms(50);
        pass_backward(&pass);
    }
    pass_free(&pass);
    epx_plan_destroy(&plan);
    session_close(&session);
    if (session_open(&session, self, trial->problem,
                     NULL)) /* and the comm is free for the next group at once */
        session_close(&session);
}

ParameterizedTestParameters(failures, closed_while_a_rank_is_behind) { return every_arm(); }

ParameterizedTest(int *arm, failures, closed_while_a_rank_is_behind)
{
    for (int i = 0; i < 3; i++) {
        trial_t trial = {.problem = problem_new(&arms[*arm], RANKS, 7, 2, 5, 8)};
        problem_inputs(trial.problem, UNIFORM, NULL, 6 + (uint64_t)i);
        trial.oracle = oracle_of(trial.problem);
        world_note("%s", arms[*arm].name);
        world_run(RANKS, far_behind_rank, &trial);
        oracle_free(trial.oracle);
        problem_free(trial.problem);
    }
}
