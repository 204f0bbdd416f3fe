/* SPDX-License-Identifier: Apache-2.0 */
#include "balance.h"

#include <string.h>

#include "fail.h"
#include "status.h"

epx_balancer_t epx_balancer_create(const epx_model_t *model, epx_arena_t *arena)
{
    int64_t places = model->config.layers * model->config.experts;
    epx_balancer_t balancer;
    balancer.target = epx_arena_take(arena, places, sizeof *balancer.target);
    balancer.gap = epx_arena_reals(arena, model->tokens);
    balancer.load = epx_arena_take(arena, places, sizeof *balancer.load);
    return balancer;
}

/* Puts the value of rank `place` (0 = least) at values[place], lesser ones before it (Hoare's selection). */
static epx_real_t select_rank(epx_real_t *values, int64_t count, int64_t place)
{
    int64_t low = 0, high = count - 1;
    while (low < high) {
        epx_real_t pivot = values[low + (high - low) / 2];
        int64_t i = low - 1, j = high + 1;
        for (;;) {
            do
                i++;
            while (values[i] < pivot);
            do
                j--;
            while (pivot < values[j]);
            if (i >= j)
                break;
            epx_real_t kept = values[i];
            values[i] = values[j];
            values[j] = kept;
        }
        if (place <= j)
            high = j;
        else
            low = j + 1;
    }
    return values[place];
}

/* Half way between the last score chosen and the best one not chosen. */
static epx_real_t threshold(const epx_model_t *model, const epx_real_t *logits, const epx_real_t *bias,
                            const int32_t *chosen)
{
    int64_t top_k = model->config.top_k;
    epx_real_t last = logits[chosen[top_k - 1]] + bias[chosen[top_k - 1]], next = 0;
    int found = 0;
    for (int64_t e = 0; e < model->config.experts; e++) {
        epx_real_t score = logits[e] + bias[e];
        int taken = 0;
        for (int64_t k = 0; k < top_k && score >= last; k++)
            taken |= chosen[k] == e;
        if (!taken && (!found || score > next)) {
            next = score;
            found = 1;
        }
    }
    return found ? (last + next) / 2 : last;
}

/* Writes the bias at which each expert of a layer would get its share of this rank's tokens. Uses up
 * scratch.dlogits. */
static void quantile_targets(epx_model_t *model, int64_t layer, epx_balancer_t *balancer)
{
    const epx_layer_t *kept = &model->layer[layer];
    int64_t experts = model->config.experts, top_k = model->config.top_k;
    int64_t tokens = model->pass.sequences * model->config.sequence;
    const epx_real_t *bias = model->bias + layer * experts;
    epx_real_t *level = model->scratch.dlogits;
    for (int64_t t = 0; t < tokens; t++)
        level[t] = threshold(model, kept->logits + t * experts, bias, kept->chosen + t * top_k);
    int64_t below = tokens - tokens * top_k / experts;
    for (int64_t e = 0; e < experts; e++) {
        for (int64_t t = 0; t < tokens; t++)
            balancer->gap[t] = kept->logits[t * experts + e] - level[t];
        int64_t place = below < tokens ? below : tokens - 1;
        balancer->target[layer * experts + e] = -(double)select_rank(balancer->gap, tokens, place);
    }
}

static void step_targets(const epx_model_t *model, int64_t layer, double rate, epx_balancer_t *balancer)
{
    int64_t experts = model->config.experts, total = 0;
    const int64_t *load = balancer->load + layer * experts;
    for (int64_t e = 0; e < experts; e++)
        total += load[e];
    for (int64_t e = 0; e < experts; e++) {
        int up = load[e] * experts<total, down = load[e] * experts> total;
        balancer->target[layer * experts + e] = (double)model->bias[layer * experts + e] + rate * (up - down);
    }
}

/* bias += share * (target - bias), then mean 0. */
static void approach(epx_model_t *model, int64_t layer, double share, const epx_balancer_t *balancer)
{
    int64_t experts = model->config.experts;
    epx_real_t *bias = model->bias + layer * experts;
    double mean = 0;
    for (int64_t e = 0; e < experts; e++) {
        bias[e] += (epx_real_t)(share * (balancer->target[layer * experts + e] - (double)bias[e]));
        mean += (double)bias[e] / (double)experts;
    }
    for (int64_t e = 0; e < experts; e++)
        bias[e] -= (epx_real_t)mean;
}

int epx_balance_update(epx_model_t *model, epx_balancer_t *balancer, epx_balance_t how, double rate,
                       epx_comm_h world)
{
    int64_t layers = model->config.layers, experts = model->config.experts;
    for (int64_t i = 0; i < layers; i++)
        memcpy(balancer->load + i * experts, model->layer[i].load, (size_t)experts * sizeof *balancer->load);
    int code = epx_train_status(
        epx_comm_allreduce(world, balancer->load, layers * experts, EPX_NUMBER_INT64, EPX_SUM));
    if (code != EPX_TRAIN_OK || model->pass.forced ||
        (how != EPX_BALANCE_QUANTILE && how != EPX_BALANCE_BIAS))
        return code;
    if (how == EPX_BALANCE_BIAS) {
        for (int64_t i = 0; i < layers; i++) {
            step_targets(model, i, rate > 0 ? rate : 0.01, balancer);
            approach(model, i, 1, balancer);
        }
        return EPX_TRAIN_OK;
    }
    for (int64_t i = 0; i < layers; i++)
        quantile_targets(model, i, balancer);
    code = epx_train_status(
        epx_comm_allreduce(world, balancer->target, layers * experts, EPX_NUMBER_DOUBLE, EPX_SUM));
    if (code != EPX_TRAIN_OK)
        return code;
    for (int64_t i = 0; i < layers * experts; i++)
        balancer->target[i] /= epx_comm_size(world);
    for (int64_t i = 0; i < layers; i++)
        approach(model, i, rate > 0 ? rate : 0.1, balancer);
    return EPX_TRAIN_OK;
}

double epx_balance_load_max_over_mean(const epx_model_t *model, const epx_balancer_t *balancer)
{
    double worst = 0;
    int64_t experts = model->config.experts;
    for (int64_t i = 0; i < model->config.layers; i++) {
        const int64_t *load = balancer->load + i * experts;
        int64_t most = 0, total = 0;
        for (int64_t e = 0; e < experts; e++) {
            most = load[e] > most ? load[e] : most;
            total += load[e];
        }
        double ratio = total > 0 ? (double)most * (double)experts / (double)total : 0;
        worst = ratio > worst ? ratio : worst;
    }
    return worst;
}
