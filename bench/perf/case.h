/* One measurement: a transport, a number of tokens, all ranks of it. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_BENCH_PERF_CASE_H
#define EPX_BENCH_PERF_CASE_H

#include "bench/perf/player.h"

/* Runs the case; EPX_EXIT_OK, or the code after a message. sm_budget 0: as the settings say. */
int epx_perf_case_run(epx_perf_case_t *shared, const epx_perf_settings_t *settings, const char *transport,
                      int64_t tokens, int32_t sm_budget);
void epx_perf_case_free(epx_perf_case_t *shared);

#endif
