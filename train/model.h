/* The transformer: one forward and one backward pass over a batch of this rank. SPDX-License-Identifier:
 * Apache-2.0 */
#ifndef EPX_TRAIN_MODEL_H
#define EPX_TRAIN_MODEL_H

#include "arena.h"
#include "config.h"
#include "exchange.h"
#include "params.h"

/* What one wave of one layer leaves for the backward pass. */
typedef struct epx_wave {
    epx_rows_t in;     /* rows that came, [rows_max, row width] */
    epx_real_t *inner; /* [rows_max, 2 * expert_width] before SwiGLU */
    epx_real_t *acted; /* [rows_max, expert_width] after it */
    epx_real_t *y;     /* [rows_max, row width] */
} epx_wave_t;

/* What one layer leaves for the backward pass. T: tokens of the batch. */
typedef struct epx_layer {
    epx_attention_t attention;
    epx_real_t *x;               /* [T, width] what came in */
    epx_real_t *attention_scale; /* [T] of the norm */
    epx_real_t *attention_in;    /* [T, width] normed */
    epx_real_t *qkv;             /* [T, ...] turned */
    epx_real_t *logsum;
    epx_real_t *attended; /* [T, heads * head_width] */
    epx_real_t *gate;     /* [T, heads], NULL without gate */
    epx_real_t *gated;    /* [T, heads * head_width]; without gate the same as attended */
    epx_real_t *mid;      /* [T, width] after attention */
    epx_real_t *moe_scale;
    epx_real_t *moe_in;  /* [T, width] normed */
    epx_real_t *logits;  /* [T, experts] */
    int32_t *chosen;     /* [T, top_k] */
    int32_t *sent;       /* [T, top_k] chosen, or -1 where --drop struck */
    epx_real_t *weights; /* [T, top_k] */
    epx_real_t *row;     /* [T, row width] what is dispatched; without latent width the same as moe_in */
    epx_real_t *moe_out; /* [T, row width] what came back */
    epx_real_t *shared_inner, *shared_acted;
    int64_t *load;    /* [experts] assignments chosen by this rank's tokens */
    epx_real_t *aux;  /* [experts] weight of each expert in the auxiliary loss */
    epx_wave_t *wave; /* [waves_max], or one that all layers share */
} epx_layer_t;

/* Memory of the passes that no layer keeps. */
typedef struct epx_scratch {
    epx_real_t *dstream; /* [T, width] gradient of the residual stream */
    epx_real_t *dnormed; /* [T, width] */
    epx_real_t *dqkv, *dattended, *dgate, *attention;
    epx_real_t *dlogits;         /* [T, experts] */
    epx_real_t *dweights;        /* [T, top_k] */
    epx_real_t *dmoe_out, *drow; /* [T, row width] */
    epx_real_t *dshared;         /* [T, shared * shared_width] */
    int64_t *loads;              /* [experts] */
    epx_rows_t dy;               /* [rows_max, row width] */
    epx_real_t *dx_rows;         /* [rows_max, row width] */
    epx_real_t *dacted;          /* [rows_max, expert_width] */
    epx_real_t *out_logits;      /* [a piece of T, vocabulary] */
} epx_scratch_t;

/* How a pass differs from plain training. */
typedef struct epx_pass {
    int64_t sequences;     /* at most the batch */
    epx_real_t scale;      /* of the gradient: 1 / tokens of all ranks; 0: no backward pass follows */
    const int32_t *forced; /* [layers, T, top_k] expert ids to use instead of the router's choice, or NULL */
    double drop;           /* share of assignments to drop */
    uint64_t drop_seed;
    int64_t first_token; /* place of the batch's first token in the whole run, for what is drawn by chance */
} epx_pass_t;

typedef struct epx_model {
    epx_model_config_t config;
    int64_t sequences; /* of a full batch */
    int64_t tokens;    /* of a full batch */
    double aux_loss, z_loss;
    epx_params_t params;
    epx_real_t *parameter, *gradient;            /* [params.count] */
    epx_real_t *bias;                            /* [layers, experts] of the router */
    epx_real_t *rotary;                          /* cosines and sines */
    epx_layer_t *layer;                          /* [layers] */
    epx_real_t *last, *last_scale, *last_normed; /* [T, width], [T], [T, width] after the last layer */
    epx_scratch_t scratch;
    epx_arena_t arena; /* all of the above */
    epx_exchange_t *exchange;
    int recompute;
    epx_arena_t wave_arena;                        /* what depends on the exchange */
    int64_t exchange_ns, experts_ns, attention_ns; /* spent inside since someone cleared them */
    epx_pass_t pass;                               /* the last forward pass */
    const int32_t *inputs;
} epx_model_t;

/* A model for a rank that owns local_experts experts from first_expert on, parameters not yet set. */
int epx_model_create(const epx_model_config_t *config, int64_t sequences, int64_t first_expert,
                     int64_t local_experts, epx_model_t **model_p);
void epx_model_destroy(epx_model_t **model_p);

/* The bytes that such a model, its optimizer, and waves of up to rows_max rows take; nothing is taken. waves
 * 0: the exchange decides from step to step. */
int epx_model_bytes(const epx_model_config_t *config, int64_t sequences, int64_t local_experts,
                    int64_t rows_max, int64_t waves, int recompute, int64_t *bytes_p);

/* Takes an exchange into use (it stays the caller's) and makes room for what its waves keep. NULL: gives the
 * room back. recompute: dispatch again in the backward pass and keep nothing per wave. */
int epx_model_attach(epx_model_t *model, epx_exchange_t *exchange, int recompute);

/* inputs, targets: [sequences, sequence], inputs kept until the backward pass. loss_p: sum over this rank's
 * tokens of the loss in nats, router losses left out. With pass->scale != 0 the head's gradient is added at
 * once. Collective over the exchange's ranks. */
int epx_model_forward(epx_model_t *model, const epx_pass_t *pass, const int32_t *inputs,
                      const int32_t *targets, double *loss_p);

/* Adds the gradient of pass->scale * (summed loss + router losses) to model->gradient. Collective. */
int epx_model_backward(epx_model_t *model);

/* The two halves of a layer. `in` and `out` are [T, width]; backward turns scratch.dstream from the gradient
 * of the half's output into that of its input. (attention_layer.c, moe_layer.c) */
void epx_attention_layer(epx_model_t *model, int64_t layer, const epx_real_t *in, epx_real_t *out);
void epx_attention_layer_backward(epx_model_t *model, int64_t layer, const epx_real_t *in);
int epx_moe_layer(epx_model_t *model, int64_t layer, const epx_real_t *in, epx_real_t *out);
int epx_moe_layer_backward(epx_model_t *model, int64_t layer, const epx_real_t *in);

#endif
