/*
 * The data calls: argument checks and the order of a pass. SPDX-License-Identifier: Apache-2.0
 *
 * Invariants of a lane:
 *
 * - P1  It carries one pass at a time; the pass belongs to one plan and has one direction.
 * - P2  Each kind of call takes the waves in ascending order; finish w comes after start w.
 * - P3  forward: combine w starts after dispatch w has finished; backward: dispatch_backward w starts after
 *   combine_backward w has finished.
 * - P4  At most `depth` waves are in flight: forward from the start of dispatch to the end of combine,
 *   backward from the earlier of combine_backward and re-dispatch to the end of dispatch_backward.
 * - P5  A pass ends with the last wave's last finish; then the lane is free.
 *
 * A call that would break one of them is EPX_ERR_ARG and changes nothing, on every rank alike: no rank waits
 * for it.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/fail.h"
#include "base/structs.h"
#include "core/failed.h"
#include "core/operation.h"
#include "core/plan.h"
#include "core/route.h"
#include "transport/common.h"

/* What every data call checks first: handle, group, a good route, the wave's number. */
static epx_status_t enter(epx_plan_h plan, int32_t wave, const char *call)
{
    epx_status_t status = epx_plan_usable(plan, call);
    if (status != EPX_OK)
        return status;
    const epx_plan_head_t *head = &plan->base.head;
    if (head->valid == 0)
        return epx_fail(EPX_ERR_ARG, "%s: the plan has not been routed", call);
    /* Where epochs are resident an error may come out of any call: nobody waits for what is left of the pass.
     */
    if (plan->base.lane->words != NULL && head->valid == 1)
        status = epx_plan_look(plan);
    if (status != EPX_OK)
        return status;
    if (head->valid < 0)
        return epx_fail((epx_status_t)head->valid, "%s: the plan is dead, route it again: %s", call,
                        plan->dead_text);
    if (wave < 0 || wave >= plan->base.waves)
        return epx_fail(EPX_ERR_ARG, "%s: wave is %d; the plan has waves 0 to %d", call, wave,
                        plan->base.waves - 1);
    return EPX_OK;
}

static epx_status_t out_of_order(const char *call, int32_t wave, const char *why)
{
    return epx_fail(EPX_ERR_ARG, "%s: wave %d cannot come now: %s", call, wave, why);
}

static epx_status_t busy_lane(epx_plan_h plan, const char *call)
{
    return epx_fail(EPX_ERR_ARG, "%s: lane %d is busy with %s; finish that pass or use another lane", call,
                    plan->lane->lane.index,
                    plan->lane->plan == plan ? "another pass of this plan" : "another plan's pass");
}

static int is_lane_of_other(epx_plan_h plan) { return plan->lane->plan != NULL && plan->lane->plan != plan; }

static epx_transport_t *transport_of(epx_plan_h plan) { return plan->group->transport; }

/* A pass that begins is refused here alone when the device has told of a failed route by now; others may have
 * begun it: see transport/common.h. */
static epx_status_t refuse_dead(epx_plan_h plan, epx_stream_t stream)
{
    epx_status_t status = epx_plan_look(plan);
    if (status != EPX_OK)
        epx_pass_refuse(transport_of(plan), &plan->base, stream);
    return status;
}

static epx_status_t begin_pass(epx_plan_h plan, epx_direction_t direction, epx_stream_t stream)
{
    epx_status_t status = epx_plan_meet(plan, stream);
    if (status != EPX_OK)
        return status;
    plan->lane->plan = plan;
    plan->pass = (epx_pass_t){.direction = direction};
    plan->passes++;
    epx_lane_begin(&plan->lane->lane, plan->base.head.route);
    epx_lane_begins(&plan->lane->lane);
    if (plan->base.lane->words != NULL)
        return EPX_OK;
    return refuse_dead(plan, stream);
}

/* The last wave has ended. A pass that dies does not come here and is not counted. */
static epx_status_t end_pass(epx_plan_h plan, epx_stream_t stream)
{
    plan->lane->plan = NULL;
    plan->lane->lane.passes++;
    plan->pass = (epx_pass_t){0};
    return epx_lane_end(transport_of(plan), &plan->base, stream);
}

/* After a transport's error: a dead plan gives its lane up, an ended group is noted. */
static epx_status_t failed(epx_plan_h plan, epx_status_t status)
{
    if (plan->base.head.valid < 0)
        epx_plan_dies(plan, status);
    return epx_group_note(plan->group, status);
}

static epx_status_t need(const void *pointer, const char *call, const char *name)
{
    return pointer != NULL ? EPX_OK : epx_fail(EPX_ERR_ARG, "%s: %s is NULL", call, name);
}

/* At most: where T is known to the device alone, pointers must be there. */
static int64_t tokens_of(epx_plan_h plan) { return plan->base.head.tokens; }

static const epx_shape_t *shape_of(epx_plan_h plan) { return &plan->group->selection.shape; }

static epx_status_t check_batch(epx_plan_h plan, const epx_batch_t *batch, const char *call)
{
    if (batch == NULL || !epx_struct_fits(batch, batch->size, sizeof(epx_batch_t)))
        return epx_fail(EPX_ERR_ARG, "%s: begin the batch with EPX_BATCH_INIT", call);
    if (shape_of(plan)->batch_in_caller &&
        (batch->into_rows == NULL || batch->into_start == NULL || batch->into_count == NULL))
        return epx_fail(EPX_ERR_ARG,
                        "%s: the group keeps no batches (batch_in_caller): give into_rows, into_start and "
                        "into_count",
                        call);
    return EPX_OK;
}

static int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

/* ---- dispatch --------------------------------------------------------------------------------------------------- */

static epx_status_t order_dispatch_start(epx_plan_h plan, int32_t wave)
{
    static const char *const call = "epx_dispatch";
    epx_pass_t *pass = &plan->pass;
    int recompute = shape_of(plan)->backward == EPX_BACKWARD_RECOMPUTE;
    if (is_lane_of_other(plan))
        return busy_lane(plan, call);
    if (pass->direction == PASS_BACKWARD && !recompute)
        return busy_lane(plan, call);
    if (pass->direction == PASS_BACKWARD) {
        /* A re-dispatch: waves ascending, some may be left out. */
        if (wave < larger(pass->dispatch_started, pass->dispatch_backward_finished))
            return out_of_order(call, wave, "it was dispatched already in this pass");
        if (wave - pass->dispatch_backward_finished >= shape_of(plan)->depth)
            return out_of_order(call, wave, "as many waves as the group's depth are in flight");
        return EPX_OK;
    }
    if (wave != pass->dispatch_started)
        return out_of_order(call, wave, "waves of a pass are dispatched in order from 0");
    if (wave - pass->combine_finished >= shape_of(plan)->depth)
        return out_of_order(call, wave, "as many waves as the group's depth are in flight; combine first");
    return EPX_OK;
}

epx_status_t epx_dispatch_start(epx_plan_h plan, int32_t wave, const void *x, const epx_batch_t *batch,
                                epx_stream_t stream)
{
    epx_status_t status = enter(plan, wave, "epx_dispatch");
    if (status == EPX_OK && tokens_of(plan) > 0)
        status = need(x, "epx_dispatch", "x");
    if (status == EPX_OK)
        status = check_batch(plan, batch, "epx_dispatch");
    if (status == EPX_OK)
        status = order_dispatch_start(plan, wave);
    if (status != EPX_OK)
        return status;
    if (plan->pass.direction == PASS_NONE)
        status = begin_pass(
            plan, shape_of(plan)->backward == EPX_BACKWARD_RECOMPUTE ? PASS_UNDECIDED : PASS_FORWARD, stream);
    if (status != EPX_OK)
        return status;
    plan->pass.dispatch_started = wave + 1;
    status = epx_op_enter(plan, EPX_RECORD_DISPATCH, wave, stream);
    if (status == EPX_OK)
        status =
            transport_of(plan)->ops->dispatch_start(transport_of(plan), &plan->base, wave, x, batch, stream);
    status = epx_op_started(plan, EPX_RECORD_DISPATCH, wave, status);
    return status == EPX_OK ? EPX_OK : failed(plan, status);
}

epx_status_t epx_dispatch_finish(epx_plan_h plan, int32_t wave, epx_batch_t *batch, epx_stream_t stream)
{
    epx_status_t status = enter(plan, wave, "epx_dispatch_finish");
    if (status == EPX_OK)
        status = check_batch(plan, batch, "epx_dispatch_finish");
    if (status != EPX_OK)
        return status;
    epx_pass_t *pass = &plan->pass;
    if (wave < pass->dispatch_finished || wave >= pass->dispatch_started ||
        (wave != pass->dispatch_finished && pass->direction != PASS_BACKWARD))
        return out_of_order("epx_dispatch_finish", wave,
                            "its start has not been made, or an earlier finish is missing");
    pass->dispatch_finished = wave + 1;
    status = epx_op_resume(plan, EPX_RECORD_DISPATCH, wave, stream);
    if (status == EPX_OK)
        status =
            transport_of(plan)->ops->dispatch_finish(transport_of(plan), &plan->base, wave, batch, stream);
    status = epx_op_leave(plan, EPX_RECORD_DISPATCH, wave, status);
    return status == EPX_OK ? EPX_OK : failed(plan, status);
}

epx_status_t epx_dispatch(epx_plan_h plan, int32_t wave, const void *x, epx_batch_t *batch,
                          epx_stream_t stream)
{
    epx_status_t status = epx_dispatch_start(plan, wave, x, batch, stream);
    if (status != EPX_OK)
        return status;
    plan->base.lane->adjoins = 1;
    status = epx_dispatch_finish(plan, wave, batch, stream);
    plan->base.lane->adjoins = 0;
    return status;
}

/* ---- combine ---------------------------------------------------------------------------------------------------- */

/* out: where the finish follows at once; else NULL. */
static epx_status_t combine_start(epx_plan_h plan, int32_t wave, const void *y, void *out,
                                  epx_stream_t stream)
{
    epx_status_t status = enter(plan, wave, "epx_combine");
    if (status == EPX_OK && plan->group->selection.sizes.batch_rows_max > 0)
        status = need(y, "epx_combine", "y");
    if (status != EPX_OK)
        return status;
    epx_pass_t *pass = &plan->pass;
    if (pass->direction == PASS_BACKWARD)
        return out_of_order("epx_combine", wave, "the plan is in a backward pass");
    if (wave != pass->combine_started || wave >= pass->dispatch_finished)
        return out_of_order("epx_combine", wave,
                            "its dispatch has not been made in this pass, or an earlier combine is "
                            "missing");
    pass->direction = PASS_FORWARD;
    pass->combine_started = wave + 1;
    status = epx_op_enter(plan, EPX_RECORD_COMBINE, wave, stream);
    plan->base.combine_out = out;
    if (status == EPX_OK)
        status = transport_of(plan)->ops->combine_start(transport_of(plan), &plan->base, wave, y, stream);
    plan->base.combine_out = NULL;
    status = epx_op_started(plan, EPX_RECORD_COMBINE, wave, status);
    return status == EPX_OK ? EPX_OK : failed(plan, status);
}

epx_status_t epx_combine_start(epx_plan_h plan, int32_t wave, const void *y, epx_stream_t stream)
{
    return combine_start(plan, wave, y, NULL, stream);
}

epx_status_t epx_combine_finish(epx_plan_h plan, int32_t wave, void *out, epx_stream_t stream)
{
    epx_status_t status = enter(plan, wave, "epx_combine_finish");
    if (status == EPX_OK && tokens_of(plan) > 0)
        status = need(out, "epx_combine_finish", "out");
    if (status != EPX_OK)
        return status;
    epx_pass_t *pass = &plan->pass;
    if (wave != pass->combine_finished || wave >= pass->combine_started)
        return out_of_order("epx_combine_finish", wave,
                            "its start has not been made, or an earlier finish is missing");
    status = epx_op_resume(plan, EPX_RECORD_COMBINE, wave, stream);
    if (status == EPX_OK)
        status = transport_of(plan)->ops->combine_finish(transport_of(plan), &plan->base, wave, out, stream);
    status = epx_op_leave(plan, EPX_RECORD_COMBINE, wave, status);
    if (status != EPX_OK)
        return failed(plan, status);
    pass->combine_finished = wave + 1;
    return wave + 1 == plan->base.waves ? end_pass(plan, stream) : EPX_OK;
}

epx_status_t epx_combine(epx_plan_h plan, int32_t wave, const void *y, void *out, epx_stream_t stream)
{
    /* Checked before the start, so that a bad call changes nothing. */
    epx_status_t status = enter(plan, wave, "epx_combine");
    if (status == EPX_OK && tokens_of(plan) > 0)
        status = need(out, "epx_combine", "out");
    if (status == EPX_OK)
        status = combine_start(plan, wave, y, out, stream);
    if (status != EPX_OK)
        return status;
    plan->base.lane->adjoins = 1;
    status = epx_combine_finish(plan, wave, out, stream);
    plan->base.lane->adjoins = 0;
    return status;
}

/* ---- backward --------------------------------------------------------------------------------------------------- */

static epx_status_t order_combine_backward_start(epx_plan_h plan, int32_t wave)
{
    static const char *const call = "epx_combine_backward";
    epx_pass_t *pass = &plan->pass;
    if (shape_of(plan)->backward == EPX_BACKWARD_NONE)
        return epx_fail(EPX_ERR_ARG, "%s: the group was opened with backward=none", call);
    if (is_lane_of_other(plan) || pass->direction == PASS_FORWARD)
        return busy_lane(plan, call);
    if (wave != pass->combine_backward_started)
        return out_of_order(call, wave, "waves of a pass come in order from 0");
    if (wave - pass->dispatch_backward_finished >= shape_of(plan)->depth)
        return out_of_order(call, wave,
                            "as many waves as the group's depth are in flight; dispatch_backward first");
    return EPX_OK;
}

epx_status_t epx_combine_backward_start(epx_plan_h plan, int32_t wave, const void *dout, epx_stream_t stream)
{
    epx_status_t status = enter(plan, wave, "epx_combine_backward");
    if (status == EPX_OK && tokens_of(plan) > 0)
        status = need(dout, "epx_combine_backward", "dout");
    if (status == EPX_OK)
        status = order_combine_backward_start(plan, wave);
    if (status != EPX_OK)
        return status;
    epx_plan_h on_lane = plan->lane->plan;
    epx_pass_t before = plan->pass;
    int64_t passes = plan->passes;
    if (plan->pass.direction == PASS_NONE)
        status = begin_pass(plan, PASS_BACKWARD, stream);
    if (status != EPX_OK)
        return status;
    plan->pass.direction = PASS_BACKWARD;
    plan->pass.combine_backward_started = wave + 1;
    status = epx_op_enter(plan, EPX_RECORD_COMBINE_BACKWARD, wave, stream);
    if (status == EPX_OK)
        status = transport_of(plan)->ops->combine_backward_start(transport_of(plan), &plan->base, wave, dout,
                                                                 stream);
    status = epx_op_started(plan, EPX_RECORD_COMBINE_BACKWARD, wave, status);
    if (status ==
        EPX_ERR_ARG) { /* the transport says that it is too early (pooled_wave): nothing has changed */
        plan->lane->plan = on_lane;
        plan->pass = before;
        plan->passes = passes;
    }
    return status == EPX_OK ? EPX_OK : failed(plan, status);
}

epx_status_t epx_combine_backward_finish(epx_plan_h plan, int32_t wave, const void *y, epx_batch_t *dy,
                                         epx_stream_t stream)
{
    static const char *const call = "epx_combine_backward_finish";
    epx_status_t status = enter(plan, wave, call);
    if (status == EPX_OK && plan->group->selection.sizes.batch_rows_max > 0)
        status = need(y, call, "y");
    if (status == EPX_OK)
        status = check_batch(plan, dy, call);
    if (status != EPX_OK)
        return status;
    epx_pass_t *pass = &plan->pass;
    if (wave != pass->combine_backward_finished || wave >= pass->combine_backward_started)
        return out_of_order(call, wave, "its start has not been made, or an earlier finish is missing");
    pass->combine_backward_finished = wave + 1;
    status = epx_op_resume(plan, EPX_RECORD_COMBINE_BACKWARD, wave, stream);
    if (status == EPX_OK)
        status = transport_of(plan)->ops->combine_backward_finish(transport_of(plan), &plan->base, wave, y,
                                                                  dy, stream);
    status = epx_op_leave(plan, EPX_RECORD_COMBINE_BACKWARD, wave, status);
    return status == EPX_OK ? EPX_OK : failed(plan, status);
}

epx_status_t epx_combine_backward(epx_plan_h plan, int32_t wave, const void *dout, const void *y,
                                  epx_batch_t *dy, epx_stream_t stream)
{
    static const char *const call = "epx_combine_backward";
    epx_status_t status = enter(plan, wave, call);
    if (status == EPX_OK && plan->group->selection.sizes.batch_rows_max > 0)
        status = need(y, call, "y");
    if (status == EPX_OK)
        status = check_batch(plan, dy, call);
    if (status == EPX_OK)
        status = epx_combine_backward_start(plan, wave, dout, stream);
    return status == EPX_OK ? epx_combine_backward_finish(plan, wave, y, dy, stream) : status;
}

epx_status_t epx_dispatch_backward_start(epx_plan_h plan, int32_t wave, const void *dx_rows,
                                         epx_stream_t stream)
{
    static const char *const call = "epx_dispatch_backward";
    epx_status_t status = enter(plan, wave, call);
    if (status == EPX_OK && plan->group->selection.sizes.batch_rows_max > 0)
        status = need(dx_rows, call, "dx_rows");
    if (status != EPX_OK)
        return status;
    epx_pass_t *pass = &plan->pass;
    if (pass->direction != PASS_BACKWARD || wave != pass->dispatch_backward_started ||
        wave >= pass->combine_backward_finished)
        return out_of_order(
            call, wave, "its combine_backward has not been made in this pass, or an earlier wave is missing");
    if (pass->dispatch_finished < pass->dispatch_started)
        return out_of_order(call, wave, "a re-dispatch has been started and not finished");
    pass->dispatch_backward_started = wave + 1;
    status = epx_op_enter(plan, EPX_RECORD_DISPATCH_BACKWARD, wave, stream);
    if (status == EPX_OK)
        status = transport_of(plan)->ops->dispatch_backward_start(transport_of(plan), &plan->base, wave,
                                                                  dx_rows, stream);
    status = epx_op_started(plan, EPX_RECORD_DISPATCH_BACKWARD, wave, status);
    return status == EPX_OK ? EPX_OK : failed(plan, status);
}

epx_status_t epx_dispatch_backward_finish(epx_plan_h plan, int32_t wave, void *dx, float *dweight,
                                          epx_stream_t stream)
{
    static const char *const call = "epx_dispatch_backward_finish";
    epx_status_t status = enter(plan, wave, call);
    if (status == EPX_OK && tokens_of(plan) > 0)
        status = need(dx, call, "dx");
    if (status != EPX_OK)
        return status;
    epx_pass_t *pass = &plan->pass;
    if (wave != pass->dispatch_backward_finished || wave >= pass->dispatch_backward_started)
        return out_of_order(call, wave, "its start has not been made, or an earlier finish is missing");
    status = epx_op_resume(plan, EPX_RECORD_DISPATCH_BACKWARD, wave, stream);
    if (status == EPX_OK)
        status = transport_of(plan)->ops->dispatch_backward_finish(transport_of(plan), &plan->base, wave, dx,
                                                                   dweight, stream);
    status = epx_op_leave(plan, EPX_RECORD_DISPATCH_BACKWARD, wave, status);
    if (status != EPX_OK)
        return failed(plan, status);
    pass->dispatch_backward_finished = wave + 1;
    return wave + 1 == plan->base.waves ? end_pass(plan, stream) : EPX_OK;
}

epx_status_t epx_dispatch_backward(epx_plan_h plan, int32_t wave, const void *dx_rows, void *dx,
                                   float *dweight, epx_stream_t stream)
{
    epx_status_t status = enter(plan, wave, "epx_dispatch_backward");
    if (status == EPX_OK && tokens_of(plan) > 0)
        status = need(dx, "epx_dispatch_backward", "dx");
    if (status == EPX_OK)
        status = epx_dispatch_backward_start(plan, wave, dx_rows, stream);
    return status == EPX_OK ? epx_dispatch_backward_finish(plan, wave, dx, dweight, stream) : status;
}

/* ---- checks ----------------------------------------------------------------------------------------------------- */

epx_status_t epx_check_poison(epx_plan_h plan, int32_t wave, void *y, epx_stream_t stream)
{
    epx_status_t status = enter(plan, wave, "epx_check_poison");
    if (status != EPX_OK)
        return status;
    int64_t rows = plan->group->selection.sizes.batch_rows_max;
    if (rows == 0)
        return EPX_OK;
    status = need(y, "epx_check_poison", "y");
    return status == EPX_OK ? epx_canary_fill(transport_of(plan), y, rows * shape_of(plan)->row_bytes, stream)
                            : status;
}

epx_status_t epx_batch_counts(epx_plan_h plan, const epx_batch_t *batch, int64_t *start, int64_t *count,
                              epx_stream_t stream)
{
    static const char *const call = "epx_batch_counts";
    epx_status_t status = epx_plan_usable(plan, call);
    if (status != EPX_OK)
        return status;
    if (batch == NULL || !epx_struct_fits(batch, batch->size, sizeof(epx_batch_t)) || start == NULL ||
        count == NULL)
        return epx_fail(EPX_ERR_ARG, "%s: batch, start and count must be there", call);
    if (batch->expert_start == NULL || batch->expert_count == NULL)
        return epx_fail(EPX_ERR_ARG, "%s: the batch has not been dispatched", call);
    const epx_device_ops_t *device = plan->group->selection.device;
    size_t bytes = (size_t)batch->local_experts * sizeof(int64_t);
    status = device->copy(start, batch->expert_start, bytes, stream);
    if (status == EPX_OK)
        status = device->copy(count, batch->expert_count, bytes, stream);
    return status == EPX_OK ? device->synchronize(stream) : status;
}
