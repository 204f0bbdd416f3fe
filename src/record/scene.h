/* The walk along the waits, and what can be asked of its end. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_RECORD_SCENE_H
#define EPX_RECORD_SCENE_H

#include "record/evidence.h"

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
    int64_t silent_ns;             /* how long it has been there, where that is not its age; 0: it is */
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

/* ---- what rules ask ---- */

/* The facts of its root. */
const epx_rank_facts_t *epx_scene_root(const epx_scene_t *scene);
/* Whether the budget is over. */
int epx_scene_is_late(const epx_scene_t *scene);
/* Everything that keeps a rank outside from being called stuck. */
int epx_scene_is_excused(const epx_scene_t *scene);
/* How long a thread that runs may go without a word: three budgets, and as much again twice where it has to
 * share its processor. */
int64_t epx_scene_patience_ns(const epx_scene_t *scene);
/* The root's last call has failed since another one did not come, or was lost: who waits for it now has come
 * late, and whom it had waited for then is not known any more. */
int epx_scene_has_given_up(const epx_scene_t *scene);
/* Nobody can ask what the victim's thread does (another host's, say), and its watchdog has stopped writing:
 * the whole process may be stopped or gone. */
int epx_scene_is_silent(const epx_scene_t *scene);
/* The root is in no call: the first one of the victim's stream that it has not made, which ranks that run
 * ahead may have left behind them; 0: it has made none before, or the victim's are of a device. */
int epx_scene_first_missed(const epx_scene_t *scene, epx_record_operation_t *op_p);
/* The root is a rank that waits for nobody, at this place. */
int epx_scene_stands(const epx_scene_t *scene, epx_rank_place_t place);

#endif
