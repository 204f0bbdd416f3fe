/* How kernels of the guarded device come to pointers that they can use. SPDX-License-Identifier: Apache-2.0
 */
#ifndef TESTS_GUARDED_OPEN_H
#define TESTS_GUARDED_OPEN_H

#include <stdlib.h>

#include <epx/kernels_words.h>
#include <epx/transport.h>

#include "support/guarded.h"

static inline void *at(const void *p) { return guarded_open(p); }

/* A kernel that fails has no way to say so: none of the host's does. */
static inline void must(epx_status_t status)
{
    if (status != EPX_OK)
        abort();
}

static inline void open_rows(epx_k_rows_t *rows)
{
    rows->start = at(rows->start);
    rows->count = at(rows->count);
}

/* Where rows that stay go. */
static inline void open_places(epx_k_places_t *places)
{
    places->dst = at(places->dst);
    places->first = at(places->first);
    places->count = at(places->count);
    places->list = at(places->list);
    places->start = at(places->start);
    places->base = at(places->base);
}

static inline void open_owners(epx_owners_t *owners)
{
    owners->owner = at(owners->owner);
    owners->local = at(owners->local);
    owners->first = at(owners->first);
    owners->expert = at(owners->expert);
}

static inline void open_verdict(epx_k_verdict_t *verdict) { verdict->head = at(verdict->head); }

/* A table of peers' addresses as kernels may use them. The caller's to free. */
static inline void **open_peers(void *const *table, int32_t peers)
{
    void *const *closed = at(table);
    void **open = calloc((size_t)peers + 1, sizeof(*open));
    if (open == NULL)
        abort();
    for (int32_t p = 0; p < peers; p++)
        open[p] = at(closed[p]);
    return open;
}

/* The same, as long as the runs need it. */
static inline void *const *open_table(void *const *table, const epx_run_t *runs, int32_t run_count)
{
    int32_t peers = 0;
    for (int32_t i = 0; i < run_count; i++)
        if (runs[i].rows > 0 && runs[i].peer >= peers)
            peers = runs[i].peer + 1;
    return open_peers(table, peers);
}

/* The blocks as kernels may use them; the table is the caller's to free. */
static inline void open_words(epx_words_t *words)
{
    void *const *closed = at(words->peer);
    void **open = calloc((size_t)words->ranks, sizeof(*open));
    if (open == NULL)
        abort();
    for (int32_t p = 0; p < words->ranks; p++)
        open[p] = at(closed[p]);
    words->peer = open;
}

static inline void close_words(epx_words_t *words) { free((void *)(size_t)words->peer); }

static inline void open_post(epx_k_word_post_t *post)
{
    post->begin.words = at(post->begin.words);
    post->begin.head = at(post->begin.head);
    post->epoch.base = at(post->epoch.base);
    post->gate = at(post->gate);
    open_words(&post->words);
}

/* guarded_transports.c */
epx_status_t guarded_pooled_gate1(const struct epx_k_pooled_gate1 *args, epx_stream_t stream);
epx_status_t guarded_pooled_gate2(const struct epx_k_pooled_gate2 *args, epx_stream_t stream);
epx_status_t guarded_pooled_extra(const struct epx_k_pooled_extra *args, epx_stream_t stream);
epx_status_t guarded_pooled_pack(const struct epx_k_pooled_pack *args, epx_stream_t stream);
epx_status_t guarded_ragged_layout(const struct epx_k_ragged_layout *args, epx_stream_t stream);
epx_status_t guarded_ragged_return(const struct epx_k_ragged_return *args, epx_stream_t stream);
epx_status_t guarded_ragged_flow(const struct epx_k_ragged_flow *args, epx_stream_t stream);
epx_status_t guarded_ragged_home(const struct epx_k_ragged_home *args, epx_stream_t stream);
epx_status_t guarded_ring_layout(const struct epx_k_ring_layout *args, epx_stream_t stream);
epx_status_t guarded_ring_block(const struct epx_k_ring_block *args, epx_stream_t stream);

#endif
