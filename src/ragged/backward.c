/* Backward pass of `ragged`: dout to the experts, gradients of inputs and weights home.
 * SPDX-License-Identifier: Apache-2.0 */
#include "ragged/internal.h"

static epx_status_t refuse(const epx_ragged_call_t *call)
{
    const epx_transport_env_t *env = &call->ragged->base.env;
    return env->services->fail(EPX_ERR_UNSUPPORTED, "%s: %s of a group that was opened with backward=none",
                               env->group_name, epx_move_name(call->move));
}

static int has_backward(const epx_ragged_call_t *call) { return call->shape->backward != EPX_BACKWARD_NONE; }

/* Dots of this wave's places, kept from combine_backward to dispatch_backward. */
static float *dots_of(const epx_ragged_call_t *call)
{
    const epx_ragged_areas_t *areas = &call->ragged->areas;
    float *dots = (float *)(void *)(call->scratch + areas->scratch.dots);
    return dots + call->wave % call->shape->depth * areas->rows_max;
}

epx_status_t epx_ragged_combine_backward_start(epx_transport_t *transport, epx_plan_base_t *plan,
                                               int32_t wave, const void *dout, epx_stream_t stream)
{
    epx_ragged_call_t call = epx_ragged_call(transport, plan, EPX_MOVE_COMBINE_BACKWARD, wave, stream);
    if (!has_backward(&call))
        return refuse(&call);
    epx_ragged_begin(&call);
    if (epx_ragged_leaves_rows(&call, 1))
        call.left = dout;
    epx_status_t status = epx_ragged_send_rows(&call, dout, NULL);
    return status == EPX_OK ? epx_ragged_post(&call) : status;
}

/* Unweighted rows of dout become dy; on the assignment wire in their own place where the caller gives no
 * other. */
static epx_status_t make_gradients(const epx_ragged_call_t *call, const void *y, epx_batch_t *dy)
{
    const epx_ragged_areas_t *areas = &call->ragged->areas;
    char *rows = epx_ragged_slot_at(call, call->slot->rows);
    char *own = areas->rank_wire ? epx_ragged_batch_at(call, areas->batch_rows) : rows;
    dy->rows = dy->into_rows != NULL ? dy->into_rows : own;
    dy->row_index = NULL;
    dy->row_aux = NULL;

    epx_k_scale_dot_t args = {
        .units = call->shape->sm_budget,
        .rows = epx_ragged_batch_rows(call),
        .index =
            areas->rank_wire ? (const int32_t *)(void *)epx_ragged_slot_at(call, call->slot->index) : NULL,
        .weight = (const float *)(void *)epx_ragged_slot_at(call, call->slot->weights),
        .width = call->shape->width,
        .row_type = call->shape->row_type,
        .dout = rows,
        .y = y,
        .dy = dy->rows,
        .dot = dots_of(call)};
    epx_status_t status = call->kernels->scale_dot(&args, call->stream);
    return status == EPX_OK ? epx_ragged_describe_batch(call, dy) : status;
}

epx_status_t epx_ragged_combine_backward_finish(epx_transport_t *transport, epx_plan_base_t *plan,
                                                int32_t wave, const void *y, epx_batch_t *dy,
                                                epx_stream_t stream)
{
    epx_ragged_call_t call = epx_ragged_call(transport, plan, EPX_MOVE_COMBINE_BACKWARD, wave, stream);
    if (!has_backward(&call))
        return refuse(&call);
    epx_status_t status = epx_ragged_wait(&call);
    if (status == EPX_OK)
        status = epx_ragged_check_arrived(&call);
    if (status == EPX_OK)
        status = epx_ragged_check_caller(&call, y, "y");
    if (status == EPX_OK)
        epx_ragged_count_arrived(&call);
    if (status != EPX_OK)
        return status;

    epx_batch_t out = *dy;
    status = make_gradients(&call, y, &out);
    if (status == EPX_OK)
        *dy = out;
    return status;
}

/* The slot has been read; with backward=recompute the forward slot of a dispatch that was made again, too. */
static epx_status_t fill_slots(const epx_ragged_call_t *call)
{
    epx_status_t status = epx_ragged_fill_slot(call);
    if (status != EPX_OK || call->ragged->areas.backward_slots == call->ragged->areas.slots)
        return status;
    epx_ragged_call_t again =
        epx_ragged_call(&call->ragged->base, call->plan, EPX_MOVE_DISPATCH, call->wave, call->stream);
    return epx_ragged_fill_slot(&again);
}

epx_status_t epx_ragged_dispatch_backward_start(epx_transport_t *transport, epx_plan_base_t *plan,
                                                int32_t wave, const void *dx_rows, epx_stream_t stream)
{
    epx_ragged_call_t call = epx_ragged_call(transport, plan, EPX_MOVE_DISPATCH_BACKWARD, wave, stream);
    if (!has_backward(&call))
        return refuse(&call);
    epx_ragged_begin(&call);
    if (epx_ragged_leaves_rows(&call, 0))
        call.left = *epx_ragged_given(&call) = dx_rows;
    epx_status_t status = epx_ragged_check_caller(&call, dx_rows, "dx_rows");
    if (status == EPX_OK)
        status = epx_ragged_send_home(&call, dx_rows, dots_of(&call));
    if (status == EPX_OK)
        status = fill_slots(&call);
    return status == EPX_OK ? epx_ragged_post(&call) : status;
}

static epx_status_t take_dots(const epx_ragged_call_t *call, float *dweight)
{
    const epx_ragged_areas_t *areas = &call->ragged->areas;
    int64_t lo = call->wave * areas->assignments;
    const char *returns = (const char *)call->ragged->base.env.segment.base + call->return_offset;
    epx_k_take_dots_t args = {.units = call->shape->sm_budget,
                              .tokens = call->shape->tokens_max,
                              .tokens_device = &epx_plan_head(call->plan)->tokens,
                              .columns = call->shape->top_k,
                              .place = epx_ragged_plan_at(call, areas->plan.place),
                              .lo = lo,
                              .hi = lo + areas->assignments,
                              .dots = (const float *)(const void *)(returns + areas->return_dots),
                              .dweight = dweight,
                              .first = call->wave == 0};
    return call->kernels->take_dots(&args, call->stream);
}

epx_status_t epx_ragged_dispatch_backward_finish(epx_transport_t *transport, epx_plan_base_t *plan,
                                                 int32_t wave, void *dx, float *dweight, epx_stream_t stream)
{
    epx_ragged_call_t call = epx_ragged_call(transport, plan, EPX_MOVE_DISPATCH_BACKWARD, wave, stream);
    if (!has_backward(&call))
        return refuse(&call);
    epx_status_t status = epx_ragged_wait(&call);
    if (status == EPX_OK)
        status = epx_ragged_check_home(&call);
    if (status == EPX_OK)
        epx_ragged_count_arrived(&call);
    if (status == EPX_OK)
        status = epx_ragged_add_home(&call, dx);
    if (status == EPX_OK && dweight != NULL)
        status = take_dots(&call, dweight);
    return status == EPX_OK ? epx_ragged_fill_returns(&call) : status;
}
