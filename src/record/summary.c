/* What a rank tells ranks on other hosts. SPDX-License-Identifier: Apache-2.0 */
#include "record/summary.h"

#include <string.h>

#include <epx/record.h>

#include "record/read.h"

enum { OPS = 32, OPEN_MOST = 6, EVENTS = 32 };

typedef struct maker {
    const void *from;
    const epx_record_head_t *head;
    uint8_t *to;
    epx_record_head_t *made;
    uint64_t end, bytes;
    int fits;
} maker_t;

static uint64_t take(maker_t *m, uint64_t bytes)
{
    uint64_t offset = m->end;
    m->end = (offset + bytes + 63) & ~(uint64_t)63;
    m->fits = m->fits && m->end <= m->bytes;
    return offset;
}

/* A table's first rows, as they are. */
static uint64_t copy_table(maker_t *m, uint64_t from, uint64_t bytes)
{
    uint64_t at = take(m, bytes);
    if (m->fits)
        memcpy(m->to + at, (const uint8_t *)m->from + from, bytes);
    return at;
}

/* Members of groups that are no progression: the lists in use. */
static void copy_members(maker_t *m)
{
    const epx_record_head_t *h = m->head;
    uint32_t lists = 0;
    for (uint32_t g = 0; g < m->made->groups_max; g++) {
        const epx_record_group_row_t *row = epx_record_group_row(m->from, g);
        if (row != NULL && row->stride == 0 && row->list < h->lists_max && row->list >= lists)
            lists = row->list + 1;
    }
    m->made->lists_max = lists;
    m->made->members_at = copy_table(m, h->members_at, (uint64_t)lists * h->peers_max * sizeof(int32_t));
}

/* One open operation's words to slot i of the summary; 0: they are gone. */
static int copy_words(maker_t *m, epx_record_operation_t *op, uint32_t i)
{
    uint8_t *to = m->to + m->made->progress_at + (uint64_t)i * m->made->progress_bytes;
    if (!epx_record_progress_copy(m->from, op, to, m->made->progress_bytes)) {
        memset(to, 0, m->made->progress_bytes);
        return 0;
    }
    op->slot = i;
    return 1;
}

/* The last operations, and the words of those that have not ended. */
static void copy_operations(maker_t *m)
{
    epx_record_head_t *made = m->made;
    uint64_t newest = made->operations;
    uint32_t open = 0;
    epx_record_operation_t *rows = (epx_record_operation_t *)(void *)(m->to + made->ops_at);
    for (uint64_t n = newest; n > 0 && n + OPS > newest; n--) {
        epx_record_operation_t op;
        if (!epx_record_operation(m->from, n, &op))
            continue;
        if (op.state == EPX_RECORD_ENDED || open == OPEN_MOST || !copy_words(m, &op, open))
            op.slot = made->slots_max; /* its words are not told */
        else
            open++;
        rows[n & (OPS - 1)] = op;
    }
}

/* Pools and devices; marks and steps are in the head, links have a table of their own. */
static void copy_events(maker_t *m)
{
    epx_record_head_t *made = m->made;
    epx_record_event_t *rows = (epx_record_event_t *)(void *)(m->to + made->events_at);
    uint64_t newest = m->head->events, kept = 0;
    epx_record_event_t found[EVENTS];
    for (uint64_t n = newest; n > 0 && n + m->head->events_max > newest && kept < EVENTS; n--)
        if (epx_record_event(m->from, n, &found[kept]) && found[kept].what <= EPX_EVIDENCE_DEVICE_BUSY)
            kept++;
    made->events = kept;
    for (uint64_t i = 0; i < kept; i++) {
        found[kept - 1 - i].number = i + 1;
        rows[(i + 1) & (EVENTS - 1)] = found[kept - 1 - i];
    }
}

size_t epx_summary_make(const void *record, void *to, size_t bytes)
{
    const epx_record_head_t *h = record;
    maker_t m = {.from = record,
                 .head = h,
                 .to = to,
                 .made = to,
                 .end = EPX_RECORD_HEAD_BYTES,
                 .bytes = bytes,
                 .fits = 1};
    if (bytes < EPX_RECORD_HEAD_BYTES)
        return 0;
    memset(to, 0, bytes);
    memcpy(to, record, sizeof(*h));
    epx_record_head_t *made = m.made;
    made->groups_max = h->groups;
    made->texts_max = h->texts;
    made->segments_max = made->segments = 0;
    made->ops_max = OPS;
    made->events_max = EVENTS;
    made->slots_max = OPEN_MOST;
    made->groups_at = copy_table(&m, h->groups_at, (uint64_t)h->groups * sizeof(epx_record_group_row_t));
    if (m.fits)
        copy_members(&m);
    made->texts_at = copy_table(&m, h->texts_at, (uint64_t)h->texts * sizeof(epx_record_text_row_t));
    made->segments_at = made->texts_at;
    made->ops_at = take(&m, OPS * sizeof(epx_record_operation_t));
    made->progress_at = take(&m, (uint64_t)OPEN_MOST * h->progress_bytes);
    made->events_at = take(&m, EVENTS * sizeof(epx_record_event_t));
    made->links_at = copy_table(&m, h->links_at, h->links_max * sizeof(epx_record_link_row_t));
    made->lanes_max = h->maps_device ? (h->lanes_max < 32 ? h->lanes_max : 32) : 0;
    made->device_at = copy_table(
        &m, h->device_at, sizeof(epx_record_device_t) + made->lanes_max * sizeof(epx_record_lane_row_t));
    if (!m.fits)
        return 0;
    copy_operations(&m);
    copy_events(&m);
    made->file_bytes = m.end;
    return (size_t)m.end;
}
