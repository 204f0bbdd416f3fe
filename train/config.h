/* What is trained, how, and over which ranks. Plain values; the tables that fill them are in preset.c and
 * options.c. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_TRAIN_CONFIG_H
#define EPX_TRAIN_CONFIG_H

#include <stdint.h>

#include <epx/epx.h>

#include "math.h"

/* The shape of a model. */
typedef struct epx_model_config {
    int64_t layers, width, vocabulary, sequence;
    int64_t heads, head_width;
    int64_t kv_heads;      /* of layers that look back `window` tokens */
    int64_t full_kv_heads; /* of layers that see everything */
    int64_t window;        /* 0: every layer sees everything */
    int64_t full_every;    /* with a window: every n-th layer, and the last one, see everything */
    int64_t gate;          /* 1: a sigmoid gate per attention head */
    int64_t experts, top_k, expert_width;
    int64_t latent;               /* width of the rows that experts see; 0: the model's width */
    int64_t shared, shared_width; /* shared experts and the width of each */
} epx_model_config_t;

/* How the experts are kept equally busy. */
typedef enum epx_balance {
    EPX_BALANCE_QUANTILE, /* each expert's bias is the quantile at which it would get its share */
    EPX_BALANCE_BIAS,     /* each expert's bias goes up or down by a fixed step */
    EPX_BALANCE_AUX,      /* an auxiliary loss, no bias */
    EPX_BALANCE_NONE
} epx_balance_t;

typedef enum epx_schedule { EPX_SCHEDULE_COSINE, EPX_SCHEDULE_CONSTANT } epx_schedule_t;

typedef struct epx_train_config {
    const char *preset; /* its name, for messages */
    epx_model_config_t model;
    int64_t batch; /* sequences per rank and step */
    int64_t steps; /* of the whole run; the schedules end there */
    uint64_t seed;

    double rate, rate_end; /* learning rate after warming up, and the share of it that is left at the end */
    int64_t warmup;
    epx_schedule_t schedule;
    double beta1, beta2, epsilon, decay;
    double router_decay; /* of router and gate, at the start; falls linearly to 0 over the run */
    double clip;         /* largest norm of the gradient; 0: any */
    epx_balance_t balance;
    double balance_rate; /* 0: 0.1 for quantile, 0.01 for bias */
    double aux_loss, z_loss;

    int64_t ep, replicas;
    int64_t ranks;            /* as --ranks says; 0: not said */
    int64_t virtual_ep;       /* ranks for the accept rules; 0: the real ones */
    double drop;              /* share of assignments dropped at random */
    int64_t recompute;        /* 1: dispatch again in the backward pass instead of keeping what came */
    epx_group_config_t group; /* transport and its settings; shape fields are filled in from the model */
    double peak_flops;        /* of all devices together; 0: measure */

    const char *data;  /* NULL: the text that ships with epx */
    double validation; /* share of the text */
    int64_t eval_every, eval_sequences;
    int64_t bigram;      /* 1: report the bigram model's loss too */
    const char *routing; /* file of forced routing, or NULL */
    const char *record_routing;
    int64_t record_counts;          /* 1: how many chose each expert, instead of who chose which */
    int64_t record_from, record_to; /* steps recorded: from <= step < to; to 0: all */
    const char *restore, *checkpoint;
    const char *links, *sysfs; /* whose changes the flight record hears of, by rank; NULL */
    int64_t save_every;
    const char *metrics; /* file of JSON lines, or NULL */
    int64_t json;        /* 1: JSON lines on stdout */
} epx_train_config_t;

/* Sets everything to the preset `name`: tiny, d512, d768, d1024 or hero. */
int epx_config_preset(const char *name, epx_train_config_t *config_p);

/* Name of preset number i, or NULL past the last one. */
const char *epx_preset_name(int i);

/* Finds what cannot be trained (heads that do not divide, top-K over experts, ...). EPX_TRAIN_USAGE and a
 * sentence. */
int epx_config_check(const epx_train_config_t *config);

/* Attention of one layer, for `sequences` sequences. */
epx_attention_t epx_config_attention(const epx_model_config_t *model, int64_t layer, int64_t sequences);

/* Width of the rows that travel to the experts. */
int64_t epx_config_row_width(const epx_model_config_t *model);

/* Experts that rank `rank` of `ranks` owns (contiguous blocks, the first E mod S ranks one more), and its
 * first. */
int64_t epx_config_local_experts(int64_t experts, int64_t ranks, int64_t rank, int64_t *first_p);

#endif
