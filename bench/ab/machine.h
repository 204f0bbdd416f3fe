/* The machine, the build, and what can be seen of clocks and of other programs. SPDX-License-Identifier:
 * Apache-2.0 */
#ifndef EPX_AB_MACHINE_H
#define EPX_AB_MACHINE_H

#include "bench/ab/result.h"

/* Everything but peak_flops and blas, which training knows. */
void epx_ab_describe_machine(epx_ab_machine_t *machine);

/* Median frequency of the `busy` fastest cores now, in MHz (idle cores are slow); NaN where the system shows
 * none. */
double epx_ab_clock_now(int32_t busy);

/* Thermal throttling events of all cores since the machine started; -1 where the system counts none. */
int64_t epx_ab_throttles_now(void);

/* Processor time: of the whole machine (all cores, idle time included), of it busy, and of this program.
 * Seconds. */
typedef struct epx_ab_cpu_time {
    double all, busy, own;
} epx_ab_cpu_time_t;
epx_ab_cpu_time_t epx_ab_cpu_time_now(void);

/* Share of the machine that others used between two readings, 0..1; NaN where not known. */
double epx_ab_others_share(const epx_ab_cpu_time_t *from, const epx_ab_cpu_time_t *to);

#endif
