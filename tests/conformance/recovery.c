/* Recovery of groups that nothing ails, and what may be given to it. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>

#include "support/drive.h"
#include "support/memory.h"

TestSuite(recovery, .init = clean_environment);

enum { RANKS = 3 };

/* A healthy group may be recovered too, again and again, and nothing is left behind. */
typedef struct again {
    problem_t *problem;
    oracle_t *oracle;
    memory_t memory[RANKS];
} again_t;

static void again_rank(rank_t *self)
{
    again_t *a = self->arg;
    session_t session;
    epx_group_config_t config = problem_config(a->problem);
    config.allocator = &a->memory[self->rank].allocator;
    if (!session_open(&session, self, a->problem, &config))
        return;
    world_meet(self);
    int64_t live = a->memory[self->rank].live_bytes;
    world_meet(self);
    for (int i = 0; i < 4 && !failures(); i++) {
        epx_plan_h plan = NULL;
        epx_plan_create(session.group, i % 2, NULL, &plan);
        pass_t pass = {.session = &session, .plan = plan, .o = a->oracle};
        expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK);
        pass_forward(&pass);
        pass_free(&pass);
        if (i % 2)
            epx_plan_destroy(&plan);
        expect_status(self, "epx_group_recover", epx_group_recover(session.group, NULL), EPX_OK);
        epx_plan_destroy(&plan);
        epx_group_info(session.group, &session.info);
        expect(self, (int)session.info.generation == i + 2, "generation %d", (int)session.info.generation);
        world_meet(self);
        expect(self, a->memory[self->rank].live_bytes == live, "%lld bytes before, %lld after recovery",
               (long long)live, (long long)a->memory[self->rank].live_bytes);
        world_meet(self);
    }
    if (failures())
        epx_group_abort(session.group, "test failed");
    session_close(&session);
}

ParameterizedTestParameters(recovery, again_and_again) { return basic_arms(); }

ParameterizedTest(int *arm, recovery, again_and_again)
{
    again_t a = {.problem = problem_new(&arms[*arm], RANKS, 7, 2, 5, 8)};
    problem_inputs(a.problem, UNIFORM, NULL, 6);
    a.oracle = oracle_of(a.problem);
    for (int r = 0; r < RANKS; r++)
        memory_new(&a.memory[r]);
    world_may_warn();
    world_run(RANKS, again_rank, &a);
    for (int r = 0; r < RANKS; r++)
        memory_end(&a.memory[r], "after recoveries");
    settle();
    oracle_free(a.oracle);
    problem_free(a.problem);
}

/* A bad configuration changes nothing: the rank that gave it tries again while the others wait for it. */
static void wrong_recover_rank(rank_t *self)
{
    trial_t *trial = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    epx_group_config_t config = problem_config(trial->problem);
    if (!session_open(&session, self, trial->problem, &config))
        return;
    if (self->rank == 1) {
        config.width = 0;
        expect_status(self, "epx_group_recover with H = 0", epx_group_recover(session.group, &config),
                      EPX_ERR_ARG);
        expect_text(self, "epx_group_recover with H = 0", "width", NULL);
        config.width = 5;
        config.transport = "rigged";
        expect_status(self, "epx_group_recover into nothing", epx_group_recover(session.group, &config),
                      EPX_ERR_ARG);
    }
    expect_status(self, "epx_group_recover", epx_group_recover(session.group, NULL), EPX_OK);
    expect_status(self, "epx_group_check", epx_group_check(session.group), EPX_OK);
    epx_plan_create(session.group, 0, NULL, &plan);
    epx_group_info(session.group, &session.info);
    pass_t pass = {.session = &session, .plan = plan, .o = trial->oracle};
    if (expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK))
        pass_forward(&pass);
    pass_free(&pass);
    epx_plan_destroy(&plan);
    session_close(&session);
}

ParameterizedTestParameters(recovery, with_a_bad_configuration) { return basic_arms(); }

ParameterizedTest(int *arm, recovery, with_a_bad_configuration)
{
    trial_t trial = {.problem = problem_new(&arms[*arm], RANKS, 7, 2, 5, 8)};
    problem_inputs(trial.problem, UNIFORM, NULL, 6);
    trial.oracle = oracle_of(trial.problem);
    world_may_warn();
    world_run(RANKS, wrong_recover_rank, &trial);
    oracle_free(trial.oracle);
    problem_free(trial.problem);
}

/* Survivors that disagree: all of them learn it, and can only close the group. */
typedef struct disagree {
    problem_t *problem;
    memory_t memory[RANKS];
} disagree_t;

static void disagree_rank(rank_t *self)
{
    disagree_t *d = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    epx_group_config_t config = problem_config(d->problem);
    config.allocator = &d->memory[self->rank].allocator;
    if (!session_open(&session, self, d->problem, &config))
        return;
    epx_plan_create(session.group, 0, NULL, &plan);
    config.width = self->rank == 1 ? 6 : 5;
    expect_status(self, "epx_group_recover with two widths", epx_group_recover(session.group, &config),
                  EPX_ERR_MISMATCH);
    expect(self, epx_group_check(session.group) != EPX_OK, "the group counts as good");
    expect_status(self, "a route after a failed recovery", session_route(&session, plan), EPX_ERR_ABORTED);
    expect(self, epx_group_recover(session.group, NULL) != EPX_OK, "a group that ended was recovered");
    epx_group_abort(session.group, "it has ended");
    epx_plan_destroy(&plan);
    session_close(&session);
    if (session_open(&session, self, d->problem, NULL))
        session_close(&session);
}

ParameterizedTestParameters(recovery, survivors_that_disagree) { return basic_arms(); }

ParameterizedTest(int *arm, recovery, survivors_that_disagree)
{
    disagree_t d = {.problem = problem_new(&arms[*arm], RANKS, 7, 2, 5, 8)};
    problem_inputs(d.problem, UNIFORM, NULL, 6);
    for (int r = 0; r < RANKS; r++)
        memory_new(&d.memory[r]);
    world_may_warn();
    world_run(RANKS, disagree_rank, &d);
    for (int r = 0; r < RANKS; r++)
        memory_end(&d.memory[r], "after a failed recovery");
    settle();
    problem_free(d.problem);
}
