/*
 * Arguments of the ring transport's routing kernels. For device authors; see kernels.h for what holds for all
 * kernels. SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_KERNELS_RING_H
#define EPX_KERNELS_RING_H

#include <epx/transport.h>

#ifdef __cplusplus
extern "C" {
#endif

/* From everyone's counts to what this rank keeps: applies the accept rule (as ragged with one chunk). */
typedef struct epx_k_ring_layout {
    const epx_shape_t
        *shape;          /* host; the tables of real and virt are device memory, copied there once at open */
    const void *notices; /* [S] epx_route_notice_t of every rank, each followed by its counts, int32 [m, E] */
    int64_t notice_stride;  /* bytes, a multiple of 8 */
    int32_t *counts;        /* scratch [N, E] */
    int32_t *accepted;      /* scratch [N, E] */
    int64_t *seats;         /* scratch [N + 2 * E] */
    const int32_t *ordinal; /* [T, K] of this rank, as read_ids writes it */
    int32_t *kept;          /* in: expert ids [T, K] of this rank; out: -1 where the rule refused */
    /* A notice that says bad makes the plan dead on every rank: every block has 0 tokens then, kept is
     * undefined. */
    int64_t *block_tokens;  /* out [S]: T of every rank */
    int64_t *tokens_report; /* out [S] beside the report: the same; NULL: not wanted */
    epx_run_t *block_runs;  /* out [S]: the rows of rank b's block, bound for the right neighbour */
    epx_k_verdict_t
        verdict; /* out, of the head: valid, tokens, routed, kept (at this receiver), dropped_sender */
} epx_k_ring_layout_t;

/*
 * The places of one token block's rows in this rank's batch, in the order (local expert, token, k). An expert
 * id outside 0..E-1 and a row behind rows_max have no place: what arrived decides over no byte outside of
 * these arrays.
 */
typedef struct epx_k_ring_block {
    const int64_t *tokens; /* [1] T of the block */
    int32_t experts, top_k, local_experts, row_align;
    int64_t rows_max;
    int32_t rank;           /* the block's, for origin */
    const int32_t *local;   /* [E] ordinal among this rank's experts, -1 for those of others */
    const int32_t *kept;    /* [T, K] of the block */
    const float *weights;   /* [T, K] of the block */
    int64_t *start, *count; /* out [El] */
    int32_t *place;         /* out [T, K]: row in the batch, or -1 */
    int32_t *token;         /* out [rows_max]: token of each row */
    float *place_weight;    /* out [T, K]: a copy of weights, or NULL */
    float *row_weight;      /* out [rows_max]: weight of each row, or NULL */
    epx_origin_t *origin;   /* out [rows_max], or NULL */
    int64_t *excess; /* out [1]: assignments to this rank that found no row; 0 between plans of one routing */
} epx_k_ring_block_t;

#ifdef __cplusplus
}
#endif
#endif
