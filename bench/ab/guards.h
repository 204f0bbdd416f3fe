/*
 * The guards: what must hold for a comparison to mean anything. Pure functions of the runs.
 * SPDX-License-Identifier: Apache-2.0
 *
 * A guard that fails voids an arm, or one draw (run) of it: clocks, registration, window and weights void the
 * draw, everything else the arm. An arm with fewer draws left than half of its pairs, or fewer than two where
 * there were two, is void too.
 */
#ifndef EPX_AB_GUARDS_H
#define EPX_AB_GUARDS_H

#include "bench/ab/result.h"

/* Limits, in one place for reports and tests. */
#define EPX_AB_TWIN_LIMIT 1e-5     /* of the loss, relative */
#define EPX_AB_GRADIENT_LIMIT 1e-3 /* of a tensor's norm, relative */
#define EPX_AB_CHOICE_LIMIT 1e-3   /* of assignments of later layers, turned by rounding */
#define EPX_AB_SPREADS 3.0         /* of the loss gap */
#define EPX_AB_LOSS_FLOOR 1e-5     /* of the loss: the spread that rounding alone may have */
#define EPX_AB_FALLBACK_LIMIT 0.01 /* of bytes */
#define EPX_AB_CLOCK_LIMIT 0.01

/* Judges every guard for every arm; sets draws' void_why, arms' guard[] and is_void. Before summaries and
 * verdicts. */
void epx_ab_check_guards(epx_ab_result_t *result);

#endif
