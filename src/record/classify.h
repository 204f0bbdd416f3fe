/*
 * From the ranks' records to one verdict. SPDX-License-Identifier: Apache-2.0
 *
 * A pure function of its arguments: it reads records, asks no clock and no system, allocates nothing, so that
 * tests and simulations can feed it. It knows nothing of injected faults. The rules stand in rules.c as a
 * table.
 */
#ifndef EPX_RECORD_CLASSIFY_H
#define EPX_RECORD_CLASSIFY_H

#include <epx/record.h>

#include "record/format.h"

/* What the system says of the thread that plays a rank. */
typedef enum epx_rank_life {
    EPX_LIFE_UNKNOWN = 0, /* on a host that cannot be asked, or from files alone */
    EPX_LIFE_RUNS,        /* it has used its processor since the last look */
    EPX_LIFE_SLEEPS,      /* it is there and has used none */
    EPX_LIFE_STOPPED,
    EPX_LIFE_GONE /* the process, or the thread in it, has ended */
} epx_rank_life_t;

/* Evidence about one rank of the job. */
typedef struct epx_rank_evidence {
    const void *record; /* [bytes], may be written meanwhile; NULL: there is none */
    size_t bytes;
    epx_rank_life_t life;
    int32_t
        works; /* 1: it has child processes that run, or reads, writes or takes new memory: a compilation */
    int64_t ahead_ns;           /* its clock minus the judge's, 0 on one host */
    uint64_t marks, heartbeats; /* counts at the last look, EPX_NO_LOOK: there was none */
} epx_rank_evidence_t;

#define EPX_NO_LOOK UINT64_MAX

typedef struct epx_job_evidence {
    const epx_rank_evidence_t *rank; /* [ranks] in the order of the job */
    int32_t ranks;
    int64_t now_ns; /* of the judge's clock */
} epx_job_evidence_t;

/* Room for the walk: [ranks] each, of the caller. */
typedef struct epx_classify_room {
    int32_t *next, *step;
} epx_classify_room_t;

/*
 * Fills *verdict_p (begun with EPX_VERDICT_INIT). kind NONE: nobody has waited longer than the budget that
 * holds for it, and nobody whom others need is gone. SLOW: late, but moving.
 */
void epx_classify(const epx_job_evidence_t *job, const epx_classify_room_t *room, epx_verdict_t *verdict_p);

/* The action and exit code of a kind of verdict. */
epx_action_t epx_verdict_action(epx_verdict_kind_t kind, int32_t *exit_code_p);

/* ---- reading records ---- */

/* Whether these bytes are a record that this version reads; else *why_p says why not (static). */
int epx_record_is_one(const void *record, size_t bytes, const char **why_p);
/* Copies; 0: there is no such (complete) row. number: 1 .. head.operations; the last ops_max are there. */
int epx_record_operation(const void *record, uint64_t number, epx_record_operation_t *row_p);
int epx_record_event(const void *record, uint64_t number, epx_record_event_t *row_p);
/* Progress words of an operation; *peers_p their row (NULL: reused). Words may move. */
const epx_record_progress_t *epx_record_progress(const void *record, const epx_record_operation_t *op,
                                                 const epx_record_peer_t **peers_p);
const epx_record_group_row_t *epx_record_group_row(const void *record, uint32_t index);
/* Rank of the job of a member, -1: not known. */
int32_t epx_record_member(const void *record, uint32_t group, int32_t rank);
const char *epx_record_text_of(const void *record, uint32_t text);
/* "dispatch", "all_reduce": the kind's name or a foreign operation's text. */
const char *epx_record_kind_of(const void *record, const epx_record_operation_t *op);

#endif
