/* Tables of a recorder: texts, groups, lanes of a device, segments. SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "record/recorder.h"
#include "record/rows.h"
#include "record/versions.h"
#include "record/watch.h"

/* ---- texts ------------------------------------------------------------------------------------------------------ */

int32_t epx_record_text(epx_recorder_h r, const char *text)
{
    char cut[56];
    if (r == NULL || text == NULL)
        return 0;
    snprintf(cut, sizeof(cut), "%s", text);
    epx_record_text_row_t *rows = (epx_record_text_row_t *)(void *)(r->base + r->head->texts_at);
    uint32_t i = 1;
    while (i < r->head->texts && strcmp(rows[i].text, cut) != 0)
        i++;
    if (i == r->head->texts_max)
        return 0;
    if (i == r->head->texts) {
        memcpy(rows[i].text, cut, sizeof(cut));
        epx_put32(&r->head->texts, i + 1);
    }
    return (int32_t)i;
}

/* ---- a device that writes ---------------------------------------------------------------------------------------- */

void *epx_recorder_device_pages(epx_recorder_h r, size_t *bytes_p)
{
    *bytes_p = r != NULL ? (size_t)(r->head->file_bytes - r->head->device_at) : 0;
    return r != NULL && r->folder[0] != '\0' ? r->device_pages : NULL;
}

void epx_recorder_attach(epx_recorder_h r, const epx_recorder_device_t *device)
{
    r->device = *device;
    epx_put32((uint32_t *)&r->head->device, (uint32_t)device->number); /* the watchdog reads it */
    epx_put32(&r->head->maps_device, device->mapped != NULL);
}

void epx_recorder_notes(epx_recorder_h r, const epx_recorder_notes_t *notes)
{
    if (r == NULL || r->summary != NULL)
        return;
    r->summary = aligned_alloc(64, (notes->most + 63) & ~(size_t)63);
    if (r->summary != NULL)
        epx_watch_notes(r, notes);
}

int epx_recorder_is_attached(epx_recorder_h r) { return r != NULL && r->device.mapped != NULL; }

epx_progress_words_t *epx_recorder_lane(epx_recorder_h r, int32_t group_id, int32_t lane, int32_t resident)
{
    if (!epx_recorder_is_attached(r) || group_id < 1)
        return NULL;
    epx_record_lane_row_t *rows = epx_recorder_lane_rows(r);
    uint32_t i = 0;
    while (i < r->head->lanes_max && rows[i].use != 0)
        i++;
    if (i == r->head->lanes_max)
        return NULL;
    rows[i] = (epx_record_lane_row_t){.group_key = r->groups[group_id - 1].key,
                                      .group = (uint32_t)group_id - 1,
                                      .lane = (uint32_t)lane,
                                      .resident = (uint32_t)resident};
    epx_put64(&rows[i].use, r->groups[group_id - 1].use);
    size_t offset = (size_t)((uint8_t *)&rows[i].words - r->device_pages);
    return (epx_progress_words_t *)(void *)((uint8_t *)r->device.mapped + offset);
}

static void end_lanes(epx_recorder_h r, int32_t group_id)
{
    epx_record_lane_row_t *rows = epx_recorder_lane_rows(r);
    for (uint32_t i = 0; epx_recorder_is_attached(r) && i < r->head->lanes_max; i++)
        if (rows[i].use != 0 && rows[i].group == (uint32_t)group_id - 1)
            epx_put64(&rows[i].use, 0);
}

void epx_recorder_drifts(epx_recorder_h r, int32_t group_id, int32_t lane)
{
    epx_record_lane_row_t *row =
        epx_recorder_is_attached(r) ? epx_recorder_lane_row(r, (uint32_t)group_id - 1, (uint32_t)lane) : NULL;
    if (row != NULL)
        epx_put32(&row->drifted, 1);
}

/* ---- groups ----------------------------------------------------------------------------------------------------- */

/* A free row, else the one that ended longest ago. -1: all are open. */
static int32_t find_row(epx_recorder_h r)
{
    int32_t found = -1;
    for (int32_t i = 0; i < (int32_t)r->head->groups_max; i++) {
        if (r->groups[i].use == 0)
            return i;
        if (!r->groups[i].open && (found < 0 || r->groups[i].use < r->groups[found].use))
            found = i;
    }
    return found;
}

/* Members as a progression, or as a list where there is room for one. */
static void put_members(epx_recorder_h r, epx_record_group_row_t *row, const int32_t *members, int32_t ranks)
{
    uint32_t used = 0, list = 0;
    row->first = members != NULL ? members[0] : 0;
    row->stride = members != NULL && ranks > 1 ? members[1] - members[0] : 1;
    row->list = r->head->lists_max;
    int32_t i = 1;
    while (members != NULL && i < ranks && members[i] == row->first + i * row->stride)
        i++;
    if (members == NULL || i >= ranks)
        return;
    row->stride = 0;
    for (uint32_t g = 0; g < r->head->groups_max; g++)
        if (r->groups[g].open && r->groups[g].stride == 0)
            used |= 1u << r->groups[g].list;
    while (list < r->head->lists_max && (used >> list & 1u) != 0)
        list++;
    row->list = list;
    if (list == r->head->lists_max || ranks > (int32_t)r->head->peers_max)
        return;
    int32_t *to = (int32_t *)(void *)(r->base + r->head->members_at) + (uint64_t)list * r->head->peers_max;
    memcpy(to, members, (size_t)ranks * sizeof(*to));
}

int32_t epx_recorder_group_begin(epx_recorder_h r, const epx_recorder_group_t *group)
{
    static uint64_t uses;
    if (r == NULL)
        return 0;
    int32_t i = find_row(r);
    if (i < 0)
        return 0;
    epx_record_group_row_t row = {.key = group->key,
                                  .signature = group->signature,
                                  .ranks = group->ranks,
                                  .rank = group->rank,
                                  .is_comm = (uint32_t)group->is_comm,
                                  .generation = group->generation};
    epx_put_text(row.name, sizeof(row.name), group->name);
    epx_put_text(row.transport, sizeof(row.transport), group->transport);
    epx_put_text(row.fabric, sizeof(row.fabric), group->fabric);
    epx_put64(&r->groups[i].use, 0);
    put_members(r, &row, group->members, group->ranks);
    row.open = 1;
    r->groups[i] = row;
    epx_put64(&r->groups[i].use, __atomic_add_fetch(&uses, 1, __ATOMIC_RELAXED));
    if ((uint32_t)i >= r->head->groups)
        epx_put32(&r->head->groups, (uint32_t)i + 1);
    memset(r->last + (size_t)i * EPX_RECORDER_CHANNELS, 0, EPX_RECORDER_CHANNELS * sizeof(*r->last));
    r->counted[i] = 0;
    /* What carries rows is loaded by now. */
    if (!group->is_comm)
        epx_versions_find(r->head);
    if (!group->is_comm)
        epx_recorder_event(r, EPX_RECORD_EVENT_GROUP_OPEN, 0, i + 1, epx_clock_ns());
    return i + 1;
}

static uint64_t hash_text(uint64_t hash, const char *text)
{
    for (; text != NULL && *text != '\0'; text++)
        hash = (hash ^ (uint8_t)*text) * 1099511628211u;
    return hash;
}

int32_t epx_record_group(epx_recorder_h r, const epx_record_group_t *group)
{
    if (r == NULL || group == NULL || group->size != sizeof(*group) || group->rank < 0)
        return 0;
    int32_t ranks = group->members != NULL ? group->ranks : r->head->ranks;
    if (ranks < 1 || group->rank >= ranks)
        return 0;
    uint64_t key = hash_text(1469598103934665603u, group->name) * 31 + (uint64_t)ranks;
    for (int32_t i = 0; group->members != NULL && i < ranks; i++)
        key = (key ^ (uint64_t)group->members[i]) * 1099511628211u;
    epx_recorder_group_t own = {.name = group->name,
                                .transport = "foreign",
                                .key = key,
                                .signature = group->signature,
                                .members = group->members,
                                .ranks = ranks,
                                .rank = group->members != NULL ? group->rank : r->head->rank,
                                .generation = 1};
    return epx_recorder_group_begin(r, &own);
}

void epx_record_group_end(epx_recorder_h r, int32_t group_id)
{
    if (r == NULL || group_id < 1 || group_id > (int32_t)r->head->groups_max)
        return;
    if (r->groups[group_id - 1].open && !r->groups[group_id - 1].is_comm)
        epx_recorder_event(r, EPX_RECORD_EVENT_GROUP_END, 0, group_id, epx_clock_ns());
    end_lanes(r, group_id);
    epx_put32(&r->groups[group_id - 1].open, 0);
}

/* ---- segments --------------------------------------------------------------------------------------------------- */

epx_status_t epx_record_segment(epx_recorder_h r, const char *name, const void *memory, size_t bytes)
{
    uint64_t base = (uint64_t)(uintptr_t)memory;
    const char *word = name != NULL ? name : "segment";
    if (r == NULL || bytes == 0)
        return EPX_OK;
    epx_record_segment_row_t *rows = (epx_record_segment_row_t *)(void *)(r->base + r->head->segments_at);
    int32_t room = -1;
    for (int32_t i = (int32_t)r->head->segments_max - 1; i >= 0; i--) {
        if (rows[i].bytes == 0)
            room = i;
        else if (base < rows[i].base + rows[i].bytes && rows[i].base < base + bytes &&
                 strncmp(rows[i].name, word, sizeof(rows[i].name) - 1) == 0)
            return epx_fail(EPX_ERR_ARG,
                            "rank %d registers %s %#" PRIx64 "..%#" PRIx64 " over %s %#" PRIx64 "..%#" PRIx64
                            ", which is registered already; end that registration first",
                            r->head->rank, word, base, base + bytes, rows[i].name, rows[i].base,
                            rows[i].base + rows[i].bytes);
    }
    if (room < 0)
        return EPX_OK; /* the table is for readers: what finds no room is only not listed */
    rows[room].base = base;
    rows[room].time_ns = epx_clock_ns();
    epx_put_text(rows[room].name, sizeof(rows[room].name), word);
    epx_put64(&rows[room].bytes, bytes);
    if ((uint32_t)room >= r->head->segments)
        epx_put32(&r->head->segments, (uint32_t)room + 1);
    return EPX_OK;
}

void epx_record_segment_end(epx_recorder_h r, const char *name, const void *memory)
{
    const char *word = name != NULL ? name : "segment";
    if (r == NULL)
        return;
    epx_record_segment_row_t *rows = (epx_record_segment_row_t *)(void *)(r->base + r->head->segments_at);
    for (uint32_t i = 0; i < r->head->segments_max; i++)
        if (rows[i].bytes != 0 && rows[i].base == (uint64_t)(uintptr_t)memory &&
            strncmp(rows[i].name, word, sizeof(rows[i].name) - 1) == 0)
            epx_put64(&rows[i].bytes, 0);
}
