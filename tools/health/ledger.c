/* A ledger of placements: does a fault stay with a rack, or follow a job? SPDX-License-Identifier: Apache-2.0
 */
#include "tools/health/ledger.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/json_read.h"
#include "tools/common/command_line.h"
#include "tools/common/program.h"
#include "tools/common/table.h"
#include "tools/health/health.h"

/* ---- the rule ---- */

/* A run's rack and job with their roles given: "own" is what is suspected, "other" what changes around it. */
static const char *own(const health_run_t *run, health_blame_t role)
{
    return role == HEALTH_RACK ? run->rack : run->job;
}
static const char *other(const health_run_t *run, health_blame_t role)
{
    return role == HEALTH_RACK ? run->job : run->rack;
}

/* How many different others a suspect had faults with. */
static int32_t faulty_others(const health_run_t *runs, int32_t count, health_blame_t role,
                             const char *suspect)
{
    int32_t different = 0;
    for (int32_t i = 0; i < count; i++) {
        int32_t counts = runs[i].fault && strcmp(own(&runs[i], role), suspect) == 0;
        for (int32_t j = 0; j < i; j++)
            if (runs[j].fault && strcmp(own(&runs[j], role), suspect) == 0 &&
                strcmp(other(&runs[j], role), other(&runs[i], role)) == 0)
                counts = 0;
        different += counts;
    }
    return different;
}

/* Whether those others do better away from the suspect; they must have been away. */
static int32_t better_away(const health_run_t *runs, int32_t count, health_blame_t role, const char *suspect)
{
    double with = 0, with_faults = 0, away = 0, away_faults = 0;
    for (int32_t i = 0; i < count; i++) {
        int32_t met = 0;
        for (int32_t j = 0; j < count; j++)
            met |= runs[j].fault && strcmp(own(&runs[j], role), suspect) == 0 &&
                   strcmp(other(&runs[j], role), other(&runs[i], role)) == 0;
        if (strcmp(own(&runs[i], role), suspect) == 0) {
            with++;
            with_faults += runs[i].fault;
        } else if (met) {
            away++;
            away_faults += runs[i].fault;
        }
    }
    return away > 0 && away_faults / away < with_faults / with / 2;
}

static const char *find_guilty(const health_run_t *runs, int32_t count, health_blame_t role)
{
    const char *guilty = NULL;
    int32_t most = 1;
    for (int32_t i = 0; i < count; i++) {
        const char *suspect = own(&runs[i], role);
        int32_t others = faulty_others(runs, count, role, suspect);
        if (others > most && better_away(runs, count, role, suspect)) {
            most = others;
            guilty = suspect;
        }
    }
    return guilty;
}

health_blame_t health_blame(const health_run_t *runs, int32_t count, const char **who_p)
{
    int32_t faults = 0;
    *who_p = "";
    for (int32_t i = 0; i < count; i++)
        faults += runs[i].fault;
    if (faults == 0)
        return HEALTH_NOBODY;
    const char *rack = find_guilty(runs, count, HEALTH_RACK), *job = find_guilty(runs, count, HEALTH_JOB);
    if ((rack != NULL) == (job != NULL))
        return HEALTH_UNCLEAR;
    *who_p = rack != NULL ? rack : job;
    return rack != NULL ? HEALTH_RACK : HEALTH_JOB;
}

/* ---- the file ---- */

typedef struct note {
    health_run_t run;
    int32_t said; /* bits: job, rack, fault */
} note_t;

static int take_pair(void *context, const char *key, const char *value, char *problem, size_t bytes)
{
    note_t *note = context;
    int yes = strcmp(value, "yes") == 0;
    if (strcmp(key, "job") == 0) {
        snprintf(note->run.job, sizeof note->run.job, "%s", value);
        note->said |= 1;
    } else if (strcmp(key, "rack") == 0) {
        snprintf(note->run.rack, sizeof note->run.rack, "%s", value);
        note->said |= 2;
    } else if (strcmp(key, "fault") == 0 && (yes || strcmp(value, "no") == 0)) {
        note->run.fault = yes;
        note->said |= 4;
    } else {
        snprintf(problem, bytes, "%s=%s: give job=NAME, rack=NAME and fault=yes or fault=no", key, value);
        return -1;
    }
    return 0;
}

static int append(const char *path, const char *placement)
{
    note_t note = {.said = 0};
    char name[8], problem[200] = "", *text = epx_tool_text("x:%s", placement);
    int rc = epx_read_pairs(text, name, sizeof name, take_pair, &note, problem, sizeof problem);
    free(text);
    if (rc != 0 || note.said != 7)
        return epx_tool_fail(EPX_EXIT_USAGE, "--placement: %s",
                             rc != 0 ? problem : "give all of job=NAME,rack=NAME,fault=yes|no");
    FILE *file = fopen(path, "a");
    if (file == NULL)
        return epx_tool_fail(EPX_EXIT_USAGE,
                             "cannot write the ledger %s (%s): make its folder, or name another file", path,
                             strerror(errno));
    epx_json_t json = epx_json_begin(file, 0);
    epx_json_object(&json, NULL);
    epx_json_real(&json, "time", health_clock());
    epx_json_text(&json, "job", note.run.job);
    epx_json_text(&json, "rack", note.run.rack);
    epx_json_bool(&json, "fault", note.run.fault);
    epx_json_close(&json);
    int bad = epx_json_end(&json) != 0;
    bad |= fclose(file) != 0;
    return bad ? epx_tool_fail(EPX_EXIT_USAGE, "cannot write all of the ledger %s: check the space", path)
               : EPX_EXIT_OK;
}

static int load(const char *path, health_run_t **runs_p, int32_t *count_p)
{
    char *line = NULL, problem[128];
    size_t room = 0;
    ssize_t bytes;
    int32_t number = 0, have = 0;
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return epx_tool_fail(EPX_EXIT_USAGE, "cannot read the ledger %s (%s)", path, strerror(errno));
    for (; (bytes = getline(&line, &room, file)) > 0; number++) {
        epx_json_document_t document;
        if (epx_json_read(line, (size_t)bytes, &document, problem, sizeof problem) != 0) {
            epx_tool_note("%s: line %d is no JSON and was skipped", path, number + 1);
            continue;
        }
        if (*count_p == have) {
            health_run_t *more = epx_tool_alloc((size_t)(have = have > 0 ? 2 * have : 64), sizeof *more);
            if (*count_p > 0)
                memcpy(more, *runs_p, (size_t)*count_p * sizeof *more);
            free(*runs_p);
            *runs_p = more;
        }
        const epx_json_value_t *fault = epx_json_member(&document.value[0], "fault");
        health_run_t *run = &(*runs_p)[(*count_p)++];
        snprintf(run->job, sizeof run->job, "%s", epx_json_text_of(&document.value[0], "job", "?"));
        snprintf(run->rack, sizeof run->rack, "%s", epx_json_text_of(&document.value[0], "rack", "?"));
        run->fault = fault != NULL && fault->kind == EPX_JSON_TRUE;
        epx_json_document_free(&document);
    }
    int unread = ferror(file) ? errno : 0;
    free(line);
    fclose(file);
    if (unread != 0)
        return epx_tool_fail(EPX_EXIT_USAGE,
                             "cannot read the ledger %s (%s): name a file that --placement wrote", path,
                             strerror(unread));
    return EPX_EXIT_OK;
}

/* ---- showing it ---- */

static void tally(epx_json_t *json, epx_table_t *table, const health_run_t *runs, int32_t count,
                  health_blame_t role)
{
    for (int32_t i = 0; i < count; i++) {
        int32_t all = 0, faults = 0, seen = 0;
        for (int32_t j = 0; j < count; j++) {
            if (strcmp(own(&runs[j], role), own(&runs[i], role)) != 0)
                continue;
            seen |= j < i;
            all++;
            faults += runs[j].fault;
        }
        if (seen)
            continue;
        if (json != NULL) {
            epx_json_object(json, NULL);
            epx_json_text(json, "name", own(&runs[i], role));
            epx_json_int(json, "runs", all);
            epx_json_int(json, "faults", faults);
            epx_json_close(json);
            continue;
        }
        epx_table_cell(table, "%s %s", role == HEALTH_RACK ? "rack" : "job", own(&runs[i], role));
        epx_table_cell(table, "%d", all);
        epx_table_cell(table, "%d", faults);
    }
}

static void show_json(const health_run_t *runs, int32_t count, const char *verdict, const char *who)
{
    epx_json_t json = epx_json_begin(stdout, 2);
    epx_json_object(&json, NULL);
    epx_json_text(&json, "program", "epx-health");
    epx_json_text(&json, "blame", verdict);
    epx_json_text(&json, "who", who[0] != '\0' ? who : NULL);
    epx_json_array(&json, "racks");
    tally(&json, NULL, runs, count, HEALTH_RACK);
    epx_json_close(&json);
    epx_json_array(&json, "jobs");
    tally(&json, NULL, runs, count, HEALTH_JOB);
    epx_json_close(&json);
    epx_json_close(&json);
    epx_json_end(&json);
}

int health_ledger(const char *path, const char *placement, int32_t json)
{
    static const char *const verdicts[] = {"nobody", "rack", "job", "unclear"};
    static const epx_column_t columns[] = {{"", 0}, {"runs", 1}, {"faults", 1}};
    health_run_t *runs = NULL;
    int32_t count = 0;
    const char *who = "";
    int rc = placement != NULL ? append(path, placement) : EPX_EXIT_OK;
    if (rc == EPX_EXIT_OK)
        rc = load(path, &runs, &count);
    if (rc != EPX_EXIT_OK) {
        free(runs);
        return rc;
    }
    health_blame_t blame = health_blame(runs, count, &who);
    if (json) {
        show_json(runs, count, verdicts[blame], who);
    } else {
        epx_table_t *table = epx_table_new(columns, 3);
        printf(blame == HEALTH_RACK  ? "the fault stays with rack %s: look at its hardware\n"
               : blame == HEALTH_JOB ? "the fault follows job %s: look at its code\n"
               : blame == HEALTH_NOBODY
                   ? "no fault%s\n"
                   : "nobody can tell yet%s: place the jobs otherwise and note more runs\n",
               who);
        tally(NULL, table, runs, count, HEALTH_RACK);
        tally(NULL, table, runs, count, HEALTH_JOB);
        epx_table_print(table, stdout, 2);
        epx_table_free(table);
    }
    free(runs);
    return blame == HEALTH_UNCLEAR ? EPX_EXIT_NO_VERDICT : EPX_EXIT_OK;
}
