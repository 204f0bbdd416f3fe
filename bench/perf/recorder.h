/* What the flight recorder costs. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_BENCH_PERF_RECORDER_H
#define EPX_BENCH_PERF_RECORDER_H

#include "bench/perf/settings.h"
#include "tools/common/json.h"

/*
 * Host events alone, and the training step of preset `tiny` with and without a record, in turns and in one
 * process: settings->iterations pairs of steps in each of EPX_PERF_RECORDER_ROUNDS rounds, over
 * settings->ranks threads. json NULL: text on stdout. Returns an exit code.
 */
enum { EPX_PERF_RECORDER_ROUNDS = 8 };
int epx_perf_recorder(const epx_perf_settings_t *settings, epx_json_t *json);

#endif
