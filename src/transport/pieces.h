/*
 * Fabrics without loads and stores: what a post sends and receives, piece by piece.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Kernels write what travels into a staging area of this rank's own segment, by the same tables of
 * destinations and runs as ever, and what is for the rank itself where it belongs; post carries the rest.
 * Sender and receiver list the same pieces in one order (fabric.h), each from what it knows:
 *
 * - Both go through the parts of a message (rows, weights, origins, ...) in one order, and in a part through
 *   what travels between the two of them in the order of the receiver's memory.
 *
 * - Neighbours in a part become one piece where they are neighbours at the receiver. So staging must hold
 * what follows at the receiver behind each other too.
 */
#ifndef EPX_TRANSPORT_PIECES_H
#define EPX_TRANSPORT_PIECES_H

#include <epx/transport.h>

/* A list that is being made. */
typedef struct epx_pieces {
    epx_piece_t *send, *receive; /* host memory, with room for all */
    int32_t sends, receives;
    int32_t first_send, first_receive; /* of this part: nothing before them is extended */
    epx_piece_source_t *source;        /* or NULL */
} epx_pieces_t;

static inline epx_pieces_t epx_pieces_begin(epx_piece_t *send, epx_piece_t *receive)
{
    return (epx_pieces_t){.send = send, .receive = receive};
}

/* Another part begins. */
static inline void epx_pieces_part(epx_pieces_t *pieces)
{
    pieces->first_send = pieces->sends;
    pieces->first_receive = pieces->receives;
}

/* Adds what goes to the peer, or comes from it: offsets in my segment and in the peer's. Nothing where bytes
 * are 0. */
void epx_pieces_send(epx_pieces_t *pieces, int32_t peer, int64_t local, int64_t remote, int64_t bytes);
void epx_pieces_receive(epx_pieces_t *pieces, int32_t peer, int64_t local, int64_t bytes);

/*
 * A source of rows in the caller's memory (fabric.h), for a fabric that reads such: kernels then leave out
 * the rows for others. Run by run as in a push: entry i of a run is row s / divide of `rows`, s = index[i],
 * or i without an index; row `row` of a run is the entry `first`. Negative s: that row is left as it is.
 */
typedef struct epx_rows_source {
    epx_piece_source_t base;
    const char *rows;
    int64_t stride;
    int32_t divide;
    const int32_t *index;  /* or NULL */
    const epx_run_t *runs; /* `row`: counted from base.local on, in units */
    int32_t run_count, at; /* at: the run that was read last */
} epx_rows_source_t;

/* Fills in base.read. */
void epx_rows_source_begin(epx_rows_source_t *source);

void epx_pieces_into(const epx_pieces_t *pieces, const epx_segment_t *segment, epx_post_t *post);

/* Whether rows for others can stay where the caller has them, as a source of the post. */
static inline int epx_reads_sources(const epx_transport_env_t *env)
{
    return env->device->host_access && (env->fabric->caps & EPX_FABRIC_READS_SOURCES) != 0;
}

/* Whether rows have to be staged. */
static inline int epx_is_staged(uint32_t fabric_caps) { return (fabric_caps & EPX_FABRIC_LOADSTORE) == 0; }

/*
 * The table of destinations of a group that stages: `base` for the rank itself, `other` for everybody else;
 * [S] pointers at `table`, which is device memory. Synchronises nothing.
 */
epx_status_t epx_staged_table(const epx_transport_env_t *env, void *table, void *base, void *other);

#endif
