/* What is reported of a step. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_TRAIN_METRICS_H
#define EPX_TRAIN_METRICS_H

#include <stdint.h>
#include <stdio.h>

/* Assignments of one layer in one step, summed over all ranks. */
typedef struct epx_layer_counts {
    int64_t valid;  /* chosen by the router, before any drop */
    int64_t chance; /* dropped by --drop */
    int64_t kept, spilled, dropped_sender, dropped_receiver;
    int64_t skipped;                     /* ids of -1 that --drop did not make */
    int64_t sent_bytes, sent_meta_bytes; /* to other ranks */
} epx_layer_counts_t;

typedef struct epx_metrics {
    int64_t step;
    double loss; /* mean over the step's tokens, nats */
    int64_t tokens;
    double step_ms, tokens_per_s;
    double mfu, mfu_executed, mfu_causal;
    double drop_fraction, sender_drop_fraction, receiver_drop_fraction; /* of valid assignments */
    double grad_norm, gate_norm, router_norm;
    int64_t peak_bytes; /* of the rank that takes most: model, optimizer, activations, the library's group */
    int64_t host_rss_bytes; /* of rank 0's process */
    const char *transport, *fabric;
    double wait_ms_max; /* of the rank that waited longest inside the exchange */
    int64_t wait_peer;  /* for whom it waited most; -1: for nobody */
    double load_max_over_mean;
    /* Not in the JSON line: */
    epx_layer_counts_t total;
    const epx_layer_counts_t *layer;                            /* [layers], valid until the next step */
    double exchange_ms, experts_ms, attention_ms, gradients_ms; /* mean over ranks of the time inside each */
    double rate;                                                /* learning rate */
    /* In the JSON line of steps after which the model was evaluated: */
    int evaluated;
    double validation_loss, bigram_loss;
} epx_metrics_t;

/* One JSON object on one line. */
void epx_metrics_print(FILE *stream, const epx_metrics_t *metrics);

/* Resident memory of this process now, in bytes; 0 where the system does not tell. */
int64_t epx_host_rss_bytes(void);

#endif
