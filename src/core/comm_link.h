/* Comms of processes on the job's link. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_CORE_COMM_LINK_H
#define EPX_CORE_COMM_LINK_H

#include "core/comm_state.h"

/* The link, opened by the first who asks; *world_p: how many world comms there have been with this one. */
epx_status_t epx_comm_take_link(const epx_launch_t *launch, uint64_t *world_p, epx_link_t **link_p);

/* A comm of processes: world [size] ranks of the link, mine among them. NULL: no memory. Not collective. */
struct epx_comm *epx_comm_of_link(epx_link_t *link, uint64_t id, const int32_t *world, int32_t size);
/* Lets go of the circle and the link. */
void epx_comm_leave_link(struct epx_comm *comm);

/* How far apart the ranks of a comm that is not there yet will be: what this process's launcher lets expect.
 */
epx_reach_t epx_comm_expected_reach(void);

/* One number of two, for names of circles. */
uint64_t epx_comm_mix(uint64_t a, uint64_t b);

#endif
