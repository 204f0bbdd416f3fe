/* Time, and what passes it without work. SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

static const epx_clock_ops_t *_Atomic stand_in;

void epx_clock_stand_in(const epx_clock_ops_t *ops) { atomic_store(&stand_in, ops); }

const epx_clock_ops_t *epx_clock_stands_in(void)
{
    return atomic_load_explicit(&stand_in, memory_order_acquire);
}

int64_t epx_clock_ns(void)
{
    const epx_clock_ops_t *ops = epx_clock_stands_in();
    if (ops != NULL)
        return ops->now_ns();
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void epx_nap_ns(int64_t ns)
{
    const epx_clock_ops_t *ops = epx_clock_stands_in();
    if (ops != NULL)
        ops->nap_ns(ns);
    else if (ns > 0)
        nanosleep(&(struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000}, NULL);
}
