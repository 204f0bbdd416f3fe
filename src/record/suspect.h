/* A job that is suspected to be stuck. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_RECORD_SUSPECT_H
#define EPX_RECORD_SUSPECT_H

#include "record/dump.h"
#include "record/recorder_state.h"
#include "record/view.h"

/* A verdict that was found so shortly after the last one was done with is the same one, told late. */
#define EPX_SUSPECT_SLACK_NS ((int64_t)100000000)

/* A job of which some rank here has waited for long. Zeroed: none. */
typedef struct epx_suspect {
    const epx_recorder_h *first; /* the recorders that are watched: the watchdog's list, under its lock */
    epx_job_view_t *view;
    char folder[EPX_RECORDER_PATH_BYTES];
    int64_t looked_ns, suspected_ns;
    int32_t looks;
    epx_verdict_kind_t candidate; /* what the last look gave, and of whom */
    int32_t candidate_rank, candidate_looks;
    int32_t has_verdict, has_acted;
    int32_t is_mute; /* 1: the verdict was reported where no file can be written */
    int32_t hears;   /* of ranks on other hosts there is a way to hear */
    int32_t command; /* EPX_ON_HANG_CMD's process while it is waited for */
    epx_dump_t dump; /* of the culprit, where it is a rank of this process */
    epx_verdict_t verdict;
    int64_t verdict_ns, stuck_ns; /* stuck_ns: when it was last seen to hold */
    uint64_t errors;              /* reports of errors, summed over the ranks here */
} epx_suspect_t;

/* Puts what is to be looked at closely into a free one of suspects [count], or finds it there. NULL: no room.
 */
epx_suspect_t *epx_suspect_of(epx_suspect_t *suspects, int32_t count, const epx_recorder_h *first,
                              epx_recorder_h recorder);

/* Looks, judges, and acts on what has been found. */
void epx_suspect_look(epx_suspect_t *suspect, int64_t now, int64_t tick);

/* Another process has found a verdict: it is this one's too. */
void epx_suspect_adopt(epx_suspect_t *suspect, const epx_verdict_t *told, int64_t now);

/* Lets go where the job moves again, or has been mended: what was found is history. */
void epx_suspect_calm_down(epx_suspect_t *suspect, int64_t now);

#endif
