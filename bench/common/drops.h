/*
 * What the accept rules make of a routing: the library's own rules on every assignment of every rank, and no
 * row moved. SPDX-License-Identifier: Apache-2.0
 *
 * A rank here is a rank as the rules see it. Nothing depends on the number of threads: everything that is
 * counted is an integer.
 */
#ifndef EPX_BENCH_DROPS_H
#define EPX_BENCH_DROPS_H

#include <stddef.h>
#include <stdint.h>

#include <epx/epx.h>

/* Who chose what. One layer of one step. */
typedef struct epx_drops_routing {
    int32_t ranks; /* N */
    /* Experts belong to so many ranks first (contiguous blocks, the first E mod S one more), and what each
     * owns to its N / S parts likewise: ownership of virtual ranks. 0: N. */
    int32_t real_ranks;
    int32_t experts, top_k;
    int32_t columns;    /* choices per token: K, and with spill so many more as there are */
    int64_t tokens_max; /* T_max: capacities follow from it */
    /*
     * Writes the choices of a rank, ids [T, columns], -1 for none, and returns T, 0 .. tokens_max. Called by
     * several threads at once, more than once for a rank, and always with the same result.
     */
    int64_t (*ids)(void *context, int32_t rank, int32_t *ids);
    void *context;
} epx_drops_routing_t;

typedef enum epx_drops_transport {
    EPX_DROPS_POOLED_WAVE,
    EPX_DROPS_RAGGED,
    EPX_DROPS_RING
} epx_drops_transport_t;

/* Under which rules. Nothing has a default here. */
typedef struct epx_drops_case {
    epx_drops_transport_t transport;
    double capacity_factor; /* or EPX_DROPLESS */
    double sender_factor;
    int32_t waves; /* W or C; no meaning for ring */
    epx_accept_t accept;
    epx_overflow_t overflow;
    int32_t rank_wire; /* ragged: rows are counted once per (token, rank, wave) */
} epx_drops_case_t;

/*
 * What came of it. Arrays [waves, ranks], rank r of wave w at w * ranks + r, in rows. pooled_wave's rows that
 * move are its slabs, full or not; ring's are the tokens of the blocks that it passes on.
 */
typedef struct epx_drops {
    int64_t routed, skipped, kept, spilled, dropped_sender, dropped_receiver;
    int32_t ranks, waves;
    int64_t *tokens;   /* [ranks] T of each */
    int64_t *asked;    /* [ranks] assignments that wanted each rank's experts */
    int64_t *rows;     /* rows for the experts of the rank */
    int64_t *refused;  /* by the receiver's gate */
    int64_t *sent;     /* to other ranks, by dispatch */
    int64_t *received; /* from other ranks */
    int64_t *own;      /* that stay on the rank */
} epx_drops_t;

/*
 * Counts `count` cases of one routing: drops [count], each to be freed. Returns 0, or -1 with "what is wrong:
 * what to do" for a case or a shape that cannot be.
 */
int epx_drops_count(const epx_drops_routing_t *routing, const epx_drops_case_t *cases, int32_t count,
                    int32_t threads, epx_drops_t *drops, char *problem, size_t problem_bytes);
void epx_drops_free(epx_drops_t *drops);

/* Largest of `asked` over its mean; 1 where nothing was asked. */
double epx_drops_load(const epx_drops_t *drops);

/* ---- each assignment ---------------------------------------------------------------------------------------------- */

typedef enum epx_fate_kind {
    EPX_FATE_KEPT,
    EPX_FATE_SENDER,
    EPX_FATE_RECEIVER,
    EPX_FATE_SKIPPED
} epx_fate_kind_t;

typedef struct epx_fate {
    epx_fate_kind_t kind;
    int32_t expert; /* where it went: with spill another choice than its own may stand here; -1: skipped */
    int32_t wave;   /* that it travelled in; -1 where nothing moved */
} epx_fate_t;

/* fates [tokens, top_k] of one rank. Return non-zero to stop. */
typedef int (*epx_fate_fn)(void *context, int32_t rank, int64_t tokens, const epx_fate_t *fates);

/* As epx_drops_count for one case, then calls fn for every rank, ascending. Returns -1 as above, or what fn
 * did. */
int epx_drops_fates(const epx_drops_routing_t *routing, const epx_drops_case_t *how, int32_t threads,
                    epx_drops_t *drops, epx_fate_fn fn, void *context, char *problem, size_t problem_bytes);

#endif
