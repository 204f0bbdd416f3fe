/* The GPU's kernels one by one, timed on the device: memory, timing, the table. SPDX-License-Identifier:
 * Apache-2.0 */
#ifndef BENCH_KERNELS_BENCH_H
#define BENCH_KERNELS_BENCH_H

#include <epx/device.h>

#include "tools/common/json.h"

typedef struct kernels_bench {
    const epx_device_ops_t *device;
    const epx_kernels_t *kernels;
    epx_stream_t stream;
    epx_event_t from, to;
    int64_t tokens, width, top_k, experts, repeats;
    int32_t failed, only_routes;
    double copy_rate; /* of this device in this run, for the largest copy: bytes read + written per second */
    char *floor_to, *floor_from; /* what the device copies and fills itself */
    size_t floor_bytes;
    epx_json_t *json; /* NULL: the table for people */
    uint64_t dice;
} kernels_bench_t;

enum { BENCH_REPEATS_MAX = 1000 };

/* ---- measure.c ---- */

/* 1: all is well; else the first failure is told, with what it was, and ends the run. */
int bench_check(kernels_bench_t *bench, epx_status_t status, const char *what);
/* Device memory that lives until the end of the program; host NULL: a pattern. */
void *bench_take(kernels_bench_t *bench, size_t bytes, const void *host);
uint64_t bench_dice(kernels_bench_t *bench);

/* Seconds of one launch: the median of `repeats` runs of `batch` launches each, from a graph where it is more
 * than one. */
typedef epx_status_t (*bench_launch_fn)(kernels_bench_t *bench, void *context);
double bench_time(kernels_bench_t *bench, bench_launch_fn launch, void *context, int batch);

/*
 * One line: what took so long, how many bytes it read and wrote, and the share of what the device does of the
 * same: floor_s seconds are 100%. target: the share (or, with target_us, the time) that is wanted; 0: none.
 */
typedef struct bench_line {
    const char *what;
    double seconds, read, written, floor_s, target, target_us;
} bench_line_t;
void bench_print(kernels_bench_t *bench, const bench_line_t *line);

/* Seconds that the device's own copy takes for so many bytes in all, and its fill for written ones alone;
 * measured. */
double bench_copy_floor(kernels_bench_t *bench, double read, double written);
double bench_fill_floor(kernels_bench_t *bench, double written);

/* ---- rows.c, routes.c: the tables ---- */

void bench_rows(kernels_bench_t *bench);
void bench_routes(kernels_bench_t *bench);

#endif
