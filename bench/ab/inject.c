/* Perturbations. SPDX-License-Identifier: Apache-2.0 */
#include "bench/ab/inject.h"

#include <stdlib.h>
#include <string.h>

#include "train/fail.h"

void epx_ab_inject_order(const epx_ab_session_t *session, epx_ab_order_t *order)
{
    const epx_ab_settings_t *settings = session->settings;
    int twin = order->part == EPX_AB_TWIN;
    int twins_only = settings->inject == EPX_AB_GUARD_TWINS || settings->inject == EPX_AB_GUARD_GAP ||
                     settings->inject == EPX_AB_GUARD_GRADIENTS;
    order->inject = -1;
    if (settings->inject < 0 || order->arm != settings->arms - 1 || twins_only != twin)
        return;
    order->inject = settings->inject;
    if (order->inject == EPX_AB_GUARD_FALLBACK) { /* another transport runs, and nobody says so */
        const char *other = strcmp(order->config.transport, "ring") == 0 ? "ragged" : "ring";
        epx_group_config_t config = EPX_GROUP_CONFIG_INIT;
        config.transport = other;
        config.capacity_factor = order->config.capacity_factor;
        order->config = config;
    }
}

void epx_ab_inject_weights(const epx_ab_rank_t *self, const epx_ab_order_t *order)
{
    if (order->inject == EPX_AB_GUARD_WEIGHTS && self->rank == 0)
        epx_trainer_model(self->trainer)->parameter[0] += 1;
}

void epx_ab_inject_routing(const epx_ab_rank_t *self, const epx_ab_order_t *order)
{
    if (order->inject == EPX_AB_GUARD_ROUTING && self->rank == 0)
        epx_trainer_model(self->trainer)->bias[0] += 1000; /* everybody wants expert 0 */
}

int epx_ab_inject_loses(const epx_ab_order_t *order, int64_t step_of_run)
{
    return order->inject == EPX_AB_GUARD_WINDOW && step_of_run == order->discard + 1;
}

double epx_ab_inject_clock(const epx_ab_order_t *order, double mhz)
{
    return order->inject == EPX_AB_GUARD_CLOCKS ? 0.95 * mhz : mhz;
}

/* ---- between the model and its exchange ---------------------------------------------------------------------------- */

/* A table of calls like the exchange's own, followed by what they need. */
typedef struct hooks {
    epx_exchange_ops_t ops; /* first: an exchange's ops pointer leads here */
    const epx_exchange_ops_t *real;
    int inject;
    epx_ab_moment_t moment;
    const epx_allocator_t *allocator;
} hooks_t;

static hooks_t *hooks_of(const epx_exchange_t *exchange) { return (hooks_t *)(uintptr_t)exchange->ops; }

static int bent_route(epx_exchange_t *exchange, int64_t layer, const int32_t *ids, const epx_real_t *weights,
                      int64_t tokens)
{
    const hooks_t *hooks = hooks_of(exchange);
    if (hooks->inject == EPX_AB_GUARD_REGISTRATION && hooks->moment == EPX_AB_LATER_STEP) {
        void *late = hooks->allocator->allocate(hooks->allocator->context, 64, 64, 0);
        hooks->allocator->release(hooks->allocator->context, late, 64, 0);
    }
    return hooks->real->route(exchange, layer, ids, weights, tokens);
}

/* Flips the last bit of the last number of the first row. */
static int bent_dispatch(epx_exchange_t *exchange, int64_t layer, int64_t wave, const epx_real_t *x,
                         epx_rows_t *rows)
{
    const hooks_t *hooks = hooks_of(exchange);
    int code = hooks->real->dispatch(exchange, layer, wave, x, rows);
    for (int64_t e = 0; code == EPX_TRAIN_OK && e < exchange->local_experts; e++) {
        if (hooks->inject != EPX_AB_GUARD_PAYLOAD || hooks->moment != EPX_AB_IN_CHECK || rows->count[e] == 0)
            continue;
        unsigned char *last =
            (unsigned char *)(rows->rows + (rows->start[e] + 1) * exchange->width) - sizeof(epx_real_t);
        last[0] ^= 1;
        break;
    }
    return code;
}

static void scale(epx_real_t *values, int64_t count, epx_real_t by)
{
    for (int64_t i = 0; i < count; i++)
        values[i] *= by;
}

static int bent_combine(epx_exchange_t *exchange, int64_t layer, int64_t wave, const epx_real_t *y,
                        epx_real_t *out)
{
    const hooks_t *hooks = hooks_of(exchange);
    int code = hooks->real->combine(exchange, layer, wave, y, out);
    int last = wave + 1 == hooks->real->waves(exchange, layer);
    int hit = (hooks->inject == EPX_AB_GUARD_TWINS && hooks->moment != EPX_AB_IN_CHECK) ||
              (hooks->inject == EPX_AB_GUARD_GAP && hooks->moment == EPX_AB_LATER_STEP);
    if (code == EPX_TRAIN_OK && last && hit)
        scale(out, exchange->tokens_max * exchange->width, (epx_real_t)1.25);
    return code;
}

static int bent_dispatch_backward(epx_exchange_t *exchange, int64_t layer, int64_t wave,
                                  const epx_real_t *dx_rows, epx_real_t *dx, epx_real_t *dweights)
{
    const hooks_t *hooks = hooks_of(exchange);
    int code = hooks->real->dispatch_backward(exchange, layer, wave, dx_rows, dx, dweights);
    int last = wave + 1 == hooks->real->waves(exchange, layer);
    if (code == EPX_TRAIN_OK && last && hooks->inject == EPX_AB_GUARD_GRADIENTS &&
        hooks->moment == EPX_AB_IN_GRADIENTS)
        scale(dx, exchange->tokens_max * exchange->width, (epx_real_t)1.05);
    return code;
}

static int bent_stats(epx_exchange_t *exchange, int64_t layer, epx_plan_stats_t *stats)
{
    const hooks_t *hooks = hooks_of(exchange);
    int code = hooks->real->stats(exchange, layer, stats);
    if (hooks->inject == EPX_AB_GUARD_ACCOUNTING && hooks->moment == EPX_AB_LATER_STEP)
        stats->kept--;
    if (hooks->inject == EPX_AB_GUARD_BYTES && hooks->moment == EPX_AB_LATER_STEP)
        stats->received_bytes += 64;
    return code;
}

static void bent_destroy(epx_exchange_t *exchange)
{
    hooks_t *hooks = hooks_of(exchange);
    exchange->ops = hooks->real;
    exchange->ops->destroy(exchange);
    free(hooks);
}

int epx_ab_inject_hooks(epx_ab_rank_t *self, const epx_ab_order_t *order)
{
    epx_exchange_t *exchange = epx_trainer_model(self->trainer)->exchange;
    if (order->inject < 0 || self->rank != 0)
        return EPX_TRAIN_OK;
    hooks_t *hooks = calloc(1, sizeof *hooks);
    if (hooks == NULL)
        return epx_train_fail(EPX_TRAIN_FAILED, "no memory for the hooks of --inject");
    *hooks = (hooks_t){.ops = *exchange->ops,
                       .real = exchange->ops,
                       .inject = order->inject,
                       .allocator = &self->session->allocator};
    hooks->ops.route = bent_route;
    hooks->ops.dispatch = bent_dispatch;
    hooks->ops.combine = bent_combine;
    hooks->ops.dispatch_backward = bent_dispatch_backward;
    hooks->ops.stats = bent_stats;
    hooks->ops.destroy = bent_destroy;
    exchange->ops = &hooks->ops;
    return EPX_TRAIN_OK;
}

void epx_ab_inject_moment(epx_ab_rank_t *self, const epx_ab_order_t *order, epx_ab_moment_t moment)
{
    if (order->inject >= 0 && self->rank == 0)
        hooks_of(epx_trainer_model(self->trainer)->exchange)->moment = moment;
}
