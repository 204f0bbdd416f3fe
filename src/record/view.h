/* All records of one job that can be reached from here, and what the system says of its threads.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_RECORD_VIEW_H
#define EPX_RECORD_VIEW_H

#include "record/classify.h"
#include "record/recorder_types.h"
#include "record/system.h"

/* Everything about one rank of a job that is being looked at. */
typedef struct epx_looked_at {
    const void *record; /* mapped read-only, or a recorder's own memory; NULL: none yet */
    size_t bytes;
    int32_t is_mapped;
    uint64_t inode;
    epx_system_thread_info_t before; /* at the last look */
    int64_t before_ns;
    epx_rank_life_t life;
    int32_t works, starves;
    int32_t ready;      /* looks in a row at which it was ready to run */
    int64_t ready_ns;   /* since the first of them */
    int32_t is_summary; /* `record` is a copy of what the rank told, on another host */
    int64_t heard_ns;   /* when a summary last showed that its watchdog runs */
    int32_t is_dead;    /* its process has ended, as its host's neighbours know */
} epx_looked_at_t;

enum { EPX_VIEW_FOLDERS = 15 };

/* All records of one job that can be reached from here. */
typedef struct epx_job_view {
    char folder[EPX_RECORDER_PATH_BYTES], job[64];
    int32_t ranks;
    epx_looked_at_t *rank;         /* [ranks] */
    epx_rank_evidence_t *evidence; /* [ranks] */
    epx_rank_facts_t *facts;       /* [ranks] */
    int64_t after_ns, early_ns;
    int32_t folders; /* more than the first */
    char more[EPX_VIEW_FOLDERS][EPX_RECORDER_PATH_BYTES];
} epx_job_view_t;

/* NULL: no memory. */
epx_job_view_t *epx_view_open(const char *folder, const char *job, int32_t ranks);
void epx_view_close(epx_job_view_t **view_p);
/* Maps what has come, lets go of what was replaced. */
void epx_view_map(epx_job_view_t *view);
/* Takes the pages of a rank of this process in the place of a file that is not there any more. They are let
 * go of by epx_view_drop before they go. */
void epx_view_take(epx_job_view_t *view, int32_t rank, const void *record, size_t bytes);
void epx_view_drop(epx_job_view_t *view, int32_t rank, const void *record);
/* Takes a summary in the place of a file that is not here; dead: of a rank whose process has ended. */
void epx_view_hear(epx_job_view_t *view, int32_t rank, int dead, const void *summary, size_t bytes);
/* How many ranks have no file here. */
int32_t epx_view_missing(const epx_job_view_t *view);
/* Asks the system about one. */
void epx_view_look_at(epx_looked_at_t *rank, int64_t now_ns);
/* Asks the system about every rank's thread that it can ask about. A life is known at the second look. */
void epx_view_look(epx_job_view_t *view, int64_t now_ns);
/* Both in turn, then the classifier. now_ns 0: the latest time in the records (files alone). */
void epx_view_classify(epx_job_view_t *view, int64_t now_ns, epx_verdict_t *verdict_p);

#endif
