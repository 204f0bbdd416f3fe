/* Samples over the cases of a point, and what comes of them. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_SIM_POINT_H
#define EPX_SIM_POINT_H

#include "bench/sim/settings.h"

/* Of values over samples. */
typedef struct epx_sim_spread {
    double mean, deviation; /* N - 1 in the denominator; 0 for one sample */
    double least, most;
    double p99; /* the smallest value that 99% of the samples do not exceed */
} epx_sim_spread_t;

epx_sim_spread_t epx_sim_spread(const double *values, int32_t count);

/* One case over all samples. */
typedef struct epx_sim_result {
    int64_t routed, skipped, kept, spilled, dropped_sender, dropped_receiver; /* sums */
    int32_t samples, waves;            /* waves: the most of a sample */
    double *drops, *sender, *receiver; /* [samples] shares of what was routed */
    epx_sim_spread_t drop_spread, sender_spread, receiver_spread;
    double load;         /* mean of the largest over the mean load of ranks, before drops */
    epx_sim_cost_t cost; /* mean */
    int estimate;        /* gate 2 saw an order that is made up */
    epx_memory_t memory;
    char memory_problem[512]; /* "" or why the library says no */
} epx_sim_result_t;

/* A variant of the settings: another point of a sweep. results [settings->case_count]. */
typedef struct epx_sim_point {
    epx_sim_settings_t settings;
    epx_sim_result_t result[EPX_SIM_CASES];
} epx_sim_point_t;

/*
 * Counts points [count] that differ in rules and costs only: each sample is made once. EPX_EXIT_OK or a code.
 * What came is freed by epx_sim_points_free.
 */
int epx_sim_points_run(epx_sim_point_t *points, int32_t count);
void epx_sim_points_free(epx_sim_point_t *points, int32_t count);

/* The input of the settings. EPX_EXIT_OK, or a code after a message. */
int epx_sim_open_input(const epx_sim_settings_t *settings, epx_sim_input_t *input_p);

#endif
