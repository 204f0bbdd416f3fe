/*
 * What epx-perf is asked to do. SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_BENCH_PERF_SETTINGS_H
#define EPX_BENCH_PERF_SETTINGS_H

#include <epx/epx.h>

#include "bench/common/skew.h"
#include "bench/perf/recorded.h"

/* What is timed. A pass needs every dispatch and combine, asked for or not; only what was asked for is shown.
 */
typedef enum epx_perf_op {
    EPX_PERF_COPY = 0,    /* the machine's own rate: rows one by one, with memcpy or the device's gather */
    EPX_PERF_DEVICE_COPY, /* as many bytes in one piece, by the device's own copy; none on the host */
    EPX_PERF_ROUTE,
    EPX_PERF_DISPATCH,
    EPX_PERF_COMBINE,
    EPX_PERF_COMBINE_BACKWARD,
    EPX_PERF_DISPATCH_BACKWARD,
    EPX_PERF_WHOLE_DISPATCH, /* route and the dispatches of all waves behind it, as one */
    EPX_PERF_COMBINE_START,  /* what goes home, without the wait and the sum behind it */
    EPX_PERF_FABRIC, /* as many bytes from segment to segment, all ranks at once, by the fabric alone */
    EPX_PERF_FABRIC_ONE_WAY, /* from one half of the ranks to the other */
    EPX_PERF_OPS
} epx_perf_op_t;

const char *epx_perf_op_name(epx_perf_op_t op);

enum { EPX_PERF_TRANSPORTS_MAX = 16, EPX_PERF_SIZES_MAX = 64, EPX_PERF_BUDGETS_MAX = 32 };

typedef struct epx_perf_settings {
    int32_t processes, rank; /* by what a launcher says; 1 and 0 where ranks are threads */
    int32_t json, check, cold, latency, accept_rules, recorder;
    const char *transports; /* as given: a list; NULL: as the environment or `auto` says */
    char transport_text[512];
    const char *transport[EPX_PERF_TRANSPORTS_MAX]; /* NULL: leave it to the library */
    int32_t transport_count;
    int64_t ranks, experts, top_k, width, tokens, waves, iterations, warmup, seed, threads, timeout_ms;
    int64_t size[EPX_PERF_SIZES_MAX]; /* tokens of each case */
    int32_t size_count;
    const char *budgets;                  /* as given: a list; NULL: as the environment says */
    int32_t budget[EPX_PERF_BUDGETS_MAX]; /* multiprocessors of each case; 0: all */
    int32_t budget_count;
    int32_t beside;   /* a large matrix product beside each case */
    int32_t graph;    /* calls are recorded once and replayed */
    int32_t row_type; /* index of epx_perf_row_types */
    epx_skew_t skew;
    int32_t skew_given;
    epx_perf_recorded_t recorded;
    const char *calibrate; /* machine file to write; NULL: measure cases */
    int32_t shown[EPX_PERF_OPS];
    int32_t backward; /* some backward call is to be made */
    const char *fabric, *device, *capacity_text;
    double capacity_factor, sender_factor;
    int32_t accept, overflow, wire, batch; /* the enums' values; 0: the library's default */
} epx_perf_settings_t;

extern const char *const epx_perf_row_types[]; /* "fp32", "bf16", "fp16" */

/* Reads the command line; EPX_GO_ON, or the code to exit with. */
int epx_perf_settings_read(epx_perf_settings_t *settings, int argc, char **argv);

void epx_perf_settings_free(epx_perf_settings_t *settings);

/* The configuration of one case; `transport` may be NULL. */
epx_group_config_t epx_perf_group_config(const epx_perf_settings_t *settings, const char *transport,
                                         int64_t tokens);

#endif
