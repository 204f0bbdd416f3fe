/* SPDX-License-Identifier: Apache-2.0 */
#include "params.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "fail.h"
#include "random.h"

/* Adds one tensor to the layout; none where it has no elements. */
static void add(epx_params_t *params, int64_t layer, epx_slot_t slot, const char *name,
                epx_tensor_class_t tensor_class, int64_t rows, int64_t cols, double deviation)
{
    if (rows == 0 || cols == 0)
        return;
    epx_tensor_t *tensor = &params->tensor[params->tensors++];
    *tensor = (epx_tensor_t){.slot = slot,
                             .tensor_class = tensor_class,
                             .layer = layer,
                             .rows = rows,
                             .cols = cols,
                             .offset = params->count,
                             .deviation = deviation};
    tensor->matrices = tensor_class == EPX_CLASS_EXPERT ? params->local_experts : 1;
    tensor->count = tensor->matrices * rows * cols;
    if (layer < 0)
        snprintf(tensor->name, sizeof tensor->name, "%s", name);
    else
        snprintf(tensor->name, sizeof tensor->name, "layer.%lld.%s", (long long)layer, name);
    params->place[layer < 0 ? 0 : layer][slot] = params->count;
    params->count += tensor->count;
}

static double fan(int64_t inputs) { return 1 / sqrt((double)inputs); }

static void add_layer(const epx_model_config_t *model, int64_t layer, double residual, epx_params_t *params)
{
    epx_attention_t shape = epx_config_attention(model, layer, 1);
    int64_t width = model->width, heads_width = shape.heads * shape.head_width;
    int64_t shared = model->shared * model->shared_width;
    add(params, layer, EPX_ATTENTION_NORM, "attention.norm", EPX_CLASS_NORM, 1, width, 0);
    add(params, layer, EPX_QKV, "attention.qkv", EPX_CLASS_MATRIX, width,
        heads_width + 2 * shape.kv_heads * shape.head_width, fan(width));
    add(params, layer, EPX_GATE, "attention.gate", EPX_CLASS_GATE, model->gate ? width : 0, shape.heads,
        fan(width));
    add(params, layer, EPX_OUT, "attention.out", EPX_CLASS_MATRIX, heads_width, width,
        residual * fan(heads_width));
    add(params, layer, EPX_MOE_NORM, "moe.norm", EPX_CLASS_NORM, 1, width, 0);
    add(params, layer, EPX_ROUTER, "moe.router", EPX_CLASS_ROUTER, width, model->experts, 0.1 * fan(width));
    add(params, layer, EPX_DOWN, "moe.down", EPX_CLASS_MATRIX, width, model->latent, fan(width));
    add(params, layer, EPX_UP, "moe.up", EPX_CLASS_MATRIX, model->latent, width,
        residual * fan(epx_config_row_width(model)));
    add(params, layer, EPX_SHARED_IN, "shared.in", EPX_CLASS_MATRIX, width, 2 * shared, fan(width));
    add(params, layer, EPX_SHARED_OUT, "shared.out", EPX_CLASS_MATRIX, shared, width,
        shared ? residual * fan(shared) : 0);
}

static void add_experts(const epx_model_config_t *model, int64_t layer, double residual, epx_params_t *params)
{
    int64_t row = epx_config_row_width(model), inner = model->expert_width;
    double out = model->latent > 0 ? 1 : residual;
    add(params, layer, EPX_EXPERT_IN, "expert.in", EPX_CLASS_EXPERT, row, 2 * inner, fan(row));
    add(params, layer, EPX_EXPERT_OUT, "expert.out", EPX_CLASS_EXPERT, inner, row, out * fan(inner));
}

int epx_params_create(const epx_model_config_t *model, int64_t first_expert, int64_t local_experts,
                      epx_params_t *params_p)
{
    epx_params_t params = {
        .experts = model->experts, .first_expert = first_expert, .local_experts = local_experts};
    params.tensor = calloc((size_t)(model->layers * EPX_SLOTS), sizeof *params.tensor);
    params.place = malloc((size_t)model->layers * sizeof *params.place);
    if (!params.tensor || !params.place) {
        epx_params_destroy(&params);
        return epx_train_fail(EPX_TRAIN_FAILED, "no memory for the list of tensors: take fewer --layers");
    }
    for (int64_t layer = 0; layer < model->layers; layer++)
        for (int slot = 0; slot < EPX_SLOTS; slot++)
            params.place[layer][slot] = -1;
    double residual =
        1 / sqrt(2.0 * (double)model->layers); /* GPT-2: the sum of all layers starts with variance 1 */
    add(&params, -1, EPX_EMBED, "embed", EPX_CLASS_EMBED, model->vocabulary, model->width, 0.5);
    for (int64_t layer = 0; layer < model->layers; layer++)
        add_layer(model, layer, residual, &params);
    add(&params, -1, EPX_FINAL_NORM, "norm", EPX_CLASS_NORM, 1, model->width, 0);
    add(&params, -1, EPX_HEAD, "head", EPX_CLASS_MATRIX, model->width, model->vocabulary,
        0.2 * fan(model->width));
    params.dense = params.count;
    for (int64_t layer = 0; layer < model->layers; layer++)
        add_experts(model, layer, residual, &params);
    *params_p = params;
    return EPX_TRAIN_OK;
}

void epx_params_destroy(epx_params_t *params)
{
    free(params->place);
    free(params->tensor);
    *params = (epx_params_t){0};
}

epx_real_t *epx_params_at(const epx_params_t *params, epx_real_t *base, int64_t layer, epx_slot_t slot)
{
    int64_t place = params->place[slot < EPX_ATTENTION_NORM ? 0 : layer][slot];
    return place < 0 ? NULL : base + place;
}

/* A stream of random numbers for each matrix of the whole model. */
static uint64_t matrix_seed(uint64_t seed, const epx_tensor_t *tensor, int64_t expert)
{
    uint64_t which = (uint64_t)(tensor->layer + 1) * EPX_SLOTS + (uint64_t)tensor->slot;
    return epx_random_bits(seed, EPX_STREAM_INIT, which << 24 ^ (uint64_t)expert);
}

void epx_params_init(const epx_params_t *params, uint64_t seed, epx_real_t *base)
{
    for (int64_t i = 0; i < params->tensors; i++) {
        const epx_tensor_t *tensor = &params->tensor[i];
        int64_t each = tensor->rows * tensor->cols;
        for (int64_t matrix = 0; matrix < tensor->matrices; matrix++) {
            int64_t expert = tensor->tensor_class == EPX_CLASS_EXPERT ? params->first_expert + matrix : 0;
            uint64_t stream = matrix_seed(seed, tensor, expert);
            epx_real_t *to = base + tensor->offset + matrix * each;
            for (int64_t j = 0; j < each; j++)
                to[j] = tensor->deviation > 0
                            ? (epx_real_t)(tensor->deviation *
                                           epx_random_normal(stream, EPX_STREAM_INIT, (uint64_t)j))
                            : 1;
        }
    }
}
