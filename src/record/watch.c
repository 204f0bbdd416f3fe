/* The watchdog: one thread per process that reads mapped memory. SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "record/act.h"
#include "record/dump.h"
#include "record/facts.h"
#include "record/summary.h"
#include "record/watch.h"

/*
 * W1  The thread runs while a recorder of this process is watched; it never writes to what others read but
 * the words watched, watched_ns, life_seen and cpu_ns of its own ranks' heads. W2  A job is looked at closely
 * (files mapped, threads asked about) only while some rank here has waited for long. W3  A verdict is
 * reported once per job and folder: who makes the file .reported first prints. The process of the lowest rank
 * that lives may at once, others some seconds later, should that one be stuck itself.
 */

enum {
    TICK_MS = 50,
    CLOSE_MS = 300,
    LOOK_MS = 250,
    CALM_MS = 2000,
    LOSS_MS = 3000,
    EARLY_MS = 200,
    UNKNOWN_LOOKS = 4,
    ASKED_MS = 1500, /* how long a question for summaries holds */
    TELL_MS = 100,
    SHARE_MS = 900,
    JOBS = 16,
    WARM_UP_FACTOR = 20
};

/* A verdict that was found so shortly after the last one was done with is the same one, told late. */
#define SLACK_NS ((int64_t)100000000)

/* The watchdog itself was kept from running: the process was stopped, or the machine is overloaded. */
#define GAP_NS ((int64_t)500000000)

typedef struct job_state {
    epx_job_view_t *view;
    char folder[EPX_RECORDER_PATH_BYTES];
    int64_t looked_ns, suspected_ns;
    int32_t looks;
    epx_verdict_kind_t candidate; /* what the last look gave, and of whom */
    int32_t candidate_rank, candidate_looks;
    int32_t has_verdict, has_acted;
    int32_t hears;   /* of ranks on other hosts there is a way to hear */
    int32_t command; /* EPX_ON_HANG_CMD's process while it is waited for */
    epx_dump_t dump; /* of the culprit, where it is a rank of this process */
    epx_verdict_t verdict;
    int64_t verdict_ns, stuck_ns; /* stuck_ns: when it was last seen to hold */
    uint64_t errors;              /* reports of errors, summed over the ranks here */
} job_state_t;

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pthread_t thread;
    int is_running, stop;
    epx_recorder_h first;
    int64_t round_ns, grace_ns;
    job_state_t job[JOBS];
} watch = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* ---- suspicion -------------------------------------------------------------------------------------------------- */

/* What a rank's own thread writes, through the watchdog's mapping. */
static const epx_record_head_t *seen(epx_recorder_h r)
{
    return (const epx_record_head_t *)(const void *)r->seen;
}

/* The oldest wait, or call that has not begun, of a rank; 0: none. */
static int64_t oldest_wait(epx_recorder_h r)
{
    const epx_record_head_t *head = seen(r);
    int64_t oldest = 0;
    for (uint32_t i = 0; i < head->slots_max; i++) {
        const epx_record_progress_t *progress =
            (const epx_record_progress_t *)(const void *)(r->seen + head->progress_at +
                                                          (uint64_t)i * head->progress_bytes);
        int64_t begun = epx_get_time(&progress->wait_begun_ns);
        if (begun != 0 && (oldest == 0 || begun < oldest))
            oldest = begun;
    }
    uint64_t last = epx_get64(&head->operations);
    const epx_record_operation_t *rows =
        (const epx_record_operation_t *)(const void *)(r->seen + head->ops_at);
    const epx_record_operation_t *row = &rows[last & (head->ops_max - 1)];
    if (last != 0 && epx_get32(&row->state) == EPX_RECORD_ENQUEUED) {
        int64_t enqueued = epx_get_time(&row->enqueued_ns);
        if (oldest == 0 || enqueued < oldest)
            oldest = enqueued;
    }
    int64_t of_device = epx_lanes_oldest(r->seen);
    return of_device != 0 && (oldest == 0 || of_device < oldest) ? of_device : oldest;
}

static job_state_t *state_of(epx_recorder_h r)
{
    job_state_t *free_state = NULL;
    for (int32_t i = 0; i < JOBS; i++) {
        job_state_t *state = &watch.job[i];
        if (state->view != NULL && strcmp(state->folder, r->folder) == 0 &&
            strcmp(state->view->job, r->head->job) == 0)
            return state;
        if (state->view == NULL && free_state == NULL)
            free_state = state;
    }
    if (free_state == NULL)
        return NULL;
    *free_state = (job_state_t){.view = epx_view_open(r->folder, r->head->job, r->head->ranks)};
    if (free_state->view == NULL)
        return NULL;
    free_state->view->after_ns = epx_get_time(&r->cleared_ns);
    snprintf(free_state->folder, sizeof(free_state->folder), "%s", r->folder);
    return free_state;
}

static int same_job(epx_recorder_h r, const job_state_t *state)
{
    return state->view != NULL && strcmp(r->folder, state->folder) == 0 &&
           strcmp(r->head->job, state->view->job) == 0;
}

/* ---- a job that is suspected ------------------------------------------------------------------------------------- */

/* What is known of a rank's device; asking may take a millisecond. */
static void note_use(epx_recorder_h r)
{
    epx_recorder_use_t use = {.percent = -1};
    if (r->use == NULL || !r->use((int32_t)epx_get32((const uint32_t *)&r->head->device), &use))
        return;
    epx_put32(&r->head->device_milliwatts, (uint32_t)use.milliwatts);
    epx_put32(&r->head->device_megahertz, (uint32_t)use.megahertz);
    epx_put_time(&r->head->device_seen_ns, epx_clock_ns());
    epx_put32(&r->head->device_use, (uint32_t)(use.percent + 1));
}

static void note_lives(const job_state_t *state)
{
    for (epx_recorder_h r = watch.first; r != NULL; r = r->next) {
        if (!same_job(r, state))
            continue;
        const epx_looked_at_t *rank = &state->view->rank[r->head->rank];
        epx_put32(&r->head->life_seen, (uint32_t)rank->life);
        epx_put64(&r->head->cpu_ns, rank->before.cpu_ns);
        note_use(r);
    }
}

static void hand_out(const job_state_t *state)
{
    for (epx_recorder_h r = watch.first; r != NULL; r = r->next) {
        if (!same_job(r, state))
            continue;
        pthread_mutex_lock(&r->lock);
        r->verdict = state->verdict;
        if (r->on_hang == EPX_ON_HANG_FAILOVER && state->verdict.action == EPX_ACTION_RECOVER)
            memcpy(r->verdict.failover, r->failover, sizeof(r->verdict.failover));
        pthread_mutex_unlock(&r->lock);
    }
}

/* ---- ranks on other hosts --------------------------------------------------------------------------------------- */

static void heard(void *to, int32_t rank, int dead, const void *summary, size_t bytes)
{
    epx_view_hear(to, rank, dead, summary, bytes);
}

/* Everybody is asked, and what was told since the last time is taken. */
static void hear_others(job_state_t *state)
{
    for (epx_recorder_h r = watch.first; r != NULL && epx_view_missing(state->view) > 0; r = r->next) {
        if (!same_job(r, state) || r->notes.context == NULL)
            continue;
        state->hears = 1;
        r->notes.ask(r->notes.context);
        r->notes.get(r->notes.context, heard, state->view);
        return;
    }
}

/* This rank's summary, with what its thread does, while somebody asks. */
static void tell_others(epx_recorder_h r, int64_t now)
{
    int64_t asked = r->notes.context != NULL ? r->notes.asked_ns(r->notes.context) : 0;
    if (asked == 0 || now - asked > (int64_t)ASKED_MS * 1000000 ||
        now - r->told_ns < (int64_t)TELL_MS * 1000000)
        return;
    r->told_ns = now;
    if (r->own == NULL)
        r->own = calloc(1, sizeof(epx_looked_at_t));
    epx_looked_at_t *own = r->own;
    if (own != NULL) {
        own->record = r->seen;
        epx_view_look_at(own, now);
        epx_put32(&r->head->life_seen, (uint32_t)own->life);
        epx_put64(&r->head->cpu_ns, own->before.cpu_ns);
    }
    size_t bytes = epx_summary_make(r->seen, r->summary, r->notes.most);
    if (bytes > 0)
        r->notes.put(r->notes.context, r->summary, bytes);
}

/* The first rank of the job that lives, as far as is known; -1: none. A rank that nobody has heard of may
 * live on another host, where there is a way to hear of it: unheard 0 leaves those out. */
static int32_t first_alive(const job_state_t *state, int unheard)
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
static int is_first(const job_state_t *state)
{
    int32_t rank = first_alive(state, 1);
    const epx_looked_at_t *at = rank >= 0 ? &state->view->rank[rank] : NULL;
    return at == NULL || (at->record != NULL && !at->is_summary &&
                          ((const epx_record_head_t *)at->record)->pid == (int32_t)getpid());
}

/* One report for the job: where the first rank that lives is on another host, its watchdog prints it. */
static int speaks(const job_state_t *state)
{
    int32_t rank = first_alive(state, 0);
    return rank < 0 || !state->view->rank[rank].is_summary;
}

/* The rank has gone on since a verdict: what was found is not what it waits for now. */
static int has_cleared(epx_recorder_h r, const job_state_t *state)
{
    pthread_mutex_lock(&r->lock);
    int cleared = epx_get_time(&r->cleared_ns) + SLACK_NS >= state->verdict_ns;
    pthread_mutex_unlock(&r->lock);
    return cleared;
}

/* All ranks here have cleared their verdict: the job goes on, and the next one is a new one. */
static int is_done_with(const job_state_t *state)
{
    int here = 0;
    for (epx_recorder_h r = watch.first; r != NULL; r = r->next) {
        if (!same_job(r, state))
            continue;
        if (!has_cleared(r, state))
            return 0;
        here = 1;
    }
    return here;
}

/* The culprit's GPU is dumped before its waits are ended, and only where they will be. */
static int is_dumped(job_state_t *state, int64_t now)
{
    for (epx_recorder_h r = watch.first; r != NULL; r = r->next)
        if (same_job(r, state) && r->head->rank == state->verdict.rank &&
            epx_act_ends_all(r, &state->verdict))
            return epx_dump_is_over(r, &state->dump, now);
    return 1;
}

static void act(job_state_t *state, int64_t now)
{
    epx_recorder_h mine = NULL;
    for (epx_recorder_h r = watch.first; r != NULL && mine == NULL; r = r->next)
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
    if (state->command == 0)
        state->command = epx_act_report(state->view, &state->verdict, mine->command, speaks(state));
    if (state->command != 0 && !epx_act_has_ended(state->command, state->verdict_ns, now))
        return;
    if (state->command != 0)
        epx_act_done(state->view);
    state->command = 0;
    /* Evidence is out before anything is ended; who did not speak waits until it is. */
    if (!epx_act_is_done(state->view, &state->verdict) && now - state->verdict_ns < (int64_t)30000 * 1000000)
        return;
    /* Watchdogs of other hosts find the same a look later, and their ranks leave with its code. */
    if (state->hears && now - state->verdict_ns < (int64_t)SHARE_MS * 1000000)
        return;
    if (!is_dumped(state, now))
        return;
    state->has_acted = 1;
    for (epx_recorder_h r = watch.first; r != NULL; r = r->next)
        if (same_job(r, state) && !has_cleared(r, state))
            epx_act_end(r, &state->verdict);
}

/* Whether a thread runs or sleeps is known from the second look on; what needs no such answer does not wait
 * for it. */
static int is_certain(const job_state_t *state, const epx_verdict_t *found)
{
    return found->kind == EPX_VERDICT_CORRUPT || (found->kind == EPX_VERDICT_HOST_ABSENT &&
                                                  state->view->facts[found->rank].life >= EPX_LIFE_STOPPED);
}

/* How much before the budget's end a wait is judged: what a person is told within the budget has to be found
 * before it is over, and a rank's wait begins a little later than what holds it up. */
static int64_t early_ns(const job_state_t *state, int64_t tick)
{
    int64_t least = INT64_MAX;
    for (epx_recorder_h r = watch.first; r != NULL; r = r->next)
        if (same_job(r, state) && epx_get_time(&seen(r)->hang_ms) < least)
            least = epx_get_time(&seen(r)->hang_ms);
    int64_t room = least / 25 < EARLY_MS ? least / 25 : EARLY_MS;
    return (tick + room) * 1000000;
}

/* What a thread does is seen at looks, which may come late on a machine that is overloaded: what needs to
 * know it must be so at two in a row, and nothing is called unknown before some more. */
static int is_confirmed(job_state_t *state, const epx_verdict_t *found)
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

static int64_t look_ns(int64_t tick) { return (tick * 5 < LOOK_MS ? tick * 5 : LOOK_MS) * 1000000; }

static void look_closely(job_state_t *state, int64_t now, int64_t tick)
{
    epx_verdict_t found = EPX_VERDICT_INIT;
    if (state->has_verdict)
        act(state, now);
    if (state->has_verdict && !state->has_acted)
        return;
    epx_view_map(state->view);
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

/* ---- the thread ------------------------------------------------------------------------------------------------- */

static int64_t tick_ms(void)
{
    int64_t tick = TICK_MS;
    for (epx_recorder_h r = watch.first; r != NULL; r = r->next) {
        int64_t fine = epx_get_time(&seen(r)->hang_ms) / 40;
        tick = fine < tick ? fine : tick;
    }
    return tick < 5 ? 5 : tick;
}

/* A close look pays when a wait is half as long as the budget, and at some tenths of a second already, for a
 * process that is gone. */
static int is_suspicious(epx_recorder_h r, int64_t now, int64_t tick)
{
    int64_t oldest = oldest_wait(r), failed = epx_get_time(&seen(r)->failed_ns);
    if (failed != 0 && now - failed < (int64_t)LOSS_MS * 1000000 && failed >= epx_get_time(&r->cleared_ns))
        return 1;
    int64_t half = epx_get_time(&seen(r)->hang_ms) * 1000000 / 2 - tick * 1000000;
    int64_t after = half < (int64_t)CLOSE_MS * 1000000 ? half : (int64_t)CLOSE_MS * 1000000;
    return oldest != 0 && now - oldest >= after;
}

/* The job moves again, or has been mended: what was found is history. */
static void calm_down(job_state_t *state, int64_t now)
{
    int64_t calm = (int64_t)CALM_MS * 1000000;
    int over =
        state->has_verdict && state->has_acted && (now - state->stuck_ns >= calm || is_done_with(state));
    if (now - state->suspected_ns < calm && !over)
        return;
    if (state->has_verdict && is_first(state))
        epx_act_forget(state->view);
    epx_view_close(&state->view);
    *state = (job_state_t){0};
}

/* Another process has found a verdict before this one could: it is everybody's. */
static void adopt(int64_t now)
{
    static int64_t looked_ns;
    if (now - looked_ns < (int64_t)LOOK_MS * 1000000)
        return;
    looked_ns = now;
    for (epx_recorder_h r = watch.first; r != NULL; r = r->next) {
        epx_verdict_t told;
        if (r->folder[0] == '\0' || !epx_act_told(r->folder, r->head->job, &told))
            continue;
        pthread_mutex_lock(&r->lock);
        int is_old =
            told.found_ns <= epx_get_time(&r->cleared_ns) + SLACK_NS || r->verdict.kind != EPX_VERDICT_NONE;
        pthread_mutex_unlock(&r->lock);
        if (is_old)
            continue;
        job_state_t *state = state_of(r);
        if (state == NULL || state->has_verdict)
            continue;
        state->suspected_ns = state->stuck_ns = now;
        state->verdict = told;
        state->has_verdict = 1;
        state->verdict_ns = now;
        hand_out(state);
    }
}

static void one_round(int64_t now, int64_t tick)
{
    for (epx_recorder_h r = watch.first; r != NULL; r = r->next) {
        epx_put64(&r->head->watched, r->head->watched + 1);
        epx_put_time(&r->head->watched_ns, now);
        tell_others(r, now);
        /* Its own process alone can ask about a rank's device, and may have nothing to suspect. */
        if (now - epx_get_time(&r->head->device_seen_ns) > (int64_t)LOOK_MS * 2000000 &&
            epx_lanes_stand_still(r->seen, now))
            note_use(r);
        uint32_t errors = epx_get32(&seen(r)->errors);
        int has_error = errors != r->errors_seen && (errors & 1) == 0;
        r->errors_seen = errors;
        if (!has_error && !is_suspicious(r, now, tick))
            continue;
        job_state_t *state = state_of(r);
        if (state != NULL)
            state->suspected_ns = now;
    }
    adopt(now);
    /* Time that this process did not run in is nobody's wait. */
    if (watch.round_ns != 0 && now - watch.round_ns > GAP_NS + 4 * tick * 1000000)
        watch.grace_ns = now + 2 * GAP_NS;
    watch.round_ns = now;
    for (int32_t i = 0; i < JOBS; i++) {
        job_state_t *state = &watch.job[i];
        if (state->view == NULL)
            continue;
        if ((state->suspected_ns == now && now >= watch.grace_ns) || state->has_verdict)
            look_closely(state, now, tick);
        calm_down(state, now);
    }
    watch.round_ns = epx_clock_ns(); /* asking other hosts took its time, and kept nobody from running */
}

static void *run(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&watch.mutex);
    while (!watch.stop) {
        int64_t tick = tick_ms();
        one_round(epx_clock_ns(), tick);
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += tick * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        if (!watch.stop)
            pthread_cond_timedwait(&watch.changed, &watch.mutex, &until);
    }
    for (int32_t i = 0; i < JOBS; i++) {
        epx_view_close(&watch.job[i].view);
        watch.job[i] = (job_state_t){0};
    }
    pthread_mutex_unlock(&watch.mutex);
    return NULL;
}

/* Signals are for the program's own threads. */
static void start_thread(void)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    watch.stop = 0;
    watch.round_ns = watch.grace_ns = 0;
    watch.is_running = pthread_create(&watch.thread, NULL, run, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!watch.is_running)
        epx_log(EPX_LOG_WARN, "record",
                "no thread for the watchdog: nobody here will say when the job is stuck");
}

void epx_watch_add(epx_recorder_h r)
{
    pthread_mutex_lock(&watch.mutex);
    r->next = watch.first;
    watch.first = r;
    epx_act_begin(r->folder, r->head->job);
    if (!watch.is_running)
        start_thread();
    pthread_mutex_unlock(&watch.mutex);
}

void epx_watch_notes(epx_recorder_h r, const epx_recorder_notes_t *notes)
{
    pthread_mutex_lock(&watch.mutex);
    r->notes = *notes;
    pthread_mutex_unlock(&watch.mutex);
}

void epx_watch_remove(epx_recorder_h r)
{
    pthread_t last;
    int was_last = 0;
    pthread_mutex_lock(&watch.mutex);
    /* What has just happened is looked at before the evidence goes. */
    int64_t now = epx_clock_ns(), tick = tick_ms();
    if (epx_get32(&seen(r)->errors) != r->errors_seen || is_suspicious(r, now, tick)) {
        for (int32_t i = 0; i < JOBS; i++)
            watch.job[i].looked_ns = 0; /* however short ago the last look was */
        one_round(now, tick);
    }
    epx_recorder_h *at = &watch.first;
    while (*at != NULL && *at != r)
        at = &(*at)->next;
    if (*at != NULL)
        *at = r->next;
    if (watch.first == NULL && watch.is_running) {
        watch.stop = was_last = 1;
        watch.is_running = 0;
        last = watch.thread;
        pthread_cond_broadcast(&watch.changed);
    }
    pthread_mutex_unlock(&watch.mutex);
    if (was_last)
        pthread_join(last, NULL);
}

/* ---- patience --------------------------------------------------------------------------------------------------- */

/* How long a rank's announced pause still lasts, in ms. */
static int64_t pause_left(const epx_record_head_t *head, int64_t now)
{
    if (head->phase_budget_ms <= 0)
        return 0;
    int64_t left = head->phase_ns + head->phase_budget_ms * 1000000 - now;
    return left > 0 ? left / 1000000 + 1 : 0;
}

int64_t epx_recorder_patience(epx_recorder_h r, int64_t timeout_ms, int64_t waited_ns)
{
    enum { DEFAULT_TIMEOUT_MS = 60000 };
    if (r == NULL)
        return 0;
    int64_t now = epx_clock_ns(), more = 0;
    if (r->folder[0] != '\0') {
        epx_job_view_t *view = epx_view_open(r->folder, r->head->job, r->head->ranks);
        if (view != NULL)
            epx_view_map(view);
        for (int32_t i = 0; view != NULL && i < view->ranks; i++) {
            const epx_record_head_t *head = view->rank[i].record;
            int64_t left = head != NULL && head->life == EPX_RECORD_OPENED && head->boot == r->head->boot
                               ? pause_left(head, now)
                               : 0;
            more = left > more ? left : more;
        }
        epx_view_close(&view);
    }
    pthread_mutex_lock(&r->lock);
    epx_verdict_kind_t known = r->verdict.kind;
    pthread_mutex_unlock(&r->lock);
    int64_t warm_left = timeout_ms * WARM_UP_FACTOR - waited_ns / 1000000;
    if (more == 0 && timeout_ms == DEFAULT_TIMEOUT_MS && r->head->phase < EPX_RECORD_STEADY &&
        warm_left > 0 && (known == EPX_VERDICT_NONE || known == EPX_VERDICT_SLOW))
        more = warm_left < timeout_ms ? warm_left : timeout_ms;
    return more;
}
