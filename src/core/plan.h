/* What the files of plans share. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_CORE_PLAN_H
#define EPX_CORE_PLAN_H

#include "core/group_state.h"

/* What all plans that this group can use have in common. */
uint64_t epx_plan_signature(const epx_group_t *group);

/* Whether the head of some bytes is that of a routed plan of this group; `call` is named in the error. */
epx_status_t epx_plan_check_bytes(const epx_group_t *group, const epx_plan_head_t *head, const char *call);

/* EPX_OK while the plan and its group can be used, else the error with its text. `call` names the public
 * call. */
epx_status_t epx_plan_usable(epx_plan_h plan, const char *call);

/* Any pass of it is over, as far as its lane is concerned. */
void epx_plan_leave_lane(epx_plan_h plan);

/* Where this rank's device has found its part of the last route to have failed by now, and peers may still
 * begin a pass with it: they are told, as by a host that finds it in the route. */
void epx_plan_tell_peers(epx_plan_h plan, epx_stream_t stream);

/* What a plan has counted goes to the group's sums before it is lost. */
void epx_plan_fold(epx_plan_h plan);

/* Detaches all plans: their calls return EPX_ERR_ABORTED from now on. */
void epx_group_detach_plans(epx_group_t *group);

#endif
