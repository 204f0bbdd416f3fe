/*
 * From the ranks' records to one verdict. SPDX-License-Identifier: Apache-2.0
 *
 * A pure function of its arguments: it reads records, asks no clock and no system, allocates nothing, so that
 * tests and simulations can feed it. It knows nothing of injected faults. The rules stand in rules.c as a
 * table.
 */
#ifndef EPX_RECORD_CLASSIFY_H
#define EPX_RECORD_CLASSIFY_H

#include <stddef.h>

#include "record/evidence.h"
#include "record/read.h"

/*
 * Fills *verdict_p (begun with EPX_VERDICT_INIT) and room [ranks]. kind NONE: nobody has waited longer than
 * the budget that holds for it, and nobody whom others wait for is gone. SLOW: late, but moving.
 */
void epx_classify(const epx_job_evidence_t *job, epx_rank_facts_t *room, epx_verdict_t *verdict_p);

/* The action and exit code of a kind of verdict. */
epx_action_t epx_verdict_action(epx_verdict_kind_t kind, int32_t *exit_code_p);

/* "HOST_ABSENT(rank 3)", "SIGNAL_LOST(2 -> 5)", "DEADLOCK(0 -> 2 -> 0)", as reports write it. */
void epx_verdict_title(const epx_verdict_t *verdict, char *text, size_t bytes);

#endif
