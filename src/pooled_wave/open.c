/* pooled_wave: open, close, the table. SPDX-License-Identifier: Apache-2.0 */
#include "pooled_wave/internal.h"

#include <inttypes.h>
#include <stdio.h>

#include "transport/accept.h"

static void number_rows(const epx_shape_t *shape, const epx_pooled_tables_t *tables)
{
    epx_rule_t rule = epx_rule_of(shape, shape->waves);
    tables->base[0] = 0;
    for (int32_t d = 0; d < shape->ranks; d++) {
        int32_t slots = 0;
        for (int32_t v = d * shape->splits; v < (d + 1) * shape->splits; v++) {
            tables->before[v] = slots;
            slots += (int32_t)epx_pooled_slots(&rule, shape->virt.first[v + 1] - shape->virt.first[v]);
        }
        tables->base[d + 1] = tables->base[d] + slots * shape->splits;
    }
}

/*
 * Who gets what: out, my slab to d; back, the rows that came from d; block, one entry of a table by peer.
 * Everybody begins with his right neighbour, so that not all write to one rank at once, and ends with
 * himself. What goes to others stands at the receiver where the sender's things do; staged, it stands in this
 * rank's mirror where the receiver's do.
 */
static void number_runs(const epx_shape_t *shape, const epx_pooled_dims_t *dims,
                        const epx_pooled_tables_t *tables)
{
    int32_t me = shape->rank, mine = tables->base[me + 1] - tables->base[me];
    for (int32_t i = 0; i < shape->ranks; i++) {
        int32_t d = (int32_t)(((int64_t)me + 1 + i) % shape->ranks), at = dims->staged ? d : me;
        int64_t home = dims->staged && d != me ? d * dims->slab_rows : tables->base[me];
        tables->out[i] = (epx_run_t){.first = tables->base[d],
                                     .row = at * dims->slab_rows,
                                     .peer = d,
                                     .rows = tables->base[d + 1] - tables->base[d]};
        tables->back[i] = (epx_run_t){.first = d * dims->slab_rows, .row = home, .peer = d, .rows = mine};
        tables->block[i] = (epx_run_t){.first = d, .row = at, .peer = d, .rows = 1};
    }
}

/* Without loads and stores kernels reach this rank's segment alone. */
static epx_status_t set_destinations(epx_pooled_t *pooled)
{
    const epx_transport_env_t *env = &pooled->transport.env;
    void *table = epx_pooled_static(pooled, pooled->map.destinations);
    pooled->destinations = env->segment.peer_ptr;
    if (!epx_is_staged(env->fabric->caps))
        return EPX_OK;
    pooled->destinations = table;
    return epx_staged_table(env, table, env->segment.base, (char *)env->segment.base + pooled->map.mirror);
}

typedef struct table_row {
    int64_t offset;
    const void *host;
    int64_t bytes;
} table_row_t;

static epx_status_t copy_tables(epx_pooled_t *pooled, const epx_pooled_tables_t *tables)
{
    const epx_transport_env_t *env = &pooled->transport.env;
    const epx_shape_t *shape = env->shape;
    const epx_pooled_map_t *map = &pooled->map;
    int64_t experts = shape->experts * (int64_t)sizeof(int32_t),
            runs = shape->ranks * (int64_t)sizeof(epx_run_t);
    int64_t word = sizeof(int32_t);
    const table_row_t rows[] = {
        {map->owner, shape->virt.owner, experts},
        {map->local, shape->virt.local, experts},
        {map->expert, shape->virt.expert, experts},
        {map->first, shape->virt.first, (shape->virtual_ranks + (int64_t)1) * word},
        {map->base, tables->base, (shape->ranks + (int64_t)1) * word},
        {map->before, tables->before, shape->virtual_ranks * word},
        {map->out_runs, tables->out, runs},
        {map->back_runs, tables->back, runs},
        {map->block_runs, tables->block, runs},
    };
    epx_status_t status = EPX_OK;
    for (size_t i = 0; status == EPX_OK && i < sizeof(rows) / sizeof(rows[0]); i++)
        status = env->device->copy(epx_pooled_static(pooled, rows[i].offset), rows[i].host,
                                   (size_t)rows[i].bytes, NULL);
    if (status == EPX_OK && map->zeros >= 0)
        status = env->device->fill(epx_pooled_static(pooled, map->zeros), 0, (size_t)shape->aux_bytes, NULL);
    return status;
}

static void describe(epx_pooled_t *pooled)
{
    const epx_shape_t *shape = pooled->transport.env.shape;
    const epx_pooled_map_t *map = &pooled->map;
    pooled->layout = (epx_k_pooled_layout_t){
        .rank = shape->rank,
        .ranks = shape->ranks,
        .virtual_ranks = shape->virtual_ranks,
        .splits = shape->splits,
        .experts = shape->experts,
        .top_k = shape->top_k,
        .columns = shape->columns,
        .waves = shape->waves,
        .dropless = shape->dropless,
        .extra_wave = pooled->dims.extra_wave,
        .assignments_max = (int64_t)shape->virtual_tokens_max * shape->top_k,
        .cf = shape->capacity_factor,
        .cs = shape->sender_factor,
        .owner = epx_pooled_static(pooled, map->owner),
        .local = epx_pooled_static(pooled, map->local),
        .first = epx_pooled_static(pooled, map->first),
        .expert = epx_pooled_static(pooled, map->expert),
        .local_experts_max = pooled->dims.virtual_local_max,
        .base = epx_pooled_static(pooled, map->base),
        .before = epx_pooled_static(pooled, map->before),
        .home_rows = (int32_t)pooled->dims.home_rows,
        .slab_rows = (int32_t)pooled->dims.slab_rows,
        .rows_per_expert = (int32_t)pooled->dims.rows_per_expert,
        .tag_bytes = pooled->dims.tag_bytes,
        .header_bytes = pooled->dims.header_bytes,
    };
}

/* The segment is filled before the group's last agreement, so before any peer can write into it. */
static epx_status_t pooled_open(const epx_transport_env_t *asked, void *memory, epx_transport_t **transport_p)
{
    epx_pooled_t *pooled = memory;
    const epx_transport_env_t *env = &pooled->transport.env;
    pooled->shape = epx_pooled_shape(asked->shape);
    pooled->transport = (epx_transport_t){.ops = &epx_transport_pooled_wave, .env = *asked};
    pooled->transport.env.shape = &pooled->shape;
    epx_status_t status = epx_pooled_dims(env->shape, env->fabric->caps, env->services, &pooled->dims);
    if (status != EPX_OK)
        return status;
    epx_pooled_map(env->shape, &pooled->dims, &pooled->map);
    epx_pooled_tables_t tables = epx_pooled_tables(pooled);
    number_rows(env->shape, &tables);
    number_runs(env->shape, &pooled->dims, &tables);
    describe(pooled);
    int32_t me = env->shape->rank, mine = tables.base[me + 1] - tables.base[me];
    pooled->remote_out = pooled->dims.home_rows - mine;
    pooled->remote_in = (int64_t)mine * (env->shape->ranks - 1);
    status = copy_tables(pooled, &tables);
    if (status == EPX_OK)
        status = set_destinations(pooled);
    if (status == EPX_OK)
        status = epx_canary_fill(&pooled->transport, env->segment.base, pooled->map.segment_bytes, NULL);
    if (status == EPX_OK)
        status = env->device->synchronize(NULL);
    if (status == EPX_OK)
        *transport_p = &pooled->transport;
    return status;
}

/* Nothing here is the transport's own. */
static void pooled_close(epx_transport_t *transport) { (void)transport; }

/* Bytes follow from the shape alone: every call counts its own at once. */
static void pooled_account(epx_transport_t *transport, epx_plan_base_t *plan) { (void)transport, (void)plan; }

static void pooled_dump(epx_transport_t *transport, void (*line)(void *context, const char *text),
                        void *context)
{
    const epx_pooled_t *pooled = (const epx_pooled_t *)transport;
    const epx_shape_t *shape = transport->env.shape;
    char text[192];
    snprintf(text, sizeof(text), "pooled_wave: rank %d of %d, %d waves, overflow %s", shape->rank,
             shape->ranks, shape->waves,
             pooled->dims.extra_wave                 ? "extra_wave"
             : shape->overflow == EPX_OVERFLOW_SPILL ? "spill"
                                                     : "drop");
    line(context, text);
    snprintf(text, sizeof(text),
             "pooled_wave: a wave sends %" PRId64 " slots (%" PRId64
             " of them to other ranks), receives %" PRId64 " from other ranks, keeps up to %" PRId64
             " rows of each expert",
             pooled->dims.home_rows, pooled->remote_out, pooled->remote_in, pooled->dims.rows_per_expert);
    line(context, text);
}

const epx_transport_ops_t epx_transport_pooled_wave = {
    .abi = EPX_ABI,
    .ops_bytes = sizeof(epx_transport_ops_t),
    .name = "pooled_wave",
    .summary = "fixed shapes, two gates, ids in band",
    .probe = epx_pooled_probe,
    .query = epx_pooled_query,
    .open = pooled_open,
    .close = pooled_close,
    .route = epx_pooled_route,
    .dispatch_start = epx_pooled_dispatch_start,
    .dispatch_finish = epx_pooled_dispatch_finish,
    .combine_start = epx_pooled_combine_start,
    .combine_finish = epx_pooled_combine_finish,
    .combine_backward_start = epx_pooled_combine_backward_start,
    .combine_backward_finish = epx_pooled_combine_backward_finish,
    .dispatch_backward_start = epx_pooled_dispatch_backward_start,
    .dispatch_backward_finish = epx_pooled_dispatch_backward_finish,
    .account = pooled_account,
    .dump = pooled_dump,
};
