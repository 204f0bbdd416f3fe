/* How a group comes to be, and goes. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_CORE_BUILD_H
#define EPX_CORE_BUILD_H

#include "core/group_state.h"

/* The struct with its configuration; it comes from the caller's allocator too. NULL: no memory. */
epx_group_t *epx_group_new(const epx_group_config_t *checked);
void epx_group_free(epx_group_t *group);

/* Everything between "the struct is there" and "the group can be used", for open and recover: config has been
 * checked, rank, ranks, generation, name and allocator are set. Collective over the bootstrap. `local`: what
 * this rank knows to be wrong already (its text is the last error). On an error everything is released but
 * the struct. */
epx_status_t epx_group_build(epx_group_t *group, const epx_bootstrap_t *bootstrap, epx_status_t local);

/* Releases what build made. */
void epx_group_tear_down(epx_group_t *group);

/* Copies strings and takes the configuration over. */
void epx_group_keep_config(epx_group_t *group, const epx_group_config_t *checked);

/* A rank that cannot even begin still meets the others, so that nobody waits for it. Returns an error. */
epx_status_t epx_group_refuse(const epx_bootstrap_t *bootstrap, epx_status_t status);

#endif
