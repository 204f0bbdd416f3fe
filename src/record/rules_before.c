/* Rules: a call that was made and cannot begin. SPDX-License-Identifier: Apache-2.0 */
#include "record/rules_before.h"

#include <inttypes.h>
#include <stdio.h>

#include "record/find.h"
#include "record/lanes.h"

enum { PATIENT = 3 };

static int says(const epx_scene_t *s, epx_evidence_t what, epx_evidence_t or_what, epx_record_event_t *event)
{
    const epx_rank_facts_t *f = epx_scene_root(s);
    return f->record != NULL && epx_facts_event(f->record, (uint32_t)what, (uint32_t)or_what, 0, event);
}

/* Whether the root's device executes something: 1, 0, or -1 where nobody knows. */
enum { BUSY_PERCENT = 50, IDLE_PERCENT = 5 };
static int is_device_busy(const epx_scene_t *s)
{
    const epx_rank_facts_t *f = epx_scene_root(s);
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
    const epx_rank_facts_t *f = epx_scene_root(s);
    if (is_not_given(f))
        return f->life == EPX_LIFE_RUNS;
    int busy = is_device_busy(s);
    if (busy >= 0)
        return busy;
    if (f->use == EPX_USE_UNCLEAR && f->stands != EPX_STANDS_BEFORE)
        return -1;
    /* Nobody asked the device, or not whose work it does; its stream has come to a marker behind the last
     * call, and not to the next. */
    if (f->stands == EPX_STANDS_BEFORE)
        return f->marked_last ? 1 : -1;
    return f->life == EPX_LIFE_RUNS ? 1 : f->life == EPX_LIFE_SLEEPS ? 0 : -1;
}

/* Its host counts otherwise than its device, which somebody waits for: a graph is replayed. */
static int is_in_graph(const epx_scene_t *s)
{
    const epx_rank_facts_t *f = epx_scene_root(s), *victim = s->victim >= 0 ? &s->room[s->victim] : NULL;
    if (victim == NULL || victim->stands != EPX_STANDS_WAITING || f->record == NULL ||
        !epx_scene_stands(s, EPX_PLACE_OUTSIDE))
        return 0;
    const epx_record_lane_row_t *lane = epx_lanes_find(f->record, victim->lane);
    return lane != NULL && lane->drifted;
}

static void name_marker(const epx_scene_t *s, epx_verdict_t *v, const char *how)
{
    const epx_rank_facts_t *f = epx_scene_root(s);
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

int epx_rule_busy(const epx_scene_t *s, epx_verdict_t *v)
{
    const epx_rank_facts_t *f = epx_scene_root(s);
    if (s->at != EPX_ROOT_PLACE || !epx_scene_is_late(s) || epx_scene_is_excused(s) ||
        epx_scene_has_given_up(s))
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

int epx_rule_idle(const epx_scene_t *s, epx_verdict_t *v)
{
    if (!epx_scene_stands(s, EPX_PLACE_ENQUEUED) || !epx_scene_is_late(s) || epx_scene_is_excused(s) ||
        is_held_by_work(s) != 0)
        return 0;
    name_marker(s, v, "has made the call, which has not begun, and nothing runs there");
    return 1;
}

int epx_rule_blocks(const epx_scene_t *s, epx_verdict_t *v)
{
    const epx_rank_facts_t *f = epx_scene_root(s);
    uint64_t blocks = f->progress.blocks, arrived = f->progress.blocks_arrived;
    /* A foreign operation that has begun waits for its whole group, which may all be there. */
    if ((s->at != EPX_ROOT_PLACE && s->at != EPX_ROOT_NOBODY) ||
        (f->place != EPX_PLACE_INSIDE && f->place != EPX_PLACE_WAITS) || !epx_scene_is_late(s) ||
        blocks == 0 || arrived >= blocks)
        return 0;
    v->rank = s->root;
    snprintf(v->field, sizeof(v->field), "%u of %u", (unsigned)arrived, (unsigned)blocks);
    snprintf(v->text, sizeof(v->text),
             "rank %d has begun and only %" PRIu64 " of %" PRIu64 " blocks have arrived", s->root, arrived,
             blocks);
    return 1;
}

int epx_rule_empty(const epx_scene_t *s, epx_verdict_t *v)
{
    epx_record_event_t event;
    const epx_rank_facts_t *f = epx_scene_root(s);
    /* Who has gone on since it said so does not wait for that pool any more. */
    int64_t last = f->place == EPX_PLACE_OUTSIDE ? f->op.ended_ns : f->op.enqueued_ns;
    if ((s->at != EPX_ROOT_PLACE && s->at != EPX_ROOT_NOBODY) || !epx_scene_is_late(s) ||
        !says(s, EPX_EVIDENCE_RESOURCE_EMPTY, EPX_EVIDENCE_RESOURCE_BACK, &event) ||
        event.what != EPX_EVIDENCE_RESOURCE_EMPTY || event.time_ns < last)
        return 0;
    v->rank = s->root;
    snprintf(v->field, sizeof(v->field), "%.31s", epx_record_text_of(epx_scene_root(s)->record, event.text));
    snprintf(v->text, sizeof(v->text), "rank %d waits for %s, which is empty", s->root, v->field);
    return 1;
}
