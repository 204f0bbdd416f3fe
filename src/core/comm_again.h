/* The ranks of a comm that are left meet again. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_CORE_COMM_AGAIN_H
#define EPX_CORE_COMM_AGAIN_H

#include "core/comm_state.h"

/* The ranks that are left of the comm with this bootstrap (epx_fabric_config_t.survivors); NULL: it is the
 * caller's own all-gather, or no comm's, which has no such way. What it makes lives as long as the comm. */
typedef epx_status_t (*epx_comm_survivors_fn)(void *context, int64_t timeout_ms, uint8_t *alive_p,
                                              epx_bootstrap_t *bootstrap_p);
epx_comm_survivors_fn epx_comm_survivors_of(const epx_bootstrap_t *bootstrap);

/* What it has made goes with the comm. */
void epx_comm_destroy_again(struct epx_comm *comm);

#endif
