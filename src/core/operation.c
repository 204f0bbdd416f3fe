/* The brackets around every operation of a group. SPDX-License-Identifier: Apache-2.0 */
#include "core/operation.h"

#include "base/fail.h"
#include "core/lane_record.h"
#include "record/recorder.h"

/* Where the operation of a wave is kept between its calls. As many as are ever in flight, or it is looked up
 * in vain and the record has an operation without an end: depth is rarely more. */
static uint64_t *place_of(epx_plan_h plan, epx_record_kind_t kind, int32_t wave)
{
    return &plan->op[kind - EPX_RECORD_DISPATCH][wave & (EPX_PLAN_OPS - 1)];
}

/* ---- ranges in profilers' time lines ---------------------------------------------------------------------------- */

/* Around what a transport does in a call: its kind, which half of it, and the wave beside. */
static void begin_mark(epx_plan_h plan, epx_record_kind_t kind, int32_t finish, int32_t wave)
{
    static const char *const names[][2] = {
        [EPX_RECORD_ROUTE] = {"route", "route"},
        [EPX_RECORD_DISPATCH] = {"dispatch, start", "dispatch, finish"},
        [EPX_RECORD_COMBINE] = {"combine, start", "combine, finish"},
        [EPX_RECORD_COMBINE_BACKWARD] = {"combine_backward, start", "combine_backward, finish"},
        [EPX_RECORD_DISPATCH_BACKWARD] = {"dispatch_backward, start", "dispatch_backward, finish"}};
    const epx_device_ops_t *device = plan->group->selection.device;
    if (device->mark_begin != NULL)
        device->mark_begin(names[kind][finish], wave);
}

static void end_mark(epx_plan_h plan)
{
    const epx_device_ops_t *device = plan->group->selection.device;
    if (device->mark_end != NULL)
        device->mark_end();
}

/* ---- brackets --------------------------------------------------------------------------------------------------- */

static uint64_t *number_of(epx_plan_h plan, epx_record_kind_t kind, int32_t wave)
{
    return &plan->op_number[kind - EPX_RECORD_DISPATCH][wave & (EPX_PLAN_OPS - 1)];
}

/* EPX_FAULT is told which operation the rank is in. */
static void tell_fault(epx_plan_h plan, epx_record_kind_t kind, int32_t wave, epx_stream_t stream)
{
    int is_route = kind == EPX_RECORD_ROUTE;
    epx_fault_call_t call = {.op = is_route ? EPX_FAULT_OP_ROUTE : (int32_t)kind,
                             .wave = is_route ? EPX_FAULT_ANY : wave,
                             .seq = *number_of(plan, kind, wave),
                             .stream = stream};
    epx_fault_call(plan->group->fault, &call);
}

/* Before the call has left a trace. 1: it is to be left out. */
static int disturb(epx_plan_h plan, epx_record_kind_t kind, int32_t wave, epx_stream_t stream)
{
    tell_fault(plan, kind, wave, stream);
    epx_fault_hits_t hits = epx_fault_at(plan->group->fault, EPX_FAULT_ENQUEUE, EPX_FAULT_ANY);
    return epx_fault_hit(&hits, EPX_FAULT_SKIP);
}

static epx_status_t enter(epx_plan_h plan, const epx_recorder_call_t *call, epx_stream_t stream)
{
    epx_group_t *group = plan->group;
    begin_mark(plan, call->kind, 0, call->wave);
    uint64_t *op = place_of(plan, call->kind, call->wave), *number = number_of(plan, call->kind, call->wave);
    *number = ++group->operations;
    if (group->fault != NULL && disturb(plan, call->kind, call->wave, stream)) {
        *number = EPX_OP_LEFT_OUT;
        return EPX_OP_SKIP;
    }
    if (group->fault == NULL) {
        *op = epx_recorder_enter(group->recorder, call);
    } else {
        *op = epx_recorder_enqueue(group->recorder, call);
        epx_fault_at(group->fault, EPX_FAULT_BEGIN, EPX_FAULT_ANY);
        epx_recorder_begin(group->recorder, *op);
    }
    epx_lane_record_call(plan, call->kind, call->wave, 1, stream);
    return EPX_OK;
}

epx_status_t epx_op_enter(epx_plan_h plan, epx_record_kind_t kind, int32_t wave, epx_stream_t stream)
{
    const epx_group_t *group = plan->group;
    const epx_lane_t *lane = plan->base.lane;
    epx_recorder_call_t call = {.group_id = group->record_id,
                                .stream = 2 * (uint32_t)lane->index,
                                .sequence = lane->passes << 16 | (lane->epoch - lane->base + 1),
                                .signature = group->record_signature,
                                .kind = kind,
                                .lane = lane->index,
                                .wave = wave};
    return enter(plan, &call, stream);
}

epx_status_t epx_op_enter_route(epx_plan_h plan, epx_stream_t stream)
{
    const epx_group_t *group = plan->group;
    const epx_lane_t *lane = plan->base.lane;
    epx_recorder_call_t call = {.group_id = group->record_id,
                                .stream = 2 * (uint32_t)lane->index + 1,
                                .sequence = group->routes + 1,
                                .signature = group->record_signature,
                                .kind = EPX_RECORD_ROUTE,
                                .lane = lane->index};
    return enter(plan, &call, stream);
}

/* In the record. A rank that is held up behind its work has ended the operation: it is the next one that it
 * does not come to. */
static epx_status_t end(epx_plan_h plan, epx_record_kind_t kind, int32_t wave, epx_status_t status)
{
    if (status == EPX_OP_SKIP)
        return EPX_OK;
    epx_recorder_end(plan->group->recorder, *place_of(plan, kind, wave), status);
    if (plan->group->fault != NULL && status == EPX_OK)
        epx_fault_at(plan->group->fault, EPX_FAULT_END, EPX_FAULT_ANY);
    return status;
}

epx_status_t epx_op_started(epx_plan_h plan, epx_record_kind_t kind, int32_t wave, epx_status_t status)
{
    epx_recorder_h recorder = plan->group->recorder;
    end_mark(plan);
    if (status != EPX_OK)
        return end(plan, kind, wave, status);
    if (recorder == NULL)
        return EPX_OK;
    epx_recorder_posted(recorder, *place_of(plan, kind, wave));
    epx_recorder_leave(recorder);
    return EPX_OK;
}

epx_status_t epx_op_resume(epx_plan_h plan, epx_record_kind_t kind, int32_t wave, epx_stream_t stream)
{
    begin_mark(plan, kind, 1, wave);
    if (*number_of(plan, kind, wave) == EPX_OP_LEFT_OUT)
        return EPX_OP_SKIP;
    if (plan->group->fault != NULL)
        tell_fault(plan, kind, wave, stream);
    epx_recorder_resume(plan->group->recorder, *place_of(plan, kind, wave));
    epx_lane_record_call(plan, kind, wave, 0, stream);
    return EPX_OK;
}

epx_status_t epx_op_leave(epx_plan_h plan, epx_record_kind_t kind, int32_t wave, epx_status_t status)
{
    end_mark(plan);
    return end(plan, kind, wave, status);
}

/* ---- the group -------------------------------------------------------------------------------------------------- */

/* Differs where operations could not fit together; equal on all ranks of a group. */
static uint64_t signature_of(const epx_shape_t *s, const char *transport)
{
    const int64_t values[] = {s->ranks,      s->virtual_ranks, s->experts,    s->top_k,     s->width,
                              s->tokens_max, s->row_type,      s->out_type,   s->lanes,     s->depth,
                              s->waves,      s->backward,      s->virt.ranks, s->aux_bytes, s->row_align};
    uint64_t hash = 1469598103934665603u;
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
        hash = (hash ^ (uint64_t)values[i]) * 1099511628211u;
    for (; *transport != '\0'; transport++)
        hash = (hash ^ (uint8_t)*transport) * 1099511628211u;
    return hash;
}

uint64_t epx_op_new_key(const epx_group_t *group)
{
    static _Atomic uint64_t made;
    uint64_t key =
        (uint64_t)epx_clock_ns() ^ (uint64_t)(uintptr_t)group << 20 ^ atomic_fetch_add(&made, 1) << 56;
    return key * 0x9e3779b97f4a7c15u | 1;
}

static void end_waits(void *context, const char *reason) { epx_group_abort(context, reason); }

void epx_op_group_begin(epx_group_t *group)
{
    if (group->recorder == NULL)
        return;
    const epx_selection_t *selection = &group->selection;
    epx_recorder_group_t row = {.name = group->name,
                                .transport = selection->transport->name,
                                .fabric = selection->fabric->name,
                                .key = group->record_key,
                                .members = group->record_members,
                                .ranks = group->ranks,
                                .rank = group->rank,
                                .generation = (uint32_t)group->generation};
    group->record_signature = row.signature = signature_of(&selection->shape, selection->transport->name);
    epx_recorder_budgets(group->recorder, selection->settings.hang_ms, selection->settings.timeout_ms);
    group->record_id = epx_recorder_group_begin(group->recorder, &row);
    group->record_ending = epx_recorder_on_end(group->recorder, end_waits, group, 0);
    epx_lane_record_begin(group);
}

void epx_op_group_end(epx_group_t *group)
{
    epx_recorder_forget(group->recorder, group->record_ending);
    epx_record_group_end(group->recorder, group->record_id);
    group->record_ending = group->record_id = 0;
}
