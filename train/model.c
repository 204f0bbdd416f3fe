/* SPDX-License-Identifier: Apache-2.0 */
#include "model.h"

#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "fail.h"

#define HEAD_PIECE 512 /* tokens whose logits are in memory at a time */

static int64_t qkv_width(const epx_attention_t *shape)
{
    return (shape->heads + 2 * shape->kv_heads) * shape->head_width;
}

static void take_layer(epx_model_t *model, int64_t number, epx_layer_t *layer)
{
    const epx_model_config_t *config = &model->config;
    epx_arena_t *arena = &model->arena;
    int64_t tokens = model->tokens, width = config->width, row = epx_config_row_width(config);
    int64_t shared = config->shared * config->shared_width;
    layer->attention = epx_config_attention(config, number, model->sequences);
    int64_t heads = layer->attention.heads, heads_width = heads * layer->attention.head_width;
    layer->x = epx_arena_reals(arena, tokens * width);
    layer->attention_scale = epx_arena_reals(arena, tokens);
    layer->attention_in = epx_arena_reals(arena, tokens * width);
    layer->qkv = epx_arena_reals(arena, tokens * qkv_width(&layer->attention));
    layer->logsum = epx_arena_reals(arena, tokens * heads);
    layer->attended = epx_arena_reals(arena, tokens * heads_width);
    layer->gate = config->gate ? epx_arena_reals(arena, tokens * heads) : NULL;
    layer->gated = config->gate ? epx_arena_reals(arena, tokens * heads_width) : layer->attended;
    layer->mid = epx_arena_reals(arena, tokens * width);
    layer->moe_scale = epx_arena_reals(arena, tokens);
    layer->moe_in = epx_arena_reals(arena, tokens * width);
    layer->logits = epx_arena_reals(arena, tokens * config->experts);
    layer->chosen = epx_arena_take(arena, tokens * config->top_k, sizeof *layer->chosen);
    layer->sent = epx_arena_take(arena, tokens * config->top_k, sizeof *layer->sent);
    layer->weights = epx_arena_reals(arena, tokens * config->top_k);
    layer->row = config->latent > 0 ? epx_arena_reals(arena, tokens * row) : layer->moe_in;
    layer->moe_out = epx_arena_reals(arena, tokens * row);
    layer->shared_inner = epx_arena_reals(arena, tokens * 2 * shared);
    layer->shared_acted = epx_arena_reals(arena, tokens * shared);
    layer->load = epx_arena_take(arena, config->experts, sizeof *layer->load);
    layer->aux = epx_arena_reals(arena, config->experts);
}

static void take_scratch(epx_model_t *model)
{
    const epx_model_config_t *config = &model->config;
    epx_scratch_t *scratch = &model->scratch;
    epx_arena_t *arena = &model->arena;
    int64_t tokens = model->tokens, row = epx_config_row_width(config), qkv = 0;
    for (int64_t i = 0; i < config->layers && !arena->failed; i++) {
        epx_attention_t attention = epx_config_attention(config, i, model->sequences);
        int64_t width = qkv_width(&attention);
        qkv = width > qkv ? width : qkv;
    }
    epx_attention_t shape = epx_config_attention(config, 0, model->sequences);
    scratch->dstream = epx_arena_reals(arena, tokens * config->width);
    scratch->dnormed = epx_arena_reals(arena, tokens * config->width);
    scratch->dqkv = epx_arena_reals(arena, tokens * qkv);
    scratch->dattended = epx_arena_reals(arena, tokens * config->heads * config->head_width);
    scratch->dgate = epx_arena_reals(arena, tokens * config->heads);
    scratch->attention = epx_arena_reals(arena, epx_math_attention_scratch(&shape));
    scratch->dlogits = epx_arena_reals(arena, tokens * config->experts);
    scratch->dweights = epx_arena_reals(arena, tokens * config->top_k);
    scratch->dmoe_out = epx_arena_reals(arena, tokens * row);
    scratch->drow = epx_arena_reals(arena, tokens * row);
    scratch->dshared = epx_arena_reals(arena, tokens * config->shared * config->shared_width);
    scratch->loads = epx_arena_take(arena, config->experts, sizeof *scratch->loads);
    scratch->out_logits =
        epx_arena_reals(arena, (tokens < HEAD_PIECE ? tokens : HEAD_PIECE) * config->vocabulary);
}

static void take_rows(epx_model_t *model, epx_rows_t *rows)
{
    const epx_exchange_t *exchange = model->exchange;
    rows->rows = epx_arena_reals(&model->wave_arena, exchange->rows_max * exchange->width);
    rows->start = epx_arena_take(&model->wave_arena, exchange->local_experts, sizeof *rows->start);
    rows->count = epx_arena_take(&model->wave_arena, exchange->local_experts, sizeof *rows->count);
}

static epx_wave_t *take_waves(epx_model_t *model, int64_t waves)
{
    const epx_exchange_t *exchange = model->exchange;
    epx_arena_t *arena = &model->wave_arena;
    epx_wave_t *wave = epx_arena_take(arena, waves, sizeof *wave);
    for (int64_t w = 0; w < waves && !arena->failed; w++) {
        epx_wave_t counted, *taken = arena->counts ? &counted : &wave[w];
        take_rows(model, &taken->in);
        taken->inner = epx_arena_reals(arena, exchange->rows_max * 2 * model->config.expert_width);
        taken->acted = epx_arena_reals(arena, exchange->rows_max * model->config.expert_width);
        taken->y = epx_arena_reals(arena, exchange->rows_max * exchange->width);
    }
    return wave;
}

static void take_all_waves(epx_model_t *model)
{
    const epx_exchange_t *exchange = model->exchange;
    epx_arena_t *arena = &model->wave_arena;
    epx_wave_t *shared = model->recompute ? take_waves(model, 1) : NULL;
    for (int64_t i = 0; i < model->config.layers; i++) {
        epx_wave_t *waves = model->recompute ? shared : take_waves(model, exchange->waves_max);
        if (!arena->counts)
            model->layer[i].wave = waves;
    }
    take_rows(model, &model->scratch.dy);
    model->scratch.dx_rows = epx_arena_reals(arena, exchange->rows_max * exchange->width);
    model->scratch.dacted = epx_arena_reals(arena, exchange->rows_max * model->config.expert_width);
}

/* All that the model has but its waves, which the exchange decides. */
static void take_all(epx_model_t *model)
{
    const epx_model_config_t *config = &model->config;
    epx_arena_t *arena = &model->arena;
    epx_attention_t shape = epx_config_attention(config, 0, model->sequences);
    model->parameter = epx_arena_reals(arena, model->params.count);
    model->gradient = epx_arena_reals(arena, model->params.count);
    model->bias = epx_arena_reals(arena, config->layers * config->experts);
    model->layer = epx_arena_take(arena, config->layers, sizeof *model->layer);
    for (int64_t i = 0; i < config->layers && !arena->failed; i++) {
        epx_layer_t counted;
        take_layer(model, i, arena->counts ? &counted : &model->layer[i]);
    }
    model->last = epx_arena_reals(arena, model->tokens * config->width);
    model->last_scale = epx_arena_reals(arena, model->tokens);
    model->last_normed = epx_arena_reals(arena, model->tokens * config->width);
    take_scratch(model);
    model->rotary = epx_arena_reals(arena, epx_math_rotary_count(&shape));
}

int epx_model_bytes(const epx_model_config_t *config, int64_t sequences, int64_t local_experts,
                    int64_t rows_max, int64_t waves, int recompute, int64_t *bytes_p)
{
    epx_model_t model = {.config = *config,
                         .sequences = sequences,
                         .tokens = sequences * config->sequence,
                         .recompute = recompute || waves == 0};
    epx_exchange_t exchange = {.layers = config->layers,
                               .width = epx_config_row_width(config),
                               .local_experts = local_experts,
                               .rows_max = rows_max,
                               .waves_max = waves};
    if (epx_params_create(config, 0, local_experts, &model.params) != EPX_TRAIN_OK)
        return EPX_TRAIN_FAILED;
    model.arena.counts = model.wave_arena.counts = 1;
    take_all(&model);
    (void)epx_arena_reals(&model.arena, 2 * model.params.count); /* the optimizer's moments */
    model.exchange = &exchange;
    take_all_waves(&model);
    if (__builtin_add_overflow(model.arena.bytes, model.wave_arena.bytes, bytes_p))
        *bytes_p = INT64_MAX;
    epx_params_destroy(&model.params);
    return EPX_TRAIN_OK;
}

int epx_model_create(const epx_model_config_t *config, int64_t sequences, int64_t first_expert,
                     int64_t local_experts, epx_model_t **model_p)
{
    epx_model_t *model = calloc(1, sizeof *model);
    if (!model)
        return epx_train_fail(EPX_TRAIN_FAILED, "no memory for a model");
    model->config = *config;
    model->sequences = sequences;
    model->tokens = sequences * config->sequence;
    if (epx_params_create(config, first_expert, local_experts, &model->params) != EPX_TRAIN_OK)
        goto destroy;
    take_all(model);
    if (model->arena.failed)
        goto destroy;
    epx_attention_t shape = epx_config_attention(config, 0, sequences);
    epx_math_rotary_table(&shape, model->rotary);
    *model_p = model;
    return EPX_TRAIN_OK;
destroy:
    epx_model_destroy(&model);
    return EPX_TRAIN_FAILED;
}

void epx_model_destroy(epx_model_t **model_p)
{
    epx_model_t *model = *model_p;
    *model_p = NULL;
    if (!model)
        return;
    epx_arena_free(&model->wave_arena);
    epx_arena_free(&model->arena);
    epx_params_destroy(&model->params);
    free(model);
}

int epx_model_attach(epx_model_t *model, epx_exchange_t *exchange, int recompute)
{
    epx_arena_free(&model->wave_arena);
    model->exchange = exchange;
    if (!exchange)
        return EPX_TRAIN_OK;
    model->recompute = recompute || exchange->waves_max == 0;
    take_all_waves(model);
    return model->wave_arena.failed ? EPX_TRAIN_FAILED : EPX_TRAIN_OK;
}

/* Loss of the head, piece by piece; with a scale also the head's gradient and scratch.dnormed, that of its
 * input. */
static double head(epx_model_t *model, const int32_t *targets)
{
    const epx_real_t *weight = epx_params_at(&model->params, model->parameter, 0, EPX_HEAD);
    epx_real_t *slope = epx_params_at(&model->params, model->gradient, 0, EPX_HEAD);
    int64_t tokens = model->pass.sequences * model->config.sequence;
    int64_t width = model->config.width, vocabulary = model->config.vocabulary;
    epx_real_t *logits = model->scratch.out_logits;
    double loss = 0;
    for (int64_t t = 0; t < tokens; t += HEAD_PIECE) {
        int64_t piece = tokens - t < HEAD_PIECE ? tokens - t : HEAD_PIECE;
        const epx_real_t *in = model->last_normed + t * width;
        epx_math_gemm(EPX_NN, piece, vocabulary, width, in, width, weight, vocabulary, 0, logits, vocabulary);
        loss += epx_math_cross_entropy(piece, vocabulary, targets + t, model->pass.scale, logits);
        if (model->pass.scale == 0)
            continue;
        epx_math_gemm(EPX_TN, width, vocabulary, piece, in, width, logits, vocabulary, 1, slope, vocabulary);
        epx_math_gemm(EPX_NT, piece, width, vocabulary, logits, vocabulary, weight, vocabulary, 0,
                      model->scratch.dnormed + t * width, width);
    }
    return loss;
}

int epx_model_forward(epx_model_t *model, const epx_pass_t *pass, const int32_t *inputs,
                      const int32_t *targets, double *loss_p)
{
    const epx_params_t *params = &model->params;
    int64_t layers = model->config.layers, width = model->config.width;
    int64_t tokens = pass->sequences * model->config.sequence;
    model->pass = *pass;
    model->inputs = inputs;
    epx_math_embed(tokens, width, inputs, epx_params_at(params, model->parameter, 0, EPX_EMBED),
                   model->layer[0].x);
    for (int64_t i = 0; i < layers; i++) {
        epx_layer_t *layer = &model->layer[i];
        int64_t since = epx_train_clock_ns();
        epx_attention_layer(model, i, layer->x, layer->mid);
        model->attention_ns += epx_train_clock_ns() - since;
        int code = epx_moe_layer(model, i, layer->mid, i + 1 < layers ? model->layer[i + 1].x : model->last);
        if (code != EPX_TRAIN_OK)
            return code;
    }
    epx_math_rmsnorm(tokens, width, model->last, epx_params_at(params, model->parameter, 0, EPX_FINAL_NORM),
                     model->last_normed, model->last_scale);
    *loss_p = head(model, targets);
    return EPX_TRAIN_OK;
}

int epx_model_backward(epx_model_t *model)
{
    const epx_params_t *params = &model->params;
    int64_t width = model->config.width, tokens = model->pass.sequences * model->config.sequence;
    epx_scratch_t *scratch = &model->scratch;
    memset(scratch->dstream, 0, (size_t)(tokens * width) * sizeof *scratch->dstream);
    epx_math_rmsnorm_backward(tokens, width, model->last,
                              epx_params_at(params, model->parameter, 0, EPX_FINAL_NORM), model->last_scale,
                              scratch->dnormed, scratch->dstream,
                              epx_params_at(params, model->gradient, 0, EPX_FINAL_NORM));
    for (int64_t i = model->config.layers - 1; i >= 0; i--) {
        int code = epx_moe_layer_backward(model, i, model->layer[i].mid);
        if (code != EPX_TRAIN_OK)
            return code;
        int64_t since = epx_train_clock_ns();
        epx_attention_layer_backward(model, i, model->layer[i].x);
        model->attention_ns += epx_train_clock_ns() - since;
    }
    epx_math_embed_backward(tokens, width, model->inputs, scratch->dstream,
                            epx_params_at(params, model->gradient, 0, EPX_EMBED));
    return EPX_TRAIN_OK;
}
