/* What a case came to, as a table or as JSON. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_BENCH_PERF_REPORT_H
#define EPX_BENCH_PERF_REPORT_H

#include "bench/perf/player.h"
#include "tools/common/json.h"

/* The first lines: library, machine, shape. */
void epx_perf_report_begin(const epx_perf_settings_t *settings, epx_json_t *json);

/* json NULL: a table on stdout. */
void epx_perf_report_case(const epx_perf_case_t *shared, epx_json_t *json);

/* 0, or -1 when the JSON could not be written. */
int epx_perf_report_end(epx_json_t *json);

#endif
