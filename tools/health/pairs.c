/* Rounds of pairs, and slow ones. SPDX-License-Identifier: Apache-2.0 */
#include "tools/health/pairs.h"

#include <stdlib.h>

#include "tools/common/numbers.h"
#include "tools/common/program.h"

/* With an odd number of ranks somebody is alone in each round: a guest that nobody meets makes them even. */
static int32_t even(int32_t ranks) { return ranks + ranks % 2; }

int32_t health_rounds(int32_t ranks) { return ranks < 2 ? 0 : even(ranks) - 1; }

/* In round k those meet whose numbers add up to k modulo the rounds; whoever would meet himself meets the
 * last. */
int32_t health_partner(int32_t ranks, int32_t round, int32_t rank)
{
    int32_t rounds = health_rounds(ranks), last = rounds, partner = last;
    if (rank == last) {
        for (int32_t r = 0; r < rounds; r++)
            if ((2 * r) % rounds == round)
                partner = r;
    } else if ((2 * rank) % rounds != round) {
        partner = (round - rank + rounds) % rounds;
    }
    return partner < ranks ? partner : -1;
}

double health_slow_pairs(const double *rate, int32_t ranks, double share, int32_t *slow_pairs)
{
    size_t pairs = (size_t)ranks * (size_t)(ranks - 1) / 2, at = 0;
    double *sorted = epx_tool_alloc(pairs + 1, sizeof *sorted);
    for (int32_t a = 0; a < ranks; a++)
        for (int32_t b = a + 1; b < ranks; b++)
            sorted[at++] = rate[(size_t)a * (size_t)ranks + (size_t)b];
    epx_sort_reals(sorted, pairs);
    double median = pairs > 0 ? epx_quantile(sorted, pairs, 0.5) : 0;
    free(sorted);
    for (int32_t a = 0; a < ranks; a++) {
        slow_pairs[a] = 0;
        for (int32_t b = 0; b < ranks; b++)
            slow_pairs[a] += a != b && rate[(size_t)a * (size_t)ranks + (size_t)b] < share * median;
    }
    return median;
}
