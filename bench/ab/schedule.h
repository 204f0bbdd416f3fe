/*
 * Which run follows which. SPDX-License-Identifier: Apache-2.0
 *
 * A round has, on the same data: the reference, one plain run of every arm, one arm a second time right
 * beside its first (the A/A pair; arms take turns), and the adjusted runs of arms that have them beside their
 * plain run. Odd rounds run backwards (A B, B A, A B ...), so that whatever drifts does not favour an arm.
 * Round 0 also has the twins.
 */
#ifndef EPX_AB_SCHEDULE_H
#define EPX_AB_SCHEDULE_H

#include "bench/ab/result.h"

typedef struct epx_ab_item {
    int32_t arm; /* -1: the reference */
    epx_ab_part_t part;
    int32_t round;
} epx_ab_item_t;

/* Reference and twins of round 0: their order does not depend on adjustments. Writes to items [arms + 1],
 * returns how many. */
int32_t epx_ab_schedule_twins(int32_t arms, epx_ab_item_t *items);

/* All others of `pairs` rounds; items [pairs * (3 * arms + 2)]. drops, memory [arms]: 1 for arms that have
 * runs at equal drops, at equal memory. */
int32_t epx_ab_schedule_rounds(int32_t arms, int32_t pairs, const int32_t *drops, const int32_t *memory,
                               epx_ab_item_t *items);

#endif
