/* Time for reports; nothing that is computed depends on it. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_TRAIN_CLOCK_H
#define EPX_TRAIN_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Nanoseconds of a clock that never goes back. */
static inline int64_t epx_train_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#endif
