/* From gradients to new parameters: summing over ranks, clipping, AdamW. SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_TRAIN_OPTIMIZER_H
#define EPX_TRAIN_OPTIMIZER_H

#include <epx/comm.h>

#include "model.h"

typedef struct epx_optimizer {
    epx_real_t *mean, *square; /* [params.count], laid out like the parameters */
} epx_optimizer_t;

/* Zeros, owned by the arena. NULL members on want of memory, see arena->failed. */
epx_optimizer_t epx_optimizer_create(const epx_model_t *model, epx_arena_t *arena);

/* Sums model->gradient over ranks: what all ranks hold over `world`, experts over `replicas`, the ranks that
 * hold the same experts (NULL or of size 1: nothing to sum). Collective over both. */
int epx_gradients_sum(epx_model_t *model, epx_comm_h world, epx_comm_h replicas);

/* The norm of the summed gradient of the whole model. Collective over `group`, whose ranks hold all experts
 * once. */
int epx_gradients_norm(const epx_model_t *model, epx_comm_h group, double *norm_p);

/* Learning rate of step `step`, 0 <= step: linear warm-up, then the schedule down to rate * rate_end at the
 * last step. */
double epx_optimizer_rate(const epx_train_config_t *config, int64_t step);

/* Weight decay of router and gate at step `step`: falls linearly to 0 over the run. */
double epx_optimizer_router_decay(const epx_train_config_t *config, int64_t step);

/* One AdamW step; the gradient, of norm `norm`, is scaled down to config->clip if that is set. Clears the
 * gradient. */
void epx_optimizer_step(const epx_train_config_t *config, int64_t step, double norm,
                        epx_optimizer_t *optimizer, epx_model_t *model);

/* Norm of all tensors of a class that all ranks hold. */
double epx_parameters_norm(const epx_model_t *model, epx_tensor_class_t tensor_class);

#endif
