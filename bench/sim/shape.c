/* The shape that is looked at. SPDX-License-Identifier: Apache-2.0 */
#include "bench/sim/shape.h"

#include <stdio.h>
#include <string.h>

#include "train/fail.h"

const char *const epx_sim_row_types[] = {"fp32", "bf16", "fp16", NULL};
static const epx_type_t types[] = {EPX_FP32, EPX_BF16, EPX_FP16};
static const int32_t type_bytes[] = {4, 2, 2};

int epx_sim_shape_preset(const char *name, epx_sim_shape_t *shape_p)
{
    epx_train_config_t config;
    if (epx_config_preset(name, &config) != EPX_TRAIN_OK)
        return -1;
    *shape_p = (epx_sim_shape_t){.model = config.model,
                                 .ranks = 64,
                                 .tokens = config.batch * config.model.sequence,
                                 .context_parallel = 1,
                                 .row_type = 1};
    snprintf(shape_p->name, sizeof shape_p->name, "%s", name);
    return 0;
}

static int32_t element_bytes(const epx_sim_shape_t *shape) { return type_bytes[shape->row_type]; }

int64_t epx_sim_row_bytes(const epx_sim_shape_t *shape)
{
    return epx_config_row_width(&shape->model) * element_bytes(shape);
}

int64_t epx_sim_piece(const epx_sim_shape_t *shape)
{
    return shape->model.sequence / shape->context_parallel;
}

static int refuse(char *problem, size_t bytes, const char *text)
{
    snprintf(problem, bytes, "%s", text);
    return -1;
}

int epx_sim_shape_check(const epx_sim_shape_t *shape, char *problem, size_t bytes)
{
    const epx_model_config_t *model = &shape->model;
    if (model->top_k > model->experts)
        return refuse(problem, bytes, "--top-k is more than --experts: choose fewer");
    if (model->sequence % shape->context_parallel != 0)
        return refuse(problem, bytes, "--sequence is no multiple of --context-parallel: make it one");
    if (shape->ranks % shape->context_parallel != 0)
        return refuse(problem, bytes, "--ranks is no multiple of --context-parallel: make it one");
    if (shape->tokens * model->top_k > INT32_MAX)
        return refuse(problem, bytes, "--tokens times --top-k is beyond 2^31 - 1 assignments: use fewer");
    return 0;
}

epx_group_config_t epx_sim_group_config(const epx_sim_shape_t *shape)
{
    epx_group_config_t config = EPX_GROUP_CONFIG_INIT;
    config.name = "epx-sim";
    config.ranks = (int32_t)shape->ranks;
    config.experts = (int32_t)shape->model.experts;
    config.top_k = (int32_t)shape->model.top_k;
    config.width = (int32_t)epx_config_row_width(&shape->model);
    config.tokens_max = (int32_t)shape->tokens;
    config.row_type = types[shape->row_type];
    return config;
}
