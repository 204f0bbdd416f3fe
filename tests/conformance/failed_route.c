/*
 * Routes that fail: named here, known to every peer, and the group stays usable. SPDX-License-Identifier:
 * Apache-2.0
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <string.h>

#include "support/drive.h"
#include "support/pieces.h"

TestSuite(failed_route, .init = clean_environment);

enum { RANKS = 3, CULPRIT = 1 };

/* What is wrong with the culprit's routing. */
typedef enum fault {
    ID_MINUS_2,
    ID_E,
    ID_LARGEST,
    ID_SMALLEST,
    WEIGHTS_BF16,
    IDS_FP32,
    TOO_MANY_TOKENS,
    TOKENS_NEGATIVE,
    TOO_MANY_ON_DEVICE,
    NO_IDS,
    NO_WEIGHTS,
    SMALL_STRUCT,
    NO_ROUTING,
    FAULTS
} fault_t;

static const char *const fault_names[FAULTS] = {"id -2",        "id E",         "id INT64_MAX",
                                                "id INT64_MIN", "bf16 weights", "fp32 ids",
                                                "T > T_max",    "T = -1",       "T > T_max on the device",
                                                "no ids",       "no weights",   "size 0",
                                                "no routing"};

typedef struct stage {
    problem_t *problem;
    oracle_t *oracle;
    fault_t fault;
    int on_spill_column; /* the bad id stands behind the first K */
    int again_at_once;   /* the culprit routes again without touching the dead plan; a peer sleeps */
} stage_t;

static int64_t bad_id(const stage_t *stage)
{
    static const int64_t ids[] = {-2, 0, INT64_MAX, INT64_MIN};
    return stage->fault == ID_E ? stage->problem->experts : ids[stage->fault];
}

/* Whether a failed route is known on all ranks when it ends. */
static int counts_first(const stage_t *stage)
{
    return stage->problem->arm.kind != POOLED_WAVE ||
           stage->problem->arm.overflow == EPX_OVERFLOW_EXTRA_WAVE || !words_are_one_sided();
}

/* Whether the culprit's fault is found by its device, after the call: everybody's route gives EPX_OK then. */
static int found_later(const stage_t *stage)
{
    int on_device = stage->fault <= ID_SMALLEST || stage->fault == TOO_MANY_ON_DEVICE;
    int looked_at = stage->problem->arm.kind == POOLED_WAVE && counts_first(stage);
    return !on_host() && on_device && !looked_at;
}

static epx_status_t spoilt_route(session_t *session, epx_plan_h plan, const stage_t *stage)
{
    const problem_t *p = session->p;
    buffer_t ids, weights;
    epx_routing_t routing = session_routing(session, &ids, &weights);
    int64_t *too_many = both_new(sizeof(*too_many));
    *too_many = p->tokens_max + 1;
    int column = stage->on_spill_column ? p->top_k : p->top_k - 1;
    size_t at = (size_t)(2 * p->columns + column) * sizeof(int64_t); /* token 2 */
    int64_t id = stage->fault <= ID_SMALLEST ? bad_id(stage) : -1;
    switch (stage->fault) {
    case WEIGHTS_BF16: routing.weight_type = EPX_BF16; break;
    case IDS_FP32: routing.id_type = EPX_FP32; break;
    case TOO_MANY_TOKENS: routing.tokens = p->tokens_max + 1; break;
    case TOKENS_NEGATIVE: routing.tokens = -1; break;
    case TOO_MANY_ON_DEVICE: routing.tokens_device = too_many; break;
    case NO_IDS: routing.ids = NULL; break;
    case NO_WEIGHTS: routing.weights = NULL; break;
    case SMALL_STRUCT: routing.size = 0; break;
    case NO_ROUTING: break;
    default: memcpy(ids.data + at, &id, sizeof(id)); break;
    }
    session->self->at = "a spoilt epx_plan_route";
    epx_status_t status = epx_plan_route(plan, stage->fault == NO_ROUTING ? NULL : &routing, rank_stream());
    buffer_free(&ids, session->self, "ids");
    buffer_free(&weights, session->self, "weights");
    both_free(too_many);
    return status;
}

/* Whom the error of a dead plan names: nobody, rank 1, or one of ranks 1 and 2, which both failed. */
typedef enum whom { NOBODY, RANK_1, EITHER } whom_t;

static void expect_named(rank_t *self, whom_t whom)
{
    if (whom == RANK_1)
        expect_text(self, "epx_dispatch after a failed route", "rank 1", NULL);
    const char *text = epx_last_error();
    expect(self,
           whom != EITHER || strstr(text, "the route of rank 1 failed") != NULL ||
               strstr(text, "the route of rank 2 failed") != NULL,
           "epx_dispatch after two failed routes names neither: %s", text);
}

/* All data calls of wave 0 on a dead plan: the error, and no byte is moved. */
static void calls_on_dead(session_t *session, epx_plan_h plan, epx_status_t wanted, whom_t named)
{
    rank_t *self = session->self;
    const problem_t *p = session->p;
    wave_buffers_t wave;
    wave_new(&wave, session);
    pass_t pass = {.session = session, .plan = plan, .into = 1};
    epx_batch_t batch = wave_batch(&pass, &wave);
    buffer_t out, dweight;
    buffer_new(&out, (size_t)p->tokens_max * (size_t)p->width * 4, 4);
    buffer_new(&dweight, (size_t)p->tokens_max * (size_t)p->columns * 4, 4);
    float *dw = (float *)(void *)dweight.data;
    const unsigned char *x = p->x[self->rank];
    self->at = "calls on a dead plan";
    expect_status(self, "epx_dispatch on a dead plan", epx_dispatch(plan, 0, x, &batch, rank_stream()),
                  wanted);
    expect_named(self, named);
    for (int again = 0; again < 2; again++) {
        expect_status(self, "epx_dispatch again", epx_dispatch(plan, 0, x, &batch, rank_stream()), wanted);
        expect_status(self, "epx_combine", epx_combine(plan, 0, wave.y.data, out.data, rank_stream()),
                      wanted);
        expect_status(self, "epx_combine_backward",
                      epx_combine_backward(plan, 0, p->dout[self->rank], wave.y.data, &batch, rank_stream()),
                      wanted);
        expect_status(self, "epx_dispatch_backward",
                      epx_dispatch_backward(plan, 0, wave.y.data, out.data, dw, rank_stream()), wanted);
    }
    expect(self, is_poison(out.data, out.bytes) && is_poison(dweight.data, dweight.bytes),
           "a dead plan wrote sums");
    expect(self, is_poison(wave.rows.data, wave.rows.bytes) && is_poison(wave.count.data, wave.count.bytes),
           "a dead plan wrote a batch");
    buffer_free(&out, self, "out");
    buffer_free(&dweight, self, "dweight");
    wave_free(&wave, self);
}

static void check_text(rank_t *self, const stage_t *stage)
{
    char id[32], k[32];
    if (stage->fault > ID_SMALLEST)
        return;
    snprintf(id, sizeof(id), "%lld", (long long)bad_id(stage));
    snprintf(k, sizeof(k), "%d", stage->on_spill_column ? stage->problem->top_k : stage->problem->top_k - 1);
    expect_text(self, "a bad id", "rank 1", "token 2", k, id, NULL);
}

/* Where errors come late: calls on a dead plan go through until this rank's device has told, and do nothing.
 * `calls`: made at all; peers of a pooled_wave route learn of it by them. */
static void late_calls(session_t *session, epx_plan_h plan, epx_status_t wanted, int names_culprit)
{
    rank_t *self = session->self;
    const problem_t *p = session->p;
    wave_buffers_t wave;
    buffer_t out;
    wave_new(&wave, session);
    buffer_new(&out, (size_t)p->tokens_max * (size_t)p->width * 4, 4);
    pass_t pass = {.session = session, .plan = plan, .into = 1};
    epx_batch_t batch = wave_batch(&pass, &wave);
    const unsigned char *x = p->x[self->rank];
    self->at = "calls on a plan that dies";
    epx_status_t status = epx_dispatch(plan, 0, x, &batch, rank_stream());
    expect(self, status == EPX_OK || status == wanted, "epx_dispatch on a plan that dies gave %s",
           epx_status_name(status));
    if (status == EPX_OK) {
        status = epx_combine(plan, 0, wave.y.data, out.data, rank_stream());
        expect(self, status == EPX_OK || status == wanted, "epx_combine on a plan that dies gave %s",
               epx_status_name(status));
    }
    drained();
    for (int again = 0; again < 2; again++) {
        expect_status(self, "epx_dispatch, when the device has told",
                      epx_dispatch(plan, 0, x, &batch, rank_stream()), wanted);
        if (names_culprit)
            expect_text(self, "epx_dispatch on a dead plan", "rank 1", NULL);
    }
    buffer_free(&out, self, "out");
    wave_free(&wave, self);
}

static void fail_late(session_t *session, epx_plan_h plan, const stage_t *stage)
{
    rank_t *self = session->self;
    epx_status_t mine = stage->fault <= ID_SMALLEST ? EPX_ERR_ROUTING : EPX_ERR_ARG;
    if (self->rank == CULPRIT) {
        int later = found_later(stage);
        epx_status_t status = spoilt_route(session, plan, stage);
        expect_came(self, fault_names[stage->fault], status, later ? EPX_OK : mine);
        if (!later)
            check_text(self, stage);
        if (stage->again_at_once)
            return;
        if (later) {
            drained();
            expect_status(self, "epx_group_check", epx_group_check(session->group), mine);
            check_text(self, stage);
        }
        late_calls(session, plan, mine, 0);
        return;
    }
    if (stage->again_at_once && self->rank == RANKS - 1)
        sleep_ms(3);
    expect_came(self, "epx_plan_route (the device finds out)", session_route(session, plan), EPX_OK);
    if (stage->again_at_once && self->rank == RANKS - 1)
        sleep_ms(3);
    late_calls(session, plan, EPX_ERR_PEER, 1);
}

/* One failed route, seen from everywhere. */
static void fail_once(session_t *session, epx_plan_h plan, const stage_t *stage)
{
    rank_t *self = session->self;
    epx_status_t mine = stage->fault <= ID_SMALLEST ? EPX_ERR_ROUTING : EPX_ERR_ARG;
    int later = found_later(stage);
    if (errors_come_late() && stage->problem->arm.overflow != EPX_OVERFLOW_EXTRA_WAVE) {
        fail_late(session, plan, stage);
        return;
    }
    if (self->rank == CULPRIT) {
        expect_status(self, fault_names[stage->fault], spoilt_route(session, plan, stage),
                      later ? EPX_OK : mine);
        if (later)
            expect_status(self, "epx_group_check", epx_group_check(session->group), mine);
        check_text(self, stage);
        if (!stage->again_at_once)
            calls_on_dead(session, plan, mine, NOBODY);
        if (later && !stage->again_at_once)
            check_text(self, stage);
        return;
    }
    if (stage->again_at_once && self->rank == RANKS - 1)
        sleep_ms(3);
    epx_status_t status = session_route(session, plan);
    if (later) {
        expect_status(self, "epx_plan_route (its device finds out)", status, EPX_OK);
    } else if (counts_first(stage)) {
        expect_status(self, "epx_plan_route beside a failed one", status, EPX_ERR_PEER);
        expect_text(self, "epx_plan_route beside a failed one", "rank 1", NULL);
    } else {
        expect_status(self, "epx_plan_route (waits for nobody)", status, EPX_OK);
    }
    if (stage->again_at_once && counts_first(stage))
        return;
    if (stage->again_at_once && self->rank == RANKS - 1)
        sleep_ms(3);
    calls_on_dead(session, plan, EPX_ERR_PEER, later || !counts_first(stage) ? RANK_1 : NOBODY);
}

static void fail_rank(rank_t *self)
{
    const stage_t *stage = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    if (!session_open(&session, self, stage->problem, NULL))
        return;
    expect_status(self, "epx_plan_create", epx_plan_create(session.group, 0, NULL, &plan), EPX_OK);
    int waves = epx_plan_waves(plan);
    for (int round = 0; round < 3 && !failures(); round++) {
        fail_once(&session, plan, stage);
        expect(self, epx_plan_waves(plan) == waves || stage->problem->arm.overflow == EPX_OVERFLOW_EXTRA_WAVE,
               "a failed route changed epx_plan_waves from %d to %d", waves, epx_plan_waves(plan));
        if (!stage->again_at_once)
            expect_status(self, "epx_group_check", epx_group_check(session.group), EPX_OK);
        pass_t pass = {.session = &session, .plan = plan, .o = stage->oracle, .schedule = (schedule_t)round};
        if (!expect_status(self, "a good route after a failed one", session_route(&session, plan), EPX_OK))
            break;
        if (pass_forward(&pass) && pass_backward(&pass) && pass_forward(&pass))
            pass_stats(&pass);
        pass_free(&pass);
    }
    if (failures())
        epx_group_abort(session.group, "test failed");
    epx_plan_destroy(&plan);
    session_close(&session);
}

static void run_stage(const arm_t *arm, fault_t fault, int on_spill_column, int again_at_once)
{
    stage_t stage = {.problem = problem_new(arm, RANKS, 7, 2, 5, 9), .fault = fault};
    stage.on_spill_column = on_spill_column;
    stage.again_at_once = again_at_once;
    stage.problem->id_type = EPX_INT64;
    problem_inputs(stage.problem, UNIFORM, (int[]){9, 7, 9}, 5);
    stage.oracle = oracle_of(stage.problem);
    if (errors_come_late())
        world_may_warn(); /* of a route that fails and is made again before anybody has asked */
    world_note("%s: %s%s", arm->name, fault_names[fault], again_at_once ? ", routes again at once" : "");
    world_run(RANKS, fail_rank, &stage);
    oracle_free(stage.oracle);
    problem_free(stage.problem);
}

ParameterizedTestParameters(failed_route, every_fault) { return every_arm(); }

ParameterizedTest(int *arm, failed_route, every_fault)
{
    for (int fault = 0; fault < FAULTS; fault++)
        run_stage(&arms[*arm], (fault_t)fault, 0, 0);
    if (arms[*arm].spill)
        run_stage(&arms[*arm], ID_E, 1, 0);
}

ParameterizedTestParameters(failed_route, case25_routes_again_at_once_while_a_peer_sleeps)
{
    return every_arm();
}

ParameterizedTest(int *arm, failed_route, case25_routes_again_at_once_while_a_peer_sleeps)
{
    for (int i = 0; i < 5; i++)
        run_stage(&arms[*arm], i % 2 ? ID_E : TOO_MANY_TOKENS, 0, 1);
}

/* Words are there when their writers say so where they are stored; those that travel as messages may be on
 * the way. */
static int on_the_way(void) { return ranks_are_processes() || over_sends(); }

static void two_are_told(rank_t *self)
{
    drained();
    world_meet(self);
}

/* The lower one always comes last. */
static void one_of_two_fails(session_t *session, epx_plan_h plan, const stage_t *stage)
{
    rank_t *self = session->self;
    int later = found_later(stage);
    sleep_ms(self->rank == 1 ? 5 : 0);
    expect_came(self, "id E", spoilt_route(session, plan, stage), later ? EPX_OK : EPX_ERR_ROUTING);
    if (!errors_come_late())
        drained();
    if (later && !errors_come_late() && !counts_first(stage)) {
        /* What the device has found is told by the next calls. */
        expect_status(self, "epx_group_check", epx_group_check(session->group), EPX_ERR_ROUTING);
        calls_on_dead(session, plan, EPX_ERR_ROUTING, NOBODY);
    }
    if (!counts_first(stage))
        two_are_told(self);
    if (later && errors_come_late())
        late_calls(session, plan, EPX_ERR_ROUTING, 0);
}

static void third_of_two(session_t *session, epx_plan_h plan, const stage_t *stage)
{
    rank_t *self = session->self;
    int first = counts_first(stage), later = found_later(stage);
    if (!first)
        two_are_told(self);
    expect_came(self, "epx_plan_route", session_route(session, plan),
                first && !later ? EPX_ERR_PEER : EPX_OK);
    if (later && errors_come_late()) {
        late_calls(session, plan, EPX_ERR_PEER, 1);
        return;
    }
    if (!errors_come_late())
        drained();
    if (first && later)
        expect_status(self, "epx_group_check", epx_group_check(session->group), EPX_ERR_PEER);
    if (first)
        expect_text(self, "two failures", "rank 1", NULL);
    else
        calls_on_dead(session, plan, EPX_ERR_PEER, on_the_way() ? EITHER : RANK_1);
}

/* Two ranks fail in one route: each knows its own, the third names the lower of those that it knows: of both
 * where all meet in the route, or where words of peers which wait for nobody were stored. Where words travel
 * it may know of one alone yet. */
static void two_fail_rank(rank_t *self)
{
    const stage_t *stage = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    if (!session_open(&session, self, stage->problem, NULL))
        return;
    epx_plan_create(session.group, 0, NULL, &plan);
    for (int round = 0; round < 2; round++) {
        if (self->rank > 0)
            one_of_two_fails(&session, plan, stage);
        else
            third_of_two(&session, plan, stage);
    }
    pass_t pass = {.session = &session, .plan = plan, .o = stage->oracle};
    if (expect_status(self, "a good route after two failed ones", session_route(&session, plan), EPX_OK))
        pass_forward(&pass);
    pass_free(&pass);
    if (failures())
        epx_group_abort(session.group, "test failed");
    epx_plan_destroy(&plan);
    session_close(&session);
}

ParameterizedTestParameters(failed_route, two_ranks_fail) { return every_arm(); }

ParameterizedTest(int *arm, failed_route, two_ranks_fail)
{
    stage_t stage = {.problem = problem_new(&arms[*arm], RANKS, 7, 2, 5, 9), .fault = ID_E};
    stage.problem->id_type = EPX_INT64;
    problem_inputs(stage.problem, UNIFORM, (int[]){9, 7, 9}, 5);
    stage.oracle = oracle_of(stage.problem);
    world_run(RANKS, two_fail_rank, &stage);
    oracle_free(stage.oracle);
    problem_free(stage.problem);
}

/* A plan of another lane, and another plan of the same lane, live on beside a dead one. */
static void neighbours_rank(rank_t *self)
{
    const stage_t *stage = self->arg;
    session_t session;
    epx_plan_h good[2] = {NULL, NULL}, dead = NULL;
    if (!session_open(&session, self, stage->problem, NULL))
        return;
    for (int i = 0; i < 2; i++) {
        epx_plan_create(session.group, i, NULL, &good[i]);
        expect_status(self, "epx_plan_route", session_route(&session, good[i]), EPX_OK);
    }
    epx_plan_create(session.group, 0, NULL, &dead);
    for (int round = 0; round < 3 && !failures(); round++) {
        fail_once(&session, dead, stage);
        for (int i = 0; i < 2 && !failures(); i++) {
            pass_t pass = {.session = &session, .plan = good[i], .o = stage->oracle};
            if (pass_forward(&pass))
                pass_backward(&pass);
            pass_free(&pass);
        }
    }
    if (failures())
        epx_group_abort(session.group, "test failed");
    for (int i = 0; i < 2; i++)
        epx_plan_destroy(&good[i]);
    epx_plan_destroy(&dead);
    session_close(&session);
}

ParameterizedTestParameters(failed_route, other_plans_live_on) { return every_arm(); }

ParameterizedTest(int *arm, failed_route, other_plans_live_on)
{
    stage_t stage = {.problem = problem_new(&arms[*arm], RANKS, 7, 2, 5, 9), .fault = ID_E};
    stage.problem->id_type = EPX_INT64;
    problem_inputs(stage.problem, UNIFORM, (int[]){9, 7, 9}, 5);
    stage.oracle = oracle_of(stage.problem);
    world_note("%s", arms[*arm].name);
    world_run(RANKS, neighbours_rank, &stage);
    oracle_free(stage.oracle);
    problem_free(stage.problem);
}

/* Where the bytes of a good route are loaded over a failed one, which the peers may not know of yet, all
 * ranks go on alike: with the good one, and then with the next route. */
static void reloaded_rank(rank_t *self)
{
    const stage_t *stage = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    if (!session_open(&session, self, stage->problem, NULL))
        return;
    size_t bytes = epx_plan_bytes(session.group);
    void *kept = device_new(bytes);
    epx_plan_create(session.group, 0, NULL, &plan);
    pass_t pass = {.session = &session, .plan = plan, .o = stage->oracle};
    expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK);
    pass_forward(&pass);
    expect_status(self, "epx_plan_save", epx_plan_save(plan, kept, rank_stream()), EPX_OK);
    for (int round = 0; round < 2 && !failures(); round++) {
        if (self->rank == CULPRIT)
            expect_status(self, "the failed route", spoilt_route(&session, plan, stage), EPX_ERR_ARG);
        else
            (void)session_route(&session, plan); /* knows it, or does not */
        expect_status(self, "epx_plan_load", epx_plan_load(plan, kept, rank_stream()), EPX_OK);
        if (pass_forward(&pass))
            pass_backward(&pass);
        expect_status(self, "the next route", session_route(&session, plan), EPX_OK);
        pass_forward(&pass);
    }
    if (failures())
        epx_group_abort(session.group, "test failed");
    pass_free(&pass);
    device_free(kept, bytes);
    epx_plan_destroy(&plan);
    session_close(&session);
}

ParameterizedTestParameters(failed_route, a_good_one_is_loaded_over_it) { return every_arm(); }

ParameterizedTest(int *arm, failed_route, a_good_one_is_loaded_over_it)
{
    stage_t stage = {.problem = problem_new(&arms[*arm], RANKS, 7, 2, 5, 9), .fault = WEIGHTS_BF16};
    problem_inputs(stage.problem, UNIFORM, (int[]){9, 7, 9}, 5);
    stage.oracle = oracle_of(stage.problem);
    world_note("%s", arms[*arm].name);
    if (errors_come_late()) /* nobody asks for them before the plan is loaded */
        world_may_warn();
    world_run(RANKS, reloaded_rank, &stage);
    oracle_free(stage.oracle);
    problem_free(stage.problem);
}

/* Between a plan's route and its first dispatch its lane may see other routes, good and bad. pooled_wave
 * tells them apart as long as there are fewer than 32. */
enum { OTHER_ROUTES = 25 };

static void long_wait_rank(rank_t *self)
{
    const stage_t *stage = self->arg;
    session_t session;
    epx_plan_h dead = NULL, good = NULL, other = NULL;
    if (!session_open(&session, self, stage->problem, NULL))
        return;
    epx_plan_create(session.group, 0, NULL, &dead);
    epx_plan_create(session.group, 0, NULL, &good);
    epx_plan_create(session.group, 0, NULL, &other);
    epx_status_t mine =
        self->rank == CULPRIT ? spoilt_route(&session, dead, stage) : session_route(&session, dead);
    int later = found_later(stage);
    epx_status_t beside = counts_first(stage) && !later ? EPX_ERR_PEER : EPX_OK,
                 own = later ? EPX_OK : EPX_ERR_ROUTING;
    expect_status(self, "the route that is forgotten", mine, self->rank == CULPRIT ? own : beside);
    expect_status(self, "the good route that waits", session_route(&session, good), EPX_OK);
    for (int i = 0; i < OTHER_ROUTES && !failures(); i++) {
        int bad = i % 3 != 2 && self->rank == CULPRIT;
        mine = bad ? spoilt_route(&session, other, stage) : session_route(&session, other);
        beside = i % 3 != 2 && counts_first(stage) && !later ? EPX_ERR_PEER : EPX_OK;
        expect_status(self, "one of many routes", mine, bad ? own : beside);
    }
    epx_status_t wanted = self->rank == CULPRIT ? EPX_ERR_ROUTING : EPX_ERR_PEER;
    if (!failures() && errors_come_late() && later)
        late_calls(&session, dead, wanted, 0);
    else if (!failures())
        calls_on_dead(&session, dead, wanted, NOBODY);
    pass_t pass = {.session = &session, .plan = good, .o = stage->oracle};
    if (!failures() && pass_forward(&pass))
        pass_backward(&pass);
    pass_free(&pass);
    if (failures())
        epx_group_abort(session.group, "test failed");
    epx_plan_destroy(&dead);
    epx_plan_destroy(&good);
    epx_plan_destroy(&other);
    session_close(&session);
}

ParameterizedTestParameters(failed_route, first_dispatch_long_after_the_route) { return every_arm(); }

ParameterizedTest(int *arm, failed_route, first_dispatch_long_after_the_route)
{
    if (errors_come_late())
        world_may_warn(); /* of routes that fail and are made again before anybody has asked */
    stage_t stage = {.problem = problem_new(&arms[*arm], RANKS, 7, 2, 5, 9), .fault = ID_E};
    stage.problem->id_type = EPX_INT64;
    stage.problem->timeout_ms = 5000;
    problem_inputs(stage.problem, UNIFORM, (int[]){9, 7, 9}, 5);
    stage.oracle = oracle_of(stage.problem);
    world_note("%s", arms[*arm].name);
    world_run(RANKS, long_wait_rank, &stage);
    oracle_free(stage.oracle);
    problem_free(stage.problem);
}
