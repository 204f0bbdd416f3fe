/* pooled_wave: what the four moves share. SPDX-License-Identifier: Apache-2.0 */
#include "pooled_wave/internal.h"

epx_pooled_wave_t epx_pooled_view(epx_transport_t *transport, epx_plan_base_t *plan, epx_move_t move, int32_t wave,
                                  epx_stream_t stream)
{
    epx_pooled_t *pooled = (epx_pooled_t *)transport;
    int gradients = move == EPX_MOVE_COMBINE_BACKWARD || move == EPX_MOVE_DISPATCH_BACKWARD;
    return (epx_pooled_wave_t){.pooled = pooled,
                               .plan = plan,
                               .move = move,
                               .wave = wave,
                               .side = gradients ? pooled->dims.sides - 1 : 0,
                               .epoch = *epx_pooled_epoch(pooled, plan, move, wave),
                               .stream = stream};
}

void epx_pooled_begin(epx_pooled_wave_t *w)
{
    w->epoch = epx_lane_advance(w->plan->lane);
    *epx_pooled_epoch(w->pooled, w->plan, w->move, w->wave) = w->epoch;
}

epx_k_rows_t epx_pooled_rows_of(const epx_pooled_wave_t *w)
{
    const epx_shape_t *shape = w->pooled->transport.env.shape;
    const epx_pooled_map_t *map = &w->pooled->map;
    return (epx_k_rows_t){.start = epx_pooled_side(w, map->start),
                          .count = epx_pooled_side(w, map->count),
                          .experts = shape->real.first[shape->rank + 1] - shape->real.first[shape->rank]};
}

epx_status_t epx_pooled_find_places(epx_pooled_wave_t *w)
{
    const epx_transport_env_t *env = &w->pooled->transport.env;
    const epx_pooled_map_t *map = &w->pooled->map;
    epx_plan_base_t *plan = w->plan;
    if (!w->pooled->dims.extra_wave) {
        w->place = epx_pooled_plan(plan, map->plan_place);
        w->lo = w->wave * w->pooled->dims.home_rows;
        return EPX_OK;
    }
    int32_t lane = plan->lane->index;
    int32_t *place = epx_pooled_lane(w->pooled, lane, map->place);
    epx_k_pooled_extra_t args = {.layout = &w->pooled->layout,
                                 .counts = epx_pooled_plan(plan, map->plan_counts),
                                 .remaining = epx_pooled_lane(w->pooled, lane, map->remaining),
                                 .wave = w->wave,
                                 .tokens = env->shape->tokens_max,
                                 .tokens_device = &epx_plan_head(plan)->tokens,
                                 .expert = epx_pooled_plan(plan, map->plan_expert),
                                 .ordinal = epx_pooled_plan(plan, map->plan_place),
                                 .move = epx_pooled_lane(w->pooled, lane, map->move),
                                 .place = place};
    w->place = place;
    w->lo = 0;
    return env->kernels->pooled_extra(&args, w->stream);
}

epx_status_t epx_pooled_wait(const epx_pooled_wave_t *w, int watch)
{
    const epx_shape_t *shape = w->pooled->transport.env.shape;
    epx_plan_head_t *head = epx_plan_head(w->plan);
    epx_move_wait_t wait = {.move = w->move,
                            .wave = w->wave,
                            .lane = w->plan->lane->index,
                            .channel = epx_move_channel(shape, w->plan->lane->index, w->wave, w->move),
                            .epoch = w->epoch,
                            .peer = EPX_ALL_PEERS,
                            .mode = EPX_WAIT_EQUAL,
                            .failure_channel = -1};
    watch = watch && !head->confirmed;
    if (watch) {
        const epx_pooled_own_t *own = epx_pooled_plan(w->plan, w->pooled->map.plan_own);
        wait.failure_channel = own->failure_row;
        wait.failure_epoch = head->route_epoch + EPX_POOLED_JUMP;
        wait.failure_span = EPX_POOLED_JUMP;
    }
    epx_status_t status = epx_move_wait(&w->pooled->transport, w->plan, &wait, w->stream);
    if (!watch)
        return status;
    if (status == EPX_OK) {
        /* Everybody has sent data of this routing, so every route was good. */
        head->confirmed = 1;
        epx_pooled_state(w->plan)->open_route = 0;
    } else if (status == EPX_ERR_PEER) {
        epx_pooled_died(w, status);
    }
    return status;
}

static epx_status_t post(const epx_pooled_wave_t *w)
{
    const epx_shape_t *shape = w->pooled->transport.env.shape;
    int32_t channel = epx_move_channel(shape, w->plan->lane->index, w->wave, w->move);
    return epx_move_post(&w->pooled->transport, channel, w->epoch, EPX_ALL_PEERS, w->stream);
}

/* What peers' kept bits have taught: only these rows travel from then on. */
static const uint8_t *learned_kept(const epx_pooled_wave_t *w)
{
    if (w->pooled->map.plan_kept < 0 || !epx_plan_head(w->plan)->learned)
        return NULL;
    return (const uint8_t *)epx_pooled_plan(w->plan, w->pooled->map.plan_kept) + w->lo;
}

static epx_status_t pack(const epx_pooled_wave_t *w)
{
    const epx_transport_env_t *env = &w->pooled->transport.env;
    const epx_pooled_map_t *map = &w->pooled->map;
    int32_t lane = w->plan->lane->index;
    epx_k_pooled_pack_t args = {.layout = &w->pooled->layout,
                                .tokens = env->shape->tokens_max,
                                .tokens_device = &epx_plan_head(w->plan)->tokens,
                                .expert = epx_pooled_plan(w->plan, map->plan_expert),
                                .place = w->place,
                                .lo = w->lo,
                                .kept = learned_kept(w),
                                .list = epx_pooled_lane(w->pooled, lane, map->list),
                                .valid = epx_pooled_plan(w->plan, map->plan_valid),
                                .stamp = (uint32_t)w->epoch,
                                .headers = epx_pooled_lane(w->pooled, lane, map->headers)};
    return env->kernels->pooled_pack(&args, w->stream);
}

static void add_part(epx_k_push_t *args, epx_part_t part)
{
    args->part[args->parts++] = part;
}

/* The headers, as one row per peer. */
static epx_status_t push_headers(const epx_pooled_wave_t *w)
{
    const epx_transport_env_t *env = &w->pooled->transport.env;
    const epx_pooled_map_t *map = &w->pooled->map;
    int64_t bytes = w->pooled->dims.header_bytes;
    epx_k_push_t args = {.dst = env->segment.peer_ptr,
                         .runs = epx_pooled_static(w->pooled, map->block_runs),
                         .run_count = env->shape->ranks,
                         .rank = env->shape->rank,
                         .columns = env->shape->columns};
    add_part(&args, (epx_part_t){.kind = EPX_PART_COPY,
                                 .src = epx_pooled_lane(w->pooled, w->plan->lane->index, map->headers),
                                 .src_stride = bytes,
                                 .divide = 1,
                                 .dst_offset = epx_pooled_incoming_offset(w, map->side[w->side].header),
                                 .dst_stride = bytes,
                                 .bytes = bytes});
    return env->kernels->push(&args, w->stream);
}

/* Rows by the list, and what travels beside each. */
static epx_status_t push_rows(const epx_pooled_wave_t *w, const void *rows, const void *aux)
{
    const epx_transport_env_t *env = &w->pooled->transport.env;
    const epx_shape_t *shape = env->shape;
    const epx_pooled_map_t *map = &w->pooled->map;
    const epx_pooled_side_map_t *side = &map->side[w->side];
    epx_k_push_t args = {.dst = env->segment.peer_ptr,
                         .index = epx_pooled_lane(w->pooled, w->plan->lane->index, map->list),
                         .runs = epx_pooled_static(w->pooled, map->out_runs),
                         .run_count = shape->ranks,
                         .rank = shape->rank,
                         .columns = shape->columns};
    epx_part_t part = {.kind = EPX_PART_COPY,
                       .src = rows,
                       .src_stride = shape->row_bytes,
                       .divide = shape->columns,
                       .dst_offset = epx_pooled_incoming_offset(w, side->rows),
                       .dst_stride = shape->row_bytes,
                       .bytes = shape->row_bytes};
    add_part(&args, part);
    if (w->pooled->dims.sums) {
        part.kind = EPX_PART_CHECKSUM;
        part.dst_offset = epx_pooled_incoming_offset(w, side->sum);
        part.dst_stride = sizeof(uint32_t);
        add_part(&args, part);
    }
    if (shape->origin)
        add_part(&args, (epx_part_t){.kind = EPX_PART_ORIGIN,
                                     .divide = 1,
                                     .dst_offset = epx_pooled_incoming_offset(w, side->origin),
                                     .dst_stride = sizeof(epx_origin_t),
                                     .bytes = sizeof(epx_origin_t)});
    if (w->move == EPX_MOVE_DISPATCH && shape->aux_bytes > 0)
        add_part(&args, (epx_part_t){.kind = EPX_PART_COPY,
                                     .src = aux != NULL ? aux : epx_pooled_static(w->pooled, map->zeros),
                                     .src_stride = aux != NULL ? shape->aux_bytes : 0,
                                     .divide = shape->columns,
                                     .dst_offset = epx_pooled_incoming_offset(w, side->aux),
                                     .dst_stride = shape->aux_bytes,
                                     .bytes = shape->aux_bytes});
    if (w->move == EPX_MOVE_COMBINE_BACKWARD)
        add_part(&args, (epx_part_t){.kind = EPX_PART_COPY,
                                     .src = epx_pooled_plan(w->plan, map->plan_weights),
                                     .src_stride = sizeof(float),
                                     .divide = 1,
                                     .dst_offset = epx_pooled_incoming_offset(w, side->weight),
                                     .dst_stride = sizeof(float),
                                     .bytes = sizeof(float)});
    return env->kernels->push(&args, w->stream);
}

/* Slabs have one size, so bytes follow from the shape alone; see pooled_wave.h. */
static void account_out(const epx_pooled_wave_t *w)
{
    const epx_shape_t *shape = w->pooled->transport.env.shape;
    const epx_pooled_dims_t *dims = &w->pooled->dims;
    int dispatch = w->move == EPX_MOVE_DISPATCH;
    int64_t row = shape->row_bytes + (dispatch ? shape->aux_bytes : 0);
    int64_t beside = (shape->origin ? (int64_t)sizeof(epx_origin_t) : 0) + (dims->sums ? (int64_t)sizeof(uint32_t) : 0) +
                     (dispatch ? 0 : (int64_t)sizeof(float));
    int64_t headers = (shape->ranks - 1) * dims->header_bytes;
    w->plan->sent_bytes += w->pooled->remote_out * row;
    w->plan->received_bytes += w->pooled->remote_in * row;
    w->plan->sent_meta_bytes += w->pooled->remote_out * beside + headers;
    w->plan->received_meta_bytes += w->pooled->remote_in * beside + headers;
}

static void account_home(const epx_pooled_wave_t *w)
{
    const epx_shape_t *shape = w->pooled->transport.env.shape;
    const epx_pooled_dims_t *dims = &w->pooled->dims;
    int64_t beside = (w->move == EPX_MOVE_COMBINE ? 1 : (int64_t)sizeof(float)) +
                     (dims->sums ? (int64_t)sizeof(uint32_t) : 0);
    int64_t notes = dims->checks ? 8 * (int64_t)(shape->ranks - 1) : 0;
    w->plan->sent_bytes += w->pooled->remote_in * shape->row_bytes;
    w->plan->received_bytes += w->pooled->remote_out * shape->row_bytes;
    w->plan->sent_meta_bytes += w->pooled->remote_in * beside + notes;
    w->plan->received_meta_bytes += w->pooled->remote_out * beside + notes;
}

epx_status_t epx_pooled_send_out(epx_pooled_wave_t *w, const void *rows, const void *aux)
{
    epx_status_t status = epx_pooled_find_places(w);
    if (status == EPX_OK)
        status = pack(w);
    if (status == EPX_OK)
        status = push_headers(w);
    if (status == EPX_OK)
        status = push_rows(w, rows, aux);
    if (status != EPX_OK)
        return status;
    account_out(w);
    return post(w);
}

epx_status_t epx_pooled_receive(const epx_pooled_wave_t *w, int count)
{
    const epx_transport_env_t *env = &w->pooled->transport.env;
    const epx_pooled_map_t *map = &w->pooled->map;
    epx_plan_head_t *head = epx_plan_head(w->plan);
    int32_t lane = w->plan->lane->index;
    epx_k_pooled_gate2_t args = {.layout = &w->pooled->layout,
                                 .headers = epx_pooled_incoming(w, map->side[w->side].header),
                                 .stamp = (uint32_t)w->epoch,
                                 .tag = epx_pooled_lane(w->pooled, lane, map->tags),
                                 .pointer = epx_pooled_lane(w->pooled, lane, map->pointers),
                                 .to = epx_pooled_side(w, map->to),
                                 .from = epx_pooled_side(w, map->from),
                                 .kept = epx_pooled_side(w, map->kept),
                                 .start = epx_pooled_side(w, map->start),
                                 .count = epx_pooled_side(w, map->count),
                                 .kept_total = count ? &head->kept : NULL,
                                 .dropped_total = count ? &head->dropped_receiver : NULL,
                                 .bad = epx_pooled_lane(w->pooled, lane, map->bad)};
    epx_status_t status = env->kernels->pooled_gate2(&args, w->stream);
    if (status == EPX_OK)
        status = epx_pooled_check_headers(w);
    return status;
}

/* One thing that arrived beside the rows, into batch order. */
static epx_status_t bring(const epx_pooled_wave_t *w, int64_t incoming, void *to, int64_t bytes)
{
    const epx_transport_env_t *env = &w->pooled->transport.env;
    epx_k_gather_t args = {.rows = epx_pooled_rows_of(w),
                           .index = epx_pooled_side(w, w->pooled->map.from),
                           .src = epx_pooled_incoming(w, incoming),
                           .dst = to,
                           .src_stride = bytes,
                           .dst_stride = bytes,
                           .bytes = bytes};
    return env->kernels->gather(&args, w->stream);
}

epx_status_t epx_pooled_bring_rows(const epx_pooled_wave_t *w, void *rows)
{
    return bring(w, w->pooled->map.side[w->side].rows, rows, w->pooled->transport.env.shape->row_bytes);
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
static epx_status_t give_table(const epx_pooled_wave_t *w, int64_t *into, const int64_t *table, const int64_t **table_p)
{
    const epx_device_ops_t *device = w->pooled->transport.env.device;
    *table_p = into != NULL ? into : table;
    if (into == NULL)
        return EPX_OK;
    return device->copy(into, table, (size_t)epx_pooled_rows_of(w).experts * sizeof(*table), w->stream);
}

void *epx_pooled_batch_rows(const epx_pooled_wave_t *w, const epx_batch_t *batch)
{
    return batch->into_rows != NULL ? batch->into_rows : epx_pooled_batch(w, w->pooled->map.side[w->side].batch_rows);
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

/* One entry of a table per peer: what I tell each source about his slab. */
static epx_status_t push_block(const epx_pooled_wave_t *w, const void *src, int64_t src_stride, int64_t dst_offset,
                               int64_t dst_stride, int64_t bytes)
{
    const epx_transport_env_t *env = &w->pooled->transport.env;
    epx_k_push_t args = {.dst = env->segment.peer_ptr,
                         .runs = epx_pooled_static(w->pooled, w->pooled->map.block_runs),
                         .run_count = env->shape->ranks,
                         .rank = env->shape->rank,
                         .columns = env->shape->columns};
    add_part(&args, (epx_part_t){.kind = EPX_PART_COPY,
                                 .src = src,
                                 .src_stride = src_stride,
                                 .divide = 1,
                                 .dst_offset = dst_offset,
                                 .dst_stride = dst_stride,
                                 .bytes = bytes});
    return env->kernels->push(&args, w->stream);
}

/* Kept bits of every slot, and the note where checks want one. */
static epx_status_t push_verdict(const epx_pooled_wave_t *w)
{
    const epx_pooled_map_t *map = &w->pooled->map;
    const epx_shape_t *shape = w->pooled->transport.env.shape;
    const epx_pooled_tables_t tables = epx_pooled_tables(w->pooled);
    int64_t mine = tables.base[shape->rank + 1] - tables.base[shape->rank];
    epx_status_t status = EPX_OK;
    if (w->move == EPX_MOVE_COMBINE) /* later passes know */
        status = push_block(w, epx_pooled_side(w, map->kept), w->pooled->dims.slab_rows,
                            epx_pooled_home_offset(w, map->home_kept) + tables.base[shape->rank], 0, mine);
    if (status == EPX_OK && w->pooled->dims.checks)
        status = push_block(w, epx_pooled_lane(w->pooled, w->plan->lane->index, map->note), 0,
                            epx_pooled_home_offset(w, map->home_note), 8, 8);
    return status;
}

epx_status_t epx_pooled_send_home(const epx_pooled_wave_t *w, const void *rows, const float *dots)
{
    const epx_transport_env_t *env = &w->pooled->transport.env;
    const epx_shape_t *shape = env->shape;
    const epx_pooled_map_t *map = &w->pooled->map;
    epx_k_push_t args = {.dst = env->segment.peer_ptr,
                         .index = epx_pooled_side(w, map->to),
                         .runs = epx_pooled_static(w->pooled, map->back_runs),
                         .run_count = shape->ranks,
                         .rank = shape->rank,
                         .columns = shape->columns};
    epx_part_t part = {.kind = EPX_PART_COPY,
                       .src = rows,
                       .src_stride = shape->row_bytes,
                       .divide = 1,
                       .dst_offset = epx_pooled_home_offset(w, map->home_rows),
                       .dst_stride = shape->row_bytes,
                       .bytes = shape->row_bytes};
    add_part(&args, part);
    if (w->pooled->dims.sums) {
        part.kind = EPX_PART_CHECKSUM;
        part.dst_offset = epx_pooled_home_offset(w, map->home_sum);
        part.dst_stride = sizeof(uint32_t);
        add_part(&args, part);
    }
    if (dots != NULL)
        add_part(&args, (epx_part_t){.kind = EPX_PART_COPY,
                                     .src = dots,
                                     .src_stride = sizeof(float),
                                     .divide = 1,
                                     .dst_offset = epx_pooled_home_offset(w, map->home_dots),
                                     .dst_stride = sizeof(float),
                                     .bytes = sizeof(float)});
    epx_status_t status = env->kernels->push(&args, w->stream);
    if (status == EPX_OK)
        status = push_verdict(w);
    if (status != EPX_OK)
        return status;
    account_home(w);
    return post(w);
}

epx_status_t epx_pooled_sum(const epx_pooled_wave_t *w, const float *weights, const uint8_t *kept, void *out)
{
    const epx_transport_env_t *env = &w->pooled->transport.env;
    const epx_shape_t *shape = env->shape;
    const epx_pooled_map_t *map = &w->pooled->map;
    int32_t waves = w->pooled->dims.extra_wave ? w->plan->waves : shape->waves;
    epx_k_combine_t args = {.tokens = shape->tokens_max,
                            .tokens_device = &epx_plan_head(w->plan)->tokens,
                            .columns = shape->columns,
                            .width = shape->width,
                            .row_type = shape->row_type,
                            .out_type = shape->out_type,
                            .weights = weights,
                            .place = w->place,
                            .lo = w->lo,
                            .hi = w->lo + w->pooled->dims.home_rows,
                            .rows = epx_pooled_home(w, map->home_rows),
                            .row_stride = shape->row_bytes,
                            .kept = kept,
                            .acc = map->acc < 0 ? out : epx_pooled_lane(w->pooled, w->plan->lane->index, map->acc),
                            .out = out,
                            .first = w->wave == 0,
                            .last = w->wave == waves - 1};
    return env->kernels->combine(&args, w->stream);
}
