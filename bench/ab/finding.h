/* Inside of the guards: how they say what they found. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_AB_FINDING_H
#define EPX_AB_FINDING_H

#include "bench/ab/result.h"

/* A finding about an arm; the first failure of a guard stays. */
void epx_ab_find(epx_ab_arm_t *arm, epx_ab_guard_t guard, epx_ab_state_t state, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The guards of single draws. (guards_draws.c) */
void epx_ab_check_windows(epx_ab_result_t *result);
void epx_ab_check_weights(epx_ab_result_t *result);
void epx_ab_check_allocations(epx_ab_result_t *result);
void epx_ab_check_clocks(epx_ab_result_t *result);

#endif
