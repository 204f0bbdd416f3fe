/*
 * Ranks that are processes: what threads see of each other is told by messages. SPDX-License-Identifier:
 * Apache-2.0
 *
 * Every process has the whole of epx_perf_case_t, of which it fills its own part; of the others' it knows the
 * inputs, which are drawn again, and, after epx_perf_gather_results, what the report says of them.
 */
#ifndef EPX_BENCH_PERF_PROCESSES_H
#define EPX_BENCH_PERF_PROCESSES_H

#include "bench/perf/player.h"

/* Whether a launcher started this process among others. */
int epx_perf_are_processes(const epx_perf_case_t *shared);

/* Learns who shares this host: player->local_rank, and shared->one_clock. 0 or an exit code, as all here. */
int epx_perf_meet_hosts(epx_perf_player_t *player);

/* All arrive before one leaves; where they share a clock they leave at one time of it. */
int epx_perf_meet_processes(epx_perf_player_t *player);

/* How often each assignment of this rank arrived, at all ranks together: part->kept. */
int epx_perf_sum_kept(epx_perf_player_t *player);

/* Counts of all parts, on every rank. */
int epx_perf_gather_counts(epx_perf_player_t *player);

/* Times and bytes of all parts, on every rank. */
int epx_perf_gather_results(epx_perf_player_t *player);

#endif
