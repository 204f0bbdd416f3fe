/* Results made by hand, for tests of what judges and shows them. SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_AB_MADE_H
#define TESTS_UNIT_AB_MADE_H

#include "bench/ab/result.h"

enum { MADE_STEPS = 4, MADE_DISCARD = 1, MADE_LAYERS = 2 };

/*
 * Arms "pooled_wave", "ragged", "ring" (as many as asked for), `rounds` rounds with a reference in each,
 * twins in round 0 and an A/A pair by turns. Run r of arm a has in each step MFU 0.20 + 0.01 a + 0.0001 r,
 * 100 ms, loss 2 + 0.1 a for arms that drop (arm 0 alone: 30 of 1000 valid assignments by the sender, 20 by
 * the receiver) and 2.0 otherwise, and everything that guards look at in order. Free with epx_ab_free.
 */
epx_ab_result_t made_result(int32_t arms, int32_t rounds);

/* The run of an arm, to be spoiled. */
epx_ab_run_t *made_run(epx_ab_result_t *result, int32_t arm, epx_ab_part_t part, int32_t round);

#endif
