/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer.h"

#include <math.h>
#include <string.h>

#include "fail.h"
#include "status.h"

epx_optimizer_t epx_optimizer_create(const epx_model_t *model, epx_arena_t *arena)
{
    epx_optimizer_t optimizer;
    optimizer.mean = epx_arena_reals(arena, model->params.count);
    optimizer.square = epx_arena_reals(arena, model->params.count);
    return optimizer;
}

int epx_gradients_sum(epx_model_t *model, epx_comm_h world, epx_comm_h replicas)
{
    const epx_params_t *params = &model->params;
    int code = EPX_TRAIN_OK;
    if (epx_comm_size(world) > 1)
        code = epx_train_status(
            epx_comm_allreduce(world, model->gradient, params->dense, EPX_NUMBER_FLOAT, EPX_SUM));
    if (code == EPX_TRAIN_OK && replicas && epx_comm_size(replicas) > 1)
        code = epx_train_status(epx_comm_allreduce(replicas, model->gradient + params->dense,
                                                   params->count - params->dense, EPX_NUMBER_FLOAT, EPX_SUM));
    return code;
}

int epx_gradients_norm(const epx_model_t *model, epx_comm_h group, double *norm_p)
{
    const epx_params_t *params = &model->params;
    double experts = epx_math_square_sum(params->count - params->dense, model->gradient + params->dense);
    int code = epx_train_status(epx_comm_allreduce(group, &experts, 1, EPX_NUMBER_DOUBLE, EPX_SUM));
    if (code == EPX_TRAIN_OK)
        *norm_p = sqrt(epx_math_square_sum(params->dense, model->gradient) + experts);
    return code;
}

double epx_optimizer_rate(const epx_train_config_t *config, int64_t step)
{
    if (step < config->warmup)
        return config->rate * (double)(step + 1) / (double)config->warmup;
    if (config->schedule == EPX_SCHEDULE_CONSTANT || config->steps <= config->warmup)
        return config->rate;
    double done = (double)(step - config->warmup) / (double)(config->steps - config->warmup);
    double wave = 0.5 * (1 + cos(3.141592653589793 * (done < 1 ? done : 1)));
    return config->rate * (config->rate_end + (1 - config->rate_end) * wave);
}

double epx_optimizer_router_decay(const epx_train_config_t *config, int64_t step)
{
    double left = config->steps > 0 ? 1 - (double)step / (double)config->steps : 0;
    return left > 0 ? config->router_decay * left : 0;
}

static double decay_of(const epx_train_config_t *config, epx_tensor_class_t tensor_class, int64_t step)
{
    switch (tensor_class) {
    case EPX_CLASS_NORM:
    case EPX_CLASS_EMBED: return 0;
    case EPX_CLASS_ROUTER:
    case EPX_CLASS_GATE: return epx_optimizer_router_decay(config, step);
    case EPX_CLASS_MATRIX:
    case EPX_CLASS_EXPERT: break;
    }
    return config->decay;
}

void epx_optimizer_step(const epx_train_config_t *config, int64_t step, double norm,
                        epx_optimizer_t *optimizer, epx_model_t *model)
{
    double scale = config->clip > 0 && norm > config->clip ? config->clip / norm : 1;
    epx_adamw_t adamw = {
        .rate = (epx_real_t)epx_optimizer_rate(config, step),
        .beta1 = (epx_real_t)config->beta1,
        .beta2 = (epx_real_t)config->beta2,
        .epsilon = (epx_real_t)config->epsilon,
        .scale = (epx_real_t)scale,
        .correction1 = (epx_real_t)(1 / (1 - pow(config->beta1, (double)(step + 1)))),
        .correction2 = (epx_real_t)(1 / (1 - pow(config->beta2, (double)(step + 1)))),
    };
    for (int64_t i = 0; i < model->params.tensors; i++) {
        const epx_tensor_t *tensor = &model->params.tensor[i];
        adamw.decay = (epx_real_t)decay_of(config, tensor->tensor_class, step);
        epx_math_adamw(&adamw, tensor->count, model->gradient + tensor->offset,
                       model->parameter + tensor->offset, optimizer->mean + tensor->offset,
                       optimizer->square + tensor->offset);
    }
    memset(model->gradient, 0, (size_t)model->params.count * sizeof *model->gradient);
}

double epx_parameters_norm(const epx_model_t *model, epx_tensor_class_t tensor_class)
{
    double sum = 0;
    for (int64_t i = 0; i < model->params.tensors; i++) {
        const epx_tensor_t *tensor = &model->params.tensor[i];
        if (tensor->tensor_class == tensor_class)
            sum += epx_math_square_sum(tensor->count, model->parameter + tensor->offset);
    }
    return sqrt(sum);
}
