/*
 * The brackets around every operation of a group: what the flight recorder is told. SPDX-License-Identifier:
 * Apache-2.0
 *
 * An operation is a route, or one wave of one of the four data calls, from its start to its finish. Its
 * number is made of what all ranks agree on whatever has failed in between: see src/record/format.h.
 */
#ifndef EPX_CORE_OPERATION_H
#define EPX_CORE_OPERATION_H

#include "core/group_state.h"

/* What enter and resume return where EPX_FAULT leaves the operation out: nothing is to be done, and the
 * brackets behind make EPX_OK of it. */
#define EPX_OP_SKIP ((epx_status_t)1)

/* A start call has passed its checks: the operation is there and begins. An error or EPX_OP_SKIP: do not go
 * on. */
epx_status_t epx_op_enter(epx_plan_h plan, epx_record_kind_t kind, int32_t wave, epx_stream_t stream);

/* The start call returns: what peers need has been sent, or the operation is over. Returns status, EPX_OK for
 * SKIP. */
epx_status_t epx_op_started(epx_plan_h plan, epx_record_kind_t kind, int32_t wave, epx_status_t status);

/* The finish call goes on with it: EPX_OK or EPX_OP_SKIP. */
epx_status_t epx_op_resume(epx_plan_h plan, epx_record_kind_t kind, int32_t wave, epx_stream_t stream);

/* The finish call (or the route) returns: the operation is over. Returns status, EPX_OK for SKIP. */
epx_status_t epx_op_leave(epx_plan_h plan, epx_record_kind_t kind, int32_t wave, epx_status_t status);

/* A route is made; it has no separate start. */
epx_status_t epx_op_enter_route(epx_plan_h plan, epx_stream_t stream);

/* A number that no other group of the job has. */
uint64_t epx_op_new_key(const epx_group_t *group);

/* The group is registered with its recorder, and no more. */
void epx_op_group_begin(epx_group_t *group);
void epx_op_group_end(epx_group_t *group);

#endif
