/*
 * A dispatch whose rows travel in parts and are expanded as they come: F1 to F5 of
 * include/epx/kernels_ragged.h. SPDX-License-Identifier: Apache-2.0
 *
 * What it adds to a dispatch is one kernel's start: lists go ahead of the rows, since parts are used by them.
 * So it is for rows enough. Ranks need not agree: who does not send in parts sets no words, and all that it
 * sends is used behind the wait; who does not look at words uses all of it there too.
 */
#include "ragged/internal.h"

int epx_ragged_flows(const epx_ragged_call_t *call, const void *x)
{
    const epx_shape_t *shape = call->shape;
    const epx_ragged_areas_t *areas = &call->ragged->areas;
    int64_t bytes = shape->tokens_max * shape->row_bytes / areas->chunks,
            pieces = shape->row_bytes / 4096 + 1;
    const epx_flow_limits_t *limits = call->kernels->flow_limits;
    uint64_t align = (uint64_t)limits->align;
    int aligned = (uint64_t)shape->row_bytes % align == 0 && (uintptr_t)x % align == 0 &&
                  (uintptr_t)call->own_rows % align == 0;
    return aligned && !epx_ragged_is_staged(call->ragged) && shape->sm_budget == 0 && shape->ranks > 1 &&
           shape->ranks <= EPX_FLOW_RANKS_MAX && shape->top_k <= EPX_FLOW_PLACES_MAX &&
           bytes >= limits->bytes && areas->wire_rows_max * pieces < INT32_MAX / 2;
}

epx_status_t epx_ragged_flow(const epx_ragged_call_t *call, const void *x, void *rows, int here)
{
    const epx_ragged_plan_areas_t *plan = &call->ragged->areas.plan;
    const epx_ragged_slot_t *slot = call->slot;
    epx_flow_counters_t *counters = (epx_flow_counters_t *)(void *)epx_ragged_slot_at(call, slot->counters);
    epx_k_ragged_flow_t args = {.dst = call->ragged->destinations,
                                .rank = call->shape->rank,
                                .ranks = call->shape->ranks,
                                .rows = call->slot_offset + slot->rows,
                                .words = call->slot_offset + slot->words,
                                .row_bytes = call->shape->row_bytes,
                                .runs = (const epx_run_t *)epx_ragged_plan_at(call, plan->wire_runs) +
                                        (int64_t)call->wave * call->shape->ranks,
                                .index = epx_ragged_plan_at(call, plan->wire_token),
                                .x = x,
                                .own = epx_ragged_own_places(call, rows),
                                .start = epx_ragged_pairs(call, plan->wire_start),
                                .count = (const int64_t *)(void *)epx_ragged_slot_at(call, slot->head),
                                .first = (const int32_t *)(void *)epx_ragged_slot_at(call, slot->first),
                                .places = (const int32_t *)(void *)epx_ragged_slot_at(call, slot->count),
                                .list = (const int32_t *)(void *)epx_ragged_slot_at(call, slot->list),
                                .src = epx_ragged_slot_at(call, slot->rows),
                                .counters = counters + call->shape->rank,
                                .gate = epx_resident_gate(call->plan),
                                .call = epx_move_epoch(call->plan),
                                .here = here};
    return call->kernels->ragged_flow(&args, call->stream);
}
