/* A job that is suspected to be stuck. SPDX-License-Identifier: Apache-2.0 */
#include "record/suspect.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "record/act.h"
#include "record/signs.h"

enum { LOOK_MS = 250, CALM_MS = 2000, EARLY_MS = 200, UNKNOWN_LOOKS = 4, SHARE_MS = 900 };

epx_suspect_t *epx_suspect_of(epx_suspect_t *suspects, int32_t count, const epx_recorder_h *first,
                              epx_recorder_h r)
{
    epx_suspect_t *free_state = NULL;
    for (int32_t i = 0; i < count; i++) {
        epx_suspect_t *state = &suspects[i];
        if (state->view != NULL && strcmp(state->folder, r->folder) == 0 &&
            strcmp(state->view->job, r->head->job) == 0)
            return state;
        if (state->view == NULL && free_state == NULL)
            free_state = state;
    }
    if (free_state == NULL)
        return NULL;
    *free_state =
        (epx_suspect_t){.first = first, .view = epx_view_open(r->folder, r->head->job, r->head->ranks)};
    if (free_state->view == NULL)
        return NULL;
    free_state->view->after_ns = epx_get_time(&r->cleared_ns);
    snprintf(free_state->folder, sizeof(free_state->folder), "%s", r->folder);
    return free_state;
}

static int same_job(epx_recorder_h r, const epx_suspect_t *state)
{
    return state->view != NULL && strcmp(r->folder, state->folder) == 0 &&
           strcmp(r->head->job, state->view->job) == 0;
}

static void note_lives(const epx_suspect_t *state)
{
    for (epx_recorder_h r = *state->first; r != NULL; r = r->next) {
        if (!same_job(r, state))
            continue;
        const epx_looked_at_t *rank = &state->view->rank[r->head->rank];
        epx_put32(&r->head->life_seen, (uint32_t)rank->life);
        epx_put64(&r->head->cpu_ns, rank->before.cpu_ns);
        epx_signs_note_use(r);
    }
}

static void hand_out(const epx_suspect_t *state)
{
    for (epx_recorder_h r = *state->first; r != NULL; r = r->next) {
        if (!same_job(r, state))
            continue;
        pthread_mutex_lock(&r->lock);
        r->verdict = state->verdict;
        if (r->on_hang == EPX_ON_HANG_FAILOVER && state->verdict.action == EPX_ACTION_RECOVER)
            memcpy(r->verdict.failover, r->failover, sizeof(r->verdict.failover));
        pthread_mutex_unlock(&r->lock);
    }
}

/* ---- ranks on other hosts ---- */

static void heard(void *to, int32_t rank, int dead, const void *summary, size_t bytes)
{
    epx_view_hear(to, rank, dead, summary, bytes);
}

/* Everybody is asked, and what was told since the last time is taken. */
static void hear_others(epx_suspect_t *state)
{
    for (epx_recorder_h r = *state->first; r != NULL && epx_view_missing(state->view) > 0; r = r->next) {
        if (!same_job(r, state) || r->notes.context == NULL)
            continue;
        state->hears = 1;
        r->notes.ask(r->notes.context);
        r->notes.get(r->notes.context, heard, state->view);
        return;
    }
}

/* The first rank of the job that lives, as far as is known; -1: none. A rank that nobody has heard of may
 * live on another host, where there is a way to hear of it: unheard 0 leaves those out. */
static int32_t first_alive(const epx_suspect_t *state, int unheard)
{
    for (int32_t rank = 0; rank < state->view->ranks; rank++) {
        const epx_looked_at_t *at = &state->view->rank[rank];
        const epx_record_head_t *head = at->record;
        if (head == NULL ? unheard && state->hears && !at->is_dead
                         : head->life != EPX_RECORD_CLOSED && at->life < EPX_LIFE_STOPPED)
            return rank;
    }
    return -1;
}

/* Whether this process speaks for the job: its ranks include the lowest one that lives. */
static int is_first(const epx_suspect_t *state)
{
    int32_t rank = first_alive(state, 1);
    const epx_looked_at_t *at = rank >= 0 ? &state->view->rank[rank] : NULL;
    return at == NULL || (at->record != NULL && !at->is_summary &&
                          ((const epx_record_head_t *)at->record)->pid == (int32_t)getpid());
}

/* One report for the job: where the first rank that lives is on another host, its watchdog prints it. */
static int speaks(const epx_suspect_t *state)
{
    int32_t rank = first_alive(state, 0);
    return rank < 0 || !state->view->rank[rank].is_summary;
}

/* ---- a verdict ---- */

/* The rank has gone on since a verdict: what was found is not what it waits for now. */
static int has_cleared(epx_recorder_h r, const epx_suspect_t *state)
{
    pthread_mutex_lock(&r->lock);
    int cleared = epx_get_time(&r->cleared_ns) + EPX_SUSPECT_SLACK_NS >= state->verdict_ns;
    pthread_mutex_unlock(&r->lock);
    return cleared;
}

/* All ranks here have cleared their verdict: the job goes on, and the next one is a new one. */
static int is_done_with(const epx_suspect_t *state)
{
    int here = 0;
    for (epx_recorder_h r = *state->first; r != NULL; r = r->next) {
        if (!same_job(r, state))
            continue;
        if (!has_cleared(r, state))
            return 0;
        here = 1;
    }
    return here;
}

/* The culprit's GPU is dumped before its waits are ended, and only where they will be. */
static int is_dumped(epx_suspect_t *state, int64_t now)
{
    for (epx_recorder_h r = *state->first; r != NULL; r = r->next)
        if (same_job(r, state) && r->head->rank == state->verdict.rank &&
            epx_act_ends_all(r, &state->verdict))
            return epx_dump_is_over(r, &state->dump, now);
    return 1;
}

static void act(epx_suspect_t *state, int64_t now)
{
    epx_recorder_h mine = NULL;
    for (epx_recorder_h r = *state->first; r != NULL && mine == NULL; r = r->next)
        mine = same_job(r, state) ? r : NULL;
    if (mine == NULL || state->has_acted)
        return;
    /* Told by others, ended by others, and mended before this process had its turn: nothing is left to do. */
    if (is_done_with(state)) {
        state->has_acted = 1;
        return;
    }
    /* Others speak when the first one has had its time. */
    int64_t patience_ms = is_first(state) ? 0 : 2000;
    if (now - state->verdict_ns < patience_ms * 1000000)
        return;
    if (state->command == 0 && !state->is_mute)
        state->command = epx_act_report(state->view, &state->verdict, mine->command, speaks(state),
                                        is_first(state), &state->is_mute);
    if (state->command != 0 && !epx_act_has_ended(state->command, state->verdict_ns, now))
        return;
    if (state->command != 0)
        epx_act_done(state->view);
    state->command = 0;
    /* Evidence is out before anything is ended; who did not speak waits until it is. */
    if (!state->is_mute && !epx_act_is_done(state->view, &state->verdict) &&
        now - state->verdict_ns < (int64_t)30000 * 1000000)
        return;
    /* Watchdogs of other hosts find the same a look later, and their ranks leave with its code. */
    if (state->hears && now - state->verdict_ns < (int64_t)SHARE_MS * 1000000)
        return;
    if (!is_dumped(state, now))
        return;
    state->has_acted = 1;
    for (epx_recorder_h r = *state->first; r != NULL; r = r->next)
        if (same_job(r, state) && !has_cleared(r, state))
            epx_act_end(r, &state->verdict);
}

/* ---- looking ---- */

/* Whether a thread runs or sleeps is known from the second look on; what needs no such answer does not wait
 * for it. */
static int is_certain(const epx_suspect_t *state, const epx_verdict_t *found)
{
    return found->kind == EPX_VERDICT_CORRUPT || (found->kind == EPX_VERDICT_HOST_ABSENT &&
                                                  state->view->facts[found->rank].life >= EPX_LIFE_STOPPED);
}

/* How much before the budget's end a wait is judged: what a person is told within the budget has to be found
 * before it is over, and a rank's wait begins a little later than what holds it up. */
static int64_t early_ns(const epx_suspect_t *state, int64_t tick)
{
    int64_t least = INT64_MAX;
    for (epx_recorder_h r = *state->first; r != NULL; r = r->next)
        if (same_job(r, state) && epx_get_time(&epx_recorder_seen(r)->hang_ms) < least)
            least = epx_get_time(&epx_recorder_seen(r)->hang_ms);
    int64_t room = least / 25 < EARLY_MS ? least / 25 : EARLY_MS;
    return (tick + room) * 1000000;
}

/* What a thread does is seen at looks, which may come late on a machine that is overloaded: what needs to
 * know it must be so at two in a row, and nothing is called unknown before some more. */
static int is_confirmed(epx_suspect_t *state, const epx_verdict_t *found)
{
    if (is_certain(state, found))
        return 1;
    if (found->kind != state->candidate || found->rank != state->candidate_rank) {
        state->candidate = found->kind;
        state->candidate_rank = found->rank;
        state->candidate_looks = state->looks;
    }
    int32_t needed = found->kind == EPX_VERDICT_UNKNOWN ? UNKNOWN_LOOKS : 1;
    return state->looks >= 2 && state->looks - state->candidate_looks >= needed;
}

/* Ranks of this process need no file: theirs may be gone, with its folder. */
static void take_own(epx_suspect_t *state)
{
    for (epx_recorder_h r = *state->first; r != NULL; r = r->next)
        if (same_job(r, state) && r->seen != NULL)
            epx_view_take(state->view, r->head->rank, r->seen, (size_t)r->bytes);
}

static int64_t look_ns(int64_t tick) { return (tick * 5 < LOOK_MS ? tick * 5 : LOOK_MS) * 1000000; }

void epx_suspect_look(epx_suspect_t *state, int64_t now, int64_t tick)
{
    epx_verdict_t found = EPX_VERDICT_INIT;
    if (state->has_verdict)
        act(state, now);
    if (state->has_verdict && !state->has_acted)
        return;
    epx_view_map(state->view);
    take_own(state);
    if (now - state->looked_ns >= look_ns(tick)) {
        hear_others(state);
        epx_view_look(state->view, now);
        note_lives(state);
        state->looked_ns = now;
        state->looks++;
    }
    /* Judged a look before it must be said, so that a second one can confirm it. */
    state->view->early_ns = early_ns(state, tick) + look_ns(tick);
    epx_view_classify(state->view, now, &found);
    if (found.kind == EPX_VERDICT_NONE || !is_confirmed(state, &found))
        return;
    state->stuck_ns = now;
    if (state->has_verdict)
        return;
    state->verdict = found;
    hand_out(state);
    if (found.kind == EPX_VERDICT_SLOW)
        return;
    state->has_verdict = 1;
    state->verdict_ns = now;
    act(state, now);
}

void epx_suspect_adopt(epx_suspect_t *state, const epx_verdict_t *told, int64_t now)
{
    if (state->has_verdict)
        return;
    state->suspected_ns = state->stuck_ns = now;
    state->verdict = *told;
    state->has_verdict = 1;
    state->verdict_ns = now;
    hand_out(state);
}

void epx_suspect_calm_down(epx_suspect_t *state, int64_t now)
{
    int64_t calm = (int64_t)CALM_MS * 1000000;
    int over =
        state->has_verdict && state->has_acted && (now - state->stuck_ns >= calm || is_done_with(state));
    if (now - state->suspected_ns < calm && !over)
        return;
    if (state->has_verdict && is_first(state))
        epx_act_forget(state->view);
    epx_view_close(&state->view);
    *state = (epx_suspect_t){0};
}
