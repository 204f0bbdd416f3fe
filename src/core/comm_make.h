/* A comm comes to be, whatever it stands on. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_CORE_COMM_MAKE_H
#define EPX_CORE_COMM_MAKE_H

#include "core/comm_state.h"

/* Of the fabric of a comm of threads. bootstrap may be NULL. */
epx_fabric_config_t epx_comm_fabric_config(const epx_bootstrap_t *bootstrap);

/* A comm on one of the two, NULL: no memory. */
struct epx_comm *epx_comm_make(epx_fabric_t *fabric, const epx_bootstrap_t *bootstrap);

/* The comm is the first of its job; the name is equal on all its ranks. */
void epx_comm_begin_record(struct epx_comm *comm, const char *job);
/* The comm (NULL: this rank has none) came of a split of `whole`; member [size] ranks of the whole. */
void epx_comm_part_record(struct epx_comm *whole, int32_t colour, const int32_t *member,
                          struct epx_comm *part);

#endif
