/* What a token costs in floating-point operations, by the published rules. SPDX-License-Identifier:
 * Apache-2.0 */
#ifndef EPX_TRAIN_FLOPS_H
#define EPX_TRAIN_FLOPS_H

#include "config.h"

/* Forward pass, per token. A multiplication and an addition are two operations. */
typedef struct epx_flops {
    double routed; /* the routed experts' products, all top-K of them; what a drop saves */
    double rest;   /* all other products, head included; norms, the embedding and the gate are not priced */
    double scores; /* attention scores full square: 4 * heads * head_width * seen + 3 * heads * seen, where
                      seen is the sequence, or the window */
    double
        causal_scores; /* the same where `seen` is the mean number of tokens that the mask lets a token see */
} epx_flops_t;

epx_flops_t epx_flops_per_token(const epx_model_config_t *model);

/* Share of `peak_flops`, in 0..1: three forward passes (forward, and backward at twice its cost) for each
 * token. */
double epx_flops_mfu(const epx_flops_t *flops, double tokens_per_s, double peak_flops);

/* The same with the routed part counted for kept / valid assignments only. valid = 0 counts as nothing
 * dropped. */
double epx_flops_mfu_executed(const epx_flops_t *flops, double tokens_per_s, double peak_flops, int64_t kept,
                              int64_t valid);

/* The same as mfu with the scores priced under the mask. */
double epx_flops_mfu_causal(const epx_flops_t *flops, double tokens_per_s, double peak_flops);

#endif
