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

typedef struct epx_rank_facts {
    const void *record;
    epx_rank_place_t place;
    epx_rank_life_t life;
    int32_t works, starves;
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
    int32_t use;     /* percent of the last moments in which its device executed something; -1: not known */
    uint32_t mark;   /* text id of the last marker, of the host's order or the stream's */
} epx_rank_facts_t;

/*
 * Fills *verdict_p (begun with EPX_VERDICT_INIT) and room [ranks]. kind NONE: nobody has waited longer than
 * the budget that holds for it, and nobody whom others wait for is gone. SLOW: late, but moving.
 */
void epx_classify(const epx_job_evidence_t *job, epx_rank_facts_t *room, epx_verdict_t *verdict_p);

/* The action and exit code of a kind of verdict. */
epx_action_t epx_verdict_action(epx_verdict_kind_t kind, int32_t *exit_code_p);

/* "HOST_ABSENT(rank 3)", "SIGNAL_LOST(2 -> 5)", "DEADLOCK(0 -> 2 -> 0)", as reports write it. */
void epx_verdict_title(const epx_verdict_t *verdict, char *text, size_t bytes);

/* ---- reading records ---- */

/* Whether these bytes are a record that this version reads; else *why_p says why not (static). */
int epx_record_is_one(const void *record, size_t bytes, const char **why_p);
/* Copies; 0: there is no such (complete) row. number: 1 .. head.operations; the last ops_max are there. */
int epx_record_operation(const void *record, uint64_t number, epx_record_operation_t *row_p);
int epx_record_event(const void *record, uint64_t number, epx_record_event_t *row_p);
/* number: 1 .. head.links; the last links_max are there. */
int epx_record_link_row(const void *record, uint64_t number, epx_record_link_row_t *row_p);
/* Copies the first `bytes` of an operation's progress words, its peers' behind them; 0: they are another's by
 * now. Words may move. */
int epx_record_progress_copy(const void *record, const epx_record_operation_t *op, void *copy, size_t bytes);
/* Where they are; *peers_p their row (NULL: reused). */
const epx_record_progress_t *epx_record_progress(const void *record, const epx_record_operation_t *op,
                                                 const epx_record_peer_t **peers_p);
const epx_record_group_row_t *epx_record_group_row(const void *record, uint32_t index);
/* Rank of the job of a member, -1: not known. */
int32_t epx_record_member(const void *record, uint32_t group, int32_t rank);
const char *epx_record_text_of(const void *record, uint32_t text);
/* "dispatch", "all_reduce": the kind's name or a foreign operation's text. */
const char *epx_record_kind_of(const void *record, const epx_record_operation_t *op);

#endif
