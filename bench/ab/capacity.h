/* Drops by the rules, and the capacities at which arms have equal drops or equal memory.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_AB_CAPACITY_H
#define EPX_AB_CAPACITY_H

#include "bench/ab/rank.h"

/* What this rank knows of adjusted arms: 1 and the scale of their capacities. */
typedef struct epx_ab_capacities {
    int32_t drops[EPX_AB_ARMS], memory[EPX_AB_ARMS];
    double drops_scale[EPX_AB_ARMS], memory_scale[EPX_AB_ARMS];
} epx_ab_capacities_t;

/* Computes every arm's drops for the kept choices, at the ranks that decide, the real ones and the target.
 * Rank 0. */
void epx_ab_rule_drops(epx_ab_rank_t *self);

/* Finds the capacities. Collective. */
int epx_ab_find_capacities(epx_ab_rank_t *self, epx_ab_capacities_t *capacities);

#endif
