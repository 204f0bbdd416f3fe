/* Measures the constants of epx-sim's cost model. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_BENCH_PERF_CALIBRATE_H
#define EPX_BENCH_PERF_CALIBRATE_H

#include "bench/perf/settings.h"
#include "tools/common/json.h"

/*
 * Writes settings->calibrate, a machine file of the host: --ranks threads, all of them busy in every
 * measurement but the one that says otherwise. None of it times an exchange of rows. json NULL: a table on
 * stdout. Returns an exit code.
 */
int epx_perf_calibrate(const epx_perf_settings_t *settings, epx_json_t *json);

#endif
