/* A rank's links beside its flight record (--links). SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_TRAIN_LINKS_H
#define EPX_TRAIN_LINKS_H

#include <epx/comm.h>
#include <epx/health.h>

#include "config.h"

/* Follows the links that config names for this rank; *follow_p stays NULL where it names none, or nothing is
 * recorded. Ends with epx_health_unfollow, before the comm does. An EPX_TRAIN code. */
int epx_train_links_begin(const epx_train_config_t *config, epx_comm_h comm, int64_t rank,
                          epx_health_follow_h *follow_p);

#endif
