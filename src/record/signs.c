/* What the watchdog sees of a rank of this process, and tells of it. SPDX-License-Identifier: Apache-2.0 */
#include "record/signs.h"

#include <stdlib.h>

#include "base/fail.h"
#include "record/lanes.h"
#include "record/summary.h"
#include "record/view.h"

enum {
    CLOSE_MS = 300,
    LOSS_MS = 3000,
    ASKED_MS = 1500, /* how long a question for summaries holds */
    TELL_MS = 100
};

/* The oldest wait, or call that has not begun, of a rank; 0: none. */
static int64_t oldest_wait(epx_recorder_h r)
{
    const epx_record_head_t *head = epx_recorder_seen(r);
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

int epx_signs_are_bad(epx_recorder_h r, int64_t now, int64_t tick)
{
    int64_t oldest = oldest_wait(r), failed = epx_get_time(&epx_recorder_seen(r)->failed_ns);
    if (failed != 0 && now - failed < (int64_t)LOSS_MS * 1000000 && failed >= epx_get_time(&r->cleared_ns))
        return 1;
    int64_t half = epx_get_time(&epx_recorder_seen(r)->hang_ms) * 1000000 / 2 - tick * 1000000;
    int64_t after = half < (int64_t)CLOSE_MS * 1000000 ? half : (int64_t)CLOSE_MS * 1000000;
    return oldest != 0 && now - oldest >= after;
}

void epx_signs_note_use(epx_recorder_h r)
{
    epx_recorder_use_t use = {.percent = -1, .own = -1};
    if (r->use == NULL || !r->use((int32_t)epx_get32((const uint32_t *)&r->head->device), &use))
        return;
    epx_put32(&r->head->device_milliwatts, (uint32_t)use.milliwatts);
    epx_put32(&r->head->device_megahertz, (uint32_t)use.megahertz);
    epx_put32(&r->head->device_processes, (uint32_t)use.processes);
    epx_put32(&r->head->device_own, (uint32_t)(use.own + 1));
    epx_put_time(&r->head->device_seen_ns, epx_clock_ns());
    epx_put32(&r->head->device_use, (uint32_t)(use.percent + 1));
}

void epx_signs_tell(epx_recorder_h r, int64_t now)
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
