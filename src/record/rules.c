/* The rules: condition -> verdict. SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "record/facts.h"

/*
 * A scene is where the walk along the waits has ended: an edge from a victim to the root, a circle, or an
 * error. The first row whose condition holds is the verdict of a scene; of several scenes (every waiting rank
 * is walked from) the one with the earliest row is the job's. Every condition is of evidence: records, what
 * the system says of a thread, link events. A row that could also be something else must not hold; the last
 * one always does.
 */

enum {
    GONE_MS = 500,
    STOPPED_MS = 1000,
    PATIENT = 3,
    STARVED = 3,
    GENERATION_SHIFT = 48,
    PASS_SHIFT = 24,
    NUMBER_BITS = 14
};

static const epx_rank_facts_t *root_of(const epx_scene_t *s) { return &s->room[s->root]; }

static int is_late(const epx_scene_t *s) { return s->age_ns >= s->budget_ns; }

/* Everything that keeps a rank outside from being called stuck. */
static int is_excused(const epx_scene_t *s)
{
    const epx_rank_facts_t *f = root_of(s);
    return f->paused || f->moves;
}

/* How long a thread that runs may go without a word: three budgets, and as much again twice where it has to
 * share its processor. */
static int64_t patience_ns(const epx_scene_t *s)
{
    return PATIENT * (root_of(s)->starves ? STARVED : 1) * s->budget_ns;
}

/* The root's last call has failed since another one did not come, or was lost: who waits for it now has come
 * late, and whom it had waited for then is not known any more. */
static int has_given_up(const epx_scene_t *s)
{
    const epx_rank_facts_t *f = root_of(s);
    int32_t status = f->op.status;
    return s->at == EPX_ROOT_PLACE && f->record != NULL && f->op.number != 0 &&
           f->op.state == EPX_RECORD_ENDED &&
           (status == EPX_ERR_TIMEOUT || status == EPX_ERR_PEER || status == EPX_ERR_ABORTED ||
            status == EPX_ERR_FABRIC);
}

/* The root is a rank that waits for nobody, at this place. */
static int stands(const epx_scene_t *s, epx_rank_place_t place)
{
    return s->at == EPX_ROOT_PLACE && root_of(s)->place == place;
}

static int says(const epx_scene_t *s, epx_evidence_t what, epx_evidence_t or_what, epx_record_event_t *event)
{
    const epx_rank_facts_t *f = root_of(s);
    return f->record != NULL && epx_facts_event(f->record, (uint32_t)what, (uint32_t)or_what, 0, event);
}

/* Whether the root's device executes something: 1, 0, or -1 where nobody knows. */
enum { BUSY_PERCENT = 50, IDLE_PERCENT = 5 };
static int is_device_busy(const epx_scene_t *s)
{
    const epx_rank_facts_t *f = root_of(s);
    epx_record_event_t device;
    if (says(s, EPX_EVIDENCE_DEVICE_BUSY, EPX_EVIDENCE_DEVICE_IDLE, &device))
        return device.what == EPX_EVIDENCE_DEVICE_BUSY;
    if (f->use >= BUSY_PERCENT)
        return 1;
    return f->use >= 0 && f->use <= IDLE_PERCENT ? 0 : -1;
}

/* Whether the call stands on the host still: nothing of it has been given to the device that writes of its
 * group, so what else runs there does not hold it up. */
static int is_not_given(const epx_rank_facts_t *f)
{
    const epx_record_lane_row_t like = {.group_key = f->op.group_key, .lane = f->op.lane};
    return f->stands == EPX_STANDS_NOT && f->op.kind != EPX_RECORD_FOREIGN && f->op.device == 0 &&
           (f->life == EPX_LIFE_RUNS || f->life == EPX_LIFE_SLEEPS) &&
           epx_lanes_find(f->record, &like) != NULL;
}

/* The same of what a call that has not begun stands behind: the device where it was given to one, else the
 * thread. */
static int is_held_by_work(const epx_scene_t *s)
{
    const epx_rank_facts_t *f = root_of(s);
    if (is_not_given(f))
        return f->life == EPX_LIFE_RUNS;
    int busy = is_device_busy(s);
    if (busy >= 0)
        return busy;
    /* Nobody asked the device; its stream has come to a marker behind the last call, and not to the next. */
    if (f->stands == EPX_STANDS_BEFORE)
        return f->marked_last ? 1 : -1;
    return f->life == EPX_LIFE_RUNS ? 1 : f->life == EPX_LIFE_SLEEPS ? 0 : -1;
}

/* Its host counts otherwise than its device, which somebody waits for: a graph is replayed. */
static int is_in_graph(const epx_scene_t *s)
{
    const epx_rank_facts_t *f = root_of(s), *victim = s->victim >= 0 ? &s->room[s->victim] : NULL;
    if (victim == NULL || victim->stands != EPX_STANDS_WAITING || f->record == NULL ||
        !stands(s, EPX_PLACE_OUTSIDE))
        return 0;
    const epx_record_lane_row_t *lane = epx_lanes_find(f->record, victim->lane);
    return lane != NULL && lane->drifted;
}

/* ---- errors that were reported ---------------------------------------------------------------------------------- */

/* The number behind a phrase, -1: it is not there. */
static int32_t number_after(const char *text, const char *phrase)
{
    const char *at = strstr(text, phrase);
    if (at == NULL)
        return -1;
    at += strlen(phrase);
    char *end;
    long value = strtol(at, &end, 10);
    return end != at && value >= 0 && value <= INT32_MAX ? (int32_t)value : -1;
}

/* Who wrote what was found to be wrong: the sentences of the checks name the rank in one of these ways. */
static int32_t writer_in(const char *text)
{
    static const char *const phrases[] = {"from rank ", "at rank ", "which rank ", "a token of rank "};
    for (size_t i = 0; i < sizeof(phrases) / sizeof(phrases[0]); i++)
        if (number_after(text, phrases[i]) >= 0)
            return number_after(text, phrases[i]);
    return -1;
}

static int is_corrupt(const epx_scene_t *s, epx_verdict_t *v)
{
    if (s->at != EPX_ROOT_ERROR)
        return 0;
    const epx_record_head_t *head = root_of(s)->record;
    char text[sizeof(head->error_text)];
    snprintf(text, sizeof(text), "%.*s", (int)sizeof(text) - 1, head->error_text);
    int32_t writer = writer_in(text);
    int by_caller = strstr(text, "the caller's computation") != NULL && number_after(text, "at rank ") < 0;
    v->peer = s->root;
    v->rank = by_caller ? s->root : writer >= 0 ? epx_record_member(head, s->op.group, writer) : -1;
    snprintf(v->text, sizeof(v->text), "%.500s", text);
    return 1;
}

/* ---- links ------------------------------------------------------------------------------------------------------ */

/* The rank whose link or device error came first, in the time of this wait. */
static int32_t first_link_error(const epx_scene_t *s, epx_record_link_row_t *first)
{
    int32_t found = -1;
    int64_t since = s->job->now_ns - s->age_ns - 2 * s->budget_ns, best = INT64_MAX;
    for (int32_t r = 0; r < s->job->ranks; r++) {
        const epx_rank_evidence_t *e = &s->job->rank[r];
        const epx_record_head_t *head = e->record;
        if (head == NULL)
            continue;
        uint64_t newest = __atomic_load_n(&head->links, __ATOMIC_ACQUIRE);
        for (uint64_t n = newest; n > 0 && n + head->links_max > newest; n--) {
            epx_record_link_row_t event;
            if (!epx_record_link_row(head, n, &event) ||
                (event.what != EPX_EVIDENCE_LINK_ERROR && event.what != EPX_EVIDENCE_LINK_DOWN))
                continue;
            int64_t when = event.time_ns - e->ahead_ns;
            if (when >= since && when < best) {
                best = when;
                found = r;
                *first = event;
            }
        }
    }
    return found;
}

/* Whether the same link has come up again since. */
static int is_back(const void *record, const epx_record_link_row_t *down)
{
    const epx_record_head_t *head = record;
    uint64_t newest = __atomic_load_n(&head->links, __ATOMIC_ACQUIRE);
    for (uint64_t n = newest; n > down->number; n--) {
        epx_record_link_row_t event;
        if (epx_record_link_row(record, n, &event) && event.what == EPX_EVIDENCE_LINK_UP &&
            strcmp(event.name, down->name) == 0)
            return 1;
    }
    return 0;
}

static int is_link(const epx_scene_t *s, epx_verdict_t *v)
{
    epx_record_link_row_t first = {0};
    if (s->at == EPX_ROOT_DESYNC || s->at == EPX_ROOT_CYCLE || s->victim < 0 || !is_late(s))
        return 0;
    int32_t origin = first_link_error(s, &first);
    if (origin < 0)
        return 0;
    const void *record = s->room[origin].record;
    int back = is_back(record, &first);
    v->rank = origin;
    snprintf(v->field, sizeof(v->field), "%s",
             first.what == EPX_EVIDENCE_LINK_ERROR ? "error"
             : back                                ? "flap"
                                                   : "down");
    snprintf(v->text, sizeof(v->text), "%s of rank %d came first in time (%s); what waits now is its victim",
             first.what == EPX_EVIDENCE_LINK_ERROR ? "an error of a link or device" : "a link that went down",
             origin, first.name);
    return 1;
}

/* ---- hosts ------------------------------------------------------------------------------------------------------ */

static void say_where(const epx_scene_t *s, epx_verdict_t *v, const char *why)
{
    const epx_rank_facts_t *f = root_of(s);
    char where[160] = "";
    if (f->record != NULL && f->place == EPX_PLACE_WAITS)
        snprintf(where, sizeof(where), "; it is in %s", epx_record_kind_of(f->record, &f->op));
    else if (f->record != NULL && f->op.number != 0)
        snprintf(where, sizeof(where), "; its last call was %s, %.1f s ago",
                 epx_record_kind_of(f->record, &f->op), (double)(s->job->now_ns - f->since_ns) * 1e-9);
    v->rank = s->root;
    snprintf(v->text, sizeof(v->text), "rank %d %s%s", s->root, why, where);
}

static int is_gone(const epx_scene_t *s, epx_verdict_t *v)
{
    const epx_rank_facts_t *f = root_of(s);
    if (s->victim < 0 || s->at != EPX_ROOT_PLACE || f->life != EPX_LIFE_GONE ||
        s->age_ns < GONE_MS * (int64_t)1000000 || has_given_up(s))
        return 0;
    say_where(s, v,
              f->place == EPX_PLACE_CLOSED ? "has left in good order and its process has ended"
                                           : "is no more: its process has ended");
    return 1;
}

static int is_stopped(const epx_scene_t *s, epx_verdict_t *v)
{
    if (s->victim < 0 || s->at != EPX_ROOT_PLACE || root_of(s)->life != EPX_LIFE_STOPPED ||
        s->age_ns < STOPPED_MS * (int64_t)1000000)
        return 0;
    say_where(s, v, "is stopped (SIGSTOP or a debugger)");
    return 1;
}

static int has_skipped(const epx_scene_t *s, epx_verdict_t *v)
{
    if (s->at != EPX_ROOT_SKIPPED || !is_late(s))
        return 0;
    say_where(s, v, "has no record of the operation and has made later ones of the same group");
    return 1;
}

static int has_left(const epx_scene_t *s, epx_verdict_t *v)
{
    if (s->victim < 0 || !is_late(s) || has_given_up(s) ||
        !(stands(s, EPX_PLACE_CLOSED) ||
          (s->at == EPX_ROOT_PLACE && root_of(s)->life == EPX_LIFE_THREAD_GONE)))
        return 0;
    say_where(s, v,
              root_of(s)->place == EPX_PLACE_CLOSED ? "has ended in good order and others still wait for it"
                                                    : "is no more: its thread has ended");
    return 1;
}

/* In no call, asleep, without a sign of life; or running without a word far beyond the budget. */
static int is_elsewhere(const epx_scene_t *s, epx_verdict_t *v)
{
    const epx_rank_facts_t *f = root_of(s);
    if (s->victim < 0 || !stands(s, EPX_PLACE_OUTSIDE) || !is_late(s) || is_excused(s) || has_given_up(s))
        return 0;
    int patient = s->age_ns >= patience_ns(s);
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

static int strays(const epx_scene_t *s, epx_verdict_t *v)
{
    if (s->at != EPX_ROOT_CYCLE || s->one_strays < 0 || !is_late(s))
        return 0;
    epx_scene_t at_stray = *s;
    at_stray.root = s->one_strays;
    say_where(&at_stray, v, "alone has not made the call that all others of its group are in");
    return 1;
}

/* ---- before the operation --------------------------------------------------------------------------------------- */

static void name_marker(const epx_scene_t *s, epx_verdict_t *v, const char *how)
{
    const epx_rank_facts_t *f = root_of(s);
    uint32_t mark = f->place == EPX_PLACE_ENQUEUED && !f->marked_last && f->stands == EPX_STANDS_NOT
                        ? f->op.mark
                        : f->mark;
    int64_t since = f->last_sign_ns != 0 ? s->job->now_ns - f->last_sign_ns : 0;
    v->rank = s->root;
    snprintf(v->marker, sizeof(v->marker), "%.55s", epx_record_text_of(f->record, mark));
    if (mark != 0)
        snprintf(v->text, sizeof(v->text), "rank %d %s; its last marker is \"%s\", %.1f s ago", s->root, how,
                 v->marker, (double)since * 1e-9);
    else
        snprintf(v->text, sizeof(v->text), "rank %d %s; it has set no marker", s->root, how);
}

static int is_stuck_before(const epx_scene_t *s, epx_verdict_t *v)
{
    const epx_rank_facts_t *f = root_of(s);
    if (s->at != EPX_ROOT_PLACE || !is_late(s) || is_excused(s) || has_given_up(s))
        return 0;
    if (is_in_graph(s) && is_device_busy(s) == 1) {
        name_marker(s, v, "has not come to the operation, and its device is busy with something else");
        return 1;
    }
    if (f->place == EPX_PLACE_ENQUEUED) {
        if (is_held_by_work(s) != 1)
            return 0;
        name_marker(s, v, "has made the call, which has not begun, and is busy with something else");
        return 1;
    }
    if (f->place != EPX_PLACE_OUTSIDE || s->victim < 0 || !f->marked_last || f->life != EPX_LIFE_RUNS ||
        f->works || (f->starves && s->age_ns < PATIENT * s->budget_ns))
        return 0;
    name_marker(s, v, "has not come to the call and is busy with something else");
    return 1;
}

static int is_blocked(const epx_scene_t *s, epx_verdict_t *v)
{
    if (!stands(s, EPX_PLACE_ENQUEUED) || !is_late(s) || is_excused(s) || is_held_by_work(s) != 0)
        return 0;
    name_marker(s, v, "has made the call, which has not begun, and nothing runs there");
    return 1;
}

static int is_not_resident(const epx_scene_t *s, epx_verdict_t *v)
{
    const epx_rank_facts_t *f = root_of(s);
    uint64_t blocks = f->progress.blocks, arrived = f->progress.blocks_arrived;
    /* A foreign operation that has begun waits for its whole group, which may all be there. */
    if ((s->at != EPX_ROOT_PLACE && s->at != EPX_ROOT_NOBODY) ||
        (f->place != EPX_PLACE_INSIDE && f->place != EPX_PLACE_WAITS) || !is_late(s) || blocks == 0 ||
        arrived >= blocks)
        return 0;
    v->rank = s->root;
    snprintf(v->field, sizeof(v->field), "%u of %u", (unsigned)arrived, (unsigned)blocks);
    snprintf(v->text, sizeof(v->text),
             "rank %d has begun and only %" PRIu64 " of %" PRIu64 " blocks have arrived", s->root, arrived,
             blocks);
    return 1;
}

static int is_resource(const epx_scene_t *s, epx_verdict_t *v)
{
    epx_record_event_t event;
    if ((s->at != EPX_ROOT_PLACE && s->at != EPX_ROOT_NOBODY) || !is_late(s) ||
        !says(s, EPX_EVIDENCE_RESOURCE_EMPTY, EPX_EVIDENCE_RESOURCE_BACK, &event) ||
        event.what != EPX_EVIDENCE_RESOURCE_EMPTY)
        return 0;
    v->rank = s->root;
    snprintf(v->field, sizeof(v->field), "%.31s", epx_record_text_of(root_of(s)->record, event.text));
    snprintf(v->text, sizeof(v->text), "rank %d waits for %s, which is empty", s->root, v->field);
    return 1;
}

/* ---- calls that do not fit together ------------------------------------------------------------------------------ */

static int is_desync(const epx_scene_t *s, epx_verdict_t *v)
{
    if (s->at != EPX_ROOT_DESYNC || !is_late(s))
        return 0;
    const epx_rank_facts_t *a = &s->room[s->victim], *b = root_of(s);
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

static int is_out_of_order(const epx_scene_t *s, epx_verdict_t *v)
{
    if (s->at != EPX_ROOT_CYCLE || !s->one_group || !is_late(s))
        return 0;
    v->rank = s->root;
    snprintf(v->field, sizeof(v->field), "order");
    snprintf(v->text, sizeof(v->text),
             "ranks of one group are in different calls of it and wait for each other");
    return 1;
}

static int is_deadlock(const epx_scene_t *s, epx_verdict_t *v)
{
    if (s->at != EPX_ROOT_CYCLE || !is_late(s))
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

static int is_skewed(const epx_scene_t *s, epx_verdict_t *v)
{
    if (s->victim < 0 || s->at == EPX_ROOT_CYCLE || s->at == EPX_ROOT_DESYNC || !is_late(s))
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

static int is_lost(const epx_scene_t *s, epx_verdict_t *v)
{
    if (s->at != EPX_ROOT_SIGNAL || !is_late(s))
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

/* ---- the rest --------------------------------------------------------------------------------------------------- */

static int is_slow(const epx_scene_t *s, epx_verdict_t *v)
{
    const epx_rank_facts_t *f = root_of(s);
    if (s->at != EPX_ROOT_PLACE || s->victim < 0 || !is_late(s) || f->record == NULL)
        return 0;
    int inside = f->place == EPX_PLACE_INSIDE && f->life == EPX_LIFE_RUNS && s->age_ns < patience_ns(s);
    int outside =
        f->place == EPX_PLACE_OUTSIDE && (f->works || f->life == EPX_LIFE_RUNS) && s->age_ns < patience_ns(s);
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
    if (!is_late(s) || root_of(s)->paused || (s->victim >= 0 && s->room[s->victim].paused))
        return 1;
    if (s->at == EPX_ROOT_SIGNAL) /* not lost yet */
        return 1;
    /* A rank that is inside an operation for which nobody waits, or about to be waited for, is at work. */
    return s->victim < 0 && root_of(s)->place != EPX_PLACE_ENQUEUED;
}

static int is_unknown(const epx_scene_t *s, epx_verdict_t *v)
{
    const epx_rank_facts_t *f = root_of(s);
    v->rank = -1;
    if (s->at == EPX_ROOT_NOBODY)
        snprintf(v->text, sizeof(v->text),
                 "rank %d waits, everybody of its group has made the call, and no word says who is missing",
                 s->root);
    else if (f->record == NULL)
        snprintf(v->text, sizeof(v->text), "rank %d waits for rank %d, of which there is no record",
                 s->victim, s->root);
    else if (has_given_up(s))
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
    {"corrupt", EPX_VERDICT_CORRUPT, "a rank has reported that data is not what was sent", is_corrupt},
    {"gone", EPX_VERDICT_HOST_ABSENT,
     "the root's process has ended, and somebody has waited for it for 0.5 s", is_gone},
    {"stopped", EPX_VERDICT_HOST_ABSENT,
     "the root's thread is stopped, and somebody has waited for it for 1 s", is_stopped},
    {"differs", EPX_VERDICT_DESYNC, "kind, wave, signature or size differ under the same number", is_desync},
    {"link", EPX_VERDICT_LINK, "a link or device error came first in the time of the wait", is_link},
    {"skipped", EPX_VERDICT_HOST_ABSENT,
     "the root has made later calls of the group's lane, and not this one", has_skipped},
    {"empty", EPX_VERDICT_RESOURCE, "the root waits for a pool that it says is empty", is_resource},
    {"blocks", EPX_VERDICT_NOT_RESIDENT, "the root has begun, and fewer blocks than it has have arrived",
     is_not_resident},
    {"busy", EPX_VERDICT_STUCK_BEFORE_OP,
     "called and not begun, the device busy or the thread running; or not called, the last thing a marker, "
     "the thread running without new memory, files or children (for 3 budgets where others have its "
     "processor); "
     "no mark or heartbeat within the budget",
     is_stuck_before},
    {"idle", EPX_VERDICT_STREAM_BLOCKED, "called and not begun, the device idle or the thread asleep",
     is_blocked},
    {"left", EPX_VERDICT_HOST_ABSENT, "the root's thread has ended, or it has closed its record", has_left},
    {"skewed", EPX_VERDICT_EPOCH_SKEW,
     "the awaited word is older than its last good value, or beyond the expected one, or the root says it "
     "sent another",
     is_skewed},
    {"lost", EPX_VERDICT_SIGNAL_LOST,
     "the root says that it has sent, a budget ago; the victim has not seen it", is_lost},
    {"strays", EPX_VERDICT_HOST_ABSENT,
     "a circle, and one rank alone is outside the operation of all others (three or more)", strays},
    {"order", EPX_VERDICT_DESYNC, "a circle within one group: its calls are made in different orders",
     is_out_of_order},
    {"circle", EPX_VERDICT_DEADLOCK, "a circle", is_deadlock},
    {"elsewhere", EPX_VERDICT_HOST_ABSENT,
     "not called; asleep without mark or heartbeat within the budget; or running without a marker for 3 "
     "budgets, for 9 where others have its processor",
     is_elsewhere},
    {"slow", EPX_VERDICT_SLOW, "late, and marks, heartbeats or the thread's work move", is_slow},
    {"nothing", EPX_VERDICT_NONE, "within the budget, or announced, or at work that nobody waits for",
     is_nothing},
    {"unknown", EPX_VERDICT_UNKNOWN, "anything else", is_unknown},
};

const int32_t epx_rules_count = sizeof(epx_rules) / sizeof(epx_rules[0]);
