/* Reports of several hosts, by rack. SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/json_read.h"
#include "tools/common/program.h"
#include "tools/common/table.h"
#include "tools/health/health.h"

typedef struct host {
    char name[128], rack[64], why[400];
    epx_health_verdict_t verdict;
    double time_s;
} host_t;

static epx_health_verdict_t verdict_of(const char *text)
{
    for (int v = EPX_HEALTH_OK; v <= EPX_HEALTH_CORDON; v++)
        if (strcmp(text, epx_health_verdict_name(v)) == 0)
            return (epx_health_verdict_t)v;
    return EPX_HEALTH_CANNOT_TELL;
}

static char *read_whole(const char *path, size_t *bytes_p)
{
    FILE *file = fopen(path, "r");
    char *text = NULL;
    size_t room = 0;
    if (file == NULL)
        return NULL;
    ssize_t bytes = getdelim(&text, &room, '\0', file);
    fclose(file);
    if (bytes < 0) {
        free(text);
        errno = errno != 0 ? errno : ENODATA;
        return NULL;
    }
    *bytes_p = (size_t)bytes;
    return text;
}

/* The links of the worst verdict, with their first reason. */
static void say_why(const epx_json_value_t *report, host_t *host)
{
    const epx_json_value_t *links = epx_json_member(report, "links");
    size_t at = 0;
    for (const epx_json_value_t *link = epx_json_first(links); link != NULL;
         link = epx_json_next(links, link)) {
        if (host->verdict == EPX_HEALTH_OK ||
            verdict_of(epx_json_text_of(link, "verdict", "")) != host->verdict || at >= sizeof host->why - 1)
            continue;
        at += (size_t)snprintf(host->why + at, sizeof host->why - at, "%s%s %s", at > 0 ? "; " : "",
                               epx_json_text_of(link, "link", "?"), epx_json_text_of(link, "reasons", ""));
    }
}

static int read_report(const char *path, host_t *host)
{
    size_t bytes = 0;
    char problem[160];
    epx_json_document_t document;
    char *text = read_whole(path, &bytes);
    if (text == NULL)
        return epx_tool_fail(EPX_EXIT_USAGE, "cannot read %s (%s)", path, strerror(errno));
    int rc = epx_json_read(text, bytes, &document, problem, sizeof problem);
    free(text);
    if (rc != 0)
        return epx_tool_fail(EPX_EXIT_USAGE, "%s is no report of epx-health --json: %s", path, problem);
    const epx_json_value_t *report = &document.value[0];
    const char *verdict = epx_json_text_of(report, "verdict", NULL);
    if (verdict == NULL || epx_json_text_of(report, "host", NULL) == NULL) {
        epx_json_document_free(&document);
        return epx_tool_fail(EPX_EXIT_USAGE, "%s is no report of epx-health --json: no host or verdict in it",
                             path);
    }
    snprintf(host->name, sizeof host->name, "%s", epx_json_text_of(report, "host", ""));
    snprintf(host->rack, sizeof host->rack, "%s", epx_json_text_of(report, "rack", ""));
    host->time_s = epx_json_number_of(report, "time", 0);
    host->verdict = verdict_of(verdict);
    say_why(report, host);
    epx_json_document_free(&document);
    return EPX_EXIT_OK;
}

static int by_rack(const void *a, const void *b)
{
    const host_t *x = a, *y = b;
    int order = strcmp(x->rack, y->rack);
    order = order != 0 ? order : strcmp(x->name, y->name);
    return order != 0 ? order : (x->time_s < y->time_s) - (x->time_s > y->time_s);
}

/* Sorts, and keeps the latest report of each host. Returns how many are left. */
static int32_t arrange(host_t *host, int32_t count)
{
    int32_t kept = 0;
    qsort(host, (size_t)count, sizeof *host, by_rack);
    for (int32_t i = 0; i < count; i++)
        if (kept == 0 || strcmp(host[kept - 1].name, host[i].name) != 0 ||
            strcmp(host[kept - 1].rack, host[i].rack) != 0)
            host[kept++] = host[i];
    return kept;
}

static epx_health_verdict_t worst_of(const host_t *host, int32_t first, int32_t last)
{
    epx_health_verdict_t worst = host[first].verdict;
    for (int32_t i = first; i < last; i++)
        worst = health_worst(worst, host[i].verdict);
    return worst;
}

static void show_rack(epx_json_t *json, epx_table_t *table, const host_t *host, int32_t first, int32_t last)
{
    epx_health_verdict_t worst = worst_of(host, first, last);
    const char *rack = host[first].rack[0] != '\0' ? host[first].rack : NULL;
    if (json != NULL) {
        epx_json_object(json, NULL);
        epx_json_text(json, "rack", rack);
        epx_json_text(json, "verdict", epx_health_verdict_name(worst));
        epx_json_array(json, "hosts");
    } else {
        epx_table_cell(table, "%s", rack != NULL ? rack : "(no rack)");
        epx_table_cell(table, "%s", epx_health_verdict_name(worst));
        epx_table_cell(table, "%d host%s", last - first, last - first > 1 ? "s" : "");
    }
    for (int32_t i = first; i < last; i++) {
        if (json != NULL) {
            epx_json_object(json, NULL);
            epx_json_text(json, "host", host[i].name);
            epx_json_text(json, "verdict", epx_health_verdict_name(host[i].verdict));
            epx_json_text(json, "reasons", host[i].why);
            epx_json_close(json);
            continue;
        }
        epx_table_cell(table, "  %s", host[i].name);
        epx_table_cell(table, "%s", epx_health_verdict_name(host[i].verdict));
        epx_table_cell(table, "%s", host[i].why);
    }
    if (json != NULL) {
        epx_json_close(json);
        epx_json_close(json);
    }
}

int health_rack_view(int files, char **file, int32_t as_json)
{
    static const epx_column_t columns[] = {{"rack, host", 0}, {"verdict", 0}, {"because", 0}};
    if (files < 1)
        return epx_tool_fail(EPX_EXIT_USAGE, "--view: name the reports, which epx-health --json writes");
    host_t *host = epx_tool_alloc((size_t)files, sizeof *host);
    int rc = EPX_EXIT_OK;
    for (int i = 0; rc == EPX_EXIT_OK && i < files; i++)
        rc = read_report(file[i], &host[i]);
    if (rc != EPX_EXIT_OK) {
        free(host);
        return rc;
    }
    int32_t count = arrange(host, files);
    epx_json_t json = epx_json_begin(stdout, 2), *to = as_json ? &json : NULL;
    epx_table_t *table = epx_table_new(columns, 3);
    if (to != NULL) {
        epx_json_object(to, NULL);
        epx_json_text(to, "program", "epx-health");
        epx_json_text(to, "verdict", epx_health_verdict_name(worst_of(host, 0, count)));
        epx_json_array(to, "racks");
    }
    for (int32_t first = 0, last; first < count; first = last) {
        for (last = first + 1; last < count && strcmp(host[last].rack, host[first].rack) == 0;)
            last++;
        show_rack(to, table, host, first, last);
    }
    rc = health_exit_code(worst_of(host, 0, count));
    if (to != NULL) {
        epx_json_close(to);
        epx_json_close(to);
        rc = epx_json_end(to) != 0 ? EPX_EXIT_FAILED : rc;
    } else {
        epx_table_print(table, stdout, 0);
    }
    epx_table_free(table);
    free(host);
    return rc;
}
