/* Forward pass of `ragged`: x to the experts, y home. SPDX-License-Identifier: Apache-2.0 */
#include "ragged/internal.h"

/* Where an expanded batch's rows go. */
static void *rows_of(const epx_ragged_call_t *call, const epx_batch_t *batch)
{
    return batch->into_rows != NULL ? batch->into_rows
                                    : epx_ragged_batch_at(call, call->ragged->areas.batch_rows);
}

static epx_ragged_own_t *own_of(const epx_ragged_call_t *call)
{
    return &epx_ragged_state(call->ragged, call->plan)->own[call->wave % call->shape->depth];
}

/* Whether own rows go to their places at once (epx_ragged_own_t). */
static int places_own(const epx_ragged_call_t *call)
{
    const epx_ragged_areas_t *areas = &call->ragged->areas;
    return areas->rank_wire && !areas->indexed && !epx_ragged_is_checked(call);
}

epx_status_t epx_ragged_dispatch_start(epx_transport_t *transport, epx_plan_base_t *plan, int32_t wave,
                                       const void *x, const epx_batch_t *batch, epx_stream_t stream)
{
    epx_ragged_call_t call = epx_ragged_call(transport, plan, EPX_MOVE_DISPATCH, wave, stream);
    epx_ragged_begin(&call);
    call.own_rows = places_own(&call) ? rows_of(&call, batch) : NULL;
    call.flows = call.own_rows != NULL && epx_ragged_flows(&call, x);
    epx_ragged_own_t *own = own_of(&call); /* the other fields are those of calls that may be on their way */
    own->x = x, own->rows = call.own_rows, own->flows = call.flows;
    if (epx_ragged_leaves_rows(&call, 1))
        call.left = x;
    epx_status_t status = epx_ragged_send_rows(&call, x, batch->aux);
    return status == EPX_OK ? epx_ragged_post(&call) : status;
}

/* What stands at `from` (index: of the place; NULL: the place itself) to the places of the batch at `to`. */
static epx_status_t gather(const epx_ragged_call_t *call, epx_k_rows_t rows, const int32_t *index,
                           const void *from, void *to, int64_t bytes)
{
    epx_k_gather_t args = {.units = call->shape->sm_budget,
                           .rows = rows,
                           .index = index,
                           .src = from,
                           .dst = to,
                           .src_stride = bytes,
                           .dst_stride = bytes,
                           .bytes = bytes};
    return call->kernels->gather(&args, call->stream);
}

/* Wire rows that have come, by sender. */
static epx_k_rows_t wire_rows(const epx_ragged_call_t *call)
{
    return (epx_k_rows_t){.start = epx_ragged_pairs(call, call->ragged->areas.plan.wire_start),
                          .count = (const int64_t *)(void *)epx_ragged_slot_at(call, call->slot->head),
                          .experts = call->shape->ranks};
}

/* Rank wire: aux stands by place, in indexed batches too. */
static epx_status_t expand_aux(const epx_ragged_call_t *call, const int32_t *index, epx_batch_t *batch)
{
    char *aux = epx_ragged_batch_at(call, call->ragged->areas.batch_aux);
    batch->row_aux = call->shape->aux_bytes > 0 ? aux : NULL;
    if (batch->row_aux == NULL)
        return EPX_OK;
    return gather(call, epx_ragged_batch_rows(call), index, epx_ragged_slot_at(call, call->slot->aux), aux,
                  call->shape->aux_bytes);
}

/* Wire rows once, with an index; a caller's rows get a copy of them. */
static epx_status_t hand_over_indexed(const epx_ragged_call_t *call, epx_batch_t *batch)
{
    char *rows = epx_ragged_slot_at(call, call->slot->rows);
    epx_k_rows_t wire = wire_rows(call);
    batch->rows = batch->into_rows != NULL ? batch->into_rows : rows;
    batch->row_index = (const int32_t *)(void *)epx_ragged_slot_at(call, call->slot->index);
    epx_status_t status = expand_aux(call, batch->row_index, batch);
    if (status != EPX_OK || batch->into_rows == NULL)
        return status;
    return gather(call, wire, NULL, rows, batch->into_rows, call->shape->row_bytes);
}

/* Wire rows to their places. */
static epx_status_t hand_over_expanded(const epx_ragged_call_t *call, epx_batch_t *batch)
{
    const int32_t *index = (const int32_t *)(void *)epx_ragged_slot_at(call, call->slot->index);
    const epx_ragged_own_t *own = own_of(call);
    batch->rows = rows_of(call, batch);
    batch->row_index = NULL;
    epx_status_t status = expand_aux(call, index, batch);
    if (status == EPX_OK && own->rows != NULL && own->rows != batch->rows)
        status = epx_ragged_place_own(call, own->x, batch->rows);
    if (status != EPX_OK || (own->rows != NULL && call->shape->ranks == 1))
        return status;
    if (own->flows && own->rows == batch->rows)
        return epx_ragged_flow(call, own->x, batch->rows, 1);
    /* Every wire row is read once, and written to all its places. */
    epx_k_scatter_t args = {.units = call->shape->sm_budget,
                            .rows = wire_rows(call),
                            .first = (const int32_t *)(void *)epx_ragged_slot_at(call, call->slot->first),
                            .count = (const int32_t *)(void *)epx_ragged_slot_at(call, call->slot->count),
                            .list = (const int32_t *)(void *)epx_ragged_slot_at(call, call->slot->list),
                            .src = epx_ragged_slot_at(call, call->slot->rows),
                            .dst = batch->rows,
                            .src_stride = call->shape->row_bytes,
                            .dst_stride = call->shape->row_bytes,
                            .bytes = call->shape->row_bytes,
                            .without = own->rows != NULL ? call->shape->rank + 1 : 0,
                            .turns = epx_ragged_turns(call, EPX_RAGGED_OF_EXPANSION)};
    return call->kernels->scatter(&args, call->stream);
}

/* The slot is the batch, unless the caller wants it elsewhere. */
static epx_status_t hand_over_slot(const epx_ragged_call_t *call, epx_batch_t *batch)
{
    char *rows = epx_ragged_slot_at(call, call->slot->rows);
    batch->rows = batch->into_rows != NULL ? batch->into_rows : rows;
    batch->row_index = NULL;
    batch->row_aux = call->shape->aux_bytes > 0 ? epx_ragged_slot_at(call, call->slot->aux) : NULL;
    if (batch->into_rows == NULL)
        return EPX_OK;
    return gather(call, epx_ragged_batch_rows(call), NULL, rows, batch->into_rows, call->shape->row_bytes);
}

epx_status_t epx_ragged_describe_batch(const epx_ragged_call_t *call, epx_batch_t *batch)
{
    const epx_device_ops_t *device = call->ragged->base.env.device;
    epx_k_rows_t rows = epx_ragged_batch_rows(call);
    size_t bytes = (size_t)rows.experts * sizeof(int64_t);
    epx_status_t status = EPX_OK;

    batch->expert_start = batch->into_start != NULL ? batch->into_start : rows.start;
    batch->expert_count = batch->into_count != NULL ? batch->into_count : rows.count;
    batch->local_experts = rows.experts;
    batch->rows_max = call->ragged->areas.rows_max;
    batch->origin = call->shape->origin
                        ? (const epx_origin_t *)(void *)epx_ragged_slot_at(call, call->slot->origin)
                        : NULL;
    if (batch->into_start != NULL && bytes > 0)
        status = device->copy(batch->into_start, rows.start, bytes, call->stream);
    if (status == EPX_OK && batch->into_count != NULL && bytes > 0)
        status = device->copy(batch->into_count, rows.count, bytes, call->stream);
    return status;
}

epx_status_t epx_ragged_dispatch_finish(epx_transport_t *transport, epx_plan_base_t *plan, int32_t wave,
                                        epx_batch_t *batch, epx_stream_t stream)
{
    epx_ragged_call_t call = epx_ragged_call(transport, plan, EPX_MOVE_DISPATCH, wave, stream);
    const epx_ragged_areas_t *areas = &call.ragged->areas;
    epx_status_t status = epx_ragged_wait(&call);
    if (status == EPX_OK)
        status = epx_ragged_check_arrived(&call);
    if (status == EPX_OK)
        epx_ragged_count_arrived(&call);
    if (status != EPX_OK)
        return status;

    epx_batch_t out = *batch;
    status = !areas->rank_wire ? hand_over_slot(&call, &out)
             : areas->indexed  ? hand_over_indexed(&call, &out)
                               : hand_over_expanded(&call, &out);
    if (status == EPX_OK)
        status = epx_ragged_describe_batch(&call, &out);
    if (status == EPX_OK)
        *batch = out;
    return status;
}

epx_status_t epx_ragged_combine_start(epx_transport_t *transport, epx_plan_base_t *plan, int32_t wave,
                                      const void *y, epx_stream_t stream)
{
    epx_ragged_call_t call = epx_ragged_call(transport, plan, EPX_MOVE_COMBINE, wave, stream);
    epx_ragged_begin(&call);
    *epx_ragged_given(&call) = y;
    if (epx_ragged_leaves_rows(&call, 0))
        call.left = y;
    if (epx_ragged_homes(&call, y, plan->combine_out))
        call.home_out = plan->combine_out;
    own_of(&call)->out = call.home_out;
    own_of(&call)->sums_last = call.sums_last = epx_ragged_sums_last(&call);
    epx_status_t status = epx_ragged_check_caller(&call, y, "y");
    if (status == EPX_OK)
        status = epx_ragged_send_home(&call, y, NULL);
    if (status == EPX_OK)
        status = epx_ragged_fill_slot(&call);
    return status == EPX_OK ? epx_ragged_post(&call) : status;
}

epx_status_t epx_ragged_add_home(const epx_ragged_call_t *call, void *out)
{
    const epx_ragged_areas_t *areas = &call->ragged->areas;
    const epx_shape_t *shape = call->shape;
    int64_t lo = call->wave * areas->assignments;
    /* The rank wire's rows are weighted sums already; the backward pass has no weights. */
    int weighted = !areas->rank_wire && !call->backward;
    epx_k_combine_t args = {
        .units = call->shape->sm_budget,
        .tokens = shape->tokens_max,
        .tokens_device = &epx_plan_head(call->plan)->tokens,
        .columns = shape->top_k,
        .width = shape->width,
        .row_type = shape->row_type,
        .out_type = shape->out_type,
        .weights = weighted ? epx_ragged_plan_at(call, areas->plan.weights) : NULL,
        .place = epx_ragged_plan_at(call, areas->rank_wire ? areas->plan.home : areas->plan.place),
        .lo = lo,
        .hi = lo + areas->assignments,
        .rows = (const char *)call->ragged->base.env.segment.base + call->return_offset,
        .row_stride = shape->row_bytes,
        .acc = shape->out_type == EPX_FP32 ? out : (void *)(call->scratch + areas->scratch.sum),
        .out = out,
        .first = call->wave == 0,
        .last = call->wave == areas->chunks - 1};
    if (epx_ragged_leaves_rows(call, 0))
        epx_ragged_add_stayed(call, &args);
    if (call->sums_last) {
        args.sums = epx_ragged_sums(call);
        args.early = epx_ragged_sums_early(call);
    }
    return call->kernels->combine(&args, call->stream);
}

epx_status_t epx_ragged_combine_finish(epx_transport_t *transport, epx_plan_base_t *plan, int32_t wave,
                                       void *out, epx_stream_t stream)
{
    epx_ragged_call_t call = epx_ragged_call(transport, plan, EPX_MOVE_COMBINE, wave, stream);
    call.sums_last = own_of(&call)->sums_last;
    epx_status_t status = epx_ragged_add_own(&call);
    if (status == EPX_OK)
        status = epx_ragged_wait(&call);
    if (status == EPX_OK)
        status = epx_ragged_check_home(&call);
    if (status == EPX_OK)
        epx_ragged_count_arrived(&call);
    if (status == EPX_OK)
        status = own_of(&call)->out != NULL ? epx_ragged_home(&call, own_of(&call)->y, out, 1)
                                            : epx_ragged_add_home(&call, out);
    return status == EPX_OK ? epx_ragged_fill_returns(&call) : status;
}
