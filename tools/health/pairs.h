/* Who meets whom when all pairs of ranks are measured, and which pairs are slow. SPDX-License-Identifier:
 * Apache-2.0 */
#ifndef EPX_TOOLS_HEALTH_PAIRS_H
#define EPX_TOOLS_HEALTH_PAIRS_H

#include <stdint.h>

/* Rounds in which each pair of `ranks` meets exactly once, and a rank meets at most one other per round. */
int32_t health_rounds(int32_t ranks);
/* Whom `rank` meets in `round`; -1: nobody. */
int32_t health_partner(int32_t ranks, int32_t round, int32_t rank);

/*
 * rate [ranks, ranks] bytes per second, symmetric, the diagonal unused. slow_pairs [ranks] gets how many
 * pairs of each rank are below share * median. Returns the median over all pairs; 0 for a single rank.
 */
double health_slow_pairs(const double *rate, int32_t ranks, double share, int32_t *slow_pairs);

#endif
