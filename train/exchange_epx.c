/* The exchange through the library. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include <epx/comm.h>
#include <epx/info.h>

#include "exchange.h"
#include "fail.h"
#include "status.h"

typedef struct through_epx {
    epx_exchange_t base;
    epx_comm_h world;
    epx_group_h group;
    epx_group_config_t config; /* that the group was opened with */
    char transport[80], name[64];
    epx_plan_h *plan; /* [layers], all on lane 0: a layer's pass ends before the next layer's begins */
} through_epx_t;

static through_epx_t *self(epx_exchange_t *exchange) { return (through_epx_t *)exchange; }

static epx_plan_h plan_of(epx_exchange_t *exchange, int64_t layer) { return self(exchange)->plan[layer]; }

static int through_route(epx_exchange_t *exchange, int64_t layer, const int32_t *ids,
                         const epx_real_t *weights, int64_t tokens)
{
    epx_routing_t routing = EPX_ROUTING_INIT;
    routing.tokens = tokens;
    routing.ids = ids;
    routing.weights = weights;
    return epx_train_status(epx_plan_route(plan_of(exchange, layer), &routing, NULL));
}

static int64_t through_waves(epx_exchange_t *exchange, int64_t layer)
{
    return epx_plan_waves(plan_of(exchange, layer));
}

static epx_batch_t batch_into(epx_rows_t *rows)
{
    epx_batch_t batch = EPX_BATCH_INIT;
    batch.into_rows = rows->rows;
    batch.into_start = rows->start;
    batch.into_count = rows->count;
    return batch;
}

/* Rows must have come to the caller's memory, each in its place. */
static int check_batch(epx_status_t status, const epx_batch_t *batch)
{
    if (status == EPX_OK && batch->row_index)
        return epx_train_fail(EPX_TRAIN_USAGE,
                              "the training loop multiplies rows that stand in expert order, and "
                              "EPX_BATCH=indexed hands them over in another: unset it");
    return epx_train_status(status);
}

static int through_dispatch_rows(epx_exchange_t *exchange, int64_t layer, int64_t wave, const epx_real_t *x,
                                 epx_rows_t *rows)
{
    epx_batch_t batch = batch_into(rows);
    return check_batch(epx_dispatch(plan_of(exchange, layer), (int32_t)wave, x, &batch, NULL), &batch);
}

static int through_poison(epx_exchange_t *exchange, int64_t layer, int64_t wave, epx_real_t *y)
{
    return epx_train_status(epx_check_poison(plan_of(exchange, layer), (int32_t)wave, y, NULL));
}

static int through_combine_rows(epx_exchange_t *exchange, int64_t layer, int64_t wave, const epx_real_t *y,
                                epx_real_t *out)
{
    return epx_train_status(epx_combine(plan_of(exchange, layer), (int32_t)wave, y, out, NULL));
}

static int through_combine_rows_backward(epx_exchange_t *exchange, int64_t layer, int64_t wave,
                                         const epx_real_t *dout, const epx_real_t *y, epx_rows_t *dy)
{
    epx_batch_t batch = batch_into(dy);
    return check_batch(epx_combine_backward(plan_of(exchange, layer), (int32_t)wave, dout, y, &batch, NULL),
                       &batch);
}

static int through_dispatch_rows_backward(epx_exchange_t *exchange, int64_t layer, int64_t wave,
                                          const epx_real_t *dx_rows, epx_real_t *dx, epx_real_t *dweights)
{
    return epx_train_status(
        epx_dispatch_backward(plan_of(exchange, layer), (int32_t)wave, dx_rows, dx, dweights, NULL));
}

static int through_step(epx_exchange_t *exchange)
{
    return epx_train_setting_status(epx_step(self(exchange)->group)); /* EPX_STATS */
}

static int through_discard(epx_exchange_t *exchange)
{
    return epx_train_status(epx_step_discard(self(exchange)->group));
}

static int through_stats(epx_exchange_t *exchange, int64_t layer, epx_plan_stats_t *stats)
{
    *stats = (epx_plan_stats_t)EPX_PLAN_STATS_INIT;
    return epx_train_status(epx_plan_stats(plan_of(exchange, layer), stats, NULL));
}

static int through_sum(epx_exchange_t *exchange, int64_t *counts, int64_t count)
{
    return epx_train_status(
        epx_comm_allreduce(self(exchange)->world, counts, count, EPX_NUMBER_INT64, EPX_SUM));
}

static int through_info(epx_exchange_t *exchange, epx_group_info_t *info_p)
{
    *info_p = (epx_group_info_t)EPX_GROUP_INFO_INIT;
    return epx_train_status(epx_group_info(self(exchange)->group, info_p));
}

static void through_abort(epx_exchange_t *exchange, const char *reason)
{
    epx_group_abort(self(exchange)->group, reason);
}

static void through_destroy(epx_exchange_t *exchange)
{
    through_epx_t *through = self(exchange);
    for (int64_t i = 0; through->plan && i < exchange->layers; i++)
        epx_plan_destroy(&through->plan[i]);
    epx_group_close(&through->group);
    free(through->plan);
    free(through);
}

static int through_recover(epx_exchange_t *exchange, const char *transport);

static const epx_exchange_ops_t through_ops = {
    .route = through_route,
    .waves = through_waves,
    .dispatch = through_dispatch_rows,
    .poison = through_poison,
    .combine = through_combine_rows,
    .combine_backward = through_combine_rows_backward,
    .dispatch_backward = through_dispatch_rows_backward,
    .step = through_step,
    .discard = through_discard,
    .stats = through_stats,
    .sum = through_sum,
    .info = through_info,
    .abort = through_abort,
    .recover = through_recover,
    .destroy = through_destroy,
};

static epx_group_config_t group_config(const epx_exchange_shape_t *shape, const epx_group_config_t *settings,
                                       int recompute, int32_t ranks)
{
    epx_group_config_t config = *settings;
    config.ranks = ranks;
    config.experts = (int32_t)shape->experts;
    config.top_k = (int32_t)shape->top_k;
    config.width = (int32_t)shape->width;
    config.tokens_max = (int32_t)shape->tokens_max;
    config.row_type = EPX_FP32;
    config.owner = NULL;
    config.aux_bytes = 0;
    config.row_align = 1;
    config.lanes = 1;
    config.backward = recompute ? EPX_BACKWARD_RECOMPUTE : EPX_BACKWARD_KEPT;
    config.batch_in_caller = 1;
    return config;
}

void epx_exchange_expect(const epx_exchange_shape_t *shape, const epx_group_config_t *settings, int recompute,
                         int32_t ranks, int64_t *rows_max_p, int64_t *waves_p)
{
    epx_group_config_t config = group_config(shape, settings, recompute, ranks);
    epx_group_info_t info = EPX_GROUP_INFO_INIT;
    if (epx_group_preview(&config, &info) != EPX_OK)
        return;
    *rows_max_p = info.batch_rows_max;
    *waves_p = info.waves;
}

/* What the model needs to know of the open group, and its memory on this rank. */
static int learn(through_epx_t *through, const epx_group_config_t *config)
{
    epx_group_info_t info = EPX_GROUP_INFO_INIT;
    epx_memory_t memory = EPX_MEMORY_INIT;
    epx_exchange_t *base = &through->base;
    int code = epx_train_status(epx_group_info(through->group, &info));
    if (code == EPX_TRAIN_OK)
        code = epx_train_status(epx_group_memory(config, &memory));
    if (code != EPX_TRAIN_OK)
        return code;
    base->transport = info.transport;
    base->fabric = info.fabric;
    base->local_experts = info.local_experts;
    base->first_expert = info.local_experts > 0 ? info.local_expert_ids[0] : 0;
    base->rows_max = info.batch_rows_max;
    base->waves_max = info.waves;
    base->peak_bytes = memory.total_bytes + base->layers * (memory.plan_bytes + memory.plan_handle_bytes);
    return EPX_TRAIN_OK;
}

/* Where each routing decides how many waves there are, nothing can be kept per wave, and the model dispatches
 * again in the backward pass; the group must have been opened for that. */
static int open_group(through_epx_t *through, epx_comm_h comm, epx_group_config_t *config)
{
    epx_group_info_t info = EPX_GROUP_INFO_INIT;
    int code = epx_train_setting_status(epx_group_open(comm, config, &through->group));
    if (code == EPX_TRAIN_OK)
        code = epx_train_status(epx_group_info(through->group, &info));
    if (code != EPX_TRAIN_OK || info.waves != 0 || config->backward == EPX_BACKWARD_RECOMPUTE)
        return code;
    epx_group_close(&through->group);
    config->backward = EPX_BACKWARD_RECOMPUTE;
    return epx_train_setting_status(epx_group_open(comm, config, &through->group));
}

static int create_plans(through_epx_t *through)
{
    int code = EPX_TRAIN_OK;
    for (int64_t i = 0; code == EPX_TRAIN_OK && i < through->base.layers; i++)
        code = epx_train_status(epx_plan_create(through->group, 0, NULL, &through->plan[i]));
    return code;
}

static int through_recover(epx_exchange_t *exchange, const char *transport)
{
    through_epx_t *through = self(exchange);
    snprintf(through->transport, sizeof through->transport, "failover:%s", transport);
    through->config.transport = through->transport;
    int code = epx_train_setting_status(epx_group_recover(through->group, &through->config));
    for (int64_t i = 0; i < exchange->layers; i++)
        epx_plan_destroy(&through->plan[i]);
    if (code == EPX_TRAIN_OK)
        code = create_plans(through);
    return code == EPX_TRAIN_OK ? learn(through, &through->config) : code;
}

int epx_exchange_epx(const epx_exchange_shape_t *shape, const epx_group_config_t *settings, int recompute,
                     epx_comm_h group_comm, epx_comm_h world, epx_exchange_t **exchange_p)
{
    through_epx_t *through = calloc(1, sizeof *through);
    if (!through)
        return epx_train_fail(EPX_TRAIN_FAILED, "no memory for an exchange");
    through->base = (epx_exchange_t){.ops = &through_ops,
                                     .layers = shape->layers,
                                     .experts = shape->experts,
                                     .top_k = shape->top_k,
                                     .width = shape->width,
                                     .tokens_max = shape->tokens_max};
    through->world = world;
    through->plan = calloc((size_t)shape->layers, sizeof *through->plan);
    epx_group_config_t config = group_config(shape, settings, recompute, epx_comm_size(group_comm));
    /* Replicas write their statistics into one folder, so their groups need names of their own. */
    char name[32];
    snprintf(name, sizeof name, "experts%d", epx_comm_rank(world) / epx_comm_size(group_comm));
    config.name = config.name ? config.name : name;
    int code =
        through->plan ? EPX_TRAIN_OK : epx_train_fail(EPX_TRAIN_FAILED, "no memory for the list of plans");
    if (code == EPX_TRAIN_OK)
        code = open_group(through, group_comm, &config);
    snprintf(through->name, sizeof through->name, "%s", config.name);
    through->config = config;
    through->config.name = through->name;
    if (code == EPX_TRAIN_OK)
        code = create_plans(through);
    if (code == EPX_TRAIN_OK)
        code = learn(through, &config);
    if (code != EPX_TRAIN_OK) {
        through_destroy(&through->base);
        return code;
    }
    *exchange_p = &through->base;
    return EPX_TRAIN_OK;
}
