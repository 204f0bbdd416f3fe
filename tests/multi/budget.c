/* The budget of multiprocessors reaches every kernel that moves or adds rows. SPDX-License-Identifier:
 * Apache-2.0 */
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <string.h>

#include <epx/kernels_pooled_wave.h>
#include <epx/kernels_ragged.h>

#include "device/registry.h"
#include "support/drive.h"
#include "support/guarded.h"

TestSuite(budget, .init = clean_environment);

enum { RANKS = 2, BUDGET = 5 };

/* Launches with this budget, and with another one. */
static atomic_int with, without;

/* name_kernel: counts, and goes on to the simulated device's own. */
#define WATCH(name)                                                                     \
    static epx_status_t watch_##name(const epx_k_##name##_t *args, epx_stream_t stream) \
    {                                                                                   \
        atomic_fetch_add(args->units == BUDGET ? &with : &without, 1);                  \
        return guarded_device.kernels->name(args, stream);                              \
    }
WATCH(push)
WATCH(gather)
WATCH(scatter)
WATCH(combine)
WATCH(reduce)
WATCH(take_dots)
WATCH(scale_dot)
WATCH(pooled_pack)
WATCH(ragged_return)

static epx_kernels_t watching;
static epx_device_ops_t watched;

static void watch(void)
{
    watching = *guarded_device.kernels;
    watching.push = watch_push;
    watching.gather = watch_gather;
    watching.scatter = watch_scatter;
    watching.combine = watch_combine;
    watching.reduce = watch_reduce;
    watching.take_dots = watch_take_dots;
    watching.scale_dot = watch_scale_dot;
    watching.pooled_pack = watch_pooled_pack;
    watching.ragged_return = watch_ragged_return;
    watched = guarded_device;
    watched.kernels = &watching;
    epx_device_stand_in("cuda", &watched);
}

typedef struct work {
    problem_t *problem;
    oracle_t *oracle;
} work_t;

static void pass_rank(rank_t *self)
{
    const work_t *work = self->arg;
    const problem_t *p = work->problem;
    epx_group_config_t config = problem_config(p);
    session_t session;
    epx_plan_h plan = NULL;
    config.sm_budget = BUDGET;
    if (!session_open(&session, self, p, &config))
        return;
    expect_status(self, "epx_plan_create", epx_plan_create(session.group, 0, NULL, &plan), EPX_OK);
    expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK);
    world_meet(self);
    if (self->rank == 0) /* the exchange of counts is the fabric's, and its kernels are small */
        atomic_store(&with, 0), atomic_store(&without, 0);
    world_meet(self);
    pass_t pass = {.session = &session, .plan = plan, .o = work->oracle};
    pass_forward(&pass);
    pass_backward(&pass);
    pass_free(&pass);
    epx_plan_destroy(&plan);
    session_close(&session);
}

Test(budget, every_kernel_that_moves_rows_is_told)
{
    setenv("TEST_DEVICE", "guarded", 1);
    test_device(); /* puts its own table in place, before ours */
    watch();
    for (int a = 0; a < arms_count; a++) {
        problem_t *p = problem_new(&arms[a], RANKS, 5, 2, 6, 7);
        problem_inputs(p, UNIFORM, NULL, 3);
        world_note("%s", arms[a].name);
        work_t work = {p, oracle_of(p)};
        world_run(RANKS, pass_rank, &work);
        cr_expect(atomic_load(&with) >= 6 && atomic_load(&without) == 0,
                  "%s: %d launches with the budget, %d without", arms[a].name, atomic_load(&with),
                  atomic_load(&without));
        oracle_free(work.oracle);
        problem_free(p);
    }
}
