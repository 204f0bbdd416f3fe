/* pooled_wave: combine_backward and dispatch_backward. SPDX-License-Identifier: Apache-2.0 */
#include "pooled_wave/internal.h"

epx_status_t epx_pooled_combine_backward_start(epx_transport_t *transport, epx_plan_base_t *plan,
                                               int32_t wave, const void *dout, epx_stream_t stream)
{
    const epx_transport_env_t *env = &transport->env;
    if (!plan->head.learned)
        return env->services->fail(
            EPX_ERR_ARG,
            "%s: rank %d: combine_backward before the plan's first forward pass was complete, or over "
            "bytes copied before its last combine: pooled_wave learns in that pass which rows the "
            "receivers kept; run the forward pass on this plan first",
            env->group_name, env->shape->rank);
    epx_pooled_wave_t w = epx_pooled_view(transport, plan, EPX_MOVE_COMBINE_BACKWARD, wave, stream);
    epx_pooled_begin(&w);
    return epx_pooled_send_out(&w, dout, NULL);
}

static epx_status_t scale(const epx_pooled_wave_t *w, const float *weight, const void *y, void *dy)
{
    const epx_transport_env_t *env = &w->pooled->transport.env;
    const epx_pooled_map_t *map = &w->pooled->map;
    epx_k_scale_dot_t args = {.units = w->pooled->transport.env.shape->sm_budget,
                              .rows = epx_pooled_rows_of(w),
                              .index = epx_pooled_side(w, map->from),
                              .weight = weight,
                              .width = env->shape->width,
                              .row_type = env->shape->row_type,
                              .dout = epx_pooled_incoming(w, map->side[w->side].rows),
                              .y = y,
                              .dy = dy,
                              .dot = epx_pooled_side(w, map->dots)};
    return env->kernels->scale_dot(&args, w->stream);
}

epx_status_t epx_pooled_combine_backward_finish(epx_transport_t *transport, epx_plan_base_t *plan,
                                                int32_t wave, const void *y, epx_batch_t *dy,
                                                epx_stream_t stream)
{
    epx_pooled_wave_t w = epx_pooled_view(transport, plan, EPX_MOVE_COMBINE_BACKWARD, wave, stream);
    float *weight = epx_pooled_side(&w, w.pooled->map.weight);
    epx_status_t status = epx_pooled_wait(&w, 0);
    if (status == EPX_OK)
        status = epx_pooled_receive(&w, 0);
    if (status == EPX_OK)
        status = epx_pooled_check_incoming(&w);
    if (status == EPX_OK)
        status = epx_pooled_bring_weights(&w, weight);
    if (status != EPX_OK)
        return status;

    void *rows = epx_pooled_batch_rows(&w, dy);
    if (w.pooled->dims.sums) {
        /* Checksums are looked at in batch order: dout passes through where dy comes to stand. */
        status = epx_pooled_bring_rows(&w, rows);
        if (status == EPX_OK)
            status = epx_pooled_check_sums(&w, rows, NULL);
    }
    if (status == EPX_OK)
        status = scale(&w, weight, y, rows);
    if (status == EPX_OK)
        status = epx_pooled_fill_batch(&w, rows, dy);
    if (status == EPX_OK)
        status = epx_pooled_refill(&w);
    return status;
}

epx_status_t epx_pooled_dispatch_backward_start(epx_transport_t *transport, epx_plan_base_t *plan,
                                                int32_t wave, const void *dx_rows, epx_stream_t stream)
{
    epx_pooled_wave_t w = epx_pooled_view(transport, plan, EPX_MOVE_DISPATCH_BACKWARD, wave, stream);
    epx_pooled_begin(&w);
    epx_status_t verdict = epx_pooled_check_caller(&w, dx_rows);
    epx_status_t status = epx_pooled_refill_batch(&w);
    if (status == EPX_OK)
        status = epx_pooled_send_home(&w, dx_rows, epx_pooled_side(&w, w.pooled->map.dots));
    return status != EPX_OK ? status : verdict;
}

static epx_status_t take_dots(const epx_pooled_wave_t *w, const uint8_t *kept, float *dweight)
{
    const epx_transport_env_t *env = &w->pooled->transport.env;
    epx_k_take_dots_t args = {.units = w->pooled->transport.env.shape->sm_budget,
                              .tokens = env->shape->tokens_max,
                              .tokens_device = &epx_plan_head(w->plan)->tokens,
                              .columns = env->shape->columns,
                              .place = w->place,
                              .lo = w->lo,
                              .hi = w->lo + w->pooled->dims.home_rows,
                              .dots = epx_pooled_home(w, w->pooled->map.home_dots, sizeof(float)),
                              .kept = kept,
                              .dweight = dweight,
                              .first = w->wave == 0};
    return env->kernels->take_dots(&args, w->stream);
}

epx_status_t epx_pooled_dispatch_backward_finish(epx_transport_t *transport, epx_plan_base_t *plan,
                                                 int32_t wave, void *dx, float *dweight, epx_stream_t stream)
{
    epx_pooled_wave_t w = epx_pooled_view(transport, plan, EPX_MOVE_DISPATCH_BACKWARD, wave, stream);
    const epx_pooled_map_t *map = &w.pooled->map;
    epx_status_t status = epx_pooled_wait(&w, 0);
    if (status == EPX_OK)
        status = epx_pooled_find_places(&w);
    if (status != EPX_OK)
        return status;

    /* With extra_wave everything is kept. */
    const uint8_t *all = map->plan_kept >= 0 ? epx_pooled_plan(plan, map->plan_kept) : NULL,
                  *kept = all != NULL ? all + w.lo : NULL;
    status = epx_pooled_check_home(&w, kept);
    if (status == EPX_OK)
        status = epx_pooled_sum(&w, NULL, w.pooled->dims.by_wave ? kept : all, dx);
    if (status == EPX_OK && dweight != NULL)
        status = take_dots(&w, kept, dweight);
    if (status == EPX_OK)
        status = epx_pooled_refill(&w);
    return status;
}
