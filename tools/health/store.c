/* Readings with their time, in memory and in a file. SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/common/json_read.h"
#include "tools/common/program.h"
#include "tools/health/health.h"

/* Counters are kept as doubles in JSON by many readers: exact up to 2^53, which none of the judged ones
 * reaches. */

double health_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void *grow(void *old, int32_t used, int32_t room, size_t bytes)
{
    void *new = epx_tool_alloc((size_t)room, bytes);
    if (used > 0)
        memcpy(new, old, (size_t)used * bytes);
    free(old);
    return new;
}

static health_series_t *find(health_store_t *store, const char *link, const char *name)
{
    for (int32_t i = 0; i < store->count; i++)
        if (strcmp(store->series[i].name, name) == 0 && strcmp(store->series[i].link, link) == 0)
            return &store->series[i];
    if (store->count == store->room) {
        store->room = store->room > 0 ? 2 * store->room : 64;
        store->series = grow(store->series, store->count, store->room, sizeof *store->series);
    }
    health_series_t *series = &store->series[store->count++];
    snprintf(series->link, sizeof series->link, "%s", link);
    snprintf(series->name, sizeof series->name, "%s", name);
    return series;
}

static void add(health_store_t *store, const char *link, const char *name, double time_s, int32_t known,
                int32_t code, uint64_t value)
{
    health_series_t *series = find(store, link, name);
    if (series->points == series->room) {
        series->room = series->room > 0 ? 2 * series->room : 8;
        series->point = grow(series->point, series->points, series->room, sizeof *series->point);
    }
    series->point[series->points++] = (epx_health_point_t){.time_s = time_s, .known = known, .value = value};
    series->code = code;
}

void health_store_take(void *context, const epx_health_reading_t *reading)
{
    health_store_t *store = context;
    add(store, reading->link, reading->name, store->now_s, reading->known, reading->code, reading->value);
}

void health_store_free(health_store_t *store)
{
    for (int32_t i = 0; i < store->count; i++)
        free(store->series[i].point);
    free(store->series);
    *store = (health_store_t){0};
}

/* ---- the file ---- */

static void take_line(const epx_json_value_t *line, const char *host, health_store_t *store)
{
    double time_s = epx_json_number_of(line, "time", -1);
    const epx_json_value_t *readings = epx_json_member(line, "readings");
    if (strcmp(epx_json_text_of(line, "host", ""), host) != 0 || time_s < 0)
        return;
    for (const epx_json_value_t *link = epx_json_first(readings); link != NULL;
         link = epx_json_next(readings, link))
        for (const epx_json_value_t *v = epx_json_first(link); v != NULL; v = epx_json_next(link, v)) {
            int32_t known = v->kind == EPX_JSON_NUMBER && v->number >= 0;
            add(store, link->key, v->key, time_s, known, 0, known ? (uint64_t)v->number : 0);
        }
}

int health_history_load(const char *path, const char *host, health_store_t *store, int32_t *skipped_p)
{
    char *line = NULL, problem[128];
    size_t room = 0;
    ssize_t bytes;
    *skipped_p = 0;
    FILE *file = fopen(path, "r");
    if (file == NULL && errno == ENOENT)
        return EPX_EXIT_OK;
    if (file == NULL)
        return epx_tool_fail(EPX_EXIT_USAGE, "cannot read the history %s (%s): name another file", path,
                             strerror(errno));
    while ((bytes = getline(&line, &room, file)) > 0) {
        epx_json_document_t document;
        if (epx_json_read(line, (size_t)bytes, &document, problem, sizeof problem) != 0) {
            (*skipped_p)++;
            continue;
        }
        take_line(&document.value[0], host, store);
        epx_json_document_free(&document);
    }
    int unread = ferror(file) ? errno : 0;
    free(line);
    fclose(file);
    if (unread != 0)
        return epx_tool_fail(EPX_EXIT_USAGE, "cannot read the history %s (%s): name another file", path,
                             strerror(unread));
    return EPX_EXIT_OK;
}

static void write_readings(epx_json_t *json, const health_store_t *store)
{
    for (int32_t i = 0; i < store->count; i++) {
        const char *link = store->series[i].link;
        int32_t seen = 0;
        for (int32_t j = 0; j < i; j++)
            seen |= strcmp(store->series[j].link, link) == 0;
        if (seen)
            continue;
        epx_json_object(json, link);
        for (int32_t j = i; j < store->count; j++) {
            const health_series_t *series = &store->series[j];
            const epx_health_point_t *last = &series->point[series->points - 1];
            if (strcmp(series->link, link) != 0 || last->time_s < store->now_s)
                continue; /* not of this sample: the link or the counter has gone */
            if (last->known)
                epx_json_uint(json, series->name, last->value);
            else
                epx_json_null(json, series->name);
        }
        epx_json_close(json);
    }
}

int health_history_append(const char *path, const char *host, const health_store_t *store)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *memory = open_memstream(&text, &bytes), *file = fopen(path, "a");
    if (memory == NULL || file == NULL) {
        if (memory != NULL)
            fclose(memory);
        if (file != NULL)
            fclose(file);
        free(text);
        return epx_tool_fail(EPX_EXIT_USAGE,
                             "cannot write the history %s (%s): make its folder, or name another file", path,
                             strerror(errno));
    }
    epx_json_t json = epx_json_begin(memory, 0);
    epx_json_object(&json, NULL);
    epx_json_real(&json, "time", store->now_s);
    epx_json_text(&json, "host", host);
    epx_json_object(&json, "readings");
    write_readings(&json, store);
    epx_json_close(&json);
    epx_json_close(&json);
    int bad = epx_json_end(&json) != 0;
    bad |= fclose(memory) != 0;
    bad |= fwrite(text, 1, bytes, file) != bytes;
    bad |= fclose(file) != 0;
    free(text);
    return bad ? epx_tool_fail(EPX_EXIT_USAGE, "cannot write all of the history %s: check the space", path)
               : EPX_EXIT_OK;
}
