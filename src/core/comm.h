/* What core needs of a comm beyond its public calls. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_CORE_COMM_H
#define EPX_CORE_COMM_H

#include <epx/comm.h>

#include "launch/launch.h"

/* How far apart the ranks of a comm are; equal on all of them. */
typedef enum epx_reach {
    EPX_REACH_PROCESS = 0, /* threads of one process */
    EPX_REACH_HOST,        /* processes that can share memory */
    EPX_REACH_NETWORK
} epx_reach_t;

epx_reach_t epx_comm_reach(epx_comm_h comm);

/* Of a comm that is not there yet: what this process's launcher lets expect. */
epx_reach_t epx_comm_expected_reach(void);

/* The comm's all-gather as a way to meet; valid as long as the comm. */
epx_bootstrap_t epx_comm_bootstrap(epx_comm_h comm);

/* The ranks that are left of the comm with this bootstrap (epx_fabric_config_t.survivors); NULL: it is the
 * caller's own all-gather, or no comm's, which has no such way. What it makes lives as long as the comm. */
typedef epx_status_t (*epx_comm_survivors_fn)(void *context, int64_t timeout_ms, uint8_t *alive_p,
                                              epx_bootstrap_t *bootstrap_p);
epx_comm_survivors_fn epx_comm_survivors_of(const epx_bootstrap_t *bootstrap);
epx_status_t epx_comm_survivors(void *comm, int64_t timeout_ms, uint8_t *alive_p,
                                epx_bootstrap_t *bootstrap_p);

/* While a group opens on it. */
void epx_comm_opens(epx_comm_h comm, int32_t opens);
/* Its row in the flight record, 0: none; *sequence_p: collectives made. */
int32_t epx_comm_row(epx_comm_h comm, uint64_t *sequence_p);

/* The job's link, to which notes go out of band; NULL: the ranks are threads, or met by the caller's own
 * all-gather. As long as the comm. */
epx_link_t *epx_comm_link(epx_comm_h comm);

#endif
