/*
 * What measuring the constants on a processor and on a GPU have in common. SPDX-License-Identifier:
 * Apache-2.0
 */
#ifndef EPX_BENCH_PERF_CALIBRATION_H
#define EPX_BENCH_PERF_CALIBRATION_H

#include "bench/common/machine.h"
#include "bench/perf/settings.h"
#include "tools/common/ranks.h"

/* CALLS: of which the median counts. MANY: times as many ranks show what one more adds to a call. */
enum { EPX_CALIBRATION_CALLS = 200, EPX_CALIBRATION_MANY = 4 };

/* One measurement of all ranks; rank 0 writes it. */
typedef struct epx_calibration {
    int64_t ranks, row_bytes;
    double value[EPX_CONSTANTS];
    double many_call_s; /* of a call with MANY times as many ranks */
} epx_calibration_t;

epx_calibration_t epx_calibration_begin(const epx_perf_settings_t *settings);

/* A small group of so many ranks, without a backward pass. */
epx_group_config_t epx_calibration_group(const epx_perf_settings_t *settings, int32_t ranks);

/* Over the ranks; 0 once something has failed. Collective, as all here that takes a rank. */
double epx_calibration_mean(epx_rank_t *self, double value);

/* Median seconds of a barrier of the library, the ranks' mean. */
double epx_calibration_barrier(epx_rank_t *self);

/* Rank 0 keeps a value; all ranks have the same. */
void epx_calibration_keep(epx_rank_t *self, epx_calibration_t *calibration, epx_constant_t constant,
                          double value);

/* What a further rank adds to a call, by value[EPX_OPERATION_S] and many_call_s, and what is left without. */
void epx_calibration_split_calls(epx_calibration_t *calibration);

/* Values and where each comes from, as far as it is named; the share of the link and what a rank adds are
 * named here where sources are NULL. */
void epx_calibration_describe(const epx_calibration_t *calibration, const char *const sources[EPX_CONSTANTS],
                              epx_machine_t *machine);

#endif
