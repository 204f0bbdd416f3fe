/* Marks, phases and signs of life: what the program says of itself. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "record/order.h"
#include "record/read.h"
#include "record/recorder.h"
#include "record/rows.h"

epx_status_t epx_mark(epx_recorder_h r, int32_t text_id, epx_stream_t stream)
{
    if (r == NULL)
        return EPX_OK;
    if (text_id < 1 || text_id >= (int32_t)r->head->texts)
        return epx_fail(EPX_ERR_ARG, "epx_mark: text %d is not registered; epx_record_text gives ids",
                        text_id);
    if (stream != NULL && r->device.mapped == NULL && r->find_device != NULL) {
        r->find_device(r);
        r->find_device = NULL;
    }
    if (stream != NULL && r->device.mapped != NULL) {
        uint32_t at = (uint32_t)r->head->operations + 1;
        epx_put32(&r->head->marked_at, at != 0 ? at : 1);
        return r->device.mark(r->device.context, r->device.mapped, (uint64_t)text_id, stream);
    }
    int64_t now = epx_clock_ns();
    r->head->mark = (uint32_t)text_id;
    epx_put_time(&r->head->mark_ns, now);
    epx_put64(&r->head->marks, r->head->marks + 1);
    epx_recorder_event(r, EPX_RECORD_EVENT_MARK, (uint32_t)text_id, 0, now);
    epx_recorder_moved(r, now);
    return EPX_OK;
}

static void set_phase(epx_recorder_h r, epx_record_phase_t phase, const char *name, int64_t budget_ms)
{
    epx_record_head_t *head = r->head;
    int64_t now = epx_clock_ns();
    epx_put32(&head->phase_changes, head->phase_changes + 1);
    epx_order_writes();
    head->phase = (uint32_t)phase;
    head->phase_ns = now;
    head->phase_budget_ms = budget_ms;
    snprintf(head->phase_name, sizeof(head->phase_name), "%s", name);
    epx_put32(&head->phase_changes, head->phase_changes + 1);
    epx_recorder_event(r, EPX_RECORD_EVENT_PHASE, 0, (int64_t)phase, now);
    epx_recorder_moved(r, now);
}

epx_status_t epx_phase(epx_recorder_h r, const char *name, int64_t budget_ms)
{
    static const char *const names[] = {"init", "warm-up", "steady", "drain"};
    if (r == NULL)
        return EPX_OK;
    if (name == NULL || name[0] == '\0' || budget_ms < 0)
        return epx_fail(EPX_ERR_ARG, "epx_phase: give a name and a budget of 0 or more milliseconds");
    int32_t phase = 0;
    while (phase < EPX_RECORD_PAUSE && strcmp(names[phase], name) != 0)
        phase++;
    set_phase(r, (epx_record_phase_t)phase, name, budget_ms);
    return EPX_OK;
}

void epx_recorder_step(epx_recorder_h r)
{
    if (r == NULL)
        return;
    epx_put64(&r->head->steps, r->head->steps + 1);
    if (r->head->phase < EPX_RECORD_STEADY)
        set_phase(r, EPX_RECORD_STEADY, "steady", 0);
    epx_recorder_event(r, EPX_RECORD_EVENT_STEP, 0, (int64_t)r->head->steps, epx_clock_ns());
}

epx_status_t epx_record_step(epx_recorder_h r)
{
    epx_recorder_step(r);
    return EPX_OK;
}

void epx_heartbeat(epx_recorder_h r)
{
    if (r == NULL)
        return;
    epx_put_time(&r->head->heartbeat_ns, epx_clock_ns());
    epx_put64(&r->head->heartbeats, r->head->heartbeats + 1);
}

epx_status_t epx_record_evidence(epx_recorder_h r, epx_evidence_t what, int32_t text_id, int64_t value,
                                 int64_t time_ns)
{
    if (r == NULL)
        return EPX_OK;
    if (what < EPX_EVIDENCE_LINK_ERROR || what > EPX_EVIDENCE_DEVICE_BUSY || text_id < 0 ||
        text_id >= (int32_t)r->head->texts)
        return epx_fail(EPX_ERR_ARG, "epx_record_evidence: evidence %d with text %d is not known", (int)what,
                        text_id);
    if (what <= EPX_EVIDENCE_LINK_RECOVERING)
        return epx_record_link(r, what, epx_record_text_of(r->base, (uint32_t)text_id), value, time_ns);
    epx_recorder_event(r, (uint32_t)what, (uint32_t)text_id, value, time_ns != 0 ? time_ns : epx_clock_ns());
    return EPX_OK;
}

epx_status_t epx_record_link(epx_recorder_h r, epx_evidence_t what, const char *name, int64_t value,
                             int64_t time_ns)
{
    if (r == NULL)
        return EPX_OK;
    if (what < EPX_EVIDENCE_LINK_ERROR || what > EPX_EVIDENCE_LINK_RECOVERING)
        return epx_fail(EPX_ERR_ARG, "epx_record_link: evidence %d is not of a link", (int)what);
    epx_record_head_t *head = r->head;
    epx_record_link_row_t *rows = (epx_record_link_row_t *)(void *)(r->base + head->links_at);
    pthread_mutex_lock(&r->link_lock);
    uint64_t number = head->links + 1;
    epx_record_link_row_t *row = &rows[number & (head->links_max - 1)];
    epx_put64(&row->number, 0);
    epx_order_writes();
    row->time_ns = time_ns != 0 ? time_ns : epx_clock_ns();
    row->what = (uint32_t)what;
    row->value = value;
    snprintf(row->name, sizeof(row->name), "%s", name != NULL ? name : "");
    epx_put64(&row->number, number);
    epx_put64(&head->links, number);
    pthread_mutex_unlock(&r->link_lock);
    return EPX_OK;
}

void epx_record_links_looked(epx_recorder_h r)
{
    if (r != NULL)
        epx_put_time(&r->head->links_looked_ns, epx_clock_ns());
}
