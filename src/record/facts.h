/* Facts about the ranks of a job. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_RECORD_FACTS_H
#define EPX_RECORD_FACTS_H

#include "record/evidence.h"

/* Fills room [ranks], all but `step`. */
void epx_facts_gather(const epx_job_evidence_t *job, epx_rank_facts_t *room);

#endif
