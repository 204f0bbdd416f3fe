/* Rules: calls that do not fit together, and signals. SPDX-License-Identifier: Apache-2.0 */
#include "record/rules_calls.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "record/find.h"

/* ---- calls that do not fit together ------------------------------------------------------------------------------ */

int epx_rule_differs(const epx_scene_t *s, epx_verdict_t *v)
{
    if (s->at != EPX_ROOT_DESYNC || !epx_scene_is_late(s))
        return 0;
    const epx_rank_facts_t *a = &s->room[s->victim], *b = epx_scene_root(s);
    int32_t like_root = 0, like_victim = 0;
    for (int32_t r = 0; r < s->job->ranks; r++) {
        epx_record_operation_t other;
        if (s->room[r].record == NULL || epx_facts_find(s->room[r].record, &s->op, &other) != EPX_OP_HAS)
            continue;
        int same =
            other.kind == s->op.kind && other.wave == s->op.wave && other.signature == s->op.signature &&
            strcmp(epx_record_kind_of(s->room[r].record, &other), epx_record_kind_of(a->record, &s->op)) == 0;
        like_victim += same;
        like_root += !same;
    }
    /* Who differs from most; of two the one that is waited for. */
    int32_t odd = like_victim >= like_root ? s->root : s->victim;
    v->rank = odd;
    v->peer = odd == s->root ? s->victim : s->root;
    snprintf(v->field, sizeof(v->field), "%s", s->field);
    snprintf(v->text, sizeof(v->text),
             "under the same number rank %d calls %s wave %d (%" PRId64
             " bytes) and rank %d calls %s wave %d (%" PRId64 " bytes)",
             s->root, epx_record_kind_of(b->record, &s->others), s->others.wave, s->others.bytes, s->victim,
             epx_record_kind_of(a->record, &s->op), s->op.wave, s->op.bytes);
    return 1;
}

int epx_rule_order(const epx_scene_t *s, epx_verdict_t *v)
{
    if (s->at != EPX_ROOT_CYCLE || !s->one_group || !epx_scene_is_late(s))
        return 0;
    v->rank = s->root;
    snprintf(v->field, sizeof(v->field), "order");
    snprintf(v->text, sizeof(v->text),
             "ranks of one group are in different calls of it and wait for each other");
    return 1;
}

int epx_rule_circle(const epx_scene_t *s, epx_verdict_t *v)
{
    if (s->at != EPX_ROOT_CYCLE || !epx_scene_is_late(s))
        return 0;
    size_t used = 0;
    v->rank = s->root;
    v->cycle_count = s->cycle_count;
    memcpy(v->cycle, s->cycle, sizeof(v->cycle));
    for (int32_t i = 0; i < s->cycle_count && used < sizeof(v->text) - 96; i++) {
        const epx_rank_facts_t *f = &s->room[s->cycle[i]];
        const epx_record_group_row_t *group = epx_record_group_row(f->record, f->op.group);
        used += (size_t)snprintf(v->text + used, sizeof(v->text) - used,
                                 "%srank %d in %s of %.40s waits for rank %d", i > 0 ? ", " : "", s->cycle[i],
                                 epx_record_kind_of(f->record, &f->op), group != NULL ? group->name : "?",
                                 f->next);
    }
    return 1;
}

/* ---- signals ---------------------------------------------------------------------------------------------------- */

/* A rank that is stopped or gone looks at no word: what it would wait for may long be there. */
static int looks(const epx_scene_t *s)
{
    return s->victim >= 0 && s->room[s->victim].life < EPX_LIFE_STOPPED && !epx_scene_is_silent(s);
}

int epx_rule_skewed(const epx_scene_t *s, epx_verdict_t *v)
{
    if (!looks(s) || s->at == EPX_ROOT_CYCLE || s->at == EPX_ROOT_DESYNC || !epx_scene_is_late(s))
        return 0;
    const epx_rank_facts_t *f = &s->room[s->victim];
    if (f->progress.number == 0 || f->progress.wait_mode != 0 || f->progress.wait.peer < 0)
        return 0;
    uint64_t expected = f->progress.wait.expected, seen = f->progress.wait.seen,
             previous = f->progress.previous;
    int of_words = f->op.kind != EPX_RECORD_FOREIGN;
    int behind = previous != 0 && epx_epoch_is_beyond(previous, seen, of_words);
    if (f->stands != EPX_STANDS_NOT) /* the previous one is as the host counts */
        behind = previous != 0 && epx_record_call_of(seen) < epx_record_call_of(previous);
    int ahead = epx_epoch_is_beyond(seen, expected, of_words);
    int other = s->at == EPX_ROOT_SIGNAL && s->sent != 0 && epx_epoch_is_beyond(expected, s->sent, of_words);
    if (!behind && !ahead && !other)
        return 0;
    v->rank = s->root;
    v->peer = s->victim;
    if (other)
        snprintf(v->text, sizeof(v->text),
                 "rank %d has sent epoch %" PRIu64 " where rank %d expects %" PRIu64, s->root, s->sent,
                 s->victim, expected);
    else
        snprintf(v->text, sizeof(v->text),
                 "the word of rank %d at rank %d is %s: epoch %" PRIu64 " where %" PRIu64 " is expected",
                 s->root, s->victim, behind ? "older than the one before" : "ahead", seen, expected);
    return 1;
}

int epx_rule_lost(const epx_scene_t *s, epx_verdict_t *v)
{
    if (s->at != EPX_ROOT_SIGNAL || !epx_scene_is_late(s) || !looks(s))
        return 0;
    const epx_rank_facts_t *f = &s->room[s->victim];
    /* Sent a moment ago is not lost. */
    int64_t sent_ns = s->others.posted_ns != 0 ? s->others.posted_ns : s->others.begun_ns;
    if (s->others.number != 0 && s->job->now_ns - (sent_ns - s->job->rank[s->root].ahead_ns) < s->budget_ns)
        return 0;
    if (s->sent_ns != 0 && s->job->now_ns - s->sent_ns < s->budget_ns)
        return 0;
    uint64_t seen = f->progress.wait.seen, expected = f->progress.wait.expected;
    int is_credit = f->progress.wait_mode == 1;
    if (f->next_place >= 0 && f->progress.wait_mode <= 1 &&
        (seen == expected || (is_credit && epx_epoch_is_beyond(seen, expected, 1))))
        return 0; /* it is here: the rank is about to go on */
    if (f->works && f->life == EPX_LIFE_UNKNOWN)
        return 0; /* it is ready to look, and others have the processor */
    v->rank = s->root;
    v->peer = s->victim;
    snprintf(v->text, sizeof(v->text), "rank %d says that it has sent, %.1f s ago; rank %d has not seen it",
             s->root,
             s->sent_ns != 0         ? (double)(s->job->now_ns - s->sent_ns) * 1e-9
             : s->others.number != 0 ? (double)(s->job->now_ns - sent_ns) * 1e-9
                                     : (double)s->age_ns * 1e-9,
             s->victim);
    return 1;
}
