/* SPDX-License-Identifier: Apache-2.0 */
#include "flops.h"

/* Mean number of tokens that a token of a sequence sees, itself included. */
static double mean_seen(double sequence, double window)
{
    if (window == 0 || window >= sequence)
        return (sequence + 1) / 2;
    return (window * (window + 1) / 2 + (sequence - window) * window) / sequence;
}

static void add_attention(const epx_model_config_t *model, int64_t layer, epx_flops_t *flops)
{
    epx_attention_t shape = epx_config_attention(model, layer, 1);
    double width = (double)model->width, heads = (double)shape.heads, sequence = (double)shape.sequence;
    double query = heads * (double)shape.head_width, key = (double)(shape.kv_heads * shape.head_width);
    double window = (double)shape.window;
    double seen = window > 0 && window < sequence ? window : sequence;
    flops->rest += 2 * width * (query + 2 * key) + 2 * query * width;
    flops->scores += (4 * query + 3 * heads) * seen;
    flops->causal_scores += (4 * query + 3 * heads) * mean_seen(sequence, window);
}

static void add_experts(const epx_model_config_t *model, epx_flops_t *flops)
{
    double width = (double)model->width, row = (double)epx_config_row_width(model);
    flops->rest += 2 * width * (double)model->experts;
    flops->rest += model->latent > 0 ? 2 * 2 * width * row : 0;
    flops->rest += (double)model->shared * 3 * 2 * width * (double)model->shared_width;
    flops->routed += (double)model->top_k * 3 * 2 * row * (double)model->expert_width;
}

epx_flops_t epx_flops_per_token(const epx_model_config_t *model)
{
    epx_flops_t flops = {0};
    for (int64_t layer = 0; layer < model->layers; layer++) {
        add_attention(model, layer, &flops);
        add_experts(model, &flops);
    }
    flops.rest += 2 * (double)model->width * (double)model->vocabulary;
    return flops;
}

double epx_flops_mfu(const epx_flops_t *flops, double tokens_per_s, double peak_flops)
{
    return 3 * (flops->routed + flops->rest + flops->scores) * tokens_per_s / peak_flops;
}

double epx_flops_mfu_executed(const epx_flops_t *flops, double tokens_per_s, double peak_flops, int64_t kept,
                              int64_t valid)
{
    epx_flops_t executed = *flops;
    if (valid > 0)
        executed.routed *= (double)kept / (double)valid;
    return epx_flops_mfu(&executed, tokens_per_s, peak_flops);
}

double epx_flops_mfu_causal(const epx_flops_t *flops, double tokens_per_s, double peak_flops)
{
    epx_flops_t causal = *flops;
    causal.scores = flops->causal_scores;
    return epx_flops_mfu(&causal, tokens_per_s, peak_flops);
}
