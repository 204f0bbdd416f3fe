/* The link: writing and reading. SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "launch/link.h"

epx_status_t epx_link_write(epx_link_t *link, const epx_frame_t *frame, const void *data, int64_t deadline_ns)
{
    pthread_mutex_lock(&link->writing);
    int error = link->is_broken;
    if (error == 0)
        error = epx_launch_send(link->socket, frame, sizeof(*frame), deadline_ns);
    if (error == 0 && frame->bytes > 0)
        error = epx_launch_send(link->socket, data, frame->bytes, deadline_ns);
    link->is_broken = error;
    pthread_mutex_unlock(&link->writing);
    if (error == 0)
        return EPX_OK;
    pthread_mutex_lock(&link->mutex);
    int is_down = link->is_down;
    pthread_mutex_unlock(&link->mutex);
    return error == ETIMEDOUT && !is_down ? EPX_ERR_TIMEOUT : EPX_ERR_PEER;
}

void epx_link_begin(epx_link_t *link, link_call_t *call)
{
    pthread_mutex_lock(&link->mutex);
    call->next = link->calls;
    link->calls = call;
    pthread_mutex_unlock(&link->mutex);
}

void epx_link_end(epx_link_t *link, link_call_t *call)
{
    pthread_mutex_lock(&link->mutex);
    link_call_t **at = &link->calls;
    while (*at != call)
        at = &(*at)->next;
    *at = call->next;
    pthread_mutex_unlock(&link->mutex);
}

/* All below: under the mutex. */

static link_call_t *find_call(epx_link_t *link, const epx_frame_t *frame, int any_kind)
{
    for (link_call_t *call = link->calls; call != NULL; call = call->next)
        if ((any_kind ? call->kind == FRAME_GATHER || call->kind == FRAME_REDUCE
                      : call->kind == frame->kind) &&
            call->circle == frame->circle && call->sequence == frame->sequence)
            return call;
    return NULL;
}

static void take_answer(epx_link_t *link, const epx_frame_t *frame, const uint8_t *data)
{
    link_call_t *call = find_call(link, frame, frame->kind == FRAME_FAILED);
    if (call == NULL)
        return; /* it has given up */
    call->done = 1;
    call->place = frame->place;
    if (frame->kind == FRAME_FAILED) {
        call->status = (epx_status_t)frame->place;
        snprintf(call->text, sizeof(call->text), "%.*s", (int)frame->bytes, (const char *)data);
    } else if (frame->bytes != call->bytes) {
        call->status = EPX_ERR_FATAL;
        snprintf(call->text, sizeof(call->text), "an answer of %u bytes in place of %zu", frame->bytes,
                 call->bytes);
    } else if (frame->bytes > 0) {
        memcpy(call->receive, data, frame->bytes);
    }
}

static void take_note(epx_link_t *link, const epx_frame_t *frame, const uint8_t *data)
{
    for (link_call_t *call = link->calls; call != NULL; call = call->next)
        if (call->kind == FRAME_GET && call->circle == frame->circle)
            call->fn(call->context, frame->place, (epx_link_state_t)frame->size,
                     frame->bytes > 0 ? data : NULL, frame->bytes, (int64_t)frame->sequence);
}

static void take_abort(epx_link_t *link, const epx_frame_t *frame)
{
    link->is_spoilt = 1;
    for (epx_circle_t *circle = link->circles; circle != NULL; circle = circle->next) {
        if (circle->id != frame->circle)
            continue;
        if (circle->aborted_by < 0) {
            circle->aborted_by = frame->place;
            circle->abort_blames = frame->size;
        }
        return;
    }
    link->early[link->early_count++ % EARLY_ABORTS] =
        (link_early_abort_t){.id = frame->circle, .place = frame->place, .blamed = frame->size};
}

static void bury(epx_link_t *link, int32_t rank)
{
    if (rank < 0 || rank >= link->size || link->state[rank] != EPX_LINK_HERE)
        return;
    link->state[rank] = EPX_LINK_DEAD;
    link->deaths++;
}

/* ---- the thread: without the mutex --------------------------------------------------------------------------- */

static void take_frame(epx_link_t *link, const epx_frame_t *frame, const uint8_t *data)
{
    epx_link_call_fn on_call = NULL;
    void *context = NULL;
    pthread_mutex_lock(&link->mutex);
    if (frame->kind == FRAME_NOTE)
        take_note(link, frame, data);
    else if (frame->kind == FRAME_ABORT)
        take_abort(link, frame);
    else if (frame->kind == FRAME_DEAD)
        bury(link, frame->place);
    else if (frame->kind == FRAME_LEFT && frame->place >= 0 && frame->place < link->size)
        link->state[frame->place] = EPX_LINK_LEFT;
    else if (frame->kind == FRAME_CALL) {
        on_call = link->on_call;
        context = link->on_call_context;
    } else
        take_answer(link, frame, data);
    pthread_cond_broadcast(&link->changed);
    pthread_mutex_unlock(&link->mutex);
    if (on_call != NULL)
        on_call(context, frame->place, frame->sequence);
}

void *epx_link_run(void *argument)
{
    epx_link_t *link = argument;
    uint8_t *data = NULL;
    size_t room = 0;
    for (;;) {
        epx_frame_t frame;
        if (epx_launch_receive(link->socket, &frame, sizeof(frame), INT64_MAX) != 0 ||
            frame.magic != EPX_FRAME_MAGIC)
            break;
        if (frame.bytes > room) {
            free(data);
            room = frame.bytes;
            data = malloc(room);
        }
        if (frame.bytes > 0 &&
            (data == NULL || epx_launch_receive(link->socket, data, frame.bytes, INT64_MAX) != 0))
            break;
        take_frame(link, &frame, data);
    }
    free(data);
    /* The hub is gone, and with it rank 0 for all that this link can tell. */
    pthread_mutex_lock(&link->mutex);
    link->is_down = 1;
    bury(link, 0);
    pthread_cond_broadcast(&link->changed);
    pthread_mutex_unlock(&link->mutex);
    return NULL;
}
