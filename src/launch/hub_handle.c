/* The hub: what it does for ranks. SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/reduce.h"
#include "launch/hub.h"

/* ---- collectives -------------------------------------------------------------------------------------------- */

static hub_collective_t **find(struct epx_hub *hub, uint64_t circle, uint64_t sequence)
{
    hub_collective_t **at = &hub->collectives;
    while (*at != NULL && ((*at)->frame.circle != circle || (*at)->frame.sequence != sequence))
        at = &(*at)->next;
    return at;
}

static void free_collective(hub_collective_t *collective)
{
    free(collective->rank);
    free(collective->data);
    free(collective);
}

void epx_hub_free_collectives(struct epx_hub *hub)
{
    while (hub->collectives != NULL) {
        hub_collective_t *next = hub->collectives->next;
        free_collective(hub->collectives);
        hub->collectives = next;
    }
}

/* Answers everybody who has sent a block, and forgets the collective. */
static void answer(struct epx_hub *hub, hub_collective_t **at, hub_bytes_t *what)
{
    hub_collective_t *collective = *at;
    *at = collective->next;
    for (int32_t i = 0; i < collective->frame.size; i++) {
        int32_t r = collective->rank[i];
        if (r >= 0 && hub->rank[r].connection != NULL && what != NULL)
            epx_hub_say_bytes(hub->rank[r].connection, what);
    }
    if (what != NULL)
        epx_hub_drop_bytes(what);
    free_collective(collective);
}

static void answer_failure(struct epx_hub *hub, hub_collective_t **at, epx_status_t status, const char *text)
{
    epx_frame_t frame = (*at)->frame;
    frame.kind = FRAME_FAILED;
    frame.place = (int32_t)status;
    frame.bytes = (uint32_t)strlen(text) + 1;
    hub_bytes_t *what = epx_hub_bytes(&frame);
    if (what != NULL)
        memcpy(what->data + sizeof(frame), text, frame.bytes);
    answer(hub, at, what);
}

static const char *name_of(const epx_frame_t *frame)
{
    return frame->kind == FRAME_GATHER ? "an all-gather" : "an all-reduce";
}

static int is_same_call(const epx_frame_t *a, const epx_frame_t *b)
{
    return a->kind == b->kind && a->bytes == b->bytes && a->size == b->size &&
           a->number_reduce == b->number_reduce;
}

static void complete(struct epx_hub *hub, hub_collective_t **at)
{
    hub_collective_t *collective = *at;
    epx_frame_t frame = collective->frame;
    size_t block = frame.bytes, size = (size_t)frame.size;
    if (frame.kind == FRAME_GATHER)
        frame.bytes = (uint32_t)(block * size);
    hub_bytes_t *what = epx_hub_bytes(&frame);
    if (what == NULL) {
        answer_failure(hub, at, EPX_ERR_NO_MEMORY, "rank 0 has no memory for the answer");
        return;
    }
    if (frame.kind == FRAME_REDUCE) {
        epx_number_t number = (epx_number_t)(frame.number_reduce / 16);
        epx_reduce_t reduce = (epx_reduce_t)(frame.number_reduce % 16);
        int64_t count = (int64_t)(block / epx_number_bytes(number));
        for (size_t i = 1; i < size; i++)
            epx_reduce_values(collective->data, collective->data + i * block, count, number, reduce);
    }
    if (frame.bytes > 0)
        memcpy(what->data + sizeof(frame), collective->data, frame.bytes);
    answer(hub, at, what);
}

static hub_collective_t *begin(struct epx_hub *hub, const epx_frame_t *frame)
{
    hub_collective_t *collective = calloc(1, sizeof(*collective));
    size_t size = (size_t)frame->size, bytes = size * frame->bytes;
    if (collective == NULL)
        return NULL;
    collective->frame = *frame;
    collective->rank = malloc(size * sizeof(int32_t));
    collective->data = malloc(bytes > 0 ? bytes : 1);
    if (collective->rank == NULL || collective->data == NULL) {
        free_collective(collective);
        return NULL;
    }
    for (size_t i = 0; i < size; i++)
        collective->rank[i] = -1;
    collective->next = hub->collectives;
    hub->collectives = collective;
    return collective;
}

static void take_block(struct epx_hub *hub, hub_connection_t *from, const epx_frame_t *frame,
                       const uint8_t *data)
{
    char text[EPX_HUB_TEXT_BYTES];
    int is_reduce = frame->kind == FRAME_REDUCE;
    if (frame->size < 1 || frame->size > hub->size || frame->place < 0 || frame->place >= frame->size ||
        (uint64_t)frame->bytes * (uint64_t)frame->size > EPX_FRAME_DATA_MAX ||
        (is_reduce && (frame->number_reduce / 16 > EPX_NUMBER_INT64 || frame->number_reduce % 16 > EPX_MIN)))
        return; /* none of ours says so */
    hub_collective_t **at = find(hub, frame->circle, frame->sequence);
    if (*at == NULL) {
        if (begin(hub, frame) == NULL) {
            epx_frame_t failed = *frame;
            failed.kind = FRAME_FAILED;
            failed.place = EPX_ERR_NO_MEMORY;
            failed.bytes = sizeof("rank 0 has no memory for a collective");
            epx_hub_say(from, &failed, "rank 0 has no memory for a collective");
            return;
        }
        at = &hub->collectives;
    }
    hub_collective_t *collective = *at;
    if (!is_same_call(&collective->frame, frame) || collective->rank[frame->place] >= 0) {
        snprintf(text, sizeof(text),
                 "call %" PRIu64
                 ": place %d makes %s of %u bytes, place %d %s of %u: make the same calls in the "
                 "same order on all ranks",
                 frame->sequence, collective->frame.place, name_of(&collective->frame),
                 collective->frame.bytes, frame->place, name_of(frame), frame->bytes);
        if (collective->rank[frame->place] < 0 && frame->place < collective->frame.size)
            collective->rank[frame->place] = from->rank;
        answer_failure(hub, at, EPX_ERR_MISMATCH, text);
        return;
    }
    collective->rank[frame->place] = from->rank;
    if (frame->bytes > 0)
        memcpy(collective->data + (size_t)frame->place * frame->bytes, data, frame->bytes);
    if (++collective->came == frame->size)
        complete(hub, at);
}

/* The first place from the asker's on that has not come. */
static void tell_missing(struct epx_hub *hub, hub_connection_t *from, const epx_frame_t *frame)
{
    const hub_collective_t *collective = *find(hub, frame->circle, frame->sequence);
    epx_frame_t answer_frame = *frame;
    answer_frame.bytes = 0;
    answer_frame.place = -1;
    for (int32_t i = 0; collective != NULL && i < collective->frame.size && answer_frame.place < 0; i++)
        if (collective->rank[i] < 0)
            answer_frame.place = i;
    epx_hub_say(from, &answer_frame, NULL);
}

/* ---- notes -------------------------------------------------------------------------------------------------- */

static void tell_notes(struct epx_hub *hub, hub_connection_t *from, const epx_frame_t *frame)
{
    int64_t now_ns = epx_clock_ns();
    for (int32_t r = 0; r < hub->size; r++) {
        const hub_rank_t *rank = &hub->rank[r];
        epx_frame_t note = {.magic = EPX_FRAME_MAGIC,
                            .kind = FRAME_NOTE,
                            .bytes = (uint32_t)rank->note_bytes,
                            .place = r,
                            .size = (int32_t)rank->state,
                            .circle = frame->circle,
                            .sequence = (uint64_t)((now_ns - rank->note_ns) / 1000000)};
        epx_hub_say(from, &note, rank->note);
    }
    epx_frame_t end = *frame;
    end.bytes = 0;
    epx_hub_say(from, &end, NULL);
}

void epx_hub_handle(struct epx_hub *hub, hub_connection_t *from, const epx_frame_t *frame, uint8_t **data_p)
{
    hub_rank_t *rank = &hub->rank[from->rank];
    epx_frame_t told = *frame;
    told.bytes = 0;
    switch ((epx_frame_kind_t)frame->kind) {
    case FRAME_GATHER:
    case FRAME_REDUCE: take_block(hub, from, frame, *data_p); break;
    case FRAME_MISSING: tell_missing(hub, from, frame); break;
    case FRAME_ABORT: epx_hub_say_all(hub, &told, NULL); break;
    case FRAME_LEFT:
        rank->state = EPX_LINK_LEFT;
        told.place = from->rank;
        epx_hub_say_all(hub, &told, NULL);
        break;
    case FRAME_PUT:
        free(rank->note);
        rank->note = *data_p;
        *data_p = NULL;
        rank->note_bytes = frame->bytes;
        rank->note_ns = epx_clock_ns();
        break;
    case FRAME_GET: tell_notes(hub, from, frame); break;
    case FRAME_CALL:
        told.place = from->rank;
        epx_hub_say_all(hub, &told, NULL);
        break;
    case FRAME_HELLO:
    case FRAME_REFUSED:
    case FRAME_WELCOME:
    case FRAME_FAILED:
    case FRAME_DEAD:
    case FRAME_NOTE: break; /* not for a hub */
    }
}
