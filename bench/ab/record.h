/* Runs that others made: their JSON lines as steps. SPDX-License-Identifier: Apache-2.0
 *
 * Two kinds of lines are understood, told apart by their members, and everything else is passed over:
 *   step lines  of epx-train --json or like it: "step", and as many as there are of "loss", "tokens",
 * "step_ms", "mfu", "mfu_executed", "drop_fraction", "peak_bytes", "exchange_ms", "transport", "fabric" stats
 * lines of EPX_STATS, one per step, group and rank: "rank", "group", "routed", "kept", "dropped_sender", ...
 *               Those of one step are summed over files; the n-th lines of all files are one step.
 */
#ifndef EPX_AB_RECORD_H
#define EPX_AB_RECORD_H

#include "bench/ab/result.h"

typedef struct epx_ab_record {
    epx_ab_step_t *step; /* [steps], owned */
    int32_t steps, room;
    int32_t lines;        /* that were step lines */
    epx_ab_step_t *stats; /* [stats_steps] sums of counts, owned */
    int32_t *stats_files; /* [stats_steps] files that had that step, owned */
    int32_t stats_steps, stats_room, files;
    char transport[EPX_AB_NAME], fabric[EPX_AB_NAME];
} epx_ab_record_t;

/* Takes one line. */
void epx_ab_record_line(epx_ab_record_t *record, const char *line);

/* Reads a file of either kind. 0, or -1 when it cannot be read. */
int epx_ab_record_read(epx_ab_record_t *record, const char *path);

/* Reads every *.jsonl below a folder (not deeper) whose name ends so, in name order; how many, or -1. */
int epx_ab_record_folder(epx_ab_record_t *record, const char *folder);

/* Makes a run of it, the first `discard` steps marked. */
void epx_ab_record_run(const epx_ab_record_t *record, int32_t discard, epx_ab_result_t *result, int32_t arm,
                       epx_ab_part_t part, int32_t round);

void epx_ab_record_free(epx_ab_record_t *record);

#endif
