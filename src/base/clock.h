/*
 * Time, and what passes it without work. SPDX-License-Identifier: Apache-2.0
 *
 * Everything in the library that asks for the time or waits comes through here and base/bell.h, so that a
 * test can run ranks as fibres of one thread with a time of its own.
 */
#ifndef EPX_BASE_CLOCK_H
#define EPX_BASE_CLOCK_H

#include <stdint.h>

struct epx_bell;

/* Monotonic nanoseconds. */
int64_t epx_clock_ns(void);

/* Sleeps about so long; a signal may end it early. */
void epx_nap_ns(int64_t ns);

/* What stands in for the machine's own clock and sleep. */
typedef struct epx_clock_ops {
    int64_t (*now_ns)(void);
    void (*nap_ns)(int64_t ns);
    /* As epx_bell_sleep. */
    void (*bell_sleep)(struct epx_bell *bell, uint32_t count, int64_t deadline_ns);
    /* A look that found nothing yet, in a loop that looks again. */
    void (*spin_pause)(void);
} epx_clock_ops_t;

/* NULL: the machine's own again. While nobody waits; the table is kept. For tests. */
void epx_clock_stand_in(const epx_clock_ops_t *ops);

/* The one that stands in, or NULL. */
const epx_clock_ops_t *epx_clock_stands_in(void);

#endif
