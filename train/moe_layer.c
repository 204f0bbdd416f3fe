/* The mixture-of-experts half of a layer: x + routed(norm(x)) + shared(norm(x)). SPDX-License-Identifier:
 * Apache-2.0
 *
 * routed(h): ids, weights = top-K of h router + bias; row = h down; waves of dispatch, experts, combine;
 * result up. The latent width (down, up) may be absent, and then rows travel at full width. */
#include <string.h>

#include "clock.h"
#include "fail.h"
#include "model.h"
#include "random.h"

/* The tensors of this half, in the parameters or in the gradients. */
typedef struct tensors {
    epx_real_t *norm, *router, *down, *up, *shared_in, *shared_out, *expert_in, *expert_out;
} tensors_t;

static tensors_t moe_tensors(const epx_model_t *model, epx_real_t *base, int64_t layer)
{
    return (tensors_t){
        .norm = epx_params_at(&model->params, base, layer, EPX_MOE_NORM),
        .router = epx_params_at(&model->params, base, layer, EPX_ROUTER),
        .down = epx_params_at(&model->params, base, layer, EPX_DOWN),
        .up = epx_params_at(&model->params, base, layer, EPX_UP),
        .shared_in = epx_params_at(&model->params, base, layer, EPX_SHARED_IN),
        .shared_out = epx_params_at(&model->params, base, layer, EPX_SHARED_OUT),
        .expert_in = epx_params_at(&model->params, base, layer, EPX_EXPERT_IN),
        .expert_out = epx_params_at(&model->params, base, layer, EPX_EXPERT_OUT),
    };
}

static int64_t pass_tokens(const epx_model_t *model)
{
    return model->pass.sequences * model->config.sequence;
}

/* ---- router ------------------------------------------------------------------------------------------------------ */

static void drop_by_chance(epx_model_t *model, int64_t layer)
{
    const epx_pass_t *pass = &model->pass;
    epx_layer_t *kept = &model->layer[layer];
    int64_t top_k = model->config.top_k, assignments = pass_tokens(model) * top_k;
    memcpy(kept->sent, kept->chosen, (size_t)assignments * sizeof *kept->sent);
    for (int64_t a = 0; pass->drop > 0 && a < assignments; a++) {
        uint64_t place = (uint64_t)((pass->first_token * top_k + a) * model->config.layers + layer);
        if (epx_random_uniform(pass->drop_seed, EPX_STREAM_DROP, place) < pass->drop)
            kept->sent[a] = -1;
    }
}

/* How much each expert weighs in the auxiliary loss: aux * experts * its share of all ranks' assignments. */
static int weigh_loads(epx_model_t *model, int64_t layer)
{
    epx_layer_t *kept = &model->layer[layer];
    int64_t experts = model->config.experts, total = 0, *loads = model->scratch.loads;
    memcpy(loads, kept->load, (size_t)experts * sizeof *loads);
    int code = model->exchange->ops->sum(model->exchange, loads, experts);
    for (int64_t e = 0; e < experts; e++)
        total += loads[e];
    double each = model->aux_loss * (double)experts / (double)(total > 0 ? total : 1);
    for (int64_t e = 0; e < experts; e++)
        kept->aux[e] = (epx_real_t)(each * (double)loads[e]);
    return code;
}

static int choose_experts(epx_model_t *model, int64_t layer, const tensors_t *weight)
{
    epx_layer_t *kept = &model->layer[layer];
    int64_t tokens = pass_tokens(model), width = model->config.width;
    int64_t experts = model->config.experts, top_k = model->config.top_k;
    epx_math_gemm(EPX_NN, tokens, experts, width, kept->moe_in, width, weight->router, experts, 0,
                  kept->logits, experts);
    if (model->pass.forced)
        memcpy(kept->chosen, model->pass.forced + layer * tokens * top_k,
               (size_t)(tokens * top_k) * sizeof *kept->chosen);
    else
        epx_math_router_choose(tokens, experts, top_k, kept->logits, model->bias + layer * experts,
                               kept->chosen);
    epx_math_router_weigh(tokens, experts, top_k, kept->logits, kept->chosen, kept->weights);
    memset(kept->load, 0, (size_t)experts * sizeof *kept->load);
    for (int64_t a = 0; a < tokens * top_k; a++)
        if (kept->chosen[a] >= 0)
            kept->load[kept->chosen[a]]++;
    drop_by_chance(model, layer);
    return model->aux_loss > 0 && model->pass.scale != 0 ? weigh_loads(model, layer) : EPX_TRAIN_OK;
}

/* Adds the router's part to dnormed. */
static void router_backward(epx_model_t *model, int64_t layer, const tensors_t *weight,
                            const tensors_t *slope)
{
    epx_layer_t *kept = &model->layer[layer];
    epx_scratch_t *scratch = &model->scratch;
    int64_t tokens = pass_tokens(model), width = model->config.width;
    int64_t experts = model->config.experts, top_k = model->config.top_k;
    memset(scratch->dlogits, 0, (size_t)(tokens * experts) * sizeof *scratch->dlogits);
    epx_math_router_weigh_backward(tokens, experts, top_k, kept->chosen, kept->weights, scratch->dweights,
                                   scratch->dlogits);
    epx_math_router_losses(tokens, experts, kept->logits, model->z_loss,
                           model->aux_loss > 0 ? kept->aux : NULL, model->pass.scale, scratch->dlogits);
    epx_math_gemm(EPX_TN, width, experts, tokens, kept->moe_in, width, scratch->dlogits, experts, 1,
                  slope->router, experts);
    epx_math_gemm(EPX_NT, tokens, width, experts, scratch->dlogits, experts, weight->router, experts, 1,
                  scratch->dnormed, width);
}

/* ---- experts of this rank ---------------------------------------------------------------------------------------- */

static void experts_forward(const epx_model_t *model, const tensors_t *weight, epx_wave_t *wave)
{
    int64_t row = model->exchange->width, inner = model->config.expert_width;
    for (int64_t e = 0; e < model->exchange->local_experts; e++) {
        int64_t first = wave->in.start[e], count = wave->in.count[e];
        if (count == 0)
            continue;
        epx_real_t *into = wave->inner + first * 2 * inner, *acted = wave->acted + first * inner;
        epx_math_gemm(EPX_NN, count, 2 * inner, row, wave->in.rows + first * row, row,
                      weight->expert_in + e * row * 2 * inner, 2 * inner, 0, into, 2 * inner);
        epx_math_swiglu(count, inner, into, acted);
        epx_math_gemm(EPX_NN, count, row, inner, acted, inner, weight->expert_out + e * inner * row, row, 0,
                      wave->y + first * row, row);
    }
}

/* From scratch.dy to scratch.dx_rows and the experts' gradients. wave->inner is used up. */
static void experts_backward(epx_model_t *model, const tensors_t *weight, const tensors_t *slope,
                             epx_wave_t *wave)
{
    epx_scratch_t *scratch = &model->scratch;
    int64_t row = model->exchange->width, inner = model->config.expert_width;
    for (int64_t e = 0; e < model->exchange->local_experts; e++) {
        int64_t first = wave->in.start[e], count = wave->in.count[e];
        int64_t in_place = e * row * 2 * inner, out_place = e * inner * row;
        if (count == 0)
            continue;
        const epx_real_t *dy = scratch->dy.rows + first * row;
        epx_real_t *dacted = scratch->dacted + first * inner, *dinner = wave->inner + first * 2 * inner;
        epx_math_gemm(EPX_TN, inner, row, count, wave->acted + first * inner, inner, dy, row, 1,
                      slope->expert_out + out_place, row);
        epx_math_gemm(EPX_NT, count, inner, row, dy, row, weight->expert_out + out_place, row, 0, dacted,
                      inner);
        epx_math_swiglu_backward(count, inner, dinner, dacted, dinner);
        epx_math_gemm(EPX_TN, row, 2 * inner, count, wave->in.rows + first * row, row, dinner, 2 * inner, 1,
                      slope->expert_in + in_place, 2 * inner);
        epx_math_gemm(EPX_NT, count, row, 2 * inner, dinner, 2 * inner, weight->expert_in + in_place,
                      2 * inner, 0, scratch->dx_rows + first * row, row);
    }
}

/* ---- exchange ---------------------------------------------------------------------------------------------------- */

static epx_wave_t *wave_memory(epx_model_t *model, int64_t layer, int64_t wave)
{
    return &model->layer[layer].wave[model->recompute ? 0 : wave];
}

/* Books the time since `since` and starts anew. */
static void book(int64_t *account, int64_t *since)
{
    int64_t now = epx_train_clock_ns();
    *account += now - *since;
    *since = now;
}

static int routed_forward(epx_model_t *model, int64_t layer, const tensors_t *weight)
{
    epx_layer_t *kept = &model->layer[layer];
    epx_exchange_t *exchange = model->exchange;
    int64_t since = epx_train_clock_ns();
    int code = exchange->ops->route(exchange, layer, kept->sent, kept->weights, pass_tokens(model));
    int64_t waves = code == EPX_TRAIN_OK ? exchange->ops->waves(exchange, layer) : 0;
    for (int64_t w = 0; w < waves; w++) {
        epx_wave_t *wave = wave_memory(model, layer, w);
        code = exchange->ops->dispatch(exchange, layer, w, kept->row, &wave->in);
        if (code == EPX_TRAIN_OK)
            code = exchange->ops->poison(exchange, layer, w, wave->y);
        if (code != EPX_TRAIN_OK)
            return code;
        book(&model->exchange_ns, &since);
        experts_forward(model, weight, wave);
        book(&model->experts_ns, &since);
        code = exchange->ops->combine(exchange, layer, w, wave->y, kept->moe_out);
        if (code != EPX_TRAIN_OK)
            return code;
    }
    book(&model->exchange_ns, &since);
    return code;
}

static int routed_backward_wave(epx_model_t *model, int64_t layer, int64_t w, const epx_real_t *dout,
                                const tensors_t *weight, const tensors_t *slope)
{
    epx_exchange_t *exchange = model->exchange;
    epx_scratch_t *scratch = &model->scratch;
    epx_wave_t *wave = wave_memory(model, layer, w);
    int code = EPX_TRAIN_OK;
    int64_t since = epx_train_clock_ns();
    if (model->recompute) {
        code = exchange->ops->dispatch(exchange, layer, w, model->layer[layer].row, &wave->in);
        if (code != EPX_TRAIN_OK)
            return code;
        book(&model->exchange_ns, &since);
        experts_forward(model, weight, wave);
        book(&model->experts_ns, &since);
    }
    code = exchange->ops->combine_backward(exchange, layer, w, dout, wave->y, &scratch->dy);
    if (code != EPX_TRAIN_OK)
        return code;
    book(&model->exchange_ns, &since);
    experts_backward(model, weight, slope, wave);
    book(&model->experts_ns, &since);
    code = exchange->ops->dispatch_backward(exchange, layer, w, scratch->dx_rows, scratch->drow,
                                            scratch->dweights);
    book(&model->exchange_ns, &since);
    return code;
}

/* ---- shared experts ---------------------------------------------------------------------------------------------- */

/* Adds to out [T, width]. */
static void shared_forward(epx_model_t *model, int64_t layer, const tensors_t *weight, epx_real_t *out)
{
    epx_layer_t *kept = &model->layer[layer];
    int64_t tokens = pass_tokens(model), width = model->config.width;
    int64_t inner = model->config.shared * model->config.shared_width;
    if (inner == 0)
        return;
    epx_math_gemm(EPX_NN, tokens, 2 * inner, width, kept->moe_in, width, weight->shared_in, 2 * inner, 0,
                  kept->shared_inner, 2 * inner);
    epx_math_swiglu(tokens, inner, kept->shared_inner, kept->shared_acted);
    epx_math_gemm(EPX_NN, tokens, width, inner, kept->shared_acted, inner, weight->shared_out, width, 1, out,
                  width);
}

/* Writes dnormed. */
static void shared_backward(epx_model_t *model, int64_t layer, const tensors_t *weight,
                            const tensors_t *slope)
{
    epx_layer_t *kept = &model->layer[layer];
    epx_scratch_t *scratch = &model->scratch;
    int64_t tokens = pass_tokens(model), width = model->config.width;
    int64_t inner = model->config.shared * model->config.shared_width;
    if (inner == 0) {
        memset(scratch->dnormed, 0, (size_t)(tokens * width) * sizeof *scratch->dnormed);
        return;
    }
    epx_math_gemm(EPX_TN, inner, width, tokens, kept->shared_acted, inner, scratch->dstream, width, 1,
                  slope->shared_out, width);
    epx_math_gemm(EPX_NT, tokens, inner, width, scratch->dstream, width, weight->shared_out, width, 0,
                  scratch->dshared, inner);
    epx_math_swiglu_backward(tokens, inner, kept->shared_inner, scratch->dshared, kept->shared_inner);
    epx_math_gemm(EPX_TN, width, 2 * inner, tokens, kept->moe_in, width, kept->shared_inner, 2 * inner, 1,
                  slope->shared_in, 2 * inner);
    epx_math_gemm(EPX_NT, tokens, width, 2 * inner, kept->shared_inner, 2 * inner, weight->shared_in,
                  2 * inner, 0, scratch->dnormed, width);
}

/* ---- the whole half ---------------------------------------------------------------------------------------------- */

int epx_moe_layer(epx_model_t *model, int64_t layer, const epx_real_t *in, epx_real_t *out)
{
    epx_layer_t *kept = &model->layer[layer];
    tensors_t weight = moe_tensors(model, model->parameter, layer);
    int64_t tokens = pass_tokens(model), width = model->config.width, latent = model->config.latent;

    epx_math_rmsnorm(tokens, width, in, weight.norm, kept->moe_in, kept->moe_scale);
    int code = choose_experts(model, layer, &weight);
    if (code != EPX_TRAIN_OK)
        return code;
    if (weight.down)
        epx_math_gemm(EPX_NN, tokens, latent, width, kept->moe_in, width, weight.down, latent, 0, kept->row,
                      latent);
    code = routed_forward(model, layer, &weight);
    if (code != EPX_TRAIN_OK)
        return code;
    memcpy(out, in, (size_t)(tokens * width) * sizeof *out);
    if (weight.up)
        epx_math_gemm(EPX_NN, tokens, width, latent, kept->moe_out, latent, weight.up, width, 1, out, width);
    else
        epx_math_add(tokens * width, kept->moe_out, out);
    shared_forward(model, layer, &weight, out);
    return EPX_TRAIN_OK;
}

int epx_moe_layer_backward(epx_model_t *model, int64_t layer, const epx_real_t *in)
{
    epx_layer_t *kept = &model->layer[layer];
    epx_scratch_t *scratch = &model->scratch;
    tensors_t weight = moe_tensors(model, model->parameter, layer);
    tensors_t slope = moe_tensors(model, model->gradient, layer);
    int64_t tokens = pass_tokens(model), width = model->config.width, latent = model->config.latent;
    const epx_real_t *dout = scratch->dstream;

    shared_backward(model, layer, &weight, &slope);
    if (weight.up) {
        epx_math_gemm(EPX_TN, latent, width, tokens, kept->moe_out, latent, scratch->dstream, width, 1,
                      slope.up, width);
        epx_math_gemm(EPX_NT, tokens, latent, width, scratch->dstream, width, weight.up, width, 0,
                      scratch->dmoe_out, latent);
        dout = scratch->dmoe_out;
    }
    int64_t waves = model->exchange->ops->waves(model->exchange, layer);
    for (int64_t w = 0; w < waves; w++) {
        int code = routed_backward_wave(model, layer, w, dout, &weight, &slope);
        if (code != EPX_TRAIN_OK)
            return code;
    }
    if (weight.down) {
        epx_math_gemm(EPX_TN, width, latent, tokens, kept->moe_in, width, scratch->drow, latent, 1,
                      slope.down, latent);
        epx_math_gemm(EPX_NT, tokens, width, latent, scratch->drow, latent, weight.down, latent, 1,
                      scratch->dnormed, width);
    } else {
        epx_math_add(tokens * width, scratch->drow, scratch->dnormed);
    }
    router_backward(model, layer, &weight, &slope);
    epx_math_rmsnorm_backward(tokens, width, in, weight.norm, kept->moe_scale, scratch->dnormed,
                              scratch->dstream, slope.norm);
    return EPX_TRAIN_OK;
}
