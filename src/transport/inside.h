/* What the files of common.h share among themselves. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_TRANSPORT_INSIDE_H
#define EPX_TRANSPORT_INSIDE_H

#include "transport/common.h"

/* ---- lane.c ---- */

/* A wait that is the first of its pass cannot begin it as a post does: a kernel of its own does. */
epx_status_t epx_lane_begin_first(epx_transport_t *transport, const epx_plan_base_t *plan,
                                  epx_stream_t stream);

/* What a post that begins a pass takes along. */
epx_lane_begin_of_t epx_lane_begin_of(const epx_plan_base_t *plan);

/* What counts the plan's route on the device; words NULL: epochs are the host's. */
epx_k_lane_t epx_lane_route_step(const epx_plan_base_t *plan);

/* ---- route.c ---- */

/* EPX_ERR_PEER: the route of rank `peer` failed; `what`: where this rank saw it. */
epx_status_t epx_route_error(const epx_transport_env_t *env, int32_t peer, const char *what);

/* Rows of the failure words that belong to the plan's route, for failures and for refusals. */
int32_t epx_failure_channel(const epx_transport_t *transport, const epx_plan_base_t *plan);
int32_t epx_refusal_channel(const epx_transport_t *transport, const epx_plan_base_t *plan);

#endif
