/*
 * Summaries of flight records, out of band over the job's link: what a report knows of ranks on other hosts.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_CORE_NOTES_H
#define EPX_CORE_NOTES_H

#include "launch/launch.h"
#include "record/recorder.h"

/* The recorder of this process's rank hears and tells by the link, until epx_notes_end. One per process. */
void epx_notes_begin(epx_recorder_h recorder, epx_link_t *link);
/* After the recorder has been closed, before the link is. */
void epx_notes_end(epx_link_t *link);

#endif
