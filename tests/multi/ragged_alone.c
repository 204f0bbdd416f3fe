/* A combine of a rank alone: who makes its sums, and that they are the same. SPDX-License-Identifier:
 * Apache-2.0 */
#include <criterion/criterion.h>
#include <stdatomic.h>

#include <epx/kernels_ragged.h>

#include "device/registry.h"
#include "support/drive.h"

static void end(void);
TestSuite(ragged_alone, .init = clean_environment, .fini = end);

enum { PASSES = 2, TOKENS = 5, ROOM = 9, WIDTH = 6 };

/* Launches: sums that go to memory, and those that are made where they are added. */
static atomic_int returns, made_last, made_early;

static epx_status_t watch_return(const epx_k_ragged_return_t *args, epx_stream_t stream)
{
    atomic_fetch_add(&returns, 1);
    return test_device()->kernels->ragged_return(args, stream);
}

static epx_status_t watch_combine(const epx_k_combine_t *args, epx_stream_t stream)
{
    atomic_fetch_add(&made_last, args->sums.y != NULL);
    atomic_fetch_add(&made_early, args->early != 0);
    return test_device()->kernels->combine(args, stream);
}

/* As many tokens as are soon: the routing's own, not what there is room for. */
static int64_t soon;
static int sums_soon(int64_t tokens, int32_t width, epx_type_t row_type)
{
    return tokens <= soon && width == WIDTH && row_type == EPX_FP32;
}

static epx_kernels_t watching;
static epx_device_ops_t watched;

/* The device of the run, watched. */
static void watch(void)
{
    watching = *test_device()->kernels;
    watching.ragged_return = watch_return;
    watching.combine = watch_combine;
    watching.sums_soon = sums_soon;
    watched = *test_device();
    watched.kernels = &watching;
    epx_device_stand_in(test_device()->name, &watched);
}

static void end(void) { epx_device_stand_in(test_device()->name, test_device()); }

typedef struct work {
    problem_t *problem;
    oracle_t *oracle;
    schedule_t schedule;
    int budget;
    epx_check_t check;
} work_t;

static void pass_rank(rank_t *self)
{
    const work_t *work = self->arg;
    epx_group_config_t config = problem_config(work->problem);
    session_t session;
    epx_plan_h plan = NULL;
    config.sm_budget = work->budget;
    config.check = work->check;
    if (!session_open(&session, self, work->problem, &config))
        return;
    expect_status(self, "epx_plan_create", epx_plan_create(session.group, 0, NULL, &plan), EPX_OK);
    for (int i = 0; i < PASSES; i++) {
        expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK);
        pass_t pass = {.session = &session, .plan = plan, .o = work->oracle, .schedule = work->schedule};
        pass_forward(&pass);
        pass_free(&pass);
    }
    epx_plan_destroy(&plan);
    session_close(&session);
}

/* Passes of one arm, compared with the oracle: combines of a rank, and how many of them made sums last. */
static void expect_sums(const char *arm, int ranks, int top_k, work_t work, int last)
{
    const arm_t *of = arm_named(arm);
    work.problem = problem_new(of, ranks, 40, top_k, WIDTH, ROOM);
    problem_inputs(work.problem, HOLES, (int[]){TOKENS, TOKENS}, 5);
    work.oracle = oracle_of(work.problem);
    world_note("%s, %d ranks, K = %d, schedule %d, budget %d, check %d", arm, ranks, top_k,
               (int)work.schedule, work.budget, (int)work.check);
    atomic_store(&returns, 0), atomic_store(&made_last, 0), atomic_store(&made_early, 0);
    world_run(ranks, pass_rank, &work);
    int combines = PASSES * ranks * of->waves;
    cr_expect_eq(atomic_load(&made_last), last ? combines : 0, "%s: %d of %d combines made sums last", arm,
                 atomic_load(&made_last), combines);
    cr_expect(last ? atomic_load(&returns) == 0 : atomic_load(&returns) >= combines,
              "%s: %d sums went to memory", arm, atomic_load(&returns));
    int early = last && errors_come_late() && work.schedule != SPLIT; /* waits are kernels, right ahead */
    cr_expect_eq(atomic_load(&made_early), early ? combines : 0, "%s: %d of %d combines began early", arm,
                 atomic_load(&made_early), combines);
    oracle_free(work.oracle);
    problem_free(work.problem);
}

Test(ragged_alone, sums_are_made_where_they_are_added)
{
    static const char *const names[] = {"ragged_rank", "ragged_rank_fair", "ragged_indexed"};
    watch();
    soon = TOKENS;
    for (int i = 0; i < 3; i++)
        for (int schedule = 0; schedule < SCHEDULES; schedule++)
            expect_sums(names[i], 1, 3, (work_t){.schedule = (schedule_t)schedule, .check = EPX_CHECK_OFF},
                        1);
    expect_sums("ragged_rank", 1, EPX_SUMS_COLUMNS_MAX, (work_t){.check = EPX_CHECK_OFF}, 1);
}

/* Rows of others, a budget, checks that look at rows in memory, too many columns for a warp, and tokens
 * enough that memory is no detour. */
Test(ragged_alone, elsewhere_sums_go_to_memory)
{
    watch();
    soon = TOKENS;
    expect_sums("ragged_rank", 2, 3, (work_t){.check = EPX_CHECK_OFF}, 0);
    expect_sums("ragged_rank", 1, 3, (work_t){.budget = 4, .check = EPX_CHECK_OFF}, 0);
    expect_sums("ragged_rank", 1, 3, (work_t){.check = EPX_CHECK_CANARY}, 0);
    expect_sums("ragged_rank", 1, 3, (work_t){.check = EPX_CHECK_FULL}, 0);
    expect_sums("ragged_rank", 1, EPX_SUMS_COLUMNS_MAX + 1, (work_t){.check = EPX_CHECK_OFF}, 0);
    soon = TOKENS - 1;
    expect_sums("ragged_rank", 1, 3, (work_t){.check = EPX_CHECK_OFF}, 0);
}
