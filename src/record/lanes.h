/* What devices have written. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_RECORD_LANES_H
#define EPX_RECORD_LANES_H

#include "record/evidence.h"

/* How a rank's own stream stands: after the host's place has been found, before its times. */
void epx_lanes_place(epx_rank_facts_t *facts);
/* Who stands behind whom, when that is known of all. */
void epx_lanes_compare(const epx_job_evidence_t *job, epx_rank_facts_t *room);
/* The lane of another rank; NULL: no device writes of it. */
const epx_record_lane_row_t *epx_lanes_find(const void *record, const epx_record_lane_row_t *like);
/* A packed time, in the record's clock. */
int64_t epx_lanes_time(const void *record, uint64_t word);
/* When any lane of a record last said anything, in its clock; 0: none has. */
int64_t epx_lanes_last_said(const void *record);
/* The oldest wait or call that has not begun, of all lanes of a record; 0: none. For the watchdog. */
int64_t epx_lanes_oldest(const void *record);
/* 1: a stream has said nothing for a while and may be held up: what the device does is of interest. */
int epx_lanes_stand_still(const void *record, int64_t now_ns);

#endif
