/* How the model reaches its experts. Two implementations: exchange_dense.c keeps everything on one rank and
 * needs nothing of epx, so that it is the oracle for exchange_epx.c, which uses the library.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_TRAIN_EXCHANGE_H
#define EPX_TRAIN_EXCHANGE_H

#include <stdint.h>

#include <epx/epx.h>

#include "math.h"

typedef struct epx_exchange epx_exchange_t;

/* Rows of one wave for this rank's experts, as in epx_batch_t. Memory of the caller, written by the exchange.
 */
typedef struct epx_rows {
    epx_real_t *rows; /* [rows_max, width] */
    int64_t *start;   /* [local_experts] first row of each expert */
    int64_t *count;   /* [local_experts] */
} epx_rows_t;

/* All calls but destroy are collective over the exchange's ranks, and mean what the calls of epx.h with like
 * names mean. They return an EPX_TRAIN code. One routing per layer is kept, so that the backward pass can
 * follow later. */
typedef struct epx_exchange_ops {
    /* ids, weights: [tokens, top_k] of this rank; -1 for no assignment. */
    int (*route)(epx_exchange_t *exchange, int64_t layer, const int32_t *ids, const epx_real_t *weights,
                 int64_t tokens);
    int64_t (*waves)(epx_exchange_t *exchange, int64_t layer); /* of the layer's last routing */
    /* x: [tokens, width] of this rank, unchanged until the wave is combined. */
    int (*dispatch)(epx_exchange_t *exchange, int64_t layer, int64_t wave, const epx_real_t *x,
                    epx_rows_t *rows);
    /* Before y is computed: lets combine find rows that the computation left out, where the library checks.
     */
    int (*poison)(epx_exchange_t *exchange, int64_t layer, int64_t wave, epx_real_t *y);
    /* y: [rows_max, width]; out [tokens, width] is complete after the last wave. */
    int (*combine)(epx_exchange_t *exchange, int64_t layer, int64_t wave, const epx_real_t *y,
                   epx_real_t *out);
    int (*combine_backward)(epx_exchange_t *exchange, int64_t layer, int64_t wave, const epx_real_t *dout,
                            const epx_real_t *y, epx_rows_t *dy);
    /* dx [tokens, width] and dweights [tokens, top_k] are complete after the last wave. */
    int (*dispatch_backward)(epx_exchange_t *exchange, int64_t layer, int64_t wave, const epx_real_t *dx_rows,
                             epx_real_t *dx, epx_real_t *dweights);
    /* A training step ends: cuts the library's own records. Not collective. */
    int (*step)(epx_exchange_t *exchange);
    /* What passed since the last step was no training step: the library's records leave it out. Not
     * collective. */
    int (*discard)(epx_exchange_t *exchange);
    /* Of the layer's last routing, this rank's share. */
    int (*stats)(epx_exchange_t *exchange, int64_t layer, epx_plan_stats_t *stats);
    /* Sums counts over all ranks of the job, replicas included. */
    int (*sum)(epx_exchange_t *exchange, int64_t *counts, int64_t count);
    /* Of the open group. EPX_TRAIN_FAILED where there is none (dense). Not collective. */
    int (*info)(epx_exchange_t *exchange, epx_group_info_t *info_p);
    /* Makes peers that wait for this rank give up; `reason` is what they are told. Not collective. */
    void (*abort)(epx_exchange_t *exchange, const char *reason);
    /* After a call failed and the job's watchdog said that the group can be mended: goes on with `transport`.
     * Routings are lost, and what the fields below say of waves and rows is new. */
    int (*recover)(epx_exchange_t *exchange, const char *transport);
    void (*destroy)(epx_exchange_t *exchange);
} epx_exchange_ops_t;

struct epx_exchange {
    const epx_exchange_ops_t *ops;
    const char *transport, *fabric; /* names, for messages and metrics */
    int64_t layers, experts, top_k, width, tokens_max;
    int64_t first_expert, local_experts;
    int64_t rows_max;   /* rows of a wave, at most */
    int64_t waves_max;  /* waves of a pass; 0: each routing decides, so that nothing can be kept per wave */
    int64_t peak_bytes; /* memory that the exchange takes on this rank */
};

typedef struct epx_exchange_shape {
    int64_t layers, experts, top_k, width, tokens_max;
} epx_exchange_shape_t;

/* One rank that owns all experts. Nothing is dropped. Destroy with ops->destroy. */
int epx_exchange_dense(const epx_exchange_shape_t *shape, epx_exchange_t **exchange_p);

/* Over the ranks of `group_comm`, through the library; `world` sums counts over all replicas. `settings`
 * chooses the transport; its shape fields are set here. recompute as in epx_model_attach. Both comms must
 * outlive the exchange. Collective. */
int epx_exchange_epx(const epx_exchange_shape_t *shape, const epx_group_config_t *settings, int recompute,
                     epx_comm_h group_comm, epx_comm_h world, epx_exchange_t **exchange_p);

/* What a group of `ranks` opened so will have: rows_max and waves_max. Both stay as they are where it cannot
 * open. */
void epx_exchange_expect(const epx_exchange_shape_t *shape, const epx_group_config_t *settings, int recompute,
                         int32_t ranks, int64_t *rows_max_p, int64_t *waves_p);

#endif
