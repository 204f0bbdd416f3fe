/* The exchange of one rank with itself: the oracle. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "exchange.h"
#include "fail.h"

/* The routing of one layer. */
typedef struct routing {
    int64_t tokens, valid;
    int64_t *row;           /* [tokens_max, top_k] where the assignment's row stands, -1: nowhere */
    epx_real_t *weights;    /* [tokens_max, top_k] */
    epx_real_t *dweights;   /* [tokens_max, top_k] */
    int64_t *start, *count; /* [experts] */
} routing_t;

typedef struct dense {
    epx_exchange_t base;
    epx_arena_t arena;
    routing_t *routing; /* [layers] */
} dense_t;

static routing_t *routing_of(epx_exchange_t *exchange, int64_t layer)
{
    return &((dense_t *)exchange)->routing[layer];
}

static int dense_route(epx_exchange_t *exchange, int64_t layer, const int32_t *ids, const epx_real_t *weights,
                       int64_t tokens)
{
    routing_t *routing = routing_of(exchange, layer);
    int64_t assignments = tokens * exchange->top_k, experts = exchange->experts;
    routing->tokens = tokens;
    routing->valid = 0;
    memset(routing->count, 0, (size_t)experts * sizeof *routing->count);
    for (int64_t a = 0; a < assignments; a++) {
        if (ids[a] < -1 || ids[a] >= experts)
            return epx_train_fail(EPX_TRAIN_FAILED, "expert %d was chosen of %lld: mend the routing",
                                  (int)ids[a], (long long)experts);
        if (ids[a] >= 0)
            routing->count[ids[a]]++;
    }
    for (int64_t e = 0; e < experts; e++) {
        routing->start[e] = routing->valid;
        routing->valid += routing->count[e];
        routing->count[e] = 0;
    }
    for (int64_t a = 0; a < assignments; a++)
        routing->row[a] = ids[a] < 0 ? -1 : routing->start[ids[a]] + routing->count[ids[a]]++;
    memcpy(routing->weights, weights, (size_t)assignments * sizeof *weights);
    return EPX_TRAIN_OK;
}

static int64_t dense_waves(epx_exchange_t *exchange, int64_t layer)
{
    (void)exchange;
    (void)layer;
    return 1;
}

static void copy_layout(const epx_exchange_t *exchange, const routing_t *routing, epx_rows_t *rows)
{
    memcpy(rows->start, routing->start, (size_t)exchange->experts * sizeof *rows->start);
    memcpy(rows->count, routing->count, (size_t)exchange->experts * sizeof *rows->count);
}

static int dense_dispatch(epx_exchange_t *exchange, int64_t layer, int64_t wave, const epx_real_t *x,
                          epx_rows_t *rows)
{
    (void)wave;
    routing_t *routing = routing_of(exchange, layer);
    int64_t width = exchange->width;
    for (int64_t a = 0; a < routing->tokens * exchange->top_k; a++)
        if (routing->row[a] >= 0)
            memcpy(rows->rows + routing->row[a] * width, x + a / exchange->top_k * width,
                   (size_t)width * sizeof *x);
    copy_layout(exchange, routing, rows);
    return EPX_TRAIN_OK;
}

static int dense_poison(epx_exchange_t *exchange, int64_t layer, int64_t wave, epx_real_t *y)
{
    (void)exchange;
    (void)layer;
    (void)wave;
    (void)y;
    return EPX_TRAIN_OK;
}

static int dense_combine(epx_exchange_t *exchange, int64_t layer, int64_t wave, const epx_real_t *y,
                         epx_real_t *out)
{
    (void)wave;
    routing_t *routing = routing_of(exchange, layer);
    int64_t width = exchange->width;
    memset(out, 0, (size_t)(routing->tokens * width) * sizeof *out);
    for (int64_t a = 0; a < routing->tokens * exchange->top_k; a++)
        for (int64_t i = 0; i < width && routing->row[a] >= 0; i++)
            out[a / exchange->top_k * width + i] += routing->weights[a] * y[routing->row[a] * width + i];
    return EPX_TRAIN_OK;
}

static int dense_combine_backward(epx_exchange_t *exchange, int64_t layer, int64_t wave,
                                  const epx_real_t *dout, const epx_real_t *y, epx_rows_t *dy)
{
    (void)wave;
    routing_t *routing = routing_of(exchange, layer);
    int64_t width = exchange->width;
    for (int64_t a = 0; a < routing->tokens * exchange->top_k; a++) {
        routing->dweights[a] = 0;
        if (routing->row[a] < 0)
            continue;
        const epx_real_t *from = dout + a / exchange->top_k * width, *kept = y + routing->row[a] * width;
        epx_real_t *to = dy->rows + routing->row[a] * width;
        for (int64_t i = 0; i < width; i++) {
            routing->dweights[a] += from[i] * kept[i];
            to[i] = routing->weights[a] * from[i];
        }
    }
    copy_layout(exchange, routing, dy);
    return EPX_TRAIN_OK;
}

static int dense_dispatch_backward(epx_exchange_t *exchange, int64_t layer, int64_t wave,
                                   const epx_real_t *dx_rows, epx_real_t *dx, epx_real_t *dweights)
{
    (void)wave;
    routing_t *routing = routing_of(exchange, layer);
    int64_t width = exchange->width, assignments = routing->tokens * exchange->top_k;
    memset(dx, 0, (size_t)(routing->tokens * width) * sizeof *dx);
    for (int64_t a = 0; a < assignments; a++)
        if (routing->row[a] >= 0)
            epx_math_add(width, dx_rows + routing->row[a] * width, dx + a / exchange->top_k * width);
    memcpy(dweights, routing->dweights, (size_t)assignments * sizeof *dweights);
    return EPX_TRAIN_OK;
}

static int dense_step(epx_exchange_t *exchange)
{
    (void)exchange;
    return EPX_TRAIN_OK;
}

static int dense_stats(epx_exchange_t *exchange, int64_t layer, epx_plan_stats_t *stats)
{
    routing_t *routing = routing_of(exchange, layer);
    *stats = (epx_plan_stats_t)EPX_PLAN_STATS_INIT;
    stats->tokens = routing->tokens;
    stats->routed = stats->kept = routing->valid;
    stats->skipped = routing->tokens * exchange->top_k - routing->valid;
    stats->wait_peer = -1;
    return EPX_TRAIN_OK;
}

static int dense_sum(epx_exchange_t *exchange, int64_t *counts, int64_t count)
{
    (void)exchange;
    (void)counts;
    (void)count;
    return EPX_TRAIN_OK;
}

static int dense_info(epx_exchange_t *exchange, epx_group_info_t *info_p)
{
    (void)exchange;
    (void)info_p;
    return epx_train_fail(EPX_TRAIN_FAILED, "a dense model has no group");
}

static void dense_abort(epx_exchange_t *exchange, const char *reason)
{
    (void)exchange;
    (void)reason;
}

static void dense_destroy(epx_exchange_t *exchange)
{
    dense_t *dense = (dense_t *)exchange;
    epx_arena_free(&dense->arena);
    free(dense);
}

static int dense_recover(epx_exchange_t *exchange, const char *transport)
{
    (void)exchange;
    return epx_train_fail(EPX_TRAIN_FAILED, "one rank alone has no group to recover with %s", transport);
}

static const epx_exchange_ops_t dense_ops = {
    .route = dense_route,
    .waves = dense_waves,
    .dispatch = dense_dispatch,
    .poison = dense_poison,
    .combine = dense_combine,
    .combine_backward = dense_combine_backward,
    .dispatch_backward = dense_dispatch_backward,
    .step = dense_step,
    .discard = dense_step,
    .stats = dense_stats,
    .sum = dense_sum,
    .info = dense_info,
    .abort = dense_abort,
    .recover = dense_recover,
    .destroy = dense_destroy,
};

int epx_exchange_dense(const epx_exchange_shape_t *shape, epx_exchange_t **exchange_p)
{
    dense_t *dense = calloc(1, sizeof *dense);
    if (!dense)
        return epx_train_fail(EPX_TRAIN_FAILED, "no memory for an exchange");
    int64_t assignments = shape->tokens_max * shape->top_k;
    dense->base = (epx_exchange_t){.ops = &dense_ops,
                                   .transport = "dense",
                                   .fabric = "none",
                                   .layers = shape->layers,
                                   .experts = shape->experts,
                                   .top_k = shape->top_k,
                                   .width = shape->width,
                                   .tokens_max = shape->tokens_max,
                                   .local_experts = shape->experts,
                                   .rows_max = assignments,
                                   .waves_max = 1};
    dense->routing = epx_arena_take(&dense->arena, shape->layers, sizeof *dense->routing);
    for (int64_t layer = 0; layer < shape->layers && dense->routing; layer++) {
        routing_t *routing = &dense->routing[layer];
        routing->row = epx_arena_take(&dense->arena, assignments, sizeof *routing->row);
        routing->weights = epx_arena_reals(&dense->arena, assignments);
        routing->dweights = epx_arena_reals(&dense->arena, assignments);
        routing->start = epx_arena_take(&dense->arena, shape->experts, sizeof *routing->start);
        routing->count = epx_arena_take(&dense->arena, shape->experts, sizeof *routing->count);
    }
    if (dense->arena.failed) {
        dense_destroy(&dense->base);
        return EPX_TRAIN_FAILED;
    }
    dense->base.peak_bytes = dense->arena.bytes;
    *exchange_p = &dense->base;
    return EPX_TRAIN_OK;
}
