/* Waits over NCCL that end, on the device or by the host. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include "gpus/step.h"
#include "kernels/cuda/graph.h"

static void late_rank(rank_t *self)
{
    const problem_t *problem = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    if (!session_open(&session, self, problem, NULL))
        return;
    expect_status(self, "epx_plan_create", epx_plan_create(session.group, 0, NULL, &plan), EPX_OK);
    expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK);
    epx_batch_t batch = EPX_BATCH_INIT;
    world_meet(self);
    if (self->rank == 1) { /* does not come */
        sleep_ms(1500);
    } else {
        int64_t begin = now_ms();
        epx_status_t status = epx_dispatch(plan, 0, problem->x[self->rank], &batch, rank_stream());
        expect_came(self, "epx_dispatch, which nobody waits for", status, EPX_OK);
        drained();
        int64_t waited = now_ms() - begin;
        expect(self, waited >= 400 && waited < 5000, "the device waited %d ms, not 500", (int)waited);
        /* Several may have been waiting: one of them names rank 1, the others it. */
        status = epx_group_check(session.group);
        expect(self, status == EPX_ERR_TIMEOUT || status == EPX_ERR_PEER, "epx_group_check gave %s (%s)",
               epx_status_name(status), epx_last_error());
        expect_text(self, "a wait that ended", "dispatch, wave 0, lane 0, slot 0", "rank 1", NULL);
        status = epx_combine(plan, 0, batch.rows, NULL, rank_stream());
        expect(self, status < 0, "a call behind the end gave EPX_OK");
    }
    world_meet(self);
    if (self->rank == 1) { /* comes after all, and is told who gave up */
        epx_status_t status = epx_dispatch(plan, 0, problem->x[self->rank], &batch, rank_stream());
        drained();
        status = status == EPX_OK ? epx_group_check(session.group) : status;
        expect(self, status == EPX_ERR_PEER, "who comes too late got %s (%s)", epx_status_name(status),
               epx_last_error());
    }
    epx_plan_destroy(&plan);
    session_close(&session);
}

/* The same where the calls come from graphs: of a route, which all replay, and of a pass, which rank 1 leaves
 * out. */
static void *recorded(rank_t *self, step_t *s, void (*made)(step_t *s))
{
    void *graph = NULL;
    expect_came(self, "recording", epx_cuda_record_begin(rank_stream()), EPX_OK);
    made(s);
    expect_came(self, "recording", epx_cuda_record_end(rank_stream(), &graph), EPX_OK);
    return graph;
}

/* Milliseconds until it had run. */
static int replayed(rank_t *self, void *graph)
{
    int64_t begin = now_ms();
    expect_came(self, "a graph", epx_cuda_replay(graph, rank_stream()), EPX_OK);
    drained();
    return (int)(now_ms() - begin);
}

static void late_replays(step_t *s, void *route, void *pass)
{
    rank_t *self = s->session.self;
    replayed(self, route);
    replayed(self, pass);
    expect_came(self, "epx_group_check", epx_group_check(s->session.group), EPX_OK);
    replayed(self, route);
    world_meet(self);
    if (self->rank == 1) {
        sleep_ms(1500);
    } else {
        int waited = replayed(self, pass);
        expect(self, waited >= 400 && waited < 5000, "the device waited %d ms, not 500", waited);
        epx_status_t status = epx_group_check(s->session.group);
        expect(self, status == EPX_ERR_TIMEOUT || status == EPX_ERR_PEER, "epx_group_check gave %s (%s)",
               epx_status_name(status), epx_last_error());
        expect_text(self, "a wait that ended", "dispatch, wave 0, lane 0, slot", "rank 1", NULL);
    }
    world_meet(self);
    if (self->rank == 1) {
        replayed(self, pass);
        epx_status_t status = epx_group_check(s->session.group);
        expect(self, status == EPX_ERR_PEER, "who comes too late got %s (%s)", epx_status_name(status),
               epx_last_error());
    }
}

static void late_replay_rank(rank_t *self)
{
    step_t s = {.plan = NULL};
    dice_t dice = {.state = 5 + (uint64_t)self->rank};
    if (!session_open(&s.session, self, self->arg, NULL))
        return;
    expect_status(self, "epx_plan_create", epx_plan_create(s.session.group, 0, NULL, &s.plan), EPX_OK);
    int waves = epx_plan_waves(s.plan);
    step_new(&s, waves);
    step_draw(&s, &dice);
    step_make(&s); /* once without a graph: what is asked of the driver once is asked */
    drained();
    void *route = recorded(self, &s, step_route), *pass = recorded(self, &s, step_forward);
    if (route != NULL && pass != NULL)
        late_replays(&s, route, pass);
    epx_cuda_record_destroy(route);
    epx_cuda_record_destroy(pass);
    epx_plan_destroy(&s.plan);
    step_free(&s, waves);
    session_close(&s.session);
}

Test(nccl, a_wait_in_a_replayed_graph_ends_and_names_who_did_not_come)
{
    if (gpus() < 2)
        cr_skip_test("needs two GPUs");
    problem_t *problem = problem_for(0, gpus());
    problem->arm.dropless = 1;
    problem->timeout_ms = 500;
    world_may_warn();
    world_run(gpus(), late_replay_rank, problem);
    problem_free(problem);
}

static void run_impatient(void (*play)(rank_t *))
{
    problem_t *problem = problem_for(0, gpus());
    problem->timeout_ms = 500;
    world_may_warn();
    world_run(gpus(), play, problem);
    problem_free(problem);
}

Test(nccl, a_wait_ends_on_the_device_and_names_who_did_not_come)
{
    if (gpus() < 2)
        cr_skip_test("needs two GPUs");
    run_impatient(late_rank);
}

/* ---- by sends and receives ------------------------------------------------------------------------------------ */

/* There the host waits, so the call that waits returns the error. */
static void late_sender(rank_t *self)
{
    const problem_t *problem = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    if (!session_open(&session, self, problem, NULL))
        return;
    expect_status(self, "epx_plan_create", epx_plan_create(session.group, 0, NULL, &plan), EPX_OK);
    expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK);
    epx_batch_t batch = EPX_BATCH_INIT;
    world_meet(self);
    if (self->rank != 1) { /* who does not come */
        int64_t begin = now_ms();
        epx_status_t status = epx_dispatch(plan, 0, problem->x[self->rank], &batch, rank_stream());
        int64_t waited = now_ms() - begin;
        expect(self, status == EPX_ERR_TIMEOUT || status == EPX_ERR_PEER, "epx_dispatch gave %s (%s)",
               epx_status_name(status), epx_last_error());
        expect(self, waited >= 400 && waited < 3000, "the call waited %d ms, not 500", (int)waited);
        expect_text(self, "a wait that ended", "dispatch, wave 0, lane 0, slot 0", "rank 1", NULL);
    }
    world_meet(self);
    sleep_ms(100); /* the news travels */
    if (self->rank == 1) {
        epx_status_t status = epx_dispatch(plan, 0, problem->x[self->rank], &batch, rank_stream());
        expect_came(self, "who comes too late", status, EPX_ERR_PEER);
    }
    world_meet(self);
    epx_plan_destroy(&plan);
    session_close(&session);
}

Test(sends, a_wait_ends_and_names_who_did_not_come)
{
    if (gpus() < 2)
        cr_skip_test("needs two GPUs");
    run_impatient(late_sender);
}
