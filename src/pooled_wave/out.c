/* pooled_wave: rows to the experts, gradients to the experts. SPDX-License-Identifier: Apache-2.0 */
#include "pooled_wave/internal.h"

/* What peers' kept bits have taught: only these rows travel from then on. */
static const uint8_t *learned_kept(const epx_pooled_wave_t *w)
{
    if (w->pooled->map.plan_kept < 0 || !w->plan->head.learned)
        return NULL;
    return (const uint8_t *)epx_pooled_plan(w->plan, w->pooled->map.plan_kept) + w->lo;
}

/* Lists what goes out, and writes the headers straight to where they are read. */
static epx_status_t pack(const epx_pooled_wave_t *w)
{
    const epx_transport_env_t *env = &w->pooled->transport.env;
    const epx_pooled_map_t *map = &w->pooled->map;
    epx_k_pooled_pack_t args = {.units = env->shape->sm_budget,
                                .layout = &w->pooled->layout,
                                .tokens = env->shape->tokens_max,
                                .tokens_device = &epx_plan_head(w->plan)->tokens,
                                .expert = epx_pooled_plan(w->plan, map->plan_expert),
                                .place = w->place,
                                .lo = w->lo,
                                .kept = learned_kept(w),
                                .list = epx_pooled_side(w, map->list),
                                .valid = epx_pooled_plan(w->plan, map->plan_valid),
                                .status = &epx_plan_head(w->plan)->valid,
                                .stamp = epx_pooled_stamp(w),
                                .dst = w->pooled->destinations,
                                .headers_offset = epx_pooled_incoming_offset(w, map->side[w->side].header),
                                .header_row = w->pooled->dims.staged ? -1 : env->shape->rank};
    return env->kernels->pooled_pack(&args, w->stream);
}

/* A push by the list: of all slabs, or without the one to myself, which is the last. */
static epx_k_push_t push_by_list(const epx_pooled_wave_t *w, int without_own)
{
    const epx_shape_t *shape = w->pooled->transport.env.shape;
    return (epx_k_push_t){.units = shape->sm_budget,
                          .dst = w->pooled->destinations,
                          .index = epx_pooled_side(w, w->pooled->map.list),
                          .runs = epx_pooled_static(w->pooled, w->pooled->map.out_runs),
                          .run_count = shape->ranks - (without_own ? 1 : 0),
                          .rank = shape->rank,
                          .columns = shape->columns};
}

/* The rows themselves, and their checksums. */
static void add_rows(const epx_pooled_wave_t *w, epx_k_push_t *args, const void *rows)
{
    const epx_shape_t *shape = w->pooled->transport.env.shape;
    const epx_pooled_side_map_t *side = &w->pooled->map.side[w->side];
    epx_part_t part = {.kind = EPX_PART_COPY,
                       .src = rows,
                       .src_stride = shape->row_bytes,
                       .divide = shape->columns,
                       .dst_offset = epx_pooled_incoming_offset(w, side->rows),
                       .dst_stride = shape->row_bytes,
                       .bytes = shape->row_bytes};
    epx_pooled_add_part(args, part);
    if (w->pooled->dims.sums) {
        part.kind = EPX_PART_CHECKSUM;
        part.dst_offset = epx_pooled_incoming_offset(w, side->sum);
        part.dst_stride = sizeof(uint32_t);
        epx_pooled_add_part(args, part);
    }
}

/* What travels beside each row. */
static void add_beside(const epx_pooled_wave_t *w, epx_k_push_t *args, const void *aux)
{
    const epx_shape_t *shape = w->pooled->transport.env.shape;
    const epx_pooled_map_t *map = &w->pooled->map;
    const epx_pooled_side_map_t *side = &map->side[w->side];
    if (shape->origin)
        epx_pooled_add_part(args, (epx_part_t){.kind = EPX_PART_ORIGIN,
                                               .divide = 1,
                                               .dst_offset = epx_pooled_incoming_offset(w, side->origin),
                                               .dst_stride = sizeof(epx_origin_t),
                                               .bytes = sizeof(epx_origin_t)});
    if (w->move == EPX_MOVE_DISPATCH && shape->aux_bytes > 0)
        epx_pooled_add_part(args,
                            (epx_part_t){.kind = EPX_PART_COPY,
                                         .src = aux != NULL ? aux : epx_pooled_static(w->pooled, map->zeros),
                                         .src_stride = aux != NULL ? shape->aux_bytes : 0,
                                         .divide = shape->columns,
                                         .dst_offset = epx_pooled_incoming_offset(w, side->aux),
                                         .dst_stride = shape->aux_bytes,
                                         .bytes = shape->aux_bytes});
    if (w->move == EPX_MOVE_COMBINE_BACKWARD)
        epx_pooled_add_part(args, (epx_part_t){.kind = EPX_PART_COPY,
                                               .src = epx_pooled_plan(w->plan, map->plan_weights),
                                               .src_stride = sizeof(float),
                                               .divide = 1,
                                               .dst_offset = epx_pooled_incoming_offset(w, side->weight),
                                               .dst_stride = sizeof(float),
                                               .bytes = sizeof(float)});
}

/* Rows by the list, and what travels beside each, in one launch. */
static epx_status_t push_rows(const epx_pooled_wave_t *w, const void *rows, const void *aux)
{
    int without_own = w->pooled->dims.own_rows && w->move == EPX_MOVE_DISPATCH;
    epx_k_push_t args = push_by_list(w, without_own), beside = push_by_list(w, 0);
    if (w->left != NULL)
        epx_pooled_own_runs(w, &args);
    args.begun = epx_move_begun(&w->pooled->transport, w->plan);
    add_rows(w, &args, rows);
    add_beside(w, without_own || w->left != NULL ? &beside : &args, aux);
    if (beside.parts > 0)
        args.more = &beside;
    return w->pooled->transport.env.kernels->push(&args, w->stream);
}

/* Slabs have one size, so bytes follow from the shape alone; see pooled_wave.h. */
static void account_out(const epx_pooled_wave_t *w)
{
    const epx_shape_t *shape = w->pooled->transport.env.shape;
    const epx_pooled_dims_t *dims = &w->pooled->dims;
    int dispatch = w->move == EPX_MOVE_DISPATCH;
    int64_t row = shape->row_bytes + (dispatch ? shape->aux_bytes : 0);
    int64_t beside = (shape->origin ? (int64_t)sizeof(epx_origin_t) : 0) +
                     (dims->sums ? (int64_t)sizeof(uint32_t) : 0) + (dispatch ? 0 : (int64_t)sizeof(float));
    int64_t headers = (shape->ranks - 1) * dims->header_bytes;
    w->plan->sent_bytes += w->pooled->remote_out * row;
    w->plan->received_bytes += w->pooled->remote_in * row;
    w->plan->sent_meta_bytes += w->pooled->remote_out * beside + headers;
    w->plan->received_meta_bytes += w->pooled->remote_in * beside + headers;
}

epx_status_t epx_pooled_send_out(epx_pooled_wave_t *w, const void *rows, const void *aux)
{
    epx_status_t status = epx_pooled_find_places(w);
    if (status == EPX_OK)
        status = epx_pooled_fill_staged(w);
    if (epx_pooled_leaves_rows(w))
        w->left = rows;
    if (status == EPX_OK)
        status = pack(w);
    if (status == EPX_OK)
        status = push_rows(w, rows, aux);
    if (status != EPX_OK)
        return status;
    account_out(w);
    return epx_pooled_post(w);
}
