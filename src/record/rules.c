/* The rules: condition -> verdict. SPDX-License-Identifier: Apache-2.0 */
#include "record/rules.h"

#include <stdio.h>

#include "record/read.h"
#include "record/rules_before.h"
#include "record/rules_calls.h"
#include "record/rules_hosts.h"
#include "record/rules_links.h"

/*
 * A scene is where the walk along the waits has ended: an edge from a victim to the root, a circle, or an
 * error. The first row whose condition holds is the verdict of a scene; of several scenes (every waiting rank
 * is walked from) the one with the earliest row is the job's. Every condition is of evidence: records, what
 * the system says of a thread, link events. A row that could also be something else must not hold; the last
 * one always does.
 */

static int is_slow(const epx_scene_t *s, epx_verdict_t *v)
{
    const epx_rank_facts_t *f = epx_scene_root(s);
    if (s->at != EPX_ROOT_PLACE || s->victim < 0 || !epx_scene_is_late(s) || f->record == NULL)
        return 0;
    int inside =
        f->place == EPX_PLACE_INSIDE && f->life == EPX_LIFE_RUNS && s->age_ns < epx_scene_patience_ns(s);
    int outside = f->place == EPX_PLACE_OUTSIDE && (f->works || f->life == EPX_LIFE_RUNS) &&
                  s->age_ns < epx_scene_patience_ns(s);
    if (!f->moves && !inside && !outside)
        return 0;
    v->rank = s->root;
    snprintf(v->text, sizeof(v->text), "rank %d is late and moves", s->root);
    return 1;
}

/* Within its budget, or in a pause that was announced. */
static int is_nothing(const epx_scene_t *s, epx_verdict_t *v)
{
    (void)v;
    if (s->at == EPX_ROOT_ERROR)
        return 0;
    if (!epx_scene_is_late(s) || epx_scene_root(s)->paused || (s->victim >= 0 && s->room[s->victim].paused))
        return 1;
    if (s->at == EPX_ROOT_SIGNAL) /* not lost yet; but who has fallen silent may never look */
        return !epx_scene_is_silent(s);
    /* A rank that is inside an operation for which nobody waits, or about to be waited for, is at work. */
    return s->victim < 0 && epx_scene_root(s)->place != EPX_PLACE_ENQUEUED;
}

static int is_unknown(const epx_scene_t *s, epx_verdict_t *v)
{
    const epx_rank_facts_t *f = epx_scene_root(s);
    v->rank = -1;
    if (s->at == EPX_ROOT_NOBODY)
        snprintf(v->text, sizeof(v->text),
                 "rank %d waits, everybody of its group has made the call, and no word says who is missing",
                 s->root);
    else if (s->at == EPX_ROOT_SIGNAL)
        snprintf(v->text, sizeof(v->text),
                 "rank %d has sent what rank %d waits for, which cannot be asked about and has fallen silent",
                 s->root, s->victim);
    else if (f->record == NULL)
        snprintf(v->text, sizeof(v->text), "rank %d waits for rank %d, of which there is no record",
                 s->victim, s->root);
    else if (epx_scene_has_given_up(s))
        snprintf(v->text, sizeof(v->text),
                 "rank %d waits for rank %d, which has given up %.1f s ago: its %.55s failed with %s",
                 s->victim, s->root, (double)(s->job->now_ns - f->since_ns) * 1e-9,
                 epx_record_kind_of(f->record, &f->op), epx_status_name((epx_status_t)f->op.status));
    else if (s->victim < 0)
        snprintf(v->text, sizeof(v->text), "rank %d is %s; what holds it there was not observed", s->root,
                 f->place == EPX_PLACE_ENQUEUED ? "in a call that has not begun" : "not in a call");
    else if (f->place == EPX_PLACE_ENQUEUED)
        snprintf(v->text, sizeof(v->text),
                 "rank %d waits for rank %d, whose call has not begun; what holds it there was not observed",
                 s->victim, s->root);
    else
        snprintf(v->text, sizeof(v->text),
                 "rank %d waits for rank %d, which is %s; what holds it there was not observed", s->victim,
                 s->root, f->place == EPX_PLACE_INSIDE ? "inside the operation" : "not in a call");
    return 1;
}

const epx_rule_t epx_rules[] = {
    {"corrupt", EPX_VERDICT_CORRUPT, "a rank has reported that data is not what was sent", epx_rule_corrupt},
    {"gone", EPX_VERDICT_HOST_ABSENT,
     "the root's process has ended, and somebody has waited for it for 0.5 s", epx_rule_gone},
    {"stopped", EPX_VERDICT_HOST_ABSENT,
     "the root's thread is stopped, and somebody has waited for it for 1 s", epx_rule_stopped},
    {"differs", EPX_VERDICT_DESYNC, "kind, wave, signature or size differ under the same number",
     epx_rule_differs},
    {"link", EPX_VERDICT_LINK, "a link or device error came first in the time of the wait", epx_rule_link},
    {"skipped", EPX_VERDICT_HOST_ABSENT,
     "the root has made later calls of the group's lane, and not this one", epx_rule_skipped},
    {"empty", EPX_VERDICT_RESOURCE, "the root waits for a pool that it says is empty", epx_rule_empty},
    {"blocks", EPX_VERDICT_NOT_RESIDENT, "the root has begun, and fewer blocks than it has have arrived",
     epx_rule_blocks},
    {"busy", EPX_VERDICT_STUCK_BEFORE_OP,
     "called and not begun, the device busy or the thread running; or not called, the last thing a marker, "
     "the thread running without new memory, files or children (for 3 budgets where others have its "
     "processor); "
     "no mark or heartbeat within the budget",
     epx_rule_busy},
    {"idle", EPX_VERDICT_STREAM_BLOCKED, "called and not begun, the device idle or the thread asleep",
     epx_rule_idle},
    {"left", EPX_VERDICT_HOST_ABSENT, "the root's thread has ended, or it has closed its record",
     epx_rule_left},
    {"skewed", EPX_VERDICT_EPOCH_SKEW,
     "the awaited word is older than its last good value, or beyond the expected one, or the root says it "
     "sent another",
     epx_rule_skewed},
    {"lost", EPX_VERDICT_SIGNAL_LOST,
     "the root says that it has sent, a budget ago; the victim has not seen it", epx_rule_lost},
    {"strays", EPX_VERDICT_HOST_ABSENT,
     "a circle, and one rank alone is outside the operation of all others (three or more)", epx_rule_strays},
    {"order", EPX_VERDICT_DESYNC, "a circle within one group: its calls are made in different orders",
     epx_rule_order},
    {"circle", EPX_VERDICT_DEADLOCK, "a circle", epx_rule_circle},
    {"elsewhere", EPX_VERDICT_HOST_ABSENT,
     "not called; asleep without mark or heartbeat within the budget; or running without a marker for 3 "
     "budgets, for 9 where others have its processor",
     epx_rule_elsewhere},
    {"slow", EPX_VERDICT_SLOW, "late, and marks, heartbeats or the thread's work move", is_slow},
    {"nothing", EPX_VERDICT_NONE, "within the budget, or announced, or at work that nobody waits for",
     is_nothing},
    {"unknown", EPX_VERDICT_UNKNOWN, "anything else", is_unknown},
};

const int32_t epx_rules_count = sizeof(epx_rules) / sizeof(epx_rules[0]);
