/* Evidence about the ranks of a job, and the facts that are made of it. SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_RECORD_EVIDENCE_H
#define EPX_RECORD_EVIDENCE_H

#include <epx/record.h>

#include "record/format.h"

/* What the system says of the thread that plays a rank. */
typedef enum epx_rank_life {
    EPX_LIFE_UNKNOWN =
        0, /* on a host that cannot be asked, or from files alone: the record's own last look counts */
    EPX_LIFE_RUNS,   /* it has used its processor since the last look */
    EPX_LIFE_SLEEPS, /* it is there and has used none */
    EPX_LIFE_STOPPED,
    EPX_LIFE_THREAD_GONE, /* the thread has ended, its process has not */
    EPX_LIFE_GONE
} epx_rank_life_t;

/* Evidence about one rank of the job. */
typedef struct epx_rank_evidence {
    const void *record; /* a whole record, may be written meanwhile; NULL: there is none */
    epx_rank_life_t life;
    int32_t works;    /* 1: children of it run, or it takes new memory or reads files: a compilation, say */
    int32_t starves;  /* 1: it is ready to run all the time, and others have the processor for much of it */
    int64_t ahead_ns; /* its clock minus the judge's, 0 on one host */
} epx_rank_evidence_t;

typedef struct epx_job_evidence {
    const epx_rank_evidence_t *rank; /* [ranks] in the order of the job */
    int32_t ranks;
    int64_t now_ns;   /* of the judge's clock */
    int64_t after_ns; /* errors that were reported before are old news */
    int64_t early_ns; /* so much of a budget may be missing: the judge's own time counts into it */
} epx_job_evidence_t;

/* Where a rank is; kept in the room for reports. */
typedef enum epx_rank_place {
    EPX_PLACE_NO_RECORD = 0,
    EPX_PLACE_CLOSED,
    EPX_PLACE_OUTSIDE,  /* in no operation */
    EPX_PLACE_ENQUEUED, /* `op` was called and has not begun */
    EPX_PLACE_INSIDE,   /* `op` has begun and waits for nobody */
    EPX_PLACE_WAITS     /* in `op`, for rank `next` */
} epx_rank_place_t;

/* How a rank's stream stands, where that and not its host decides. */
typedef enum epx_rank_stands {
    EPX_STANDS_NOT = 0, /* the host's record says where the rank is */
    EPX_STANDS_WAITING, /* WAITS: a kernel says for whom */
    EPX_STANDS_BEHIND,  /* WAITS: it has begun what rank `next` has not */
    EPX_STANDS_BEFORE   /* ENQUEUED: the host has made the call, its first kernel has not begun */
} epx_rank_stands_t;

enum { EPX_USE_UNCLEAR = -2 };

typedef struct epx_rank_facts {
    const void *record;
    epx_rank_place_t place;
    epx_rank_life_t life;
    int32_t works, starves;
    int32_t asked;                  /* 1: `life` is of a moment ago, not what its record says of itself */
    epx_record_operation_t op;      /* of ENQUEUED, INSIDE, WAITS; else the last one, number 0: none */
    epx_record_progress_t progress; /* number 0: its words are gone */
    int32_t next;                   /* WAITS: rank of the job, -1: not known */
    int32_t next_place;             /* the same in the group */
    int64_t since_ns;               /* of the judge's clock: since when it has been there */
    int64_t budget_ns;              /* that holds for it now */
    int32_t paused;                 /* 1: in an announced pause that is not over */
    int32_t moves;                  /* 1: marks or heartbeats have moved within the budget */
    int64_t last_sign_ns;           /* of the last mark or heartbeat */
    int32_t marked_last;            /* 1: its last call ended before its last mark */
    int32_t step;                   /* of the walk */
    /* From what its device has written; lane NULL: nothing, the fields above are of the host's record alone.
     */
    const epx_record_lane_row_t *lane;
    epx_rank_stands_t stands;
    int64_t told_ns; /* of the judge's clock: the last store of that lane */
    int32_t use; /* percent of the last moments in which its device executed something of its process; -1: not
                    known, EPX_USE_UNCLEAR: it did, and for whom is not known */
    uint32_t mark; /* text id of the last marker, of the host's order or the stream's */
} epx_rank_facts_t;

#endif
