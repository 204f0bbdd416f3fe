/*
 * Draws different experts in proportion to weights. SPDX-License-Identifier: Apache-2.0
 *
 * One draw is Walker's alias method: an expert taken evenly, then kept or exchanged for another with a chance
 * of its own. An expert that the token has already is drawn again, which is the same distribution as giving
 * what is left its share of the weights; after a fixed number of refusals the draw is made among what is left
 * itself. Chances are held in units of 2^-32.
 */
#ifndef EPX_BENCH_SAMPLER_H
#define EPX_BENCH_SAMPLER_H

#include <stdint.h>

#include "tools/common/numbers.h"

typedef struct epx_sampler {
    int32_t experts, candidates; /* candidates: experts with a weight above zero */
    double *weight;              /* [E] filled by the caller */
    uint64_t *cell; /* [E] chance of keeping e in the upper half, the other expert in the lower */
    uint32_t *mark; /* [E] the last token that took e */
    uint32_t token;
    int32_t *stack; /* [2 * E] while the table is made */
} epx_sampler_t;

/* For E experts; ends the program where memory is missing. One thread uses a sampler at a time. */
epx_sampler_t epx_sampler_open(int32_t experts);
void epx_sampler_close(epx_sampler_t *sampler);

/* Makes the table from `weight` (none negative, their sum finite). */
void epx_sampler_prepare(epx_sampler_t *sampler);

/* ids [count]: different experts while there are candidates, then the same ones again in the same order; -1
 * where there is no candidate at all. */
void epx_sampler_draw(epx_sampler_t *sampler, epx_random_t *random, int32_t count, int32_t *ids);

#endif
