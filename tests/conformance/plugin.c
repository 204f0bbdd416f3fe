/*
 * Transports from outside: the example, built outside the tree and loaded by its path, and plug-ins that are
 * none. SPDX-License-Identifier: Apache-2.0
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/drive.h"
#include "support/folder.h"
#include "support/memory.h"
#include "support/pieces.h"

TestSuite(plugin, .init = clean_environment);

/* The test programs are told where the build lies; by hand they run in the root of the source tree. */
static const char *from_environment(const char *name, const char *otherwise)
{
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}

typedef struct built {
    char folder[FOLDER_BYTES], path[128];
} built_t;

/* -z defs: the linker refuses any symbol that neither the plug-in nor libc has, so nothing of the library is
 * used. */
static void build_example(built_t *b)
{
    char command[512];
    folder_make(b->folder, "/tmp");
    snprintf(b->path, sizeof(b->path), "%s/libworst_case.so", b->folder);
    snprintf(command, sizeof(command),
             "%s -std=c11 -O2 -Wall -Wextra -Werror -fPIC -shared -Wl,-z,defs -Iinclude -o %s "
             "examples/plugin/worst_case.c",
             from_environment("TEST_CC", "cc"), b->path);
    cr_assert_eq(system(command), 0, "this failed: %s", command);
}

static void remove_example(const built_t *b)
{
    cr_assert_eq(folder_remove(b->folder), 0, "%s stays", b->folder);
}

/* Its rows stand like those of ragged with one chunk that drops nothing. */
static arm_t arm_of(const built_t *b)
{
    arm_t arm = *arm_named("ragged_dropless");
    arm.name = "worst_case";
    arm.transport = b->path;
    arm.waves = 0;
    arm.accept = EPX_ACCEPT_DEFAULT;
    arm.wire = EPX_WIRE_DEFAULT;
    return arm;
}

/* The oracle of a plug-in's problem: one wave. */
static oracle_t *one_wave(const problem_t *p)
{
    problem_t *same = (problem_t *)(size_t)p;
    arm_t arm = p->arm;
    same->arm.waves = 1;
    same->arm.accept = EPX_ACCEPT_PREFIX;
    oracle_t *o = oracle_new(p, EPX_WIRE_ASSIGNMENT);
    oracle_sums(o);
    same->arm = arm;
    return o;
}

static void check_example(problem_t *p, schedule_t schedule, int passes)
{
    oracle_t *o = one_wave(p);
    trial_run(&(trial_t){.problem = p,
                         .oracle = o,
                         .schedule = schedule,
                         .backward = 1,
                         .into = (int)schedule % 2,
                         .passes = passes});
    oracle_free(o);
    problem_free(p);
}

Test(plugin, example_gives_full_correct_steps)
{
    only_on_host("the example stores rows by the host's processor");
    only_with_stores("the example stores rows in its peers' memory");
    static const struct {
        int ranks, experts, top_k, width, tokens;
    } shapes[] = {{1, 3, 2, 5, 4}, {2, 5, 3, 100, 9}, {3, 7, 2, 8, 1}, {4, 2, 2, 3, 8}, {6, 12, 4, 33, 5}};
    built_t built;
    build_example(&built);
    arm_t arm = arm_of(&built);
    for (int i = 0; i < 15; i++) {
        problem_t *p = problem_new(&arm, shapes[i % 5].ranks, shapes[i % 5].experts, shapes[i % 5].top_k,
                                   shapes[i % 5].width, shapes[i % 5].tokens);
        p->row_type = (epx_type_t)(EPX_FP32 + i % 3);
        p->out_type = i % 2 ? EPX_FP32 : EPX_TYPE_DEFAULT;
        p->row_align = i % 4 ? 1 : 8;
        p->aux_bytes = i % 3 ? 0 : 7;
        problem_inputs(p, (pattern_t)(i % PATTERNS), NULL, 900 + (uint64_t)i);
        check_example(p, (schedule_t)(i % SCHEDULES), 2);
    }
    remove_example(&built);
}

Test(plugin, example_is_chosen_by_the_environment)
{
    only_on_host("the example stores rows by the host's processor");
    only_with_stores("the example stores rows in its peers' memory");
    built_t built;
    build_example(&built);
    arm_t arm = arm_of(&built);
    arm.transport = "ragged"; /* the program's wish, which the environment overrides */
    setenv("EPX_TRANSPORT", built.path, 1);
    problem_t *p = problem_new(&arm, 3, 7, 2, 5, 8);
    problem_inputs(p, UNIFORM, NULL, 5);
    check_example(p, SERIAL, 1);
    remove_example(&built);
}

static void refused_rank(rank_t *self)
{
    problem_t *p = self->arg;
    epx_group_config_t config = problem_config(p);
    epx_group_h group = NULL;
    config.capacity_factor = 1.5;
    expect_status(self, "worst_case with a capacity", epx_group_open(self->comm, &config, &group),
                  EPX_ERR_UNSUPPORTED);
    expect_text(self, "worst_case with a capacity", "worst_case", "dropless", NULL);
    config = problem_config(p);
    config.overflow = EPX_OVERFLOW_SPILL;
    expect_status(self, "worst_case with overflow", epx_group_open(self->comm, &config, &group),
                  EPX_ERR_UNSUPPORTED);
}

Test(plugin, example_says_why_not)
{
    only_on_host("the example stores rows by the host's processor");
    only_with_stores("the example stores rows in its peers' memory");
    built_t built;
    build_example(&built);
    arm_t arm = arm_of(&built);
    problem_t *p = problem_new(&arm, 2, 7, 2, 5, 8);
    world_run(2, refused_rank, p);
    problem_free(p);
    remove_example(&built);
}

/* Its variables have its name as a prefix. */
static void prefixed_rank(rank_t *self)
{
    problem_t *p = self->arg;
    epx_group_config_t config = problem_config(p);
    epx_group_h group = NULL;
    config.capacity_factor = 0;
    expect_status(self, "epx_group_open", epx_group_open(self->comm, &config, &group), EPX_OK);
    epx_group_close(&group);
}

Test(plugin, prefixed_variables_of_a_plugin)
{
    only_on_host("the example stores rows by the host's processor");
    only_with_stores("the example stores rows in its peers' memory");
    built_t built;
    build_example(&built);
    arm_t arm = arm_of(&built);
    setenv("EPX_CAPACITY_FACTOR", "1.5", 1);
    setenv("EPX_WORST_CASE_CAPACITY_FACTOR", "dropless", 1);
    problem_t *p = problem_new(&arm, 2, 7, 2, 5, 8);
    world_run(2, prefixed_rank, p);
    problem_free(p);
    remove_example(&built);
}

/* A failed route of a plug-in is told like any other, and recovered from. */
static void failed_rank(rank_t *self)
{
    trial_t *trial = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    if (!session_open(&session, self, trial->problem, NULL))
        return;
    epx_plan_create(session.group, 0, NULL, &plan);
    for (int round = 0; round < 2; round++) {
        buffer_t ids, weights;
        epx_routing_t routing = session_routing(&session, &ids, &weights);
        int32_t bad = 7;
        if (self->rank == 1 && round == 0)
            memcpy(ids.data, &bad, sizeof(bad));
        if (self->rank == 1 && round == 1)
            routing.tokens = 9;
        epx_status_t mine = round ? EPX_ERR_ARG : EPX_ERR_ROUTING;
        expect_status(self, "epx_plan_route", epx_plan_route(plan, &routing, rank_stream()),
                      self->rank == 1 ? mine : EPX_ERR_PEER);
        buffer_free(&ids, self, "ids");
        buffer_free(&weights, self, "weights");
    }
    expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK);
    pass_t pass = {.session = &session, .plan = plan, .o = trial->oracle};
    if (pass_forward(&pass) && pass_backward(&pass))
        pass_stats(&pass);
    pass_free(&pass);
    epx_plan_destroy(&plan);
    session_close(&session);
}

Test(plugin, example_after_failed_routes)
{
    only_on_host("the example stores rows by the host's processor");
    only_with_stores("the example stores rows in its peers' memory");
    built_t built;
    build_example(&built);
    arm_t arm = arm_of(&built);
    trial_t trial = {.problem = problem_new(&arm, 3, 7, 2, 5, 8)};
    problem_inputs(trial.problem, UNIFORM, (int[]){8, 8, 8}, 5);
    trial.oracle = one_wave(trial.problem);
    world_run(3, failed_rank, &trial);
    oracle_free(trial.oracle);
    problem_free(trial.problem);
    remove_example(&built);
}

/* ---- plug-ins that are none ------------------------------------------------------------------------------------------ */

typedef struct broken {
    const char *file;
    epx_status_t status;
    const char *word;
} broken_t;

static const broken_t broken[] = {
    {"missing.so", EPX_ERR_ARG, "missing.so"},
    {"no_symbol.so", EPX_ERR_ARG, "epx_transport_plugin"},
    {"no_table.so", EPX_ERR_ARG, "table"},
    {"other_abi.so", EPX_ERR_MISMATCH, "ABI"},
    {"other_size.so", EPX_ERR_MISMATCH, "bytes"},
    {"holes.so", EPX_ERR_ARG, "empty"},
    {"taken_name.so", EPX_ERR_ARG, "ragged"},
    {"unwilling.so", EPX_ERR_UNSUPPORTED, "the stub never runs"},
};

static void broken_rank(rank_t *self)
{
    problem_t *p = self->arg;
    for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
        char path[512];
        epx_group_config_t config = problem_config(p);
        epx_group_h group = NULL;
        snprintf(path, sizeof(path), "%s/tests/plugins/%s", from_environment("TEST_BUILD", "build"),
                 broken[i].file);
        config.transport = path;
        self->at = broken[i].file;
        expect_status(self, broken[i].file, epx_group_open(self->comm, &config, &group), broken[i].status);
        expect_text(self, broken[i].file, broken[i].word, NULL);
    }
}

Test(plugin, broken_plugins_are_named)
{
    only_on_host("plug-ins are not built for this runner");
    problem_t *p = problem_new(arm_named("ragged"), 2, 7, 2, 5, 8);
    world_run(2, broken_rank, p);
    problem_free(p);
}

/* One rank cannot open it: nobody has a group, nothing leaks, and the comm still works. */
static void half_open_rank(rank_t *self)
{
    problem_t *p = self->arg;
    char path[512];
    memory_t memory;
    memory_new(&memory);
    epx_group_config_t config = problem_config(p);
    epx_group_h group = NULL;
    snprintf(path, sizeof(path), "%s/tests/plugins/fails_to_open.so",
             from_environment("TEST_BUILD", "build"));
    config.transport = path;
    config.allocator = &memory.allocator;
    epx_status_t status = epx_group_open(self->comm, &config, &group);
    expect_status(self, "fails_to_open", status, self->rank == 1 ? EPX_ERR_FABRIC : EPX_ERR_PEER);
    expect_text(self, "fails_to_open", "rank 1", NULL);
    world_meet(self);
    memory_end(&memory, "a group that did not open");
    session_t session;
    if (session_open(&session, self, p, NULL))
        session_close(&session);
}

Test(plugin, a_plugin_that_opens_on_some_ranks_only)
{
    only_on_host("plug-ins are not built for this runner");
    problem_t *p = problem_new(arm_named("ragged"), 3, 7, 2, 5, 8);
    world_run(3, half_open_rank, p);
    problem_free(p);
}
