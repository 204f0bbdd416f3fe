/* Collectives among ranks of a link. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/fail.h"
#include "base/reduce.h"
#include "launch/link.h"

enum { MISSING_MS = 500, REDUCE_BYTES = 1 << 20, GATHER_BYTES = 16 << 20 };

epx_circle_t *epx_circle_create(epx_link_t *link, uint64_t id, const int32_t *rank, int32_t size)
{
    epx_circle_t *circle = calloc(1, sizeof(*circle) + (size_t)size * sizeof(int32_t));
    if (circle == NULL)
        return NULL;
    circle->link = link;
    circle->id = id;
    circle->size = size;
    circle->aborted_by = -1;
    for (int32_t i = 0; i < size; i++) {
        circle->rank[i] = rank[i];
        if (rank[i] == link->rank)
            circle->place = i;
    }
    pthread_mutex_lock(&link->mutex);
    for (uint32_t i = 0; i < EARLY_ABORTS && i < link->early_count; i++)
        if (link->early[i].id == id) {
            circle->aborted_by = link->early[i].place;
            circle->abort_blames = link->early[i].blamed;
        }
    circle->next = link->circles;
    link->circles = circle;
    pthread_mutex_unlock(&link->mutex);
    return circle;
}

void epx_circle_destroy(epx_circle_t **circle_p)
{
    epx_circle_t *circle = *circle_p;
    if (circle == NULL)
        return;
    *circle_p = NULL;
    pthread_mutex_lock(&circle->link->mutex);
    epx_circle_t **at = &circle->link->circles;
    while (*at != circle)
        at = &(*at)->next;
    *at = circle->next;
    pthread_mutex_unlock(&circle->link->mutex);
    free(circle);
}

/* Under the mutex: the place whose process is gone, or -1. */
static int32_t find_dead(const epx_circle_t *circle)
{
    const epx_link_t *link = circle->link;
    if (link->is_down || link->deaths > 0) {
        for (int32_t i = 0; i < circle->size; i++)
            if (link->state[circle->rank[i]] == EPX_LINK_DEAD)
                return i;
    }
    return -1;
}

/* Under the mutex: why the circle cannot go on, or EPX_OK. A death goes before what others make of it. */
static epx_status_t find_end(const epx_circle_t *circle, int32_t *peer_p)
{
    *peer_p = find_dead(circle);
    if (*peer_p >= 0)
        return EPX_ERR_PEER;
    if (circle->aborted_by >= 0) {
        *peer_p = circle->aborted_by;
        return circle->aborted_by == circle->place ? EPX_ERR_ABORTED : EPX_ERR_PEER;
    }
    return circle->link->is_down ? EPX_ERR_PEER : EPX_OK; /* the hub has gone; no place of ours is to blame */
}

/* A collective has failed: an abort that follows says because of whom. */
static void blame(epx_circle_t *circle, int32_t place)
{
    epx_link_t *link = circle->link;
    pthread_mutex_lock(&link->mutex);
    if (link->blamed == 0 && place >= 0)
        link->blamed = circle->rank[place] + 1;
    link->is_spoilt = 1;
    pthread_mutex_unlock(&link->mutex);
}

/* Waits for the answer to `call`. */
static epx_status_t await(epx_circle_t *circle, link_call_t *call, int64_t deadline_ns, int32_t *peer_p)
{
    epx_link_t *link = circle->link;
    struct timespec until = {.tv_sec = deadline_ns / 1000000000, .tv_nsec = deadline_ns % 1000000000};
    epx_status_t status = EPX_OK;
    int late = 0;
    pthread_mutex_lock(&link->mutex);
    while (!call->done && status == EPX_OK && !late) {
        status = find_end(circle, peer_p);
        if (status == EPX_OK)
            late = pthread_cond_timedwait(&link->changed, &link->mutex, &until) != 0;
    }
    if (call->done)
        status = call->status;
    else if (late)
        status = EPX_ERR_TIMEOUT;
    pthread_mutex_unlock(&link->mutex);
    return status;
}

/* Who has not come to a collective; a hub that does not say is itself to blame. -1: rank 0, and it is not of
 * this circle. */
static int32_t ask_missing(epx_circle_t *circle, uint64_t sequence)
{
    epx_link_t *link = circle->link;
    link_call_t call = {.kind = FRAME_MISSING, .circle = circle->id, .sequence = sequence};
    epx_frame_t frame = {
        .magic = EPX_FRAME_MAGIC, .kind = FRAME_MISSING, .circle = circle->id, .sequence = sequence};
    int64_t deadline_ns = epx_clock_ns() + (int64_t)MISSING_MS * 1000000;
    int32_t place = -1;
    epx_link_begin(link, &call);
    epx_status_t status = epx_link_write(link, &frame, NULL, deadline_ns);
    if (status == EPX_OK)
        status = await(circle, &call, deadline_ns, &place);
    epx_link_end(link, &call);
    if (status == EPX_OK && call.place >= 0)
        return call.place;
    for (int32_t i = 0; i < circle->size; i++)
        if (circle->rank[i] == 0)
            return i;
    return -1;
}

static epx_status_t collect(epx_circle_t *circle, const epx_frame_t *given, const void *send, void *receive,
                            size_t answer_bytes, int64_t deadline_ns, epx_circle_result_t *result)
{
    epx_link_t *link = circle->link;
    epx_frame_t frame = *given;
    frame.magic = EPX_FRAME_MAGIC;
    frame.circle = circle->id;
    frame.sequence = result->sequence = ++circle->sequence;
    frame.place = circle->place;
    frame.size = circle->size;
    link_call_t call = {.kind = (epx_frame_kind_t)frame.kind,
                        .circle = circle->id,
                        .sequence = frame.sequence,
                        .receive = receive,
                        .bytes = answer_bytes};
    pthread_mutex_lock(&link->mutex);
    epx_status_t status = find_end(circle, &result->peer);
    pthread_mutex_unlock(&link->mutex);
    if (status != EPX_OK)
        return status;
    epx_link_begin(link, &call);
    status = epx_link_write(link, &frame, send, deadline_ns);
    if (status == EPX_ERR_PEER) {
        pthread_mutex_lock(&link->mutex);
        (void)find_end(circle, &result->peer);
        pthread_mutex_unlock(&link->mutex);
    }
    if (status == EPX_OK)
        status = await(circle, &call, deadline_ns, &result->peer);
    epx_link_end(link, &call);
    if (status == EPX_ERR_TIMEOUT)
        result->peer = ask_missing(circle, frame.sequence);
    if (status != EPX_OK)
        blame(circle, status == EPX_ERR_TIMEOUT ? result->peer : -1);
    if (status != EPX_OK && call.text[0] != '\0')
        return epx_fail(status, "%s", call.text);
    return status;
}

epx_status_t epx_circle_gather(epx_circle_t *circle, const void *send, void *receive, size_t bytes,
                               int64_t timeout_ms, epx_circle_result_t *result_p)
{
    int64_t deadline_ns = epx_clock_ns() + timeout_ms * 1000000;
    size_t piece = GATHER_BYTES / (size_t)circle->size, done = 0;
    epx_frame_t frame = {.kind = FRAME_GATHER};
    epx_status_t status;
    uint8_t *room = NULL;
    *result_p = (epx_circle_result_t){.peer = -1};
    if (bytes > piece && (room = malloc(piece * (size_t)circle->size)) == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "no memory to gather %zu bytes", bytes);
    do {
        size_t now = bytes - done < piece ? bytes - done : piece;
        frame.bytes = (uint32_t)now;
        status = collect(circle, &frame, (const uint8_t *)send + done, room != NULL ? room : receive,
                         now * (size_t)circle->size, deadline_ns, result_p);
        for (size_t i = 0; room != NULL && status == EPX_OK && i < (size_t)circle->size; i++)
            memcpy((uint8_t *)receive + i * bytes + done, room + i * now, now);
        done += now;
    } while (status == EPX_OK && done < bytes);
    free(room);
    return status;
}

epx_status_t epx_circle_reduce(epx_circle_t *circle, void *values, int64_t count, epx_number_t number,
                               epx_reduce_t reduce, int64_t timeout_ms, epx_circle_result_t *result_p)
{
    int64_t deadline_ns = epx_clock_ns() + timeout_ms * 1000000;
    int64_t unit = (int64_t)epx_number_bytes(number), piece = REDUCE_BYTES / unit;
    epx_frame_t frame = {.kind = FRAME_REDUCE,
                         .number_reduce = (uint16_t)((unsigned)number * 16 + (unsigned)reduce)};
    epx_status_t status = EPX_OK;
    *result_p = (epx_circle_result_t){.peer = -1};
    for (int64_t done = 0; status == EPX_OK && done < count; done += piece) {
        int64_t now = count - done < piece ? count - done : piece;
        frame.bytes = (uint32_t)(now * unit);
        uint8_t *at = (uint8_t *)values + done * unit;
        status = collect(circle, &frame, at, at, frame.bytes, deadline_ns, result_p);
    }
    return status;
}

void epx_circle_abort(epx_circle_t *circle)
{
    epx_link_t *link = circle->link;
    epx_frame_t frame = {
        .magic = EPX_FRAME_MAGIC, .kind = FRAME_ABORT, .circle = circle->id, .place = circle->place};
    pthread_mutex_lock(&link->mutex);
    int is_first = circle->aborted_by < 0;
    link->is_spoilt = 1;
    frame.size = link->blamed;
    if (is_first)
        circle->aborted_by = circle->place;
    pthread_cond_broadcast(&link->changed);
    pthread_mutex_unlock(&link->mutex);
    if (is_first)
        (void)epx_link_write(link, &frame, NULL, epx_clock_ns() + 200000000);
}

int32_t epx_circle_aborted(epx_circle_t *circle)
{
    pthread_mutex_lock(&circle->link->mutex);
    int32_t by = circle->aborted_by;
    pthread_mutex_unlock(&circle->link->mutex);
    return by;
}

int32_t epx_circle_abort_blames(epx_circle_t *circle)
{
    pthread_mutex_lock(&circle->link->mutex);
    int32_t rank = circle->abort_blames - 1;
    pthread_mutex_unlock(&circle->link->mutex);
    return rank;
}
