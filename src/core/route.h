/* What ends a plan's last route, and what is heard of it. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_CORE_ROUTE_H
#define EPX_CORE_ROUTE_H

#include "core/group_state.h"

/* After a pass that was abandoned on the plan's lane the ranks meet and count it, so that its words are told
 * from later ones. */
epx_status_t epx_plan_meet(struct epx_plan *plan, epx_stream_t stream);

/* The plan is dead, found in a collective call of it: its pass ends, the lane goes on elsewhere, the text is
 * kept. Returns status. */
epx_status_t epx_plan_dies(struct epx_plan *plan, epx_status_t status);

/* Looks at what the device has found of the plan's route by now; an error ends the plan as above. */
epx_status_t epx_plan_look(struct epx_plan *plan);

/* Resident epochs: the error of the last failed route that the device has told and no call has, and its
 * number. */
epx_status_t epx_plan_untold(const struct epx_plan *plan, uint64_t *route_p);

/* What is counted begins anew. */
void epx_plan_restart_account(epx_plan_h plan);

/*
 * An error that the device found in the last route, and that no call has returned yet, must not be lost:
 * passes have been made with it. All ranks have made them, so all come here and wait for their own device (it
 * has come past that route long ago, unless the host is a whole pass ahead) and all of them return the error.
 */
epx_status_t epx_plan_settle(epx_plan_h plan);

#endif
