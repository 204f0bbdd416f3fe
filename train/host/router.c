/* The router: who is chosen, with what weight, and what the balance losses say. SPDX-License-Identifier:
 * Apache-2.0 */
#include <math.h>
#include <tgmath.h>

#include "../math.h"

void epx_math_router_choose(int64_t tokens, int64_t experts, int64_t top_k, const epx_real_t *logits,
                            const epx_real_t *bias, int32_t *ids)
{
    for (int64_t t = 0; t < tokens; t++, logits += experts, ids += top_k) {
        int64_t chosen = 0;
        for (int64_t e = 0; e < experts; e++) {
            epx_real_t score = logits[e] + bias[e];
            if (chosen == top_k && !(score > logits[ids[top_k - 1]] + bias[ids[top_k - 1]]))
                continue;
            int64_t place = chosen < top_k ? chosen++ : top_k - 1;
            for (; place > 0 && score > logits[ids[place - 1]] + bias[ids[place - 1]]; place--)
                ids[place] = ids[place - 1];
            ids[place] = (int32_t)e;
        }
    }
}

void epx_math_router_weigh(int64_t tokens, int64_t experts, int64_t top_k, const epx_real_t *logits,
                           const int32_t *ids, epx_real_t *weights)
{
    for (int64_t t = 0; t < tokens; t++, logits += experts, ids += top_k, weights += top_k) {
        epx_real_t most = -INFINITY, sum = 0;
        for (int64_t k = 0; k < top_k; k++)
            if (ids[k] >= 0 && logits[ids[k]] > most)
                most = logits[ids[k]];
        for (int64_t k = 0; k < top_k; k++)
            sum += weights[k] = ids[k] >= 0 ? exp(logits[ids[k]] - most) : 0;
        for (int64_t k = 0; k < top_k && sum > 0; k++)
            weights[k] /= sum;
    }
}

void epx_math_router_weigh_backward(int64_t tokens, int64_t experts, int64_t top_k, const int32_t *ids,
                                    const epx_real_t *weights, const epx_real_t *dweights,
                                    epx_real_t *dlogits)
{
    for (int64_t t = 0; t < tokens;
         t++, dlogits += experts, ids += top_k, weights += top_k, dweights += top_k) {
        epx_real_t mean = 0;
        for (int64_t k = 0; k < top_k; k++)
            mean += weights[k] * dweights[k];
        for (int64_t k = 0; k < top_k; k++)
            if (ids[k] >= 0)
                dlogits[ids[k]] += weights[k] * (dweights[k] - mean);
    }
}

double epx_math_router_losses(int64_t tokens, int64_t experts, const epx_real_t *logits, double z,
                              const epx_real_t *load, epx_real_t scale, epx_real_t *dlogits)
{
    double loss = 0;
    for (int64_t t = 0; t < tokens; t++, logits += experts, dlogits += dlogits ? experts : 0) {
        epx_real_t most = logits[0], sum = 0, weighted = 0;
        for (int64_t e = 1; e < experts; e++)
            most = logits[e] > most ? logits[e] : most;
        for (int64_t e = 0; e < experts; e++) {
            epx_real_t part = exp(logits[e] - most);
            sum += part;
            weighted += load ? load[e] * part : 0;
        }
        epx_real_t logsum = most + log(sum), balance = weighted / sum;
        loss += z * (double)logsum * (double)logsum + (double)balance;
        for (int64_t e = 0; dlogits && e < experts; e++) {
            epx_real_t share = exp(logits[e] - logsum);
            epx_real_t slope = 2 * (epx_real_t)z * logsum + (load ? load[e] - balance : 0);
            dlogits[e] += scale * share * slope;
        }
    }
    return loss;
}
