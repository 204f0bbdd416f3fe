/* Measures the constants of epx-sim's cost model. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_BENCH_PERF_CALIBRATE_H
#define EPX_BENCH_PERF_CALIBRATE_H

#include "bench/common/machine.h"
#include "bench/perf/settings.h"
#include "tools/common/json.h"

/*
 * Writes settings->calibrate, a machine file of the host or of a GPU (--device cuda): --ranks threads, all of
 * them busy in every measurement but the one that says otherwise. None of it times an exchange of rows. json
 * NULL: a table on stdout. Returns an exit code.
 */
int epx_perf_calibrate(const epx_perf_settings_t *settings, epx_json_t *json);

/* calibrate_device.c: the same on a GPU; fills *machine. */
int epx_perf_calibrate_device(const epx_perf_settings_t *settings, epx_machine_t *machine);

#endif
