/* Reading records that may be written meanwhile. SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <string.h>

#include "record/read.h"
#include "record/order.h"

/* A row whose number is `number` before and after the copy is whole (F1 of format.h). */
static int copy_row(const void *row, void *copy, size_t bytes, uint64_t number)
{
    const uint64_t *word = row;
    if (number == 0 || __atomic_load_n(word, __ATOMIC_ACQUIRE) != number)
        return 0;
    memcpy(copy, row, bytes);
    epx_order_reads();
    return __atomic_load_n(word, __ATOMIC_RELAXED) == number;
}

static const epx_record_head_t *head_of(const void *record) { return record; }

static const void *at(const void *record, uint64_t offset) { return (const uint8_t *)record + offset; }

int epx_record_is_one(const void *record, size_t bytes, const char **why_p)
{
    const epx_record_head_t *head = record;
    *why_p = NULL;
    if (record == NULL || bytes < EPX_RECORD_HEAD_BYTES || head->magic != EPX_RECORD_MAGIC)
        *why_p = "it is no flight record";
    else if (head->format != EPX_RECORD_FORMAT)
        *why_p = "another version of epx wrote it";
    else if (head->file_bytes > bytes || head->ranks < 1 || head->rank < 0 || head->rank >= head->ranks ||
             head->groups_max > 4096 || head->ops_max == 0 || (head->ops_max & (head->ops_max - 1)) != 0 ||
             head->lanes_max > 4096 || head->events_max == 0 ||
             (head->events_max & (head->events_max - 1)) != 0 || head->slots_max > 64 ||
             (head->links_at != 0 &&
              (head->links_max == 0 || (head->links_max & (head->links_max - 1)) != 0)) ||
             head->progress_bytes <
                 sizeof(epx_record_progress_t) + (uint64_t)head->peers_max * sizeof(epx_record_peer_t))
        *why_p = "it is cut short or damaged";
    if (*why_p != NULL)
        return 0;
    const uint64_t ends[] = {
        head->groups_at + head->groups_max * sizeof(epx_record_group_row_t),
        head->members_at + (uint64_t)head->lists_max * head->peers_max * sizeof(int32_t),
        head->texts_at + head->texts_max * sizeof(epx_record_text_row_t),
        head->segments_at + head->segments_max * sizeof(epx_record_segment_row_t),
        head->ops_at + head->ops_max * sizeof(epx_record_operation_t),
        head->progress_at + (uint64_t)head->slots_max * head->progress_bytes,
        head->events_at + head->events_max * sizeof(epx_record_event_t),
        head->device_at + sizeof(epx_record_device_t) + head->lanes_max * sizeof(epx_record_lane_row_t),
        head->links_at != 0 ? head->links_at + head->links_max * sizeof(epx_record_link_row_t)
                            : EPX_RECORD_HEAD_BYTES};
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        if (ends[i] > head->file_bytes || ends[i] < EPX_RECORD_HEAD_BYTES)
            *why_p = "it is cut short or damaged";
    return *why_p == NULL;
}

int epx_record_operation(const void *record, uint64_t number, epx_record_operation_t *row_p)
{
    const epx_record_head_t *head = head_of(record);
    const epx_record_operation_t *rows = at(record, head->ops_at);
    const epx_record_operation_t *row = &rows[number & (head->ops_max - 1)];
    if (number == 0 || __atomic_load_n(&row->number, __ATOMIC_ACQUIRE) != number)
        return 0;
    /* Before the times, which are stored before it (F2); a copy is in no order. */
    uint32_t state = __atomic_load_n(&row->state, __ATOMIC_ACQUIRE);
    if (!copy_row(row, row_p, sizeof(*row_p), number))
        return 0;
    row_p->state = state;
    return row_p->group < head->groups_max;
}

int epx_record_event(const void *record, uint64_t number, epx_record_event_t *row_p)
{
    const epx_record_head_t *head = head_of(record);
    const epx_record_event_t *rows = at(record, head->events_at);
    return copy_row(&rows[number & (head->events_max - 1)], row_p, sizeof(*row_p), number);
}

int epx_record_link_row(const void *record, uint64_t number, epx_record_link_row_t *row_p)
{
    const epx_record_head_t *head = head_of(record);
    if (head->links_at == 0)
        return 0;
    const epx_record_link_row_t *rows = at(record, head->links_at);
    if (!copy_row(&rows[number & (head->links_max - 1)], row_p, sizeof(*row_p), number))
        return 0;
    row_p->name[sizeof(row_p->name) - 1] = '\0';
    return 1;
}

const epx_record_progress_t *epx_record_progress(const void *record, const epx_record_operation_t *op,
                                                 const epx_record_peer_t **peers_p)
{
    const epx_record_head_t *head = head_of(record);
    *peers_p = NULL;
    if (op->slot >= head->slots_max)
        return NULL;
    const epx_record_progress_t *progress =
        at(record, head->progress_at + (uint64_t)op->slot * head->progress_bytes);
    if (__atomic_load_n(&progress->number, __ATOMIC_ACQUIRE) != op->number)
        return NULL;
    if (__atomic_load_n(&progress->has_peers, __ATOMIC_ACQUIRE))
        *peers_p = (const epx_record_peer_t *)(const void *)(progress + 1);
    return progress;
}

int epx_record_progress_copy(const void *record, const epx_record_operation_t *op, void *copy, size_t bytes)
{
    const epx_record_peer_t *peers;
    const epx_record_progress_t *progress = epx_record_progress(record, op, &peers);
    return progress != NULL && copy_row(progress, copy, bytes, op->number);
}

const epx_record_group_row_t *epx_record_group_row(const void *record, uint32_t index)
{
    const epx_record_head_t *head = head_of(record);
    const epx_record_group_row_t *rows = at(record, head->groups_at);
    return index < head->groups_max && __atomic_load_n(&rows[index].use, __ATOMIC_ACQUIRE) != 0 ? &rows[index]
                                                                                                : NULL;
}

int32_t epx_record_member(const void *record, uint32_t group, int32_t rank)
{
    const epx_record_head_t *head = head_of(record);
    const epx_record_group_row_t *row = epx_record_group_row(record, group);
    if (row == NULL || rank < 0 || rank >= row->ranks)
        return -1;
    if (row->stride != 0)
        return row->first + rank * row->stride;
    if (row->list >= head->lists_max || rank >= (int32_t)head->peers_max)
        return -1;
    const int32_t *list = at(record, head->members_at);
    return list[(uint64_t)row->list * head->peers_max + (uint64_t)rank];
}

const char *epx_record_text_of(const void *record, uint32_t text)
{
    const epx_record_head_t *head = head_of(record);
    const epx_record_text_row_t *rows = at(record, head->texts_at);
    return text < head->texts_max ? rows[text].text : "";
}

const char *epx_record_kind_of(const void *record, const epx_record_operation_t *op)
{
    static const char *const names[EPX_RECORD_KINDS] = {
        "operation",         "dispatch", "combine",    "combine_backward",
        "dispatch_backward", "route",    "all_reduce", "all_gather",
        "barrier",           "split",    "open",       "recover"};
    if (op->kind == EPX_RECORD_FOREIGN && op->text != 0)
        return epx_record_text_of(record, op->text);
    return op->kind < EPX_RECORD_KINDS ? names[op->kind] : "?";
}
