/* How the ranks of a comm meet. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_CORE_COMM_GATHER_H
#define EPX_CORE_COMM_GATHER_H

#include "core/comm_state.h"

/* The comm's all-gather as a way to meet; valid as long as the comm. */
epx_bootstrap_t epx_comm_bootstrap(epx_comm_h comm);

/* The comm with this bootstrap; NULL: it is the caller's own all-gather. */
struct epx_comm *epx_comm_of_bootstrap(const epx_bootstrap_t *bootstrap);

/* What an error of a circle's collective says; returns status. */
epx_status_t epx_comm_explain(const struct epx_comm *comm, epx_status_t status,
                              const epx_circle_result_t *result);

#endif
