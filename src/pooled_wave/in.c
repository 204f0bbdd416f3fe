/* pooled_wave: what arrived, decided and brought into batch order. SPDX-License-Identifier: Apache-2.0 */
#include "pooled_wave/internal.h"

/* Everybody has sent data of this routing: no rank's host knows of a failed route. What devices find comes in
 * the headers. The flag in the bytes, where it is to be set. */
static int32_t *confirm(const epx_pooled_wave_t *w)
{
    epx_plan_head_t *head = &w->plan->head;
    if (w->move != EPX_MOVE_DISPATCH || head->confirmed)
        return NULL;
    head->confirmed = 1;
    return &epx_plan_head(w->plan)->confirmed;
}

epx_status_t epx_pooled_receive(const epx_pooled_wave_t *w, int count)
{
    const epx_transport_env_t *env = &w->pooled->transport.env;
    const epx_pooled_map_t *map = &w->pooled->map;
    int32_t lane = w->plan->lane->index;
    epx_k_pooled_gate2_t args = {.layout = &w->pooled->layout,
                                 .headers = epx_pooled_incoming(w, map->side[w->side].header),
                                 .stamp = epx_pooled_stamp(w),
                                 .tag = epx_pooled_lane(w->pooled, lane, map->tags),
                                 .pointer = epx_pooled_lane(w->pooled, lane, map->pointers),
                                 .to = epx_pooled_side(w, map->to),
                                 .from = epx_pooled_side(w, map->from),
                                 .kept = epx_pooled_side(w, map->kept),
                                 .start = epx_pooled_side(w, map->start),
                                 .count = epx_pooled_side(w, map->count),
                                 .counts = count,
                                 .confirmed = confirm(w),
                                 .verdict = epx_route_for_kernels(w->plan),
                                 .bad = epx_pooled_lane(w->pooled, lane, map->bad)};
    return env->kernels->pooled_gate2(&args, w->stream);
}

/* One thing that arrived, into batch order. */
static epx_k_gather_t gather_of(const epx_pooled_wave_t *w, int64_t incoming, void *to, int64_t bytes)
{
    return (epx_k_gather_t){.units = w->pooled->transport.env.shape->sm_budget,
                            .rows = epx_pooled_rows_of(w),
                            .index = epx_pooled_side(w, w->pooled->map.from),
                            .src = epx_pooled_incoming(w, incoming),
                            .dst = to,
                            .src_stride = bytes,
                            .dst_stride = bytes,
                            .bytes = bytes};
}

static epx_status_t bring(const epx_pooled_wave_t *w, int64_t incoming, void *to, int64_t bytes)
{
    epx_k_gather_t args = gather_of(w, incoming, to, bytes);
    return w->pooled->transport.env.kernels->gather(&args, w->stream);
}

epx_status_t epx_pooled_bring_rows(const epx_pooled_wave_t *w, void *rows)
{
    const epx_shape_t *shape = w->pooled->transport.env.shape;
    const epx_pooled_map_t *map = &w->pooled->map;
    const int32_t *base = epx_pooled_tables(w->pooled).base;
    epx_k_gather_t args = gather_of(w, map->side[w->side].rows, rows, shape->row_bytes);
    if (w->pooled->dims.own_rows && w->move == EPX_MOVE_DISPATCH) {
        args.own = (const int32_t *)epx_pooled_side(w, map->list) + base[shape->rank];
        args.own_src = *epx_pooled_given(w);
        args.own_first = shape->rank * (int32_t)w->pooled->dims.slab_rows;
        args.own_count = base[shape->rank + 1] - base[shape->rank];
        args.own_divide = shape->columns;
    }
    return w->pooled->transport.env.kernels->gather(&args, w->stream);
}

epx_status_t epx_pooled_bring_weights(const epx_pooled_wave_t *w, float *weights)
{
    return bring(w, w->pooled->map.side[w->side].weight, weights, sizeof(float));
}

epx_status_t epx_pooled_bring_sums(const epx_pooled_wave_t *w, uint32_t *sums)
{
    return bring(w, w->pooled->map.side[w->side].sum, sums, sizeof(uint32_t));
}

/* expert_start and expert_count where the caller wants them. */
static epx_status_t give_table(const epx_pooled_wave_t *w, int64_t *into, const int64_t *table,
                               const int64_t **table_p)
{
    const epx_device_ops_t *device = w->pooled->transport.env.device;
    *table_p = into != NULL ? into : table;
    if (into == NULL)
        return EPX_OK;
    return device->copy(into, table, (size_t)epx_pooled_rows_of(w).experts * sizeof(*table), w->stream);
}

void *epx_pooled_batch_rows(const epx_pooled_wave_t *w, const epx_batch_t *batch)
{
    return batch->into_rows != NULL ? batch->into_rows
                                    : epx_pooled_batch(w, w->pooled->map.side[w->side].batch_rows);
}

epx_status_t epx_pooled_fill_batch(const epx_pooled_wave_t *w, void *rows, epx_batch_t *batch)
{
    const epx_shape_t *shape = w->pooled->transport.env.shape;
    const epx_pooled_side_map_t *side = &w->pooled->map.side[w->side];
    epx_k_rows_t table = epx_pooled_rows_of(w);
    const int64_t *start, *count;
    epx_origin_t *origin = NULL;
    void *aux = NULL;
    epx_status_t status = give_table(w, batch->into_start, table.start, &start);
    if (status == EPX_OK)
        status = give_table(w, batch->into_count, table.count, &count);
    if (status == EPX_OK && shape->origin) {
        origin = epx_pooled_batch(w, side->batch_origin);
        status = bring(w, side->origin, origin, sizeof(*origin));
    }
    if (status == EPX_OK && w->move == EPX_MOVE_DISPATCH && shape->aux_bytes > 0) {
        aux = epx_pooled_batch(w, side->batch_aux);
        status = bring(w, side->aux, aux, shape->aux_bytes);
    }
    if (status != EPX_OK)
        return status;
    batch->rows = rows;
    batch->expert_start = start;
    batch->expert_count = count;
    batch->local_experts = table.experts;
    batch->rows_max = w->pooled->dims.batch_rows;
    batch->row_index = NULL;
    batch->origin = origin;
    batch->row_aux = aux;
    return EPX_OK;
}
