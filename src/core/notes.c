/* Summaries of flight records over the job's link. SPDX-License-Identifier: Apache-2.0 */
#include "core/notes.h"

#include <stdatomic.h>

#include "base/clock.h"

enum { GET_MS = 400 };

/* A process has one link; its thread may be in the handler while the recorder closes, so that writes here. */
static _Atomic int64_t asked_ns;

static void on_call(void *context, int32_t from, uint64_t word)
{
    (void)context, (void)from, (void)word;
    atomic_store(&asked_ns, epx_clock_ns());
}

static int64_t asked(void *context)
{
    (void)context;
    return atomic_load(&asked_ns);
}

static void ask(void *context) { epx_link_call(context, 1); }

static void put(void *context, const void *summary, size_t bytes) { epx_link_put(context, summary, bytes); }

typedef struct listener {
    epx_recorder_heard_fn heard;
    void *to;
} listener_t;

static void hear(void *context, int32_t rank, epx_link_state_t state, const void *note, size_t bytes,
                 int64_t age_ms)
{
    const listener_t *listener = context;
    (void)age_ms;
    listener->heard(listener->to, rank, state == EPX_LINK_DEAD, note, bytes);
}

static void get(void *context, epx_recorder_heard_fn heard, void *to)
{
    listener_t listener = {.heard = heard, .to = to};
    epx_link_get(context, GET_MS, hear, &listener);
}

void epx_notes_begin(epx_recorder_h recorder, epx_link_t *link)
{
    if (recorder == NULL || link == NULL)
        return;
    epx_recorder_notes_t notes = {
        .context = link, .asked_ns = asked, .ask = ask, .put = put, .get = get, .most = EPX_LINK_NOTE_BYTES};
    epx_recorder_notes(recorder, &notes);
    epx_link_on_call(link, on_call, NULL);
}

void epx_notes_end(epx_link_t *link)
{
    if (link != NULL)
        epx_link_on_call(link, NULL, NULL);
}
