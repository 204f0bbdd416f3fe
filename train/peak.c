/* SPDX-License-Identifier: Apache-2.0 */
#include "peak.h"

#include "arena.h"
#include "clock.h"
#include "fail.h"
#include "math.h"
#include "status.h"

#define SIDE 384
#define WINDOW_NS 60000000
#define WINDOWS 5

/* This rank's rate over one window. */
static double measure_window(const epx_real_t *a, const epx_real_t *b, epx_real_t *c)
{
    int64_t from = epx_train_clock_ns(), now = from;
    double operations = 0;
    while (now - from < WINDOW_NS) {
        epx_math_gemm(EPX_NN, SIDE, SIDE, SIDE, a, SIDE, b, SIDE, 0, c, SIDE);
        operations += 2.0 * SIDE * SIDE * SIDE;
        now = epx_train_clock_ns();
    }
    return operations / (double)(now - from) * 1e9;
}

int epx_peak_measure(epx_comm_h world, double *flops_p)
{
    epx_arena_t arena = {0};
    epx_real_t *a = epx_arena_reals(&arena, SIDE * SIDE), *b = epx_arena_reals(&arena, SIDE * SIDE);
    epx_real_t *c = epx_arena_reals(&arena, SIDE * SIDE);
    double best = 0;
    int code = arena.failed ? EPX_TRAIN_FAILED : EPX_TRAIN_OK;
    for (int64_t i = 0; code == EPX_TRAIN_OK && i < SIDE * SIDE; i++)
        a[i] = b[i] = (epx_real_t)(i % 7);
    for (int i = 0; code == EPX_TRAIN_OK && i < WINDOWS; i++) {
        epx_status_t status = epx_comm_barrier(world);
        double rate = status == EPX_OK ? measure_window(a, b, c) : 0;
        if (status == EPX_OK)
            status = epx_comm_allreduce(world, &rate, 1, EPX_NUMBER_DOUBLE, EPX_SUM);
        code = epx_train_status(status);
        best = rate > best ? rate : best;
    }
    epx_arena_free(&arena);
    if (code == EPX_TRAIN_OK)
        *flops_p = best;
    return code;
}
