/* The model's tensors: their names, shapes and places in one flat array, which parameters, gradients and both
 * moments of the optimizer share. Tensors that all ranks hold come first, this rank's experts after them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_TRAIN_PARAMS_H
#define EPX_TRAIN_PARAMS_H

#include "config.h"

/* How the optimizer treats a tensor, and what reports it. */
typedef enum epx_tensor_class {
    EPX_CLASS_MATRIX,
    EPX_CLASS_NORM,   /* no weight decay */
    EPX_CLASS_EMBED,  /* no weight decay */
    EPX_CLASS_ROUTER, /* decay of its own */
    EPX_CLASS_GATE,   /* decay of its own */
    EPX_CLASS_EXPERT  /* one matrix per expert, sharded */
} epx_tensor_class_t;

typedef enum epx_slot {
    EPX_EMBED,      /* [vocabulary, width] */
    EPX_FINAL_NORM, /* [width] */
    EPX_HEAD,       /* [width, vocabulary] */
    /* the ones below exist once per layer */
    EPX_ATTENTION_NORM, /* [width] */
    EPX_QKV,            /* [width, (heads + 2 kv_heads) * head_width] */
    EPX_GATE,           /* [width, heads], or absent */
    EPX_OUT,            /* [heads * head_width, width] */
    EPX_MOE_NORM,       /* [width] */
    EPX_ROUTER,         /* [width, experts] */
    EPX_DOWN,           /* [width, latent], or absent */
    EPX_UP,             /* [latent, width], or absent */
    EPX_SHARED_IN,      /* [width, 2 * shared * shared_width]: gate halves, then up halves; or absent */
    EPX_SHARED_OUT,     /* [shared * shared_width, width], or absent */
    EPX_EXPERT_IN,      /* [local experts, row width, 2 * expert_width]: gate, then up */
    EPX_EXPERT_OUT,     /* [local experts, expert_width, row width] */
    EPX_SLOTS
} epx_slot_t;

typedef struct epx_tensor {
    char name[40]; /* "layer.3.expert.in" */
    epx_slot_t slot;
    epx_tensor_class_t tensor_class;
    int64_t layer;      /* -1: of the whole model */
    int64_t rows, cols; /* of one matrix */
    int64_t matrices;   /* 1, or the experts of this rank */
    int64_t offset;     /* first real in the flat array */
    int64_t count;      /* matrices * rows * cols */
    double deviation;   /* of the initial values; 0: all ones */
} epx_tensor_t;

typedef struct epx_params {
    epx_tensor_t *tensor; /* [tensors] */
    int64_t tensors;
    int64_t dense; /* reals that all ranks hold */
    int64_t count; /* reals in all */
    int64_t experts, first_expert, local_experts;
    int64_t (
        *place)[EPX_SLOTS]; /* [layers]: offset by slot, -1 where absent; row 0 has the model's own too */
} epx_params_t;

/* Lays out the tensors of a rank that owns experts first_expert .. first_expert + local_experts - 1. */
int epx_params_create(const epx_model_config_t *model, int64_t first_expert, int64_t local_experts,
                      epx_params_t *params_p);
void epx_params_destroy(epx_params_t *params);

/* A tensor's values in the flat array `base`, NULL if the model has no such tensor. layer: any for the
 * model's own. */
epx_real_t *epx_params_at(const epx_params_t *params, epx_real_t *base, int64_t layer, epx_slot_t slot);

/* Writes initial values: a function of (seed, tensor, expert, element), the same for any sharding. */
void epx_params_init(const epx_params_t *params, uint64_t seed, epx_real_t *base);

#endif
