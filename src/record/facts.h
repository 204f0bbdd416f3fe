/* What the classifier's walk and its rules share. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_RECORD_FACTS_H
#define EPX_RECORD_FACTS_H

#include "record/classify.h"

/* How a rank stands to an operation of another. */
typedef enum epx_has_op {
    EPX_OP_LACKS = 0, /* it has not made it */
    EPX_OP_HAS,
    EPX_OP_PASSED, /* made so long ago that the ring has lost it */
    EPX_OP_SKIPPED /* it has made a later one of the same stream, and not this one */
} epx_has_op_t;

epx_has_op_t epx_facts_find(const void *record, const epx_record_operation_t *like,
                            epx_record_operation_t *found_p);

/* ---- lanes.c: what devices have written ---- */

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

/* Fills room [ranks], all but `step`. */
void epx_facts_gather(const epx_job_evidence_t *job, epx_rank_facts_t *room);

/* Whether an epoch of a group's words can only come after another: its pass has a higher number, or in the
 * same pass and route a later call. Epochs of a pass that died have the same pass and another route: neither
 * way. of_words 0: plain numbers. */
int epx_epoch_is_beyond(uint64_t a, uint64_t b, int of_words);

/* Where the walk from a waiting rank to the root has ended. */
typedef enum epx_root {
    EPX_ROOT_NONE = 0,
    EPX_ROOT_ERROR,   /* `root` has reported an error that ends its group */
    EPX_ROOT_DESYNC,  /* `root` makes another call than `victim` under the same number; `field` */
    EPX_ROOT_SIGNAL,  /* `root` has sent what `victim` waits for */
    EPX_ROOT_SKIPPED, /* `root` has gone on without the victim's operation */
    EPX_ROOT_PLACE,   /* `root` waits for nobody: see its facts */
    EPX_ROOT_CYCLE,   /* from `root` back to `root` */
    EPX_ROOT_NOBODY   /* the victim waits, and nothing says for whom */
} epx_root_t;

typedef struct epx_scene {
    const epx_job_evidence_t *job;
    const epx_rank_facts_t *room;
    epx_root_t at;
    int32_t root, victim;          /* ranks of the job; victim -1: nobody waits for it */
    int64_t age_ns, budget_ns;     /* of the edge at the root */
    epx_record_operation_t op;     /* the victim's, or the root's own where there is none */
    epx_record_operation_t others; /* the root's operation of the same identity; number 0: none */
    uint64_t sent;                 /* SIGNAL: the epoch that the root says it has sent; 0: it does not say */
    int64_t sent_ns;               /* of the judge's clock, where a device has said so; 0 */
    const char *field;             /* DESYNC */
    int32_t cycle[EPX_VERDICT_CYCLE], cycle_count;
    int32_t one_group;  /* CYCLE: all of it within one group */
    int32_t one_strays; /* CYCLE: rank that alone is elsewhere while all others of a group are in one
                           operation; -1 */
} epx_scene_t;

/* Walks from a rank that waits (or is enqueued) to its root. id: unlike those of other walks, > 0. */
void epx_scene_walk(const epx_job_evidence_t *job, epx_rank_facts_t *room, int32_t from, int32_t id,
                    epx_scene_t *scene_p);

/* The newest event of one of two kinds at or after a time of the record's clock; 0: none. */
int epx_facts_event(const void *record, uint32_t what, uint32_t or_what, int64_t since_ns,
                    epx_record_event_t *event_p);

/* ---- rules.c ---- */

typedef struct epx_rule {
    const char *name;
    epx_verdict_kind_t verdict;
    const char *condition;
    /* Fills what it knows of the verdict (rank, peer, field) when it holds. */
    int (*holds)(const epx_scene_t *scene, epx_verdict_t *verdict);
} epx_rule_t;

/* The first that holds is the verdict; ends with UNKNOWN, which always holds. Also the order between scenes.
 * docs/hangs.md has the same table, row for row; a test compares them. */
extern const epx_rule_t epx_rules[];
extern const int32_t epx_rules_count;

#endif
