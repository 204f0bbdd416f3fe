/* pooled_wave: what the four moves share. SPDX-License-Identifier: Apache-2.0 */
#include "pooled_wave/internal.h"

epx_pooled_wave_t epx_pooled_view(epx_transport_t *transport, epx_plan_base_t *plan, epx_move_t move,
                                  int32_t wave, epx_stream_t stream)
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
    epx_transport_t *transport = &w->pooled->transport;
    epx_plan_base_t *plan = w->plan;
    epx_move_wait_t wait = {.move = w->move,
                            .wave = w->wave,
                            .lane = plan->lane->index,
                            .channel =
                                epx_move_channel(transport->env.shape, plan->lane->index, w->wave, w->move),
                            .epoch = w->epoch,
                            .peer = EPX_ALL_PEERS,
                            .mode = EPX_WAIT_EQUAL,
                            .last = w->wave == plan->waves - 1 &&
                                    (w->move == EPX_MOVE_COMBINE || w->move == EPX_MOVE_DISPATCH_BACKWARD),
                            .watch = watch && (!plan->head.confirmed || plan->lane->words != NULL)};
    return epx_move_wait(transport, plan, &wait, w->stream);
}

epx_status_t epx_pooled_post(const epx_pooled_wave_t *w)
{
    const epx_shape_t *shape = w->pooled->transport.env.shape;
    int32_t channel = epx_move_channel(shape, w->plan->lane->index, w->wave, w->move);
    epx_pieces_t list, *pieces = NULL;
    epx_rows_source_t source;
    if (w->pooled->dims.staged) {
        list = epx_pooled_list_pieces(w);
        pieces = &list;
    }
    if (w->left != NULL) {
        source = epx_pooled_source(w);
        list.source = &source.base;
    }
    return epx_move_post(&w->pooled->transport, w->plan, channel, w->epoch, EPX_ALL_PEERS, pieces, w->stream);
}

int32_t epx_pooled_waves(const epx_pooled_wave_t *w)
{
    return w->pooled->dims.extra_wave ? w->plan->waves : w->pooled->transport.env.shape->waves;
}

int epx_pooled_sums_now(const epx_pooled_wave_t *w)
{
    return w->pooled->dims.by_wave || w->wave == epx_pooled_waves(w) - 1;
}

void epx_pooled_own_runs(const epx_pooled_wave_t *w, epx_k_push_t *args)
{
    int32_t others = w->pooled->transport.env.shape->ranks - 1;
    args->runs += others;
    args->run_count -= others;
}

void epx_pooled_add_part(epx_k_push_t *args, epx_part_t part) { args->part[args->parts++] = part; }
