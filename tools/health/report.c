/* From readings to verdicts, and how they are shown. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/program.h"
#include "tools/common/table.h"
#include "tools/health/health.h"

epx_health_verdict_t health_worst(epx_health_verdict_t a, epx_health_verdict_t b) { return a > b ? a : b; }

int health_exit_code(epx_health_verdict_t verdict)
{
    return verdict == EPX_HEALTH_CORDON        ? EPX_EXIT_FAILED
           : verdict == EPX_HEALTH_CANNOT_TELL ? EPX_EXIT_NO_VERDICT
                                               : EPX_EXIT_OK;
}

/* What it is now; no count of what has happened. */
static int is_state(const char *name)
{
    size_t length = strlen(name);
    return (length >= 5 && strcmp(name + length - 5, "state") == 0) ||
           strcmp(name, "gpu_recovery_action") == 0;
}

/* A reason of the verdict comes first where it is worse than what is there. */
static void add_reason(health_link_t *link, const epx_health_finding_t *finding)
{
    char both[sizeof link->reasons];
    if (finding->reason[0] == '\0')
        return;
    if (link->reasons[0] == '\0')
        snprintf(both, sizeof both, "%s", finding->reason);
    else if (finding->verdict > link->verdict)
        snprintf(both, sizeof both, "%s; %.300s", finding->reason, link->reasons);
    else
        snprintf(both, sizeof both, "%.300s; %s", link->reasons, finding->reason);
    memcpy(link->reasons, both, sizeof both);
}

/* Nothing is healthy that nobody looked at: a link is OK only if a counter of its errors was judged. */
static void judge_link(const health_store_t *store, double window_s, health_link_t *link)
{
    link->verdict = EPX_HEALTH_OK;
    for (int32_t i = 0; i < store->count; i++) {
        const health_series_t *series = &store->series[i];
        epx_health_finding_t finding;
        if (strcmp(series->link, link->link) != 0)
            continue;
        health_find(store, series, window_s, &finding);
        if (!finding.judged)
            continue;
        if (finding.judged != EPX_HEALTH_BESIDE) { /* errors that were corrected tell of no others */
            link->judged++;
            link->states += is_state(series->name);
        }
        add_reason(link, &finding);
        link->verdict = health_worst(link->verdict, finding.verdict);
    }
    if (link->judged == link->states && link->verdict == EPX_HEALTH_OK) {
        link->verdict = EPX_HEALTH_CANNOT_TELL;
        snprintf(link->reasons, sizeof link->reasons, "%s",
                 link->states > 0 ? "is active, but no counter of errors could be followed"
                                  : "neither state nor counters could be followed");
    }
}

static int is_nvlink(const char *link) { return strstr(link, "/nvlink") != NULL; }

/* Values that the driver refuses for every NVLink: of which generation it is decides what there is. */
static void find_refused(const health_store_t *store, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int32_t i = 0; i < store->count && used < bytes; i++) {
        const health_series_t *first = &store->series[i];
        int32_t known = 0, before = 0;
        for (int32_t j = 0; j < store->count && is_nvlink(first->link); j++) {
            const health_series_t *other = &store->series[j];
            if (!is_nvlink(other->link) || strcmp(other->name, first->name) != 0)
                continue;
            before |= j < i;
            known |= other->points > 0 && other->point[other->points - 1].known;
        }
        if (is_nvlink(first->link) && !known && !before)
            used += (size_t)snprintf(text + used, bytes - used, "%s%s (%d)", used > 0 ? ", " : "",
                                     first->name, first->code);
    }
}

void health_judge(const health_store_t *store, const char *host, const char *rack, const char *blind,
                  double window_s, health_host_t *host_p)
{
    *host_p = (health_host_t){.host = host, .rack = rack, .blind = blind, .verdict = EPX_HEALTH_CANNOT_TELL};
    host_p->link = epx_tool_alloc((size_t)store->count + 1, sizeof *host_p->link);
    find_refused(store, host_p->refused, sizeof host_p->refused);
    health_corrected(store, window_s, host_p->corrected, sizeof host_p->corrected);
    for (int32_t i = 0; i < store->count; i++) {
        int32_t seen = 0;
        for (int32_t l = 0; l < host_p->links; l++)
            seen |= strcmp(host_p->link[l].link, store->series[i].link) == 0;
        if (seen)
            continue;
        health_link_t *link = &host_p->link[host_p->links++];
        snprintf(link->link, sizeof link->link, "%s", store->series[i].link);
        judge_link(store, window_s, link);
        host_p->verdict = host_p->links == 1 ? link->verdict : health_worst(host_p->verdict, link->verdict);
    }
}

void health_host_free(health_host_t *host)
{
    free(host->link);
    *host = (health_host_t){0};
}

/* ---- text ---- */

void health_print(const health_host_t *host, int32_t all)
{
    static const epx_column_t columns[] = {{"link", 0}, {"verdict", 0}, {"because", 0}};
    epx_table_t *table = epx_table_new(columns, 3);
    int32_t shown = 0, fine = 0;
    printf("%s%s%s: %s\n", host->host, host->rack[0] != '\0' ? ", rack " : "", host->rack,
           epx_health_verdict_name(host->verdict));
    for (int32_t i = 0; i < host->links; i++) {
        const health_link_t *link = &host->link[i];
        fine += link->verdict == EPX_HEALTH_OK;
        if (link->verdict == EPX_HEALTH_OK && !all)
            continue;
        epx_table_cell(table, "%s", link->link);
        epx_table_cell(table, "%s", epx_health_verdict_name(link->verdict));
        epx_table_cell(table, "%s", link->reasons[0] != '\0' ? link->reasons : "nothing stands out");
        shown++;
    }
    if (shown > 0)
        epx_table_print(table, stdout, 2);
    if (!all && fine > 0)
        printf("  %d link%s OK\n", fine, fine > 1 ? "s" : "");
    if (host->links == 0)
        printf("  no link was found\n");
    if (host->corrected[0] != '\0')
        printf("  corrected by the links themselves: %s\n", host->corrected);
    if (host->refused[0] != '\0')
        printf("  no NVLink of this host tells (NVML's code): %s\n", host->refused);
    for (const char *line = host->blind; *line != '\0';) {
        int length = (int)strcspn(line, "\n");
        printf("  not looked at: %.*s\n", length, line);
        line += length + (line[length] == '\n');
    }
    epx_table_free(table);
}

/* ---- JSON ---- */

static void json_values(epx_json_t *json, const health_store_t *store, const char *link, double window_s)
{
    epx_json_array(json, "readings");
    for (int32_t i = 0; i < store->count; i++) {
        const health_series_t *series = &store->series[i];
        const epx_health_point_t *last = &series->point[series->points - 1];
        epx_health_finding_t finding;
        if (strcmp(series->link, link) != 0)
            continue;
        health_find(store, series, window_s, &finding);
        epx_json_object(json, NULL);
        epx_json_text(json, "name", series->name);
        if (last->known)
            epx_json_uint(json, "value", last->value);
        else
            epx_json_null(json, "value");
        if (!last->known)
            epx_json_int(json, "code", series->code);
        epx_json_int(json, "points", series->points);
        if (finding.judged) {
            epx_json_text(json, "verdict", epx_health_verdict_name(finding.verdict));
            epx_json_uint(json, "increments", finding.increments);
            epx_json_real(json, "per_hour", finding.per_hour);
        }
        epx_json_close(json);
    }
    epx_json_close(json);
}

void health_json(epx_json_t *json, const health_host_t *host, const health_store_t *store, double window_s)
{
    epx_json_text(json, "host", host->host);
    epx_json_text(json, "rack", host->rack[0] != '\0' ? host->rack : NULL);
    epx_json_text(json, "verdict", epx_health_verdict_name(host->verdict));
    epx_json_real(json, "time", store->now_s);
    epx_json_real(json, "window_s", window_s);
    epx_json_array(json, "links");
    for (int32_t i = 0; i < host->links; i++) {
        epx_json_object(json, NULL);
        epx_json_text(json, "link", host->link[i].link);
        epx_json_text(json, "verdict", epx_health_verdict_name(host->link[i].verdict));
        epx_json_text(json, "reasons", host->link[i].reasons);
        json_values(json, store, host->link[i].link, window_s);
        epx_json_close(json);
    }
    epx_json_close(json);
    epx_json_array(json, "not_observed");
    for (const char *line = host->blind; *line != '\0';) {
        char text[1200];
        int length = (int)strcspn(line, "\n");
        snprintf(text, sizeof text, "%.*s", length, line);
        epx_json_text(json, NULL, text);
        line += length + (line[length] == '\n');
    }
    epx_json_close(json);
}
