/* Graphs over NCCL's windows that are replayed with other routing. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include "gpus/step.h"
#include "kernels/cuda/graph.h"

enum { REPLAYS = 12 };

static void replay_rank(rank_t *self)
{
    const problem_t *problem = self->arg;
    step_t s = {.plan = NULL};
    void *graph = NULL;
    dice_t dice = {.state = 77 + (uint64_t)self->rank};
    if (!session_open(&s.session, self, problem, NULL))
        return;
    expect_status(self, "epx_plan_create", epx_plan_create(s.session.group, 0, NULL, &s.plan), EPX_OK);
    int waves = epx_plan_waves(s.plan);
    step_new(&s, waves);
    step_draw(&s, &dice);
    step_make(&s); /* once without a graph: what is asked of the driver once is asked */
    drained();
    step_check(&s, -1);
    expect_came(self, "recording", epx_cuda_record_begin(rank_stream()), EPX_OK);
    step_make(&s);
    expect_came(self, "recording", epx_cuda_record_end(rank_stream(), &graph), EPX_OK);
    for (int replay = 0; replay < REPLAYS && !failures() && graph != NULL; replay++) {
        int bad = replay % 4 == 2;
        drained();
        step_draw(&s, &dice);
        if (bad && self->rank == 0) {
            *s.tokens = TOKENS;
            s.ids[TOP_K + 1] = EXPERTS;
        }
        expect_came(self, "a graph", epx_cuda_replay(graph, rank_stream()), EPX_OK);
        drained();
        epx_status_t wanted = !bad ? EPX_OK : self->rank == 0 ? EPX_ERR_ROUTING : EPX_ERR_PEER;
        if (bad) {
            expect_came(self, "epx_group_check", epx_group_check(s.session.group), wanted);
            expect_text(self, "a bad id in a replay", "rank 0", NULL);
        } else {
            step_check(&s, replay);
        }
    }
    step_draw(&s, &dice);
    step_make(&s); /* and once more without */
    drained();
    step_check(&s, REPLAYS);
    epx_cuda_record_destroy(graph);
    if (failures())
        epx_group_abort(s.session.group, "test failed");
    epx_plan_destroy(&s.plan);
    step_free(&s, waves);
    session_close(&s.session);
}

static void replay(int arm)
{
    problem_t *problem = problem_for(arm, gpus());
    problem->arm.dropless = 1;
    world_may_warn(); /* of the bad routes that nobody has asked for */
    world_note("%s", arm_names[arm]);
    world_run(gpus(), replay_rank, problem);
    problem_free(problem);
}

Test(nccl, graph_of_ragged_on_the_rank_wire) { replay(0); }
Test(nccl, graph_of_ragged) { replay(1); }
Test(nccl, graph_of_pooled_wave) { replay(2); }
Test(nccl, graph_of_ring) { replay(3); }

/* ---- by sends and receives, which no graph can hold --------------------------------------------------------------- */

static void capture_rank(rank_t *self)
{
    const problem_t *problem = self->arg;
    step_t s = {.plan = NULL};
    void *graph = NULL;
    dice_t dice = {.state = 5 + (uint64_t)self->rank};
    epx_routing_t routing = EPX_ROUTING_INIT;
    if (!session_open(&s.session, self, problem, NULL))
        return;
    expect_status(self, "epx_plan_create", epx_plan_create(s.session.group, 0, NULL, &s.plan), EPX_OK);
    int waves = epx_plan_waves(s.plan);
    step_new(&s, waves);
    step_draw(&s, &dice);
    routing.ids = s.ids;
    routing.id_type = EPX_INT32;
    routing.weights = s.weights;
    routing.tokens_device = s.tokens;
    world_meet(self);
    expect_came(self, "recording", epx_cuda_record_begin(rank_stream()), EPX_OK);
    epx_status_t status = epx_plan_route(s.plan, &routing, rank_stream());
    expect(self, status == EPX_ERR_UNSUPPORTED, "a captured route gave %s (%s)", epx_status_name(status),
           epx_last_error());
    expect_text(self, "a route that is captured", "graph", NULL);
    (void)epx_cuda_record_end(rank_stream(), &graph);
    epx_cuda_record_destroy(graph);
    world_meet(self);
    epx_group_abort(s.session.group, "the test is over");
    epx_plan_destroy(&s.plan);
    /* Memory of a GPU is given back when all of that GPU is idle. Couriers that tell of the end keep it busy,
     * each until another rank's courier gets at its own GPU; so the group is closed first. */
    session_close(&s.session);
    step_free(&s, waves);
}

Test(sends, a_graph_is_refused)
{
    problem_t *problem = problem_for(0, gpus());
    world_may_warn();
    world_run(gpus(), capture_rank, problem);
    problem_free(problem);
}
