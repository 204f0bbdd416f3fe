/* The parts of epx-health. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_TOOLS_HEALTH_HEALTH_H
#define EPX_TOOLS_HEALTH_HEALTH_H

#include <epx/health.h>

#include "tools/common/json.h"

/* ---- readings with their time ------------------------------------------------------------------------------------ */

/* One value of one link over time. */
typedef struct health_series {
    char link[EPX_HEALTH_NAME], name[EPX_HEALTH_NAME];
    int32_t code; /* of the last reading: why it is not known */
    epx_health_point_t *point;
    int32_t points, room;
} health_series_t;

typedef struct health_store {
    health_series_t *series; /* in the order of their first reading */
    int32_t count, room;
    double now_s; /* time of the sample that is being read */
} health_store_t;

/* An epx_health_fn: context is a store. */
void health_store_take(void *store, const epx_health_reading_t *reading);
void health_store_free(health_store_t *store);

/* Seconds of the system's clock. */
double health_clock(void);

/*
 * A history is a file of JSON lines, one per sample:
 *   {"time": 1.5, "host": "h", "readings": {"mlx5_0/1": {"state": 4, "symbol_error": null}}}
 * with null for what was not known. Loads the lines of `host` into the store, oldest first; a file that is
 * not there is an empty history, lines that are no JSON (a write cut short) are skipped and counted. Returns
 * an exit code.
 */
int health_history_load(const char *file, const char *host, health_store_t *store, int32_t *skipped_p);
/* Appends the last sample in one write. */
int health_history_append(const char *file, const char *host, const health_store_t *store);

/* ---- verdicts ----------------------------------------------------------------------------------------------------- */

typedef struct health_link {
    char link[EPX_HEALTH_NAME];
    epx_health_verdict_t verdict;
    int32_t judged, states; /* series that were judged; those of them that are states */
    char reasons[512];      /* sentences, the worst first */
} health_link_t;

typedef struct health_host {
    const char *host, *rack; /* rack "": not said */
    epx_health_verdict_t verdict;
    health_link_t *link;
    int32_t links;
    const char *blind; /* lines */
    char
        refused[512]; /* what no NVLink of the host tells, with NVML's codes; "": nothing, or there is none */
    char corrected[512]; /* of health_corrected */
} health_host_t;

/* epx_health_judge of a series of the store, and beside those of the other links of its device. */
void health_find(const health_store_t *store, const health_series_t *series, double window_s,
                 epx_health_finding_t *finding_p);
/* What links have corrected by themselves in the window, as one line; "": none counts that. */
void health_corrected(const health_store_t *store, double window_s, char *text, size_t bytes);

/* Judges every link of the store. host, rack and blind are kept. */
void health_judge(const health_store_t *store, const char *host, const char *rack, const char *blind,
                  double window_s, health_host_t *host_p);
void health_host_free(health_host_t *host);

/* The worst of some links or hosts: CORDON, WATCH, then CANNOT TELL, which nothing at all is too. */
epx_health_verdict_t health_worst(epx_health_verdict_t a, epx_health_verdict_t b);
/* OK and WATCH 0, CORDON 1, CANNOT TELL 3. */
int health_exit_code(epx_health_verdict_t verdict);

void health_print(const health_host_t *host, int32_t all);
void health_json(epx_json_t *json, const health_host_t *host, const health_store_t *store, double window_s);

/* ---- other views --------------------------------------------------------------------------------------------------- */

/* Reports of several hosts (epx-health --json), by rack. */
int health_rack_view(int files, char **file, int32_t json);

/* A ledger of placements, JSON lines: {"job": "j", "rack": "r", "fault": true}. Appends when placement is not
 * NULL
 * ("job=J,rack=R,fault=yes|no"), then says whether faults stay with racks or follow jobs. */
int health_ledger(const char *file, const char *placement, int32_t json);

/* Every pair of ranks, one after the other, for probe_ms each. */
typedef struct health_probe {
    int64_t ranks, probe_ms, bytes;
    double slow; /* pairs below this share of the median stand out */
    int32_t json;
} health_probe_t;
int health_probe(const health_probe_t *probe);

#endif
