/* Reports: small blocks that a device writes and the host reads, one for each plan. SPDX-License-Identifier:
 * Apache-2.0 */
#include "core/reports.h"

/* Such memory is slow to get (it is pinned), so it is taken for many plans at once. */
enum { CHUNK_REPORTS = 32, HEAD_BYTES = 64 };

typedef struct epx_report_chunk {
    struct epx_report_chunk *next;
    int64_t bytes;
    uint32_t taken; /* bit i: report i */
} chunk_t;

int64_t epx_report_bytes(const epx_selection_t *selection)
{
    return epx_round_up((int64_t)sizeof(epx_route_report_t) + selection->sizes.report_bytes, 64);
}

static epx_route_report_t *report_at(const epx_group_t *group, chunk_t *chunk, int32_t i)
{
    return (epx_route_report_t *)(void *)((char *)chunk + HEAD_BYTES +
                                          i * epx_report_bytes(&group->selection));
}

static chunk_t *new_chunk(epx_group_t *group)
{
    int64_t bytes = HEAD_BYTES + CHUNK_REPORTS * epx_report_bytes(&group->selection);
    chunk_t *chunk = group->selection.device->allocate_shared((size_t)bytes);
    if (chunk == NULL)
        return NULL;
    *chunk = (chunk_t){.next = group->reports, .bytes = bytes};
    group->reports = chunk;
    return chunk;
}

epx_route_report_t *epx_report_take(epx_group_t *group)
{
    chunk_t *chunk = group->reports;
    while (chunk != NULL && chunk->taken == UINT32_MAX)
        chunk = chunk->next;
    if (chunk == NULL)
        chunk = new_chunk(group);
    if (chunk == NULL)
        return NULL;
    int32_t i = __builtin_ctz(~chunk->taken);
    chunk->taken |= (uint32_t)1 << i;
    /* A kernel of its last owner may still write to it: numbers of routes are the group's, so nobody mistakes
     * them. */
    return report_at(group, chunk, i);
}

void epx_report_give(epx_group_t *group, epx_route_report_t *report)
{
    for (chunk_t *chunk = group->reports; chunk != NULL; chunk = chunk->next)
        for (int32_t i = 0; i < CHUNK_REPORTS; i++)
            if (report_at(group, chunk, i) == report)
                chunk->taken &= ~((uint32_t)1 << i);
}

void epx_report_end(epx_group_t *group)
{
    while (group->reports != NULL) {
        chunk_t *chunk = group->reports;
        group->reports = chunk->next;
        group->selection.device->release_shared(chunk, (size_t)chunk->bytes);
    }
}
