/* Times the accept rules on their own. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_BENCH_PERF_RULES_H
#define EPX_BENCH_PERF_RULES_H

#include "bench/perf/settings.h"
#include "tools/common/json.h"

/*
 * 64 ranks x 65,536 tokens x 8 choices of 384 experts, each rule from the ids to the last assignment that is
 * kept or dropped, over settings->threads threads. json NULL: a table on stdout. Returns an exit code.
 */
int epx_perf_rules(const epx_perf_settings_t *settings, epx_json_t *json);

#endif
