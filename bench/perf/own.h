/* A fabric of epx-perf's own beside the group's, with one segment. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_BENCH_PERF_OWN_H
#define EPX_BENCH_PERF_OWN_H

#include <epx/fabric.h>

#include "bench/perf/player.h"

typedef struct epx_perf_own {
    epx_allocator_t allocator;
    epx_fabric_t *fabric; /* NULL: not open */
    epx_segment_t segment;
} epx_perf_own_t;

/* By all ranks: the group's fabric once more, over the ranks' comm. own: zeroed, and closed by the caller in
 * any case. Returns an exit code; what is wrong has been said. */
int epx_perf_own_open(epx_perf_player_t *player, const char *name, int32_t channels, size_t bytes,
                      epx_perf_own_t *own);
void epx_perf_own_close(epx_perf_own_t *own);

#endif
