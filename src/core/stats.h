/* What a group counts. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_CORE_STATS_H
#define EPX_CORE_STATS_H

#include "core/group_state.h"

/* Payload by the path that it took, and that path in words. */
typedef struct epx_paths {
    int64_t stored_bytes, message_bytes;
    const char *path;
} epx_paths_t;

/* sent_bytes: what plans have counted. */
epx_paths_t epx_group_paths(const epx_group_t *group, int64_t sent_bytes);

/* Adds what a plan has counted since the last time to the group's tally; `routing` too when the route's
 * counts are complete or about to be lost. */
void epx_tally_fold(struct epx_plan *plan);

/* Whether lines can be written where EPX_STATS says, so that a group that cannot does not open; makes the
 * folder. */
epx_status_t epx_stats_check(const epx_group_t *group);
void epx_stats_close(epx_group_t *group);

#endif
