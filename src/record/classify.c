/* The job's verdict out of all its scenes. SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "record/classify.h"

#include "record/facts.h"
#include "record/order.h"
#include "record/rules.h"
#include "record/rules_hosts.h"

/* An operation that ended so long ago with the loss of a peer is still about it. */
#define LOST_NS ((int64_t)10000000000)

typedef struct kind_row {
    const char *name;
    epx_action_t action;
    int32_t exit_code;
} kind_row_t;

static const kind_row_t kinds[EPX_VERDICTS] = {
    [EPX_VERDICT_NONE] = {"NONE", EPX_ACTION_NONE, 0},
    [EPX_VERDICT_DESYNC] = {"DESYNC", EPX_ACTION_STOP, 77},
    [EPX_VERDICT_HOST_ABSENT] = {"HOST_ABSENT", EPX_ACTION_SHRINK, 76},
    [EPX_VERDICT_STUCK_BEFORE_OP] = {"STUCK_BEFORE_OP", EPX_ACTION_RESTART, 75},
    [EPX_VERDICT_STREAM_BLOCKED] = {"STREAM_BLOCKED", EPX_ACTION_RESTART, 75},
    [EPX_VERDICT_NOT_RESIDENT] = {"NOT_RESIDENT", EPX_ACTION_RECOVER, 0},
    [EPX_VERDICT_SIGNAL_LOST] = {"SIGNAL_LOST", EPX_ACTION_RECOVER, 0},
    [EPX_VERDICT_DEADLOCK] = {"DEADLOCK", EPX_ACTION_STOP, 77},
    [EPX_VERDICT_EPOCH_SKEW] = {"EPOCH_SKEW", EPX_ACTION_RECOVER, 0},
    [EPX_VERDICT_CORRUPT] = {"CORRUPT", EPX_ACTION_STOP, 77},
    [EPX_VERDICT_RESOURCE] = {"RESOURCE", EPX_ACTION_RECOVER, 0},
    [EPX_VERDICT_LINK] = {"LINK", EPX_ACTION_SHRINK, 76},
    [EPX_VERDICT_SLOW] = {"SLOW", EPX_ACTION_NONE, 0},
    [EPX_VERDICT_UNKNOWN] = {"UNKNOWN", EPX_ACTION_WAIT, 78},
};

const char *epx_verdict_name(epx_verdict_kind_t kind)
{
    return (int)kind >= 0 && kind < EPX_VERDICTS ? kinds[kind].name : "?";
}

epx_action_t epx_verdict_action(epx_verdict_kind_t kind, int32_t *exit_code_p)
{
    int known = (int)kind >= 0 && kind < EPX_VERDICTS;
    if (exit_code_p != NULL)
        *exit_code_p = known ? kinds[kind].exit_code : 78;
    return known ? kinds[kind].action : EPX_ACTION_WAIT;
}

void epx_verdict_title(const epx_verdict_t *v, char *text, size_t bytes)
{
    size_t used = (size_t)snprintf(text, bytes, "%s", epx_verdict_name(v->kind));
    switch (v->kind) {
    case EPX_VERDICT_SIGNAL_LOST:
    case EPX_VERDICT_CORRUPT: snprintf(text + used, bytes - used, "(%d -> %d)", v->rank, v->peer); return;
    case EPX_VERDICT_DESYNC: snprintf(text + used, bytes - used, "(%s), rank %d", v->field, v->rank); return;
    case EPX_VERDICT_NOT_RESIDENT:
    case EPX_VERDICT_RESOURCE:
    case EPX_VERDICT_LINK: snprintf(text + used, bytes - used, "(rank %d, %s)", v->rank, v->field); return;
    case EPX_VERDICT_SLOW: snprintf(text + used, bytes - used, "(rank %d, %.1f)", v->rank, v->factor); return;
    case EPX_VERDICT_DEADLOCK:
        for (int32_t i = 0; i <= v->cycle_count && used + 16 < bytes; i++)
            used += (size_t)snprintf(text + used, bytes - used, "%s%d", i == 0 ? "(" : " -> ",
                                     v->cycle[i < v->cycle_count ? i : 0]);
        snprintf(text + used, bytes - used, ")");
        return;
    default:
        if (v->rank >= 0)
            snprintf(text + used, bytes - used, "(rank %d)", v->rank);
    }
}

/* What every verdict says of the operation at the root. */
static void describe(const epx_scene_t *s, epx_verdict_t *v)
{
    /* The call that the culprit has made and not begun, or is in; else the first that it has not made, or the
     * one that others wait for it in. */
    int own = s->at == EPX_ROOT_PLACE &&
              (s->room[s->root].place == EPX_PLACE_ENQUEUED || s->room[s->root].place == EPX_PLACE_INSIDE);
    int is_missing = v->kind == EPX_VERDICT_HOST_ABSENT || v->kind == EPX_VERDICT_STUCK_BEFORE_OP;
    int32_t of = s->victim >= 0 && !own ? s->victim : s->root;
    const epx_rank_facts_t *f = &s->room[of];
    epx_record_operation_t missed;
    const epx_record_operation_t *op = own                                                ? &f->op
                                       : is_missing && epx_scene_first_missed(s, &missed) ? &missed
                                                                                          : &s->op;
    v->action = epx_verdict_action(v->kind, &v->exit_code);
    v->ranks = s->job->ranks;
    v->stuck_ns = s->silent_ns != 0 ? s->silent_ns : s->age_ns;
    v->found_ns = s->job->now_ns;
    v->factor = s->budget_ns > 0 ? (double)s->age_ns / (double)s->budget_ns : 0;
    for (int32_t r = 0; r < s->job->ranks; r++)
        v->stuck += s->room[r].place == EPX_PLACE_WAITS;
    const epx_rank_facts_t *culprit = v->rank >= 0 && v->rank < s->job->ranks ? &s->room[v->rank] : NULL;
    if (culprit != NULL && culprit->record != NULL && v->marker[0] == '\0')
        snprintf(v->marker, sizeof(v->marker), "%.55s", epx_record_text_of(culprit->record, culprit->mark));
    if (f->record == NULL || op->number == 0)
        return;
    const epx_record_group_row_t *group = epx_record_group_row(f->record, op->group);
    if (group != NULL)
        snprintf(v->group, sizeof(v->group), "%.63s", group->name);
    snprintf(v->op, sizeof(v->op), "%.55s", epx_record_kind_of(f->record, op));
    v->wave = op->wave;
    v->sequence = op->sequence;
    if (s->victim >= 0) {
        v->expected = f->progress.wait.expected;
        v->seen = f->progress.wait.seen;
    }
}

/* The rule of a scene, and what it makes of it. */
static int32_t judge(const epx_scene_t *scene, epx_verdict_t *verdict)
{
    for (int32_t i = 0; i < epx_rules_count; i++) {
        epx_verdict_t found = {.size = verdict->size, .rank = -1, .peer = -1};
        if (!epx_rules[i].holds(scene, &found))
            continue;
        found.kind = epx_rules[i].verdict;
        describe(scene, &found);
        *verdict = found;
        return i;
    }
    return epx_rules_count;
}

/* Between scenes: what is named goes before what is not, and both before what only is late. */
static int32_t weight(int32_t rule, epx_verdict_kind_t kind)
{
    if (kind == EPX_VERDICT_NONE)
        return 1000;
    if (kind == EPX_VERDICT_SLOW)
        return 900;
    return kind == EPX_VERDICT_UNKNOWN ? 800 : rule;
}

/* How near to the root the operation is: its own one, one of a group, one of a comm. */
static int32_t nearness(const epx_scene_t *s)
{
    const epx_rank_facts_t *f = &s->room[s->victim >= 0 ? s->victim : s->root];
    const epx_record_group_row_t *group =
        f->record != NULL ? epx_record_group_row(f->record, s->op.group) : NULL;
    return group != NULL && group->is_comm ? 0 : 1;
}

static void take_better(const epx_scene_t *scene, int32_t *best, int32_t *near, epx_verdict_t *verdict)
{
    epx_verdict_t found = {.size = verdict->size};
    int32_t rule = judge(scene, &found), now = weight(rule, found.kind);
    /* Equal rules: an operation of a group tells more than a collective of many of them; then the longer
     * wait. */
    int same = now == *best && found.kind != EPX_VERDICT_NONE;
    int closer = nearness(scene);
    if (now < *best || (same && closer > *near) ||
        (same && closer == *near && found.stuck_ns > verdict->stuck_ns)) {
        *near = closer;
        *best = now;
        *verdict = found;
    }
}

/* An error that a rank has reported since the last verdict was done with. */
static int has_error(const epx_job_evidence_t *job, const epx_rank_facts_t *room, int32_t r,
                     epx_scene_t *scene)
{
    const epx_record_head_t *head = room[r].record;
    if (head == NULL)
        return 0;
    uint32_t before = __atomic_load_n(&head->errors, __ATOMIC_ACQUIRE);
    int32_t error = __atomic_load_n(&head->error, __ATOMIC_RELAXED);
    int64_t since = __atomic_load_n(&head->error_ns, __ATOMIC_RELAXED) - job->rank[r].ahead_ns;
    uint64_t operation = __atomic_load_n(&head->error_operation, __ATOMIC_RELAXED);
    epx_order_reads();
    if ((before & 1) != 0 || __atomic_load_n(&head->errors, __ATOMIC_RELAXED) != before ||
        error != EPX_ERR_CORRUPT || since < job->after_ns)
        return 0; /* one that is being written is read at the next look */
    *scene = (epx_scene_t){
        .job = job, .room = room, .at = EPX_ROOT_ERROR, .root = r, .victim = -1, .one_strays = -1};
    if (!epx_record_operation(head, operation, &scene->op))
        scene->op.number = 0;
    scene->age_ns = job->now_ns - since;
    return 1;
}

/* Where operations end at once when a process is gone, nobody waits for it any more: who of the lost ones was
 * the first to fall silent, and the operation that ended with its loss elsewhere. */
static int has_lost(const epx_job_evidence_t *job, const epx_rank_facts_t *room, epx_scene_t *scene)
{
    int32_t lost = -1, told = -1;
    int64_t silent = INT64_MAX, failed_ns = INT64_MAX;
    for (int32_t r = 0; r < job->ranks; r++) {
        const epx_record_head_t *head = room[r].record;
        /* Gone before anybody has heard of it: when it fell silent is not known. */
        if (head == NULL && room[r].life == EPX_LIFE_GONE && lost < 0)
            lost = r;
        if (head == NULL)
            continue;
        int64_t sign = head->watched_ns - job->rank[r].ahead_ns,
                failed = head->failed_ns - job->rank[r].ahead_ns;
        if (room[r].life == EPX_LIFE_GONE && head->life == EPX_RECORD_OPENED && sign < silent) {
            silent = sign;
            lost = r;
        }
        if (head->failed_ns != 0 && failed >= job->after_ns && job->now_ns - failed < LOST_NS &&
            room[r].life != EPX_LIFE_GONE) {
            told = r;
            failed_ns = failed;
        }
    }
    if (lost < 0 || told < 0)
        return 0;
    *scene = (epx_scene_t){.job = job,
                           .room = room,
                           .at = EPX_ROOT_PLACE,
                           .root = lost,
                           .victim = told,
                           .age_ns = LOST_NS,
                           .silent_ns = job->now_ns - (silent < failed_ns ? silent : failed_ns),
                           .one_strays = -1};
    const epx_record_head_t *head = room[told].record;
    if (!epx_record_operation(head, head->failed_operation, &scene->op))
        scene->op.number = 0;
    return 1;
}

void epx_classify(const epx_job_evidence_t *job, epx_rank_facts_t *room, epx_verdict_t *verdict_p)
{
    int32_t best = INT32_MAX, near = 0, will_be_named = 0;
    epx_scene_t scene;
    *verdict_p = (epx_verdict_t){.size = verdict_p->size, .rank = -1, .peer = -1, .ranks = job->ranks};
    epx_facts_gather(job, room);
    if (has_lost(job, room, &scene))
        take_better(&scene, &best, &near, verdict_p);
    for (int32_t r = 0; r < job->ranks; r++) {
        if (has_error(job, room, r, &scene))
            take_better(&scene, &best, &near, verdict_p);
        if (room[r].place < EPX_PLACE_ENQUEUED)
            continue;
        /* Hosts run ahead of their streams: nobody is late whom nobody waits for. */
        if (room[r].stands == EPX_STANDS_BEFORE && room[r].lane->resident)
            continue;
        epx_scene_walk(job, room, r, r + 1, &scene);
        take_better(&scene, &best, &near, verdict_p);
        will_be_named |= epx_rule_stopped_soon(&scene);
    }
    if (verdict_p->kind == EPX_VERDICT_UNKNOWN && will_be_named)
        *verdict_p = (epx_verdict_t){.size = verdict_p->size, .rank = -1, .peer = -1, .ranks = job->ranks};
}
