/*
 * Passes made in C, timed: what a framework's calls are compared with. bench/framework_overhead.py compiles
 * this file and calls it with the framework's own arrays. SPDX-License-Identifier: Apache-2.0
 */
#include <epx/epx.h>
#include <stdint.h>
#include <time.h>

/* Everything of one pass; device memory but for the struct itself. */
typedef struct epx_bench_pass {
    epx_plan_h plan;
    int64_t tokens;
    const void *ids; /* int32 [T, K] */
    const float *weights;
    const void *x;
    void *rows;
    int64_t *start, *count;
    const void *y;
    void *out;
    epx_stream_t stream;
} epx_bench_pass_t;

/* Microseconds of a pass: in each kind of call until it returned, in all of them, and with the wait at the
 * end. */
typedef struct epx_bench_times {
    double route, dispatch, combine, issue, whole;
} epx_bench_times_t;

int epx_bench_passes(const epx_bench_pass_t *pass, int64_t rounds, epx_bench_times_t *times_p);

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static epx_status_t one_pass(const epx_bench_pass_t *pass, epx_bench_times_t *times)
{
    epx_routing_t routing = EPX_ROUTING_INIT;
    routing.tokens = pass->tokens;
    routing.ids = pass->ids;
    routing.weights = pass->weights;
    double begun = now_us();
    epx_status_t status = epx_plan_route(pass->plan, &routing, pass->stream);
    double routed = now_us(), since = routed;
    times->route += routed - begun;
    for (int32_t wave = 0; status == EPX_OK && wave < epx_plan_waves(pass->plan); wave++) {
        epx_batch_t batch = EPX_BATCH_INIT;
        batch.into_rows = pass->rows;
        batch.into_start = pass->start;
        batch.into_count = pass->count;
        status = epx_dispatch(pass->plan, wave, pass->x, &batch, pass->stream);
        double dispatched = now_us();
        if (status == EPX_OK)
            status = epx_combine(pass->plan, wave, pass->y, pass->out, pass->stream);
        double combined = now_us();
        times->dispatch += dispatched - since;
        times->combine += combined - dispatched;
        since = combined;
    }
    times->issue += since - begun;
    return status;
}

/* `rounds` passes one after the other, and one wait behind the last. A status of the library. */
int epx_bench_passes(const epx_bench_pass_t *pass, int64_t rounds, epx_bench_times_t *times_p)
{
    epx_bench_times_t times = {0};
    epx_plan_stats_t stats = EPX_PLAN_STATS_INIT;
    epx_status_t status = EPX_OK;
    double begun = now_us();
    for (int64_t i = 0; status == EPX_OK && i < rounds; i++)
        status = one_pass(pass, &times);
    if (status == EPX_OK)
        status = epx_plan_stats(pass->plan, &stats, pass->stream);
    double n = (double)rounds;
    *times_p = (epx_bench_times_t){.route = times.route / n,
                                   .dispatch = times.dispatch / n,
                                   .combine = times.combine / n,
                                   .issue = times.issue / n,
                                   .whole = (now_us() - begun) / n};
    return (int)status;
}
