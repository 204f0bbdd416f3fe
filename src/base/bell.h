/*
 * A bell: the one thing that a rank sleeps on. SPDX-License-Identifier: Apache-2.0
 *
 * Who changes something that a rank may wait for stores it first and rings that rank's bell after. Who waits
 * notes the bell's count, looks at what it waits for, and sleeps only while the count is still the noted one.
 * A ring after the look changes the count, so it cannot be missed. Ringing costs a system call only while
 * somebody sleeps.
 */
#ifndef EPX_BASE_BELL_H
#define EPX_BASE_BELL_H

#include <stdatomic.h>
#include <stdint.h>

typedef struct epx_bell {
    _Atomic uint32_t count;
    _Atomic uint32_t sleepers;
} epx_bell_t;

/* The count to hand to epx_bell_sleep; read it before looking. */
uint32_t epx_bell_count(epx_bell_t *bell);

void epx_bell_ring(epx_bell_t *bell);

/* Sleeps until the bell has rung since `count` was noted, or until the clock (epx_clock_ns) says deadline_ns;
 * may also return early. */
void epx_bell_sleep(epx_bell_t *bell, uint32_t count, int64_t deadline_ns);

/* The same for a bell in memory that processes share. */
void epx_bell_ring_shared(epx_bell_t *bell);
void epx_bell_sleep_shared(epx_bell_t *bell, uint32_t count, int64_t deadline_ns);

/* How many times to look before sleeping: more when every rank can have a core, few when they share. */
int32_t epx_bell_spins(int32_t ranks);

/* Tells the processor that this is a spin loop. */
void epx_spin_pause(void);

#endif
