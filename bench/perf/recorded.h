/* Recorded routing in place of a pattern. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_BENCH_PERF_RECORDED_H
#define EPX_BENCH_PERF_RECORDED_H

#include "train/routing_file.h"

/* The first group of ranks of one step and layer of a file. */
typedef struct epx_perf_recorded {
    const char *routing; /* "file:PATH" in place of a pattern; NULL: none, and the rest means nothing */
    int64_t step, layer;
    epx_routing_file_t file; /* freed by its owner */
} epx_perf_recorded_t;

/* Reads the file of --routing. EPX_GO_ON, or EPX_EXIT_USAGE after a message. */
int epx_perf_recorded_read(epx_perf_recorded_t *recorded);

/* Tokens of a rank, and their ids [tokens, K]. */
int64_t epx_perf_recorded_tokens(const epx_perf_recorded_t *recorded, int32_t rank);
const int32_t *epx_perf_recorded_ids(const epx_perf_recorded_t *recorded, int32_t rank);

/* 1 if some token chose an expert twice. */
int epx_perf_recorded_repeats(const epx_perf_recorded_t *recorded);

#endif
