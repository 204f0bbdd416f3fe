/*
 * Plans: bytes that can be owned, copied, attached; lanes; one route for many passes.
 * SPDX-License-Identifier: Apache-2.0
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdlib.h>
#include <string.h>

#include "support/drive.h"

TestSuite(plans, .init = clean_environment);

enum { RANKS = 3, LAYERS = 4 };

/* Several routings of one shape. */
typedef struct layers {
    problem_t *problem[LAYERS];
    oracle_t *oracle[LAYERS];
} layers_t;

static void layers_new(layers_t *l, const arm_t *arm)
{
    static const int tokens[LAYERS][RANKS] = {{8, 8, 8}, {1, 8, 0}, {8, 3, 5}, {0, 0, 2}};
    static const pattern_t patterns[LAYERS] = {UNIFORM, SKEWED, HOLES, UNIFORM};
    for (int i = 0; i < LAYERS; i++) {
        l->problem[i] = problem_new(arm, RANKS, 7, 2, 5, 8);
        problem_inputs(l->problem[i], patterns[i], tokens[i], 500 + (uint64_t)i);
        l->oracle[i] = oracle_of(l->problem[i]);
    }
    world_note("%s", arm->name);
}

static void layers_free(layers_t *l)
{
    for (int i = 0; i < LAYERS; i++) {
        oracle_free(l->oracle[i]);
        problem_free(l->problem[i]);
    }
}

static void run_layers(const arm_t *arm, rank_fn fn)
{
    layers_t l;
    layers_new(&l, arm);
    world_run(RANKS, fn, &l);
    layers_free(&l);
}

static void *plan_memory(session_t *session)
{
    size_t bytes = epx_plan_bytes(session->group);
    expect(session->self, bytes > 0 && bytes % 256 == 0, "epx_plan_bytes is %zu", bytes);
    void *memory = device_new(bytes);
    device_poison(memory, bytes);
    return memory;
}

static void device_zero(void *memory, size_t bytes)
{
    void *zeros = calloc(1, bytes);
    cr_assert_not_null(zeros);
    fetch(memory, zeros, bytes);
    free(zeros);
}

static void plan_memory_free(session_t *session, void *memory)
{
    device_free(memory, epx_plan_bytes(session->group));
}

static void end(session_t *session, int ok)
{
    if (!ok)
        epx_group_abort(session->group, "test failed");
    session_close(session);
}

static pass_t pass_of(session_t *session, const layers_t *l, int layer, epx_plan_h plan)
{
    session_problem(session, l->problem[layer]);
    return (pass_t){.session = session, .plan = plan, .o = l->oracle[layer]};
}

static int forward_of(session_t *session, const layers_t *l, int layer, epx_plan_h plan)
{
    pass_t pass = pass_of(session, l, layer, plan);
    int ok = pass_forward(&pass);
    if (ok)
        pass_stats(&pass);
    pass_free(&pass);
    return ok;
}

static int backward_of(session_t *session, const layers_t *l, int layer, epx_plan_h plan)
{
    pass_t pass = pass_of(session, l, layer, plan);
    int ok = pass_backward(&pass);
    pass_free(&pass);
    return ok;
}

static int route_of(session_t *session, const layers_t *l, int layer, epx_plan_h plan)
{
    session_problem(session, l->problem[layer]);
    return expect_status(session->self, "epx_plan_route", session_route(session, plan), EPX_OK);
}

/* As a framework does: all layers forward, then all backward, each with bytes that it keeps as a residual. */
static void residuals_rank(rank_t *self)
{
    const layers_t *l = self->arg;
    session_t session;
    epx_plan_h plan[LAYERS] = {0};
    void *memory[LAYERS], *kept[LAYERS];
    if (!session_open(&session, self, l->problem[0], NULL))
        return;
    int ok = 1;
    for (int i = 0; ok && i < LAYERS; i++) {
        memory[i] = plan_memory(&session);
        kept[i] = plan_memory(&session);
        ok &= expect_status(self, "epx_plan_create",
                            epx_plan_create(session.group, i % 2, memory[i], &plan[i]), EPX_OK);
        expect(self, epx_plan_memory(plan[i]) == memory[i], "epx_plan_memory is another");
        ok = ok && route_of(&session, l, i, plan[i]) && forward_of(&session, l, i, plan[i]);
        fetch(kept[i], memory[i], epx_plan_bytes(session.group));
        epx_plan_destroy(&plan[i]);
        expect(self, plan[i] == NULL, "epx_plan_destroy left the handle");
        device_poison(memory[i], epx_plan_bytes(session.group));
    }
    for (int i = LAYERS - 1; ok && i >= 0; i--) {
        /* on the other lane */
        ok &= expect_status(self, "epx_plan_attach",
                            epx_plan_attach(session.group, (i + 1) % 2, kept[i], &plan[i]), EPX_OK);
        expect(self, ok && epx_plan_waves(plan[i]) == l->oracle[i]->waves, "waves of an attached plan");
        ok = ok && backward_of(&session, l, i, plan[i]);
        ok = ok && forward_of(&session, l, i, plan[i]) && backward_of(&session, l, i, plan[i]);
        epx_plan_destroy(&plan[i]);
    }
    for (int i = 0; i < LAYERS; i++) {
        plan_memory_free(&session, memory[i]);
        plan_memory_free(&session, kept[i]);
    }
    end(&session, ok);
}

ParameterizedTestParameters(plans, residuals) { return every_arm(); }

ParameterizedTest(int *arm, plans, residuals) { run_layers(&arms[*arm], residuals_rank); }

/* The same with one handle for all layers, and copies at addresses of any alignment. */
static void copies_rank(rank_t *self)
{
    const layers_t *l = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    unsigned char *kept[LAYERS];
    if (!session_open(&session, self, l->problem[0], NULL))
        return;
    size_t bytes = epx_plan_bytes(session.group);
    int ok = expect_status(self, "epx_plan_create", epx_plan_create(session.group, 0, NULL, &plan), EPX_OK);
    expect_status(self, "save before any route", epx_plan_save(plan, NULL, rank_stream()), EPX_ERR_ARG);
    for (int i = 0; i < LAYERS; i++)
        kept[i] = device_new(bytes + 8);
    expect_status(self, "save before any route", epx_plan_save(plan, kept[0], rank_stream()), EPX_ERR_ARG);
    expect_status(self, "load of nothing", epx_plan_load(plan, NULL, rank_stream()), EPX_ERR_ARG);
    expect_status(self, "load of nothing", epx_plan_load_whole(plan, NULL, 1, rank_stream()), EPX_ERR_ARG);
    device_zero(kept[0], bytes);
    expect_status(self, "load of zeros", epx_plan_load(plan, kept[0], rank_stream()), EPX_ERR_ARG);
    for (int i = 0; ok && i < LAYERS; i++) {
        ok = route_of(&session, l, i, plan) && forward_of(&session, l, i, plan);
        ok = ok &&
             expect_status(self, "epx_plan_save", epx_plan_save(plan, kept[i] + 8, rank_stream()), EPX_OK);
    }
    for (int i = LAYERS - 1; ok && i >= 0; i--) {
        int64_t tokens = l->problem[i]->tokens[self->rank];
        ok = i % 2 ? expect_status(self, "epx_plan_load", epx_plan_load(plan, kept[i] + 8, rank_stream()),
                                   EPX_OK)
                   : expect_status(self, "epx_plan_load_whole",
                                   epx_plan_load_whole(plan, kept[i] + 8, tokens, rank_stream()), EPX_OK);
        device_poison(kept[i], bytes + 8);
        expect(self, epx_plan_waves(plan) == l->oracle[i]->waves, "waves of a loaded plan");
        ok = ok && backward_of(&session, l, i, plan);
    }
    for (int i = 0; i < LAYERS; i++)
        device_free(kept[i], bytes + 8);
    epx_plan_destroy(&plan);
    end(&session, ok);
}

ParameterizedTestParameters(plans, copies_in_one_handle) { return every_arm(); }

ParameterizedTest(int *arm, plans, copies_in_one_handle) { run_layers(&arms[*arm], copies_rank); }

/* Bytes copied after the route and before any pass: the pass must be run again before a backward pass. */
static void early_copy_rank(rank_t *self)
{
    const layers_t *l = self->arg;
    session_t session;
    epx_plan_h plan = NULL, copy = NULL;
    if (!session_open(&session, self, l->problem[0], NULL))
        return;
    void *memory = plan_memory(&session);
    int ok = expect_status(self, "epx_plan_create", epx_plan_create(session.group, 0, NULL, &plan), EPX_OK);
    ok = ok && route_of(&session, l, 0, plan);
    fetch(memory, epx_plan_memory(plan), epx_plan_bytes(session.group));
    ok = ok && forward_of(&session, l, 0, plan) && backward_of(&session, l, 0, plan);
    epx_plan_destroy(&plan);
    ok = ok &&
         expect_status(self, "epx_plan_attach", epx_plan_attach(session.group, 0, memory, &copy), EPX_OK);
    ok = ok && forward_of(&session, l, 0, copy) && backward_of(&session, l, 0, copy);
    ok = ok && route_of(&session, l, 2, copy) && forward_of(&session, l, 2, copy) &&
         backward_of(&session, l, 2, copy);
    epx_plan_destroy(&copy);
    plan_memory_free(&session, memory);
    end(&session, ok);
}

ParameterizedTestParameters(plans, bytes_copied_before_the_first_pass) { return every_arm(); }

ParameterizedTest(int *arm, plans, bytes_copied_before_the_first_pass)
{
    run_layers(&arms[*arm], early_copy_rank);
}

/* One route, many passes, in any mixture. */
static void passes_rank(rank_t *self)
{
    const layers_t *l = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    if (!session_open(&session, self, l->problem[0], NULL))
        return;
    int ok = expect_status(self, "epx_plan_create", epx_plan_create(session.group, 1, NULL, &plan), EPX_OK);
    ok = ok && route_of(&session, l, 0, plan);
    static const char order[] = "FFBBFBFFBFFFFFFFFFB"; /* past the 9th and 17th operation of a slot */
    for (int i = 0; ok && order[i]; i++)
        ok = order[i] == 'F' ? forward_of(&session, l, 0, plan) : backward_of(&session, l, 0, plan);
    epx_plan_destroy(&plan);
    end(&session, ok);
}

ParameterizedTestParameters(plans, case17_many_passes_of_one_route) { return every_arm(); }

ParameterizedTest(int *arm, plans, case17_many_passes_of_one_route) { run_layers(&arms[*arm], passes_rank); }

/* Three plans on one lane, routed first, used later and in turn. */
static void in_turn_rank(rank_t *self)
{
    const layers_t *l = self->arg;
    session_t session;
    epx_plan_h plan[LAYERS] = {0};
    if (!session_open(&session, self, l->problem[0], NULL))
        return;
    int ok = 1;
    for (int i = 0; ok && i < LAYERS; i++) {
        ok =
            expect_status(self, "epx_plan_create", epx_plan_create(session.group, 0, NULL, &plan[i]), EPX_OK);
        ok = ok && route_of(&session, l, i, plan[i]);
    }
    for (int round = 0; round < 2; round++) {
        for (int i = 0; ok && i < LAYERS; i++)
            ok = forward_of(&session, l, i, plan[i]);
        for (int i = LAYERS - 1; ok && i >= 0; i--)
            ok = backward_of(&session, l, i, plan[i]);
    }
    for (int i = 0; i < LAYERS; i++)
        epx_plan_destroy(&plan[i]);
    end(&session, ok);
}

ParameterizedTestParameters(plans, routed_first_used_later) { return every_arm(); }

ParameterizedTest(int *arm, plans, routed_first_used_later) { run_layers(&arms[*arm], in_turn_rank); }

/* CASES 16: dispatch A, dispatch B, combine A, combine B on two lanes. */
typedef struct lane {
    epx_plan_h plan;
    pass_t pass;
    wave_buffers_t wave;
    epx_batch_t batch;
    buffer_t out;
} lane_t;

static int lane_dispatch(lane_t *lane, session_t *session, const layers_t *l, int layer, int w)
{
    session_problem(session, l->problem[layer]);
    lane->batch = wave_batch(&lane->pass, &lane->wave);
    session->self->at = "epx_dispatch";
    epx_status_t status =
        epx_dispatch(lane->plan, w, l->problem[layer]->x[session->self->rank], &lane->batch, rank_stream());
    return expect_status(session->self, "epx_dispatch", status, EPX_OK);
}

static int lane_combine(lane_t *lane, session_t *session, const layers_t *l, int layer, int w)
{
    session_problem(session, l->problem[layer]);
    wave_check(&lane->pass, w, &lane->batch, 0);
    wave_expert(&lane->pass, w, &lane->batch, lane->wave.y.data);
    session->self->at = "epx_combine";
    epx_status_t status = epx_combine(lane->plan, w, lane->wave.y.data, lane->out.data, rank_stream());
    return expect_status(session->self, "epx_combine", status, EPX_OK);
}

static void two_lanes_rank(rank_t *self)
{
    const layers_t *l = self->arg;
    session_t session;
    lane_t lane[2];
    int ok = session_open(&session, self, l->problem[0], NULL);
    if (!ok)
        return;
    for (int i = 0; i < 2; i++) {
        ok &= expect_status(self, "epx_plan_create", epx_plan_create(session.group, i, NULL, &lane[i].plan),
                            EPX_OK);
        ok = ok && route_of(&session, l, 2 * i, lane[i].plan);
        lane[i].pass = pass_of(&session, l, 2 * i, lane[i].plan);
        wave_new(&lane[i].wave, &session);
        buffer_new(&lane[i].out, 8 * problem_row_bytes(l->problem[0]), 4);
    }
    int waves[2] = {epx_plan_waves(lane[0].plan), epx_plan_waves(lane[1].plan)};
    for (int w = 0; ok && w < (waves[0] > waves[1] ? waves[0] : waves[1]); w++) {
        for (int i = 0; ok && i < 2; i++)
            ok = w >= waves[i] || lane_dispatch(&lane[i], &session, l, 2 * i, w);
        for (int i = 0; ok && i < 2; i++)
            ok = w >= waves[i] || lane_combine(&lane[i], &session, l, 2 * i, w);
    }
    for (int i = 0; i < 2; i++) {
        session_problem(&session, l->problem[2 * i]);
        if (ok)
            pass_check_sum(&lane[i].pass, "out", &lane[i].out, l->oracle[2 * i]->out);
        wave_free(&lane[i].wave, self);
        buffer_free(&lane[i].out, self, "out");
        epx_plan_destroy(&lane[i].plan);
    }
    end(&session, ok);
}

ParameterizedTestParameters(plans, case16_two_lanes_in_turn) { return every_arm(); }

ParameterizedTest(int *arm, plans, case16_two_lanes_in_turn) { run_layers(&arms[*arm], two_lanes_rank); }

/* attach refuses bytes that no plan of an equal group has routed. */
static void refuse_rank(rank_t *self)
{
    const layers_t *l = self->arg;
    session_t session;
    epx_plan_h plan = NULL, other = NULL;
    if (!session_open(&session, self, l->problem[0], NULL))
        return;
    size_t bytes = epx_plan_bytes(session.group);
    unsigned char *memory = plan_memory(&session);
    expect_status(self, "attach of poison", epx_plan_attach(session.group, 0, memory, &other), EPX_ERR_ARG);
    device_zero(memory, bytes);
    expect_status(self, "attach of zeros", epx_plan_attach(session.group, 0, memory, &other), EPX_ERR_ARG);
    expect_status(self, "attach of nothing", epx_plan_attach(session.group, 0, NULL, &other), EPX_ERR_ARG);
    int ok = expect_status(self, "epx_plan_create", epx_plan_create(session.group, 0, memory, &plan), EPX_OK);
    expect_status(self, "attach of bytes not routed", epx_plan_attach(session.group, 0, memory, &other),
                  EPX_ERR_ARG);
    ok = ok && route_of(&session, l, 0, plan);
    expect_status(self, "attach at lane 9", epx_plan_attach(session.group, 9, memory, &other), EPX_ERR_ARG);
    expect_status(self, "attach beside 256", epx_plan_attach(session.group, 0, memory + 8, &other),
                  EPX_ERR_ARG);
    expect(self, other == NULL, "a refused attach wrote the handle");
    /* bytes of another group: other width, other rank */
    session_t second;
    problem_t *wider = problem_new(&l->problem[0]->arm, RANKS, 7, 2, 6, 8);
    wider->columns = l->problem[0]->columns;
    if (ok && session_open(&second, self, wider, NULL)) {
        expect_status(self, "attach of another shape's bytes",
                      epx_plan_attach(second.group, 0, memory, &other), EPX_ERR_ARG);
        session_close(&second);
    }
    epx_plan_destroy(&plan);
    problem_free(wider);
    plan_memory_free(&session, memory);
    end(&session, ok);
}

ParameterizedTestParameters(plans, attach_refuses_foreign_bytes) { return every_arm(); }

ParameterizedTest(int *arm, plans, attach_refuses_foreign_bytes) { run_layers(&arms[*arm], refuse_rank); }

/* An equal group, opened later: the bytes still hold. */
static void equal_group_rank(rank_t *self)
{
    const layers_t *l = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    if (!session_open(&session, self, l->problem[0], NULL))
        return;
    unsigned char *memory = plan_memory(&session);
    int ok = expect_status(self, "epx_plan_create", epx_plan_create(session.group, 0, memory, &plan), EPX_OK);
    ok = ok && route_of(&session, l, 0, plan) && forward_of(&session, l, 0, plan);
    epx_plan_destroy(&plan);
    end(&session, ok);
    if (!session_open(&session, self, l->problem[0], NULL))
        return;
    ok = ok &&
         expect_status(self, "epx_plan_attach", epx_plan_attach(session.group, 1, memory, &plan), EPX_OK);
    ok = ok && forward_of(&session, l, 0, plan) && backward_of(&session, l, 0, plan);
    epx_plan_destroy(&plan);
    plan_memory_free(&session, memory);
    end(&session, ok);
}

ParameterizedTestParameters(plans, bytes_outlive_the_group) { return every_arm(); }

ParameterizedTest(int *arm, plans, bytes_outlive_the_group) { run_layers(&arms[*arm], equal_group_rank); }

/* Destroyed in any order, with work in flight, plans after their group. */
static void destroy_rank(rank_t *self)
{
    const layers_t *l = self->arg;
    session_t session;
    epx_plan_h plan[2] = {0};
    epx_batch_t batch = EPX_BATCH_INIT;
    if (!session_open(&session, self, l->problem[0], NULL))
        return;
    epx_plan_create(session.group, 0, NULL, &plan[0]);
    epx_plan_create(session.group, 1, NULL, &plan[1]);
    int ok = route_of(&session, l, 0, plan[0]) && route_of(&session, l, 0, plan[1]);
    if (l->problem[0]->in_caller == 0 && ok)
        expect_status(self, "epx_dispatch_start",
                      epx_dispatch_start(plan[0], 0, l->problem[0]->x[self->rank], &batch, rank_stream()),
                      EPX_OK);
    if (self->rank == 0)
        epx_plan_destroy(&plan[0]);
    epx_group_close(&session.group);
    expect(self, session.group == NULL, "epx_group_close left the handle");
    expect_status(self, "epx_dispatch of a plan without a group",
                  epx_dispatch(plan[1], 0, l->problem[0]->x[self->rank], &batch, rank_stream()),
                  EPX_ERR_ABORTED);
    epx_plan_destroy(&plan[1]);
    epx_plan_destroy(&plan[0]);
    epx_plan_destroy(&plan[0]);
    epx_plan_destroy(NULL);
    epx_group_close(&session.group);
    epx_group_close(NULL);
}

ParameterizedTestParameters(plans, destroyed_in_any_order) { return every_arm(); }

ParameterizedTest(int *arm, plans, destroyed_in_any_order) { run_layers(&arms[*arm], destroy_rank); }

/* Wave w uses slot w mod depth of its lane: addresses depend on (lane, w) alone, so that a graph can be
 * replayed. */
static void addresses_rank(rank_t *self)
{
    const layers_t *l = self->arg;
    session_t session;
    const void *seen[2][64] = {{NULL}};
    if (!session_open(&session, self, l->problem[0], NULL))
        return;
    int ok = 1;
    for (int round = 0; ok && round < 6; round++) {
        epx_plan_h plan = NULL;
        int lane = round % 2, layer = round / 2;
        ok =
            expect_status(self, "epx_plan_create", epx_plan_create(session.group, lane, NULL, &plan), EPX_OK);
        ok = ok && route_of(&session, l, layer, plan);
        wave_buffers_t wave;
        buffer_t out;
        wave_new(&wave, &session);
        buffer_new(&out, 8 * problem_row_bytes(l->problem[0]), 4);
        for (int w = 0; ok && w < epx_plan_waves(plan); w++) {
            epx_batch_t batch = EPX_BATCH_INIT;
            int slot = w % session.info.depth;
            ok = expect_status(self, "epx_dispatch",
                               epx_dispatch(plan, w, l->problem[layer]->x[self->rank], &batch, rank_stream()),
                               EPX_OK);
            expect(self, !seen[lane][slot] || seen[lane][slot] == batch.rows,
                   "lane %d wave %d: rows are elsewhere", lane, w);
            expect(self, batch.rows != seen[!lane][slot], "wave %d: two lanes share their rows", w);
            seen[lane][slot] = batch.rows;
            ok = ok && expect_status(self, "epx_combine",
                                     epx_combine(plan, w, wave.y.data, out.data, rank_stream()), EPX_OK);
        }
        wave_free(&wave, self);
        buffer_free(&out, self, "out");
        epx_plan_destroy(&plan);
    }
    end(&session, ok);
}

ParameterizedTestParameters(plans, addresses_depend_on_lane_and_wave) { return every_arm(); }

ParameterizedTest(int *arm, plans, addresses_depend_on_lane_and_wave)
{
    run_layers(&arms[*arm], addresses_rank);
}
