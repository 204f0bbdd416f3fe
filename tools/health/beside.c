/* Links beside their neighbours: what means nothing alone. SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tools/health/health.h"

/* Links of one device at most that are compared; more are left out. */
enum { NEIGHBOURS = 64 };

/* "GPU0/nvlink3" and "GPU0/nvlink4" are links of one device. */
static int is_neighbour(const health_series_t *a, const health_series_t *b)
{
    const char *end = strchr(a->link, '/');
    size_t length = end != NULL ? (size_t)(end - a->link) + 1 : 0;
    return length > 0 && strcmp(a->name, b->name) == 0 && strcmp(a->link, b->link) != 0 &&
           strncmp(a->link, b->link, length) == 0;
}

static void judge_alone(const health_series_t *series, double window_s, epx_health_finding_t *finding_p)
{
    epx_health_judge(series->name, series->point, series->points, window_s, finding_p);
}

void health_find(const health_store_t *store, const health_series_t *series, double window_s,
                 epx_health_finding_t *finding_p)
{
    double others[NEIGHBOURS];
    int32_t count = 0;
    judge_alone(series, window_s, finding_p);
    if (finding_p->judged != EPX_HEALTH_BESIDE)
        return;
    for (int32_t i = 0; i < store->count && count < NEIGHBOURS; i++) {
        epx_health_finding_t other;
        if (!is_neighbour(series, &store->series[i]))
            continue;
        judge_alone(&store->series[i], window_s, &other);
        if (other.judged == EPX_HEALTH_BESIDE)
            others[count++] = other.level;
    }
    epx_health_judge_beside(series->name, others, count, finding_p);
}

/* A speed is no count of anything. */
static int is_corrected(const health_series_t *series, const epx_health_finding_t *finding)
{
    size_t length = strlen(series->name);
    return finding->judged == EPX_HEALTH_BESIDE && length > 7 &&
           strcmp(series->name + length - 7, "_errors") == 0;
}

void health_corrected(const health_store_t *store, double window_s, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int32_t i = 0; i < store->count && used < bytes; i++) {
        uint64_t all = 0, most = 0;
        int32_t links = 0, before = 0;
        for (int32_t j = 0; j < store->count && !before; j++) {
            epx_health_finding_t finding;
            if (strcmp(store->series[j].name, store->series[i].name) != 0)
                continue;
            before = j < i;
            judge_alone(&store->series[j], window_s, &finding);
            if (!is_corrected(&store->series[j], &finding))
                continue;
            links++;
            all += finding.increments;
            most = finding.increments > most ? finding.increments : most;
        }
        if (links > 0 && !before)
            used += (size_t)snprintf(text + used, bytes - used,
                                     "%s%s %" PRIu64 " more on %d links, at most %" PRIu64 " on one",
                                     used > 0 ? "; " : "", store->series[i].name, all, links, most);
    }
}
