/* Links beside a flight recorder: what changes from look to look. SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/fail.h"
#include "health/health.h"

enum { DEFAULT_MS = 1000, WINDOW_S = 3600 };

/* One value of one link. */
typedef struct value {
    char link[EPX_HEALTH_NAME], name[EPX_HEALTH_NAME];
    epx_health_kind_t kind;
    uint64_t good;
    int32_t is_good;          /* STATE: at the last look */
    int64_t changed;          /* STATE: the look at which it last did */
    epx_health_point_t first; /* known from the first on */
    epx_health_point_t last;
} value_t;

struct epx_health_follow {
    epx_health_h health;
    epx_recorder_h recorder;
    char links[EPX_HEALTH_NAME];
    int64_t interval_ms, looks;
    value_t *value;
    int32_t values, room;
    int32_t next; /* where the next reading is as a rule: looks go through links in one order */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int32_t stop;
};

static double now_s(void) { return (double)epx_clock_ns() * 1e-9; }

static value_t *find(struct epx_health_follow *f, const char *link, const char *name)
{
    for (int32_t i = 0; i < f->values; i++) {
        value_t *v = &f->value[(f->next + i) % f->values];
        if (strcmp(v->name, name) == 0 && strcmp(v->link, link) == 0) {
            f->next = (f->next + i + 1) % f->values;
            return v;
        }
    }
    return NULL;
}

/* The first reading of a value: changes are seen against it. No room: it is not followed. */
static void add(struct epx_health_follow *f, const epx_health_reading_t *reading)
{
    uint64_t good;
    epx_health_kind_t kind = epx_health_kind_of(reading->name, &good);
    if (kind == EPX_HEALTH_NOBODY_JUDGES || kind == EPX_HEALTH_CORRECTED || kind == EPX_HEALTH_SPEED)
        return; /* nothing that changes from look to look is an event of these */
    if (f->values == f->room) {
        int32_t room = 2 * f->room + 64;
        value_t *more = realloc(f->value, (size_t)room * sizeof(*more));
        if (more == NULL)
            return;
        f->value = more;
        f->room = room;
    }
    value_t *v = &f->value[f->values++];
    *v = (value_t){.kind = kind, .good = good, .is_good = reading->value == good, .changed = -2};
    v->first = v->last = (epx_health_point_t){.time_s = now_s(), .known = 1, .value = reading->value};
    snprintf(v->link, sizeof(v->link), "%s", reading->link);
    snprintf(v->name, sizeof(v->name), "%s", reading->name);
}

static void tell(const struct epx_health_follow *f, const value_t *v, epx_evidence_t what, uint64_t value)
{
    char name[2 * EPX_HEALTH_NAME];
    snprintf(name, sizeof(name), v->kind == EPX_HEALTH_STATE ? "%s" : "%s %s", v->link, v->name);
    epx_record_link(f->recorder, what, name, (int64_t)value, 0);
}

/* A link's state, where it has one. */
static const value_t *state_of(const struct epx_health_follow *f, const char *link)
{
    for (int32_t i = 0; i < f->values; i++)
        if (f->value[i].kind == EPX_HEALTH_STATE && strcmp(f->value[i].link, link) == 0)
            return &f->value[i];
    return NULL;
}

static void follow_state(struct epx_health_follow *f, value_t *v, uint64_t value)
{
    int32_t is_good = value == v->good;
    if (is_good != v->is_good) {
        v->changed = f->looks;
        tell(f, v, is_good ? EPX_EVIDENCE_LINK_UP : EPX_EVIDENCE_LINK_DOWN, value);
    }
    v->is_good = is_good;
}

/* It went down and came back between two looks, unless its state has told that already. */
static void follow_flaps(struct epx_health_follow *f, value_t *v, uint64_t more)
{
    const value_t *state = state_of(f, v->link);
    if (state != NULL && (!state->is_good || f->looks - state->changed <= 1))
        return;
    tell(f, v, EPX_EVIDENCE_LINK_DOWN, more);
    if (state != NULL)
        tell(f, v, EPX_EVIDENCE_LINK_UP, more);
}

static void follow_errors(struct epx_health_follow *f, value_t *v, const epx_health_point_t *now,
                          uint64_t more)
{
    const epx_health_point_t course[] = {v->first, v->last, *now};
    epx_health_finding_t finding;
    epx_health_judge(v->name, course, 3, WINDOW_S, &finding);
    if (finding.judged && finding.verdict == EPX_HEALTH_CORDON)
        tell(f, v, EPX_EVIDENCE_LINK_ERROR, more);
}

static void follow_reading(void *context, const epx_health_reading_t *reading)
{
    struct epx_health_follow *f = context;
    if (!reading->known || strncmp(reading->link, f->links, strlen(f->links)) != 0)
        return;
    value_t *v = f->values > 0 ? find(f, reading->link, reading->name) : NULL;
    if (v == NULL) {
        add(f, reading);
        return;
    }
    epx_health_point_t now = {.time_s = now_s(), .known = 1, .value = reading->value};
    uint64_t more = now.value > v->last.value ? now.value - v->last.value : 0;
    if (v->kind == EPX_HEALTH_STATE)
        follow_state(f, v, now.value);
    else if (v->kind == EPX_HEALTH_DEMAND && now.value != v->last.value && now.value != 0)
        tell(f, v, EPX_EVIDENCE_LINK_ERROR, now.value);
    else if (more > 0 && v->kind == EPX_HEALTH_FLAP)
        follow_flaps(f, v, more);
    else if (more > 0 && v->kind == EPX_HEALTH_RECOVERY)
        tell(f, v, EPX_EVIDENCE_LINK_RECOVERING, now.value);
    else if (more > 0 && v->kind == EPX_HEALTH_FATAL)
        tell(f, v, EPX_EVIDENCE_LINK_ERROR, more);
    else if (more > 0)
        follow_errors(f, v, &now, more);
    /* Errors of an hour ago are another story. */
    if (now.time_s - v->first.time_s > WINDOW_S)
        v->first = v->last;
    v->last = now;
}

static void *run(void *argument)
{
    struct epx_health_follow *f = argument;
    pthread_mutex_lock(&f->lock);
    while (!f->stop) {
        pthread_mutex_unlock(&f->lock);
        epx_health_sample(f->health, follow_reading, f);
        if (f->values > 0)
            epx_record_links_looked(f->recorder);
        __atomic_store_n(&f->looks, f->looks + 1, __ATOMIC_RELEASE);
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += f->interval_ms / 1000;
        until.tv_nsec += f->interval_ms % 1000 * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_mutex_lock(&f->lock);
        if (!f->stop)
            pthread_cond_timedwait(&f->changed, &f->lock, &until);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

static void free_follower(struct epx_health_follow *f)
{
    epx_health_close(&f->health);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    free(f->value);
    free(f);
}

epx_status_t epx_health_follow(const epx_health_follow_config_t *config, epx_health_follow_h *follow_p)
{
    if (config == NULL || config->size != sizeof(*config) || follow_p == NULL || config->interval_ms < 0)
        return epx_fail(EPX_ERR_ARG, "epx_health_follow: give a configuration begun with "
                                     "EPX_HEALTH_FOLLOW_CONFIG_INIT, and follow_p");
    struct epx_health_follow *f = calloc(1, sizeof(*f));
    if (f == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "epx_health_follow: no memory");
    f->recorder = config->recorder;
    f->interval_ms = config->interval_ms > 0 ? config->interval_ms : DEFAULT_MS;
    snprintf(f->links, sizeof(f->links), "%s", config->links != NULL ? config->links : "");
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->changed, NULL);
    epx_status_t status = epx_health_open(&config->health, &f->health);
    if (status == EPX_OK)
        epx_health_only(f->health, f->links);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the program's own threads */
    if (status == EPX_OK && pthread_create(&f->thread, NULL, run, f) != 0)
        status = epx_fail(EPX_ERR_UNSUPPORTED, "epx_health_follow: no thread could be started");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status != EPX_OK) {
        free_follower(f);
        return status;
    }
    *follow_p = f;
    return EPX_OK;
}

int64_t epx_health_follow_looks(epx_health_follow_h follow)
{
    return follow != NULL ? __atomic_load_n(&follow->looks, __ATOMIC_ACQUIRE) : 0;
}

void epx_health_unfollow(epx_health_follow_h *follow_p)
{
    if (follow_p == NULL || *follow_p == NULL)
        return;
    struct epx_health_follow *f = *follow_p;
    *follow_p = NULL;
    pthread_mutex_lock(&f->lock);
    f->stop = 1;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    pthread_join(f->thread, NULL);
    free_follower(f);
}
