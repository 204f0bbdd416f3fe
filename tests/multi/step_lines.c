/*
 * The lines of EPX_STATS as a reader of JSON sees them: any name, any locale, and waits that are the step's
 * own. SPDX-License-Identifier: Apache-2.0
 */
#include <criterion/criterion.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/folder.h"
#include "support/world.h"
#include "tools/common/json_read.h"

TestSuite(step_lines, .init = clean_environment);

enum { EXPERTS = 4, WIDTH = 8, TOKENS = 4, LATE_MS = 50, STEPS = 2 };

typedef struct job {
    const char *name;
    double factor;
    int steps;
} job_t;

/* One pass, to which rank 1 comes late, in the first step; none in the others. */
static void first_step(rank_t *self, epx_plan_h plan)
{
    static const int32_t ids[TOKENS] = {0, 1, 2, 3};
    static const float weights[TOKENS] = {1, 1, 1, 1};
    static const float x[TOKENS * WIDTH];
    static float y[2][2 * TOKENS * EXPERTS * WIDTH], out[2][TOKENS * WIDTH];
    epx_routing_t routing = EPX_ROUTING_INIT;
    routing.tokens = TOKENS;
    routing.ids = ids;
    routing.weights = weights;
    expect_status(self, "route", epx_plan_route(plan, &routing, NULL), EPX_OK);
    world_meet(self);
    if (self->rank == 1)
        sleep_ms(LATE_MS);
    for (int wave = 0; wave < epx_plan_waves(plan); wave++) {
        epx_batch_t batch = EPX_BATCH_INIT;
        expect_status(self, "dispatch", epx_dispatch(plan, wave, x, &batch, NULL), EPX_OK);
        expect_status(self, "combine", epx_combine(plan, wave, y[self->rank], out[self->rank], NULL), EPX_OK);
    }
}

static void steps_rank(rank_t *self)
{
    const job_t *job = self->arg;
    epx_group_config_t config = EPX_GROUP_CONFIG_INIT;
    epx_plan_stats_t before = EPX_PLAN_STATS_INIT, after = EPX_PLAN_STATS_INIT;
    epx_group_h group = NULL;
    epx_plan_h plan = NULL;
    config.name = job->name;
    config.experts = EXPERTS;
    config.top_k = 1;
    config.width = WIDTH;
    config.tokens_max = TOKENS;
    config.transport = "ragged";
    config.capacity_factor = job->factor;
    expect_status(self, "epx_group_open", epx_group_open(self->comm, &config, &group), EPX_OK);
    expect_status(self, "epx_plan_create", epx_plan_create(group, 0, NULL, &plan), EPX_OK);
    first_step(self, plan);
    expect_status(self, "epx_plan_stats", epx_plan_stats(plan, &before, NULL), EPX_OK);
    for (int step = 0; step < job->steps; step++)
        expect_status(self, "epx_step", epx_step(group), EPX_OK);
    expect_status(self, "epx_plan_stats", epx_plan_stats(plan, &after, NULL), EPX_OK);
    expect(self, before.wait_peer == after.wait_peer,
           "the plan waited for %d, and behind the steps for %d; a cut is none of its route's",
           before.wait_peer, after.wait_peer);
    epx_plan_destroy(&plan);
    epx_group_close(&group);
}

/* Rank 0's lines, each read as JSON, to line [STEPS]. */
static void read_lines(const char *folder, const char *file, epx_json_document_t *line, int lines)
{
    char path[120], text[1200], problem[200];
    snprintf(path, sizeof(path), "%s/%s", folder, file);
    FILE *stream = fopen(path, "r");
    cr_assert_not_null(stream, "%s is not there", path);
    for (int i = 0; i < lines; i++) {
        cr_assert_not_null(fgets(text, sizeof(text), stream), "%s has %d lines, not %d", path, i, lines);
        cr_assert_eq(epx_json_read(text, strlen(text), &line[i], problem, sizeof(problem)), 0, "%s: %s", text,
                     problem);
    }
    fclose(stream);
}

static void play(job_t job, const char *file, epx_json_document_t *line)
{
    char folder[FOLDER_BYTES];
    folder_make(folder, "/tmp");
    setenv("EPX_STATS", folder, 1);
    world_run(2, steps_rank, &job);
    setlocale(LC_ALL, "C"); /* for the reader */
    read_lines(folder, file, line, job.steps);
    cr_assert_eq(folder_remove(folder), 0);
}

Test(step_lines, a_name_that_json_and_folders_do_not_like)
{
    epx_json_document_t line[STEPS];
    play((job_t){"layers/0\t\"moe\\\" \xC3\xA9 \xFF", 1.5, 1}, "layers_0_\"moe\\\" \xC3\xA9 \xFF-rank0.jsonl",
         line);
    cr_assert_str_eq(epx_json_text_of(line[0].value, "group", ""), "layers/0\t\"moe\\\" \xC3\xA9 ?");
    epx_json_document_free(&line[0]);
}

Test(step_lines, a_wait_belongs_to_its_step)
{
    epx_json_document_t line[STEPS];
    play((job_t){"waits", 1.5, STEPS}, "waits-rank0.jsonl", line);
    cr_expect_geq(epx_json_number_of(line[0].value, "wait_ms", -1), 0);
    cr_expect_eq(epx_json_number_of(line[1].value, "wait_ms", -1), 0);
    cr_expect_eq(epx_json_number_of(line[1].value, "wait_ms_max", -1), 0,
                 "the wait of the step before is told again");
    cr_expect_eq(epx_json_number_of(line[1].value, "wait_peer", 0), -1,
                 "a step without waits waited for somebody");
    for (int i = 0; i < STEPS; i++)
        epx_json_document_free(&line[i]);
}

/* A locale with decimal commas, made on the spot; 0: there is nothing to make it of. */
static int choose_commas(const char *folder)
{
    char command[200];
    snprintf(command, sizeof(command), "localedef -i de_DE -f UTF-8 %s/commas > %s/log 2>&1", folder, folder);
    setenv("LOCPATH", folder, 1);
    return system(command) == 0 && setlocale(LC_ALL, "commas") != NULL;
}

Test(step_lines, decimal_commas)
{
    char folder[FOLDER_BYTES];
    epx_json_document_t line[STEPS];
    folder_make(folder, "/tmp");
    int there = choose_commas(folder);
    cr_assert_eq(folder_remove(folder), 0);
    if (!there)
        cr_skip_test("localedef has no de_DE here: the package locales is missing");
    cr_assert_str_eq(localeconv()->decimal_point, ",");
    setenv("EPX_CAPACITY_FACTOR", "1.5", 1);
    setenv("EPX_FAULT", "op=combine at=begin do=delay:1 chance=0.5", 1);
    play((job_t){"commas", 2.5, STEPS}, "commas-rank0.jsonl", line);
    cr_expect_geq(epx_json_number_of(line[0].value, "wait_ms_max", -1), 0);
    cr_assert_not_null(setlocale(LC_ALL, "commas")); /* libc keeps it, though its folder is gone */
    unsetenv("EPX_CAPACITY_FACTOR"); /* the program's own factor, 2.5, goes through text too */
    unsetenv("EPX_FAULT");
    for (int i = 0; i < STEPS; i++)
        epx_json_document_free(&line[i]);
    play((job_t){"commas", 2.5, 1}, "commas-rank0.jsonl", line);
    epx_json_document_free(&line[0]);
}
