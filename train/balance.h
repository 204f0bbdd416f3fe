/* Keeps experts equally busy without an auxiliary loss: a bias per expert, added to the router's logits for
 * choosing only. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_TRAIN_BALANCE_H
#define EPX_TRAIN_BALANCE_H

#include <epx/comm.h>

#include "model.h"

/* Memory that balancing needs beside the model, owned by the arena. */
typedef struct epx_balancer {
    double *target;  /* [layers, experts] */
    epx_real_t *gap; /* [tokens] */
    int64_t *load;   /* [layers, experts] of all ranks, after epx_balance_update */
} epx_balancer_t;

/* NULL members on want of memory, see arena->failed. */
epx_balancer_t epx_balancer_create(const epx_model_t *model, epx_arena_t *arena);

/* Moves model->bias by what the last forward pass chose, and sums the loads over all ranks of `world`.
 *   quantile: a token takes expert e if logit[e] + bias[e] is above its threshold (the mean of its K-th and
 * next best). The bias at which e gets K/E of the tokens is minus the (1 - K/E) quantile of logit[e] -
 * threshold; the mean of it over ranks is approached at `rate`. bias:     up by `rate` for an expert below
 * the mean load, down by it above (DeepSeek-V3). rate 0: the usual one. Afterwards the biases of a layer have
 * mean 0. Nothing moves under forced routing. Collective. */
int epx_balance_update(epx_model_t *model, epx_balancer_t *balancer, epx_balance_t how, double rate,
                       epx_comm_h world);

/* The heaviest expert's load over the mean, in the layer where that is worst. */
double epx_balance_load_max_over_mean(const epx_model_t *model, const epx_balancer_t *balancer);

#endif
