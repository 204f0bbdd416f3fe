/*
 * A dispatch whose rows travel in parts and are expanded as they come: F1 to F5 of
 * include/epx/kernels_ragged.h, and a combine whose last sums are made while the rest travels: H1 to H5.
 * SPDX-License-Identifier: Apache-2.0
 *
 * What it adds to a dispatch is one kernel's start: lists go ahead of the rows, since parts are used by them.
 * So it is for rows enough. Ranks need not agree: who does not send in parts sets no words, and all that it
 * sends is used behind the wait; who does not look at words uses all of it there too.
 */
#include "ragged/internal.h"

/* Whether rows from `least` bytes of tokens on may be used as they come, from a to b. */
static int as_they_come(const epx_ragged_call_t *call, int64_t least, const void *a, const void *b)
{
    const epx_shape_t *shape = call->shape;
    const epx_ragged_areas_t *areas = &call->ragged->areas;
    int64_t bytes = shape->tokens_max * shape->row_bytes / areas->chunks,
            pieces = shape->row_bytes / 2048 + 1;
    uint64_t align = (uint64_t)call->kernels->flow_limits->align;
    int aligned =
        (uint64_t)shape->row_bytes % align == 0 && (uintptr_t)a % align == 0 && (uintptr_t)b % align == 0;
    return aligned && !epx_ragged_is_staged(call->ragged) && shape->sm_budget == 0 && shape->ranks > 1 &&
           shape->ranks <= EPX_FLOW_RANKS_MAX && shape->top_k <= EPX_FLOW_PLACES_MAX && bytes >= least &&
           areas->wire_rows_max * pieces < INT32_MAX / 2 && shape->tokens_max * pieces < INT32_MAX / 2;
}

int epx_ragged_flows(const epx_ragged_call_t *call, const void *x)
{
    return as_they_come(call, call->kernels->flow_limits->bytes, x, call->own_rows);
}

/* Sums of several waves are kept in fp32, which the last of them has to read: they go one after the other. */
int epx_ragged_homes(const epx_ragged_call_t *call, const void *y, const void *out)
{
    const epx_shape_t *shape = call->shape;
    const epx_ragged_areas_t *areas = &call->ragged->areas;
    const epx_flow_limits_t *limits = call->kernels->flow_limits;
    int apart = (call->ragged->base.env.fabric->caps & EPX_FABRIC_SHARED_ADDRESS) == 0;
    int64_t rounds = shape->tokens_max * (shape->row_bytes / EPX_HOME_PIECE + 1) / EPX_HOME_STREAMS + 1;
    return out != NULL && call->left == NULL && areas->rank_wire && areas->chunks == 1 &&
           !epx_ragged_is_checked(call) && shape->out_type == shape->row_type &&
           rounds < EPX_HOME_ROUNDS_MAX && (apart || !limits->home_apart) &&
           as_they_come(call, limits->home_bytes, y, out);
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

epx_status_t epx_ragged_home(const epx_ragged_call_t *call, const void *y, void *out, int here)
{
    const epx_ragged_slot_t *slot = call->slot;
    int32_t rank = call->shape->rank;
    const epx_ragged_areas_t *areas = &call->ragged->areas;
    const epx_ragged_plan_areas_t *plan = &areas->plan;
    char *own = (char *)call->ragged->base.env.segment.base + call->return_offset;
    epx_k_ragged_home_t args = {.dst = call->ragged->destinations,
                                .rank = rank,
                                .ranks = call->shape->ranks,
                                .returns = call->return_offset,
                                .words = call->return_offset + areas->return_words,
                                .streams = EPX_HOME_STREAMS,
                                .user_streams = EPX_HOME_USERS,
                                .used = (int32_t *)(void *)(own + areas->return_used),
                                .row_bytes = call->shape->row_bytes,
                                .width = call->shape->width,
                                .columns = call->shape->top_k,
                                .row_type = call->shape->row_type,
                                .y = y,
                                .out = out,
                                .runs = epx_ragged_plan_at(call, plan->back_runs),
                                .rows = (const int64_t *)(void *)epx_ragged_slot_at(call, slot->head),
                                .first = (const int32_t *)(void *)epx_ragged_slot_at(call, slot->first),
                                .count = (const int32_t *)(void *)epx_ragged_slot_at(call, slot->count),
                                .list = (const int32_t *)(void *)epx_ragged_slot_at(call, slot->list),
                                .weights = (const float *)(void *)epx_ragged_slot_at(call, slot->weights),
                                .home_start = epx_ragged_pairs(call, plan->home_start),
                                .home_count = epx_ragged_pairs(call, plan->home_count),
                                .own_base = epx_ragged_pairs(call, plan->wire_start) + rank,
                                .own_first = epx_ragged_plan_at(call, plan->wire_first),
                                .own_count = epx_ragged_plan_at(call, plan->wire_count),
                                .own_list = epx_ragged_plan_at(call, plan->list_place),
                                .own_weights = epx_ragged_plan_at(call, plan->list_weight),
                                .home = epx_ragged_plan_at(call, plan->home),
                                .tokens = &epx_plan_head(call->plan)->tokens,
                                .gate = epx_resident_gate(call->plan),
                                .call = epx_move_epoch(call->plan),
                                .here = here};
    return call->kernels->ragged_home(&args, call->stream);
}
