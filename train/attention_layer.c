/* The attention half of a layer: x + gate(attention(norm(x))) out. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "model.h"

/* The tensors of this half, in the parameters or in the gradients. */
typedef struct tensors {
    epx_real_t *norm, *qkv, *gate, *out;
} tensors_t;

static tensors_t attention_tensors(const epx_model_t *model, epx_real_t *base, int64_t layer)
{
    return (tensors_t){
        .norm = epx_params_at(&model->params, base, layer, EPX_ATTENTION_NORM),
        .qkv = epx_params_at(&model->params, base, layer, EPX_QKV),
        .gate = epx_params_at(&model->params, base, layer, EPX_GATE),
        .out = epx_params_at(&model->params, base, layer, EPX_OUT),
    };
}

void epx_attention_layer(epx_model_t *model, int64_t layer, const epx_real_t *in, epx_real_t *out)
{
    epx_layer_t *kept = &model->layer[layer];
    epx_attention_t shape = kept->attention;
    shape.sequences = model->pass.sequences;
    tensors_t weight = attention_tensors(model, model->parameter, layer);
    int64_t tokens = shape.sequences * shape.sequence, width = model->config.width;
    int64_t heads_width = shape.heads * shape.head_width;
    int64_t qkv_width = heads_width + 2 * shape.kv_heads * shape.head_width;

    epx_math_rmsnorm(tokens, width, in, weight.norm, kept->attention_in, kept->attention_scale);
    epx_math_gemm(EPX_NN, tokens, qkv_width, width, kept->attention_in, width, weight.qkv, qkv_width, 0,
                  kept->qkv, qkv_width);
    epx_math_rotary(&shape, model->rotary, 1, kept->qkv);
    epx_math_attention(&shape, kept->qkv, kept->attended, kept->logsum, model->scratch.attention);
    if (weight.gate) {
        epx_math_gemm(EPX_NN, tokens, shape.heads, width, kept->attention_in, width, weight.gate, shape.heads,
                      0, kept->gate, shape.heads);
        epx_math_gate(tokens, shape.heads, shape.head_width, kept->attended, kept->gate, kept->gated);
    }
    memcpy(out, in, (size_t)(tokens * width) * sizeof *out);
    epx_math_gemm(EPX_NN, tokens, width, heads_width, kept->gated, heads_width, weight.out, width, 1, out,
                  width);
}

void epx_attention_layer_backward(epx_model_t *model, int64_t layer, const epx_real_t *in)
{
    epx_layer_t *kept = &model->layer[layer];
    epx_scratch_t *scratch = &model->scratch;
    epx_attention_t shape = kept->attention;
    shape.sequences = model->pass.sequences;
    tensors_t weight = attention_tensors(model, model->parameter, layer);
    tensors_t slope = attention_tensors(model, model->gradient, layer);
    int64_t tokens = shape.sequences * shape.sequence, width = model->config.width, heads = shape.heads;
    int64_t heads_width = heads * shape.head_width;
    int64_t qkv_width = heads_width + 2 * shape.kv_heads * shape.head_width;

    epx_math_gemm(EPX_TN, heads_width, width, tokens, kept->gated, heads_width, scratch->dstream, width, 1,
                  slope.out, width);
    epx_math_gemm(EPX_NT, tokens, heads_width, width, scratch->dstream, width, weight.out, width, 0,
                  scratch->dattended, heads_width);
    if (weight.gate) {
        epx_math_gate_backward(tokens, heads, shape.head_width, kept->attended, kept->gate,
                               scratch->dattended, scratch->dattended, scratch->dgate);
        epx_math_gemm(EPX_TN, width, heads, tokens, kept->attention_in, width, scratch->dgate, heads, 1,
                      slope.gate, heads);
    }
    epx_math_attention_backward(&shape, kept->qkv, kept->attended, kept->logsum, scratch->dattended,
                                scratch->dqkv, scratch->attention);
    epx_math_rotary(&shape, model->rotary, -1, scratch->dqkv);
    epx_math_gemm(EPX_TN, width, qkv_width, tokens, kept->attention_in, width, scratch->dqkv, qkv_width, 1,
                  slope.qkv, qkv_width);
    epx_math_gemm(EPX_NT, tokens, width, qkv_width, scratch->dqkv, qkv_width, weight.qkv, qkv_width, 0,
                  scratch->dnormed, width);
    if (weight.gate)
        epx_math_gemm(EPX_NT, tokens, width, heads, scratch->dgate, heads, weight.gate, heads, 1,
                      scratch->dnormed, width);
    epx_math_rmsnorm_backward(tokens, width, in, weight.norm, kept->attention_scale, scratch->dnormed,
                              scratch->dstream, slope.norm);
}
