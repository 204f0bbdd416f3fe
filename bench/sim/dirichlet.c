/* Popularity of experts that differs from sequence to sequence. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "bench/sim/routing.h"
#include "tools/common/numbers.h"

#define TWO_PI 6.283185307179586

/* (0, 1], so that it has a logarithm. */
static double open_unit(epx_random_t *random) { return 1 - epx_random_unit(random); }

static double normal(epx_random_t *random)
{
    double radius = sqrt(-2 * log(open_unit(random)));
    return radius * cos(TWO_PI * epx_random_unit(random));
}

/*
 * Logarithm of a gamma variate, by Marsaglia and Tsang (2000). For a shape below 1 it is that of shape + 1
 * times a uniform to the power of 1 / shape, which underflows where its logarithm does not.
 */
static double log_gamma_variate(epx_random_t *random, double shape)
{
    double boost = shape < 1 ? log(open_unit(random)) / shape : 0;
    double d = (shape < 1 ? shape + 1 : shape) - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        double x = normal(random), v = 1 + c * x;
        if (v <= 0)
            continue;
        v = v * v * v;
        if (log(open_unit(random)) < 0.5 * x * x + d - d * v + d * log(v))
            return log(d * v) + boost;
    }
}

void epx_sim_popularity(const epx_sim_routing_t *routing, uint64_t seed, int32_t experts, double *popularity)
{
    epx_random_t random = epx_random_at(seed, 0);
    double sum = 0, scale = isinf(routing->alpha) ? 1 : routing->alpha;
    for (int32_t e = 0; e < experts; e++)
        sum += popularity[e] = exp(routing->sigma * normal(&random));
    for (int32_t e = 0; e < experts; e++)
        popularity[e] *= scale / sum;
}

uint64_t epx_sim_sequence(const epx_sim_source_t *source, int64_t sequence, double *weight)
{
    int32_t experts = source->routing.experts;
    double largest = -INFINITY;
    epx_random_t random = epx_random_at(source->seed * 1000003 + 1, (uint64_t)sequence);
    for (int32_t e = 0; e < experts; e++) {
        double shape = source->popularity[e];
        weight[e] = isinf(source->input->routing->alpha) ? log(shape) : log_gamma_variate(&random, shape);
        largest = weight[e] > largest ? weight[e] : largest;
    }
    for (int32_t e = 0; e < experts; e++) /* a token must find K different experts, however rare */
        weight[e] = fmax(exp(weight[e] - largest), 1e-290);
    return epx_random_next(&random);
}
