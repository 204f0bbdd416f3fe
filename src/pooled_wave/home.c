/* pooled_wave: rows home, and the sums over them. SPDX-License-Identifier: Apache-2.0 */
#include "pooled_wave/internal.h"

/* What I tell each source about his slab, in the same launch as `push`. */
static void add_block(const epx_pooled_wave_t *w, epx_k_push_t *push, epx_k_push_t *args, int64_t runs,
                      epx_part_t part)
{
    const epx_transport_env_t *env = &w->pooled->transport.env;
    *args = (epx_k_push_t){.units = w->pooled->transport.env.shape->sm_budget,
                           .dst = w->pooled->destinations,
                           .runs = epx_pooled_static(w->pooled, runs),
                           .run_count = env->shape->ranks,
                           .rank = env->shape->rank,
                           .columns = env->shape->columns,
                           /* The home area of others is this rank's to write only if they have been heard of
                            * in this pass, which in a dead plan they may not have been. */
                           .gate = epx_resident_gate(w->plan)};
    epx_pooled_add_part(args, part);
    while (push->more != NULL)
        push = (epx_k_push_t *)(size_t)push->more;
    push->more = args;
}

/* Kept bits of every slot; later passes know them. */
static void add_kept(const epx_pooled_wave_t *w, epx_k_push_t *push, epx_k_push_t *args)
{
    const epx_pooled_map_t *map = &w->pooled->map;
    add_block(w, push, args, map->back_runs,
              (epx_part_t){.kind = EPX_PART_COPY,
                           .src = epx_pooled_side(w, map->kept),
                           .src_stride = 1,
                           .divide = 1,
                           .dst_offset = epx_pooled_home_offset(w, map->home_kept, 1),
                           .dst_stride = 1,
                           .bytes = 1});
}

static void add_note(const epx_pooled_wave_t *w, epx_k_push_t *push, epx_k_push_t *args)
{
    const epx_pooled_map_t *map = &w->pooled->map;
    add_block(w, push, args, map->block_runs,
              (epx_part_t){.kind = EPX_PART_COPY,
                           .src = epx_pooled_lane(w->pooled, w->plan->lane->index, map->note),
                           .divide = 1,
                           .dst_offset = epx_pooled_note_offset(w),
                           .dst_stride = 8,
                           .bytes = 8});
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

/* My own rows stay where the caller has written them: the finish adds them up at once. Where sums go on from
 * wave to wave, this is done where rows for others stay there too. */
static int without_own(const epx_pooled_wave_t *w)
{
    const epx_pooled_dims_t *dims = &w->pooled->dims;
    return !dims->checks && (dims->by_wave ? epx_pooled_leaves_rows(w) : epx_pooled_sums_now(w));
}

/* A push of rows in batch order to where they came from; my own are the last run. */
static epx_k_push_t push_back(const epx_pooled_wave_t *w, int leave_own)
{
    const epx_shape_t *shape = w->pooled->transport.env.shape;
    return (epx_k_push_t){.units = shape->sm_budget,
                          .dst = w->pooled->destinations,
                          .index = epx_pooled_side(w, w->pooled->map.to),
                          .runs = epx_pooled_static(w->pooled, w->pooled->map.back_runs),
                          .run_count = shape->ranks - (leave_own ? 1 : 0),
                          .rank = shape->rank,
                          .columns = shape->columns};
}

static void add_rows(const epx_pooled_wave_t *w, epx_k_push_t *args, const void *rows)
{
    const epx_shape_t *shape = w->pooled->transport.env.shape;
    const epx_pooled_map_t *map = &w->pooled->map;
    epx_part_t part = {.kind = EPX_PART_COPY,
                       .src = rows,
                       .src_stride = shape->row_bytes,
                       .divide = 1,
                       .dst_offset = epx_pooled_home_offset(w, map->home_rows, shape->row_bytes),
                       .dst_stride = shape->row_bytes,
                       .bytes = shape->row_bytes};
    epx_pooled_add_part(args, part);
    if (w->pooled->dims.sums) {
        part.kind = EPX_PART_CHECKSUM;
        part.dst_offset = epx_pooled_home_offset(w, map->home_sum, sizeof(uint32_t));
        part.dst_stride = sizeof(uint32_t);
        epx_pooled_add_part(args, part);
    }
}

static void add_dots(const epx_pooled_wave_t *w, epx_k_push_t *args, const float *dots)
{
    epx_pooled_add_part(
        args, (epx_part_t){.kind = EPX_PART_COPY,
                           .src = dots,
                           .src_stride = sizeof(float),
                           .divide = 1,
                           .dst_offset = epx_pooled_home_offset(w, w->pooled->map.home_dots, sizeof(float)),
                           .dst_stride = sizeof(float),
                           .bytes = sizeof(float)});
}

epx_status_t epx_pooled_send_home(epx_pooled_wave_t *w, const void *rows, const float *dots)
{
    const epx_transport_env_t *env = &w->pooled->transport.env;
    epx_k_push_t kept, note, beside = push_back(w, 0), args = push_back(w, without_own(w));
    *epx_pooled_given(w) = rows;
    if (epx_pooled_leaves_rows(w)) {
        w->left = rows;
        epx_pooled_own_runs(w, &args);
    }
    args.begun = epx_move_begun(&w->pooled->transport, w->plan);
    add_rows(w, &args, rows);
    if (dots != NULL) {
        add_dots(w, &beside, dots);
        args.more = &beside;
    }
    epx_status_t status = epx_pooled_fill_staged(w);
    if (w->move == EPX_MOVE_COMBINE)
        add_kept(w, &args, &kept);
    if (w->pooled->dims.checks)
        add_note(w, &args, &note);
    if (status == EPX_OK)
        status = env->kernels->push(&args, w->stream);
    if (status != EPX_OK)
        return status;
    account_home(w);
    return epx_pooled_post(w);
}

/* Where sums go on from wave to wave; NULL: they do not. */
static float *sums_of(const epx_pooled_wave_t *w, void *out)
{
    const epx_pooled_map_t *map = &w->pooled->map;
    if (!w->pooled->dims.by_wave)
        return NULL;
    return map->acc < 0 ? out : epx_pooled_lane(w->pooled, w->plan->lane->index, map->acc);
}

epx_status_t epx_pooled_sum(const epx_pooled_wave_t *w, const float *weights, const uint8_t *kept, void *out)
{
    const epx_transport_env_t *env = &w->pooled->transport.env;
    const epx_shape_t *shape = env->shape;
    const epx_pooled_map_t *map = &w->pooled->map;
    int32_t waves = epx_pooled_waves(w), alone = w->pooled->dims.by_wave;
    int64_t lo = alone ? w->lo : 0, rows = w->pooled->dims.home_rows;
    if (!epx_pooled_sums_now(w))
        return EPX_OK;
    epx_k_combine_t args = {.units = w->pooled->transport.env.shape->sm_budget,
                            .tokens = shape->tokens_max,
                            .tokens_device = &epx_plan_head(w->plan)->tokens,
                            .columns = shape->columns,
                            .width = shape->width,
                            .row_type = shape->row_type,
                            .out_type = shape->out_type,
                            .weights = weights,
                            .place = w->place,
                            .lo = lo,
                            .hi = lo + (alone ? 1 : waves) * rows,
                            .rows = alone ? epx_pooled_home(w, map->home_rows, shape->row_bytes)
                                          : epx_pooled_homes(w, map->home_rows),
                            .row_stride = shape->row_bytes,
                            .kept = kept,
                            .acc = sums_of(w, out),
                            .out = out,
                            .first = !alone || w->wave == 0,
                            .last = w->wave == waves - 1,
                            .waves = alone ? 1 : waves};
    if (without_own(w)) {
        const int32_t *base = epx_pooled_tables(w->pooled).base;
        args.own = (const int32_t *)epx_pooled_side(w, map->to) + shape->rank * w->pooled->dims.slab_rows;
        args.own_rows = *epx_pooled_given(w);
        args.own_first = (alone ? 0 : waves - 1) * rows + base[shape->rank];
        args.own_count = base[shape->rank + 1] - base[shape->rank];
    }
    return env->kernels->combine(&args, w->stream);
}
