/* What came, as tables or as JSON. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_SIM_REPORT_H
#define EPX_SIM_REPORT_H

#include "bench/sim/point.h"
#include "tools/common/json.h"

/* Shape, routing, machine: first lines, or members of the open object. json NULL: text on stdout. */
void epx_sim_report_begin(const epx_sim_settings_t *settings, int32_t samples, epx_json_t *json);

/* All cases of a point: tables, or an array "transports" of the open object. */
void epx_sim_report_point(const epx_sim_point_t *point, epx_json_t *json);

/* "ragged", "ragged, fair", "pooled_wave, spill": a case by what tells it from the others of its settings. */
char *epx_sim_case_name(const epx_sim_settings_t *settings, const epx_sim_case_t *one, char *text,
                        size_t bytes);

/* Bytes of memory of one rank, NaN where the library does not open such a group. */
double epx_sim_memory_bytes(const epx_sim_result_t *result);

/* sweep.c, answer.c, published.c, export.c: the other things to do. EPX_EXIT_OK or a code. */
int epx_sim_sweep_run(const epx_sim_settings_t *settings, epx_json_t *json);
int epx_sim_answer_run(const epx_sim_settings_t *settings, epx_json_t *json);
int epx_sim_published_run(const epx_sim_settings_t *settings, epx_json_t *json);
int epx_sim_dump(const epx_sim_settings_t *settings);
int epx_sim_record(const epx_sim_settings_t *settings);

/* html.c: a page with the curves of a sweep of `count` points. 0, or an exit code after a message. */
int epx_sim_html(const char *path, const epx_sim_point_t *points, int32_t count);

#endif
