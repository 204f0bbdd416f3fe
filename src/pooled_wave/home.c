/* pooled_wave: rows home, and the sums over them. SPDX-License-Identifier: Apache-2.0 */
#include "pooled_wave/internal.h"

/* One entry of a table per peer: what I tell each source about his slab. */
static epx_status_t push_block(const epx_pooled_wave_t *w, int64_t runs, const void *src, int64_t src_stride,
                               int64_t dst_offset, int64_t dst_stride, int64_t bytes)
{
    const epx_transport_env_t *env = &w->pooled->transport.env;
    epx_k_push_t args = {.units = w->pooled->transport.env.shape->sm_budget,
                         .dst = w->pooled->destinations,
                         .runs = epx_pooled_static(w->pooled, runs),
                         .run_count = env->shape->ranks,
                         .rank = env->shape->rank,
                         .columns = env->shape->columns,
                         /* The home area of others is this rank's to write only if they have been heard of in
                          * this pass, which in a dead plan they may not have been. */
                         .gate = epx_resident_gate(w->plan)};
    epx_pooled_add_part(&args, (epx_part_t){.kind = EPX_PART_COPY,
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
        status = push_block(w, map->kept_runs, epx_pooled_side(w, map->kept), w->pooled->dims.slab_rows,
                            epx_pooled_home_offset(w, map->home_kept), 1, mine);
    if (status == EPX_OK && w->pooled->dims.checks)
        status = push_block(w, map->block_runs, epx_pooled_lane(w->pooled, w->plan->lane->index, map->note),
                            0, epx_pooled_home_offset(w, map->home_note), 8, 8);
    return status;
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

epx_status_t epx_pooled_send_home(const epx_pooled_wave_t *w, const void *rows, const float *dots)
{
    const epx_transport_env_t *env = &w->pooled->transport.env;
    const epx_shape_t *shape = env->shape;
    const epx_pooled_map_t *map = &w->pooled->map;
    epx_k_push_t args = {.units = w->pooled->transport.env.shape->sm_budget,
                         .dst = w->pooled->destinations,
                         .index = epx_pooled_side(w, map->to),
                         .runs = epx_pooled_static(w->pooled, map->back_runs),
                         .run_count = shape->ranks,
                         .rank = shape->rank,
                         .columns = shape->columns,
                         .begun = epx_move_begun(&w->pooled->transport, w->plan)};
    epx_part_t part = {.kind = EPX_PART_COPY,
                       .src = rows,
                       .src_stride = shape->row_bytes,
                       .divide = 1,
                       .dst_offset = epx_pooled_home_offset(w, map->home_rows),
                       .dst_stride = shape->row_bytes,
                       .bytes = shape->row_bytes};
    epx_pooled_add_part(&args, part);
    if (w->pooled->dims.sums) {
        part.kind = EPX_PART_CHECKSUM;
        part.dst_offset = epx_pooled_home_offset(w, map->home_sum);
        part.dst_stride = sizeof(uint32_t);
        epx_pooled_add_part(&args, part);
    }
    if (dots != NULL)
        epx_pooled_add_part(&args, (epx_part_t){.kind = EPX_PART_COPY,
                                                .src = dots,
                                                .src_stride = sizeof(float),
                                                .divide = 1,
                                                .dst_offset = epx_pooled_home_offset(w, map->home_dots),
                                                .dst_stride = sizeof(float),
                                                .bytes = sizeof(float)});
    epx_status_t status = epx_pooled_fill_staged(w);
    if (status == EPX_OK)
        status = env->kernels->push(&args, w->stream);
    if (status == EPX_OK)
        status = push_verdict(w);
    if (status != EPX_OK)
        return status;
    account_home(w);
    return epx_pooled_post(w);
}

epx_status_t epx_pooled_sum(const epx_pooled_wave_t *w, const float *weights, const uint8_t *kept, void *out)
{
    const epx_transport_env_t *env = &w->pooled->transport.env;
    const epx_shape_t *shape = env->shape;
    const epx_pooled_map_t *map = &w->pooled->map;
    int32_t waves = w->pooled->dims.extra_wave ? w->plan->waves : shape->waves;
    epx_k_combine_t args = {.units = w->pooled->transport.env.shape->sm_budget,
                            .tokens = shape->tokens_max,
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
                            .acc = map->acc < 0 ? out
                                                : epx_pooled_lane(w->pooled, w->plan->lane->index, map->acc),
                            .out = out,
                            .first = w->wave == 0,
                            .last = w->wave == waves - 1};
    return env->kernels->combine(&args, w->stream);
}
