/* Rules: a rank that does not come. SPDX-License-Identifier: Apache-2.0 */
#include "record/rules_hosts.h"

#include <stdio.h>

#include "record/read.h"

enum { GONE_MS = 500, STOPPED_MS = 1000 };

static void say_where(const epx_scene_t *s, epx_verdict_t *v, const char *why)
{
    const epx_rank_facts_t *f = epx_scene_root(s);
    char where[160] = "";
    if (f->record != NULL && f->place == EPX_PLACE_WAITS)
        snprintf(where, sizeof(where), "; it is in %s", epx_record_kind_of(f->record, &f->op));
    else if (f->record != NULL && f->op.number != 0)
        snprintf(where, sizeof(where), "; its last call was %s, %.1f s ago",
                 epx_record_kind_of(f->record, &f->op), (double)(s->job->now_ns - f->since_ns) * 1e-9);
    v->rank = s->root;
    snprintf(v->text, sizeof(v->text), "rank %d %s%s", s->root, why, where);
}

int epx_rule_gone(const epx_scene_t *s, epx_verdict_t *v)
{
    const epx_rank_facts_t *f = epx_scene_root(s);
    if (s->victim < 0 || s->at != EPX_ROOT_PLACE || f->life != EPX_LIFE_GONE ||
        s->age_ns < GONE_MS * (int64_t)1000000 || epx_scene_has_given_up(s))
        return 0;
    say_where(s, v,
              f->place == EPX_PLACE_CLOSED ? "has left in good order and its process has ended"
                                           : "is no more: its process has ended");
    return 1;
}

int epx_rule_stopped(const epx_scene_t *s, epx_verdict_t *v)
{
    if (s->victim < 0 || s->at != EPX_ROOT_PLACE || epx_scene_root(s)->life != EPX_LIFE_STOPPED ||
        s->age_ns < STOPPED_MS * (int64_t)1000000)
        return 0;
    say_where(s, v, "is stopped (SIGSTOP or a debugger)");
    return 1;
}

int epx_rule_stopped_soon(const epx_scene_t *s)
{
    return s->victim >= 0 && s->at == EPX_ROOT_PLACE && epx_scene_root(s)->life == EPX_LIFE_STOPPED &&
           s->age_ns < STOPPED_MS * (int64_t)1000000;
}

int epx_rule_skipped(const epx_scene_t *s, epx_verdict_t *v)
{
    if (s->at != EPX_ROOT_SKIPPED || !epx_scene_is_late(s))
        return 0;
    say_where(s, v, "has no record of the operation and has made later ones of the same group");
    return 1;
}

int epx_rule_left(const epx_scene_t *s, epx_verdict_t *v)
{
    if (s->victim < 0 || !epx_scene_is_late(s) || epx_scene_has_given_up(s) ||
        !(epx_scene_stands(s, EPX_PLACE_CLOSED) ||
          (s->at == EPX_ROOT_PLACE && epx_scene_root(s)->life == EPX_LIFE_THREAD_GONE)))
        return 0;
    say_where(s, v,
              epx_scene_root(s)->place == EPX_PLACE_CLOSED
                  ? "has ended in good order and others still wait for it"
                  : "is no more: its thread has ended");
    return 1;
}

/* In no call, asleep, without a sign of life; or running without a word far beyond the budget. */
int epx_rule_elsewhere(const epx_scene_t *s, epx_verdict_t *v)
{
    const epx_rank_facts_t *f = epx_scene_root(s);
    if (s->victim < 0 || !epx_scene_stands(s, EPX_PLACE_OUTSIDE) || !epx_scene_is_late(s) ||
        epx_scene_is_excused(s) || epx_scene_has_given_up(s))
        return 0;
    int patient = s->age_ns >= epx_scene_patience_ns(s);
    if (f->works && !patient)
        return 0;
    if (f->life == EPX_LIFE_RUNS && !patient)
        return 0;
    if (f->life == EPX_LIFE_UNKNOWN && f->marked_last)
        return 0; /* asleep or at work: nobody has looked */
    say_where(s, v,
              f->life == EPX_LIFE_RUNS ? "has not made the call and runs elsewhere"
                                       : "has not made the call and sleeps elsewhere");
    return 1;
}

int epx_rule_strays(const epx_scene_t *s, epx_verdict_t *v)
{
    if (s->at != EPX_ROOT_CYCLE || s->one_strays < 0 || !epx_scene_is_late(s))
        return 0;
    epx_scene_t at_stray = *s;
    at_stray.root = s->one_strays;
    say_where(&at_stray, v, "alone has not made the call that all others of its group are in");
    return 1;
}
