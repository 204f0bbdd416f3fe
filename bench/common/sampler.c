/* Different experts in proportion to weights. SPDX-License-Identifier: Apache-2.0 */
#include "bench/common/sampler.h"

#include <stdlib.h>
#include <string.h>

#include "tools/common/program.h"

enum { ATTEMPTS = 32 };

epx_sampler_t epx_sampler_open(int32_t experts)
{
    size_t n = (size_t)experts;
    return (epx_sampler_t){.experts = experts,
                           .weight = epx_tool_alloc(n, sizeof(double)),
                           .cell = epx_tool_alloc(n, sizeof(uint64_t)),
                           .mark = epx_tool_alloc(n, sizeof(uint32_t)),
                           .stack = epx_tool_alloc(2 * n, sizeof(int32_t))};
}

void epx_sampler_close(epx_sampler_t *sampler)
{
    free(sampler->weight);
    free(sampler->cell);
    free(sampler->mark);
    free(sampler->stack);
    *sampler = (epx_sampler_t){0};
}

static void set_cell(epx_sampler_t *sampler, int32_t e, double chance, int32_t other)
{
    double units = chance * 0x1p32;
    uint64_t most = UINT32_MAX;
    sampler->cell[e] = (units < 0x1p32 ? (uint64_t)units : most) << 32 | (uint32_t)other;
}

/*
 * Experts with less than an even share ("small") fill up their cell from one with more ("large"), which goes
 * on with what it has left. Rounding may leave some over at the end: they keep their cell for themselves,
 * unless they weigh nothing.
 */
void epx_sampler_prepare(epx_sampler_t *sampler)
{
    int32_t n = sampler->experts, small = 0, large = 0, *less = sampler->stack, *more = less + n, heavy = 0;
    double sum = 0, *share = sampler->weight;
    sampler->candidates = 0;
    for (int32_t e = 0; e < n; e++) {
        sum += share[e];
        sampler->candidates += share[e] > 0;
        heavy = share[e] > share[heavy] ? e : heavy;
    }
    if (sampler->candidates == 0)
        return;
    double scale = n / sum;
    double *left = epx_tool_alloc((size_t)n, sizeof *left);
    for (int32_t e = 0; e < n; e++) {
        left[e] = share[e] * scale;
        if (left[e] < 1)
            less[small++] = e;
        else
            more[large++] = e;
    }
    while (small > 0 && large > 0) {
        int32_t e = less[--small], rich = more[large - 1];
        set_cell(sampler, e, left[e], rich);
        left[rich] -= 1 - left[e];
        if (left[rich] < 1) {
            large--;
            less[small++] = rich;
        }
    }
    while (small > 0) {
        int32_t e = less[--small];
        set_cell(sampler, e, share[e] > 0, share[e] > 0 ? e : heavy);
    }
    while (large > 0) {
        int32_t e = more[--large];
        set_cell(sampler, e, 1, e);
    }
    free(left);
}

/* One draw among what the token does not have yet, by a walk over all. */
static int32_t draw_by_walk(const epx_sampler_t *sampler, epx_random_t *random)
{
    double left = 0;
    int32_t last = 0;
    for (int32_t e = 0; e < sampler->experts; e++)
        left += sampler->mark[e] != sampler->token ? sampler->weight[e] : 0;
    left *= epx_random_unit(random);
    for (int32_t e = 0; e < sampler->experts; e++) {
        if (!(sampler->weight[e] > 0) || sampler->mark[e] == sampler->token)
            continue;
        last = e;
        left -= sampler->weight[e];
        if (left < 0)
            break;
    }
    return last;
}

static inline int32_t draw_one(const epx_sampler_t *sampler, epx_random_t *random)
{
    uint64_t bits = epx_random_next(random);
    uint32_t e = (uint32_t)((bits >> 32) * (uint64_t)sampler->experts >> 32);
    uint64_t cell = sampler->cell[e];
    return (uint32_t)bits < cell >> 32 ? (int32_t)e : (int32_t)(uint32_t)cell;
}

void epx_sampler_draw(epx_sampler_t *sampler, epx_random_t *random, int32_t count, int32_t *ids)
{
    int32_t distinct = sampler->candidates < count ? sampler->candidates : count;
    if (++sampler->token == 0) { /* marks of 2^32 tokens ago must not count */
        memset(sampler->mark, 0, (size_t)sampler->experts * sizeof *sampler->mark);
        sampler->token = 1;
    }
    epx_random_t local = *random; /* stays in a register */
    for (int32_t k = 0; k < distinct; k++) {
        int32_t e = draw_one(sampler, &local);
        for (int i = 1; sampler->mark[e] == sampler->token && i < ATTEMPTS; i++)
            e = draw_one(sampler, &local);
        if (sampler->mark[e] == sampler->token)
            e = draw_by_walk(sampler, &local);
        sampler->mark[e] = sampler->token;
        ids[k] = e;
    }
    *random = local;
    for (int32_t k = distinct; k < count; k++)
        ids[k] = distinct > 0 ? ids[k - distinct] : -1;
}
