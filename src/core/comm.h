/* What core needs of a comm beyond its public calls. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_CORE_COMM_H
#define EPX_CORE_COMM_H

#include <epx/comm.h>

#include "core/reach.h"

epx_reach_t epx_comm_reach(epx_comm_h comm);

/* While a group opens on it. */
void epx_comm_opens(epx_comm_h comm, int32_t opens);
/* Its row in the flight record, 0: none; *sequence_p: collectives made. */
int32_t epx_comm_row(epx_comm_h comm, uint64_t *sequence_p);

#endif
