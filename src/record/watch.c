/* The watchdog: one thread per process that reads mapped memory. SPDX-License-Identifier: Apache-2.0 */
#include "record/watch.h"

#include <signal.h>

#include "base/fail.h"
#include "record/act.h"
#include "record/lanes.h"
#include "record/signs.h"
#include "record/suspect.h"

/*
 * - W1  The thread runs while a recorder of this process is watched; it never writes to what others read but
 *   the words watched, watched_ns, life_seen and cpu_ns of its own ranks' heads.
 * - W2  A job is looked at closely (files mapped, threads asked about) only while some rank here has waited
 *   for long.
 * - W3  A verdict is reported once per job and folder: who makes the file .reported first prints. The process
 *   of the lowest rank that lives may at once, others some seconds later, should that one be stuck itself.
 */

enum { TICK_MS = 50, LOOK_MS = 250, JOBS = 16 };

/* The watchdog itself was kept from running: the process was stopped, or the machine is overloaded. */
#define GAP_NS ((int64_t)500000000)

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pthread_t thread;
    int is_running;
    uintptr_t number; /* of the thread that is to run; another one ends */
    epx_recorder_h first;
    int64_t round_ns, grace_ns;
    epx_suspect_t job[JOBS];
} watch = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static int64_t tick_ms(void)
{
    int64_t tick = TICK_MS;
    for (epx_recorder_h r = watch.first; r != NULL; r = r->next) {
        int64_t fine = epx_get_time(&epx_recorder_seen(r)->hang_ms) / 40;
        tick = fine < tick ? fine : tick;
    }
    return tick < 5 ? 5 : tick;
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
        int is_old = told.found_ns <= epx_get_time(&r->cleared_ns) + EPX_SUSPECT_SLACK_NS ||
                     r->verdict.kind != EPX_VERDICT_NONE;
        pthread_mutex_unlock(&r->lock);
        if (is_old)
            continue;
        epx_suspect_t *state = epx_suspect_of(watch.job, JOBS, &watch.first, r);
        if (state != NULL)
            epx_suspect_adopt(state, &told, now);
    }
}

static void one_round(int64_t now, int64_t tick)
{
    for (epx_recorder_h r = watch.first; r != NULL; r = r->next) {
        epx_put64(&r->head->watched, r->head->watched + 1);
        epx_put_time(&r->head->watched_ns, now);
        epx_signs_tell(r, now);
        /* Its own process alone can ask about a rank's device, and may have nothing to suspect. */
        if (now - epx_get_time(&r->head->device_seen_ns) > (int64_t)LOOK_MS * 2000000 &&
            epx_lanes_stand_still(r->seen, now))
            epx_signs_note_use(r);
        uint32_t errors = epx_get32(&epx_recorder_seen(r)->errors);
        int has_error = errors != r->errors_seen && (errors & 1) == 0;
        r->errors_seen = errors;
        if (!has_error && !epx_signs_are_bad(r, now, tick))
            continue;
        epx_suspect_t *state = epx_suspect_of(watch.job, JOBS, &watch.first, r);
        if (state != NULL)
            state->suspected_ns = now;
    }
    adopt(now);
    /* Time that this process did not run in is nobody's wait. */
    if (watch.round_ns != 0 && now - watch.round_ns > GAP_NS + 4 * tick * 1000000)
        watch.grace_ns = now + 2 * GAP_NS;
    watch.round_ns = now;
    for (int32_t i = 0; i < JOBS; i++) {
        epx_suspect_t *state = &watch.job[i];
        if (state->view == NULL)
            continue;
        if ((state->suspected_ns == now && now >= watch.grace_ns) || state->has_verdict)
            epx_suspect_look(state, now, tick);
        epx_suspect_calm_down(state, now);
    }
    watch.round_ns = epx_clock_ns(); /* asking other hosts took its time, and kept nobody from running */
}

static void *run(void *number)
{
    pthread_mutex_lock(&watch.mutex);
    while (watch.number == (uintptr_t)number) {
        int64_t tick = tick_ms();
        one_round(epx_clock_ns(), tick);
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += tick * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        if (watch.number == (uintptr_t)number)
            pthread_cond_timedwait(&watch.changed, &watch.mutex, &until);
    }
    for (int32_t i = 0; i < JOBS; i++) {
        epx_view_close(&watch.job[i].view);
        watch.job[i] = (epx_suspect_t){0};
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
    watch.number++;
    watch.round_ns = watch.grace_ns = 0;
    watch.is_running = pthread_create(&watch.thread, NULL, run, (void *)watch.number) == 0;
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
    if (epx_get32(&epx_recorder_seen(r)->errors) != r->errors_seen || epx_signs_are_bad(r, now, tick)) {
        for (int32_t i = 0; i < JOBS; i++)
            watch.job[i].looked_ns = 0; /* however short ago the last look was */
        one_round(now, tick);
    }
    epx_recorder_h *at = &watch.first;
    while (*at != NULL && *at != r)
        at = &(*at)->next;
    if (*at != NULL)
        *at = r->next;
    for (int32_t i = 0; i < JOBS; i++)
        if (watch.job[i].view != NULL)
            epx_view_drop(watch.job[i].view, r->head->rank, r->seen);
    if (watch.first == NULL && watch.is_running) {
        was_last = 1;
        watch.is_running = 0;
        watch.number++; /* a recorder that comes before this thread has ended has another thread */
        last = watch.thread;
        pthread_cond_broadcast(&watch.changed);
    }
    pthread_mutex_unlock(&watch.mutex);
    if (was_last)
        pthread_join(last, NULL);
}
