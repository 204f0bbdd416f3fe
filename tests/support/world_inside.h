/* What the world and its variant of processes tell each other. SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_WORLD_INSIDE_H
#define TESTS_WORLD_INSIDE_H

#include "support/world.h"

/* There in runners whose ranks are processes (support/processes), NULL elsewhere. */
__attribute__((weak)) void world_play_processes(world_t *world, rank_t *rank, int ranks, rank_fn fn,
                                                int64_t limit_ms);
__attribute__((weak)) void *world_shared(size_t bytes);
/* Whether this host plays the rank (TEST_HOST, see processes.h). */
__attribute__((weak)) int world_plays(int rank);

/* Prints who is where, and ends the process. */
__attribute__((noreturn)) void world_report_hang(const rank_t *rank, int ranks);

#endif
