/* Recorded routing in place of a pattern. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_BENCH_PERF_RECORDED_H
#define EPX_BENCH_PERF_RECORDED_H

#include "bench/perf/settings.h"

/*
 * Reads the file of --routing and takes ranks, experts, K and tokens from it: the first group of ranks of the
 * step and layer that the settings name. EPX_GO_ON, or EPX_EXIT_USAGE after a message.
 */
int epx_perf_recorded_read(epx_perf_settings_t *settings);

/* Tokens of a rank, and their ids [tokens, K]. */
int64_t epx_perf_recorded_tokens(const epx_perf_settings_t *settings, int32_t rank);
const int32_t *epx_perf_recorded_ids(const epx_perf_settings_t *settings, int32_t rank);

/* 1 if some token chose an expert twice. */
int epx_perf_recorded_repeats(const epx_perf_settings_t *settings);

#endif
