/*
 * The kernels contract, pooled_wave's part: deciding and laying out, no rows are moved here.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Symbols as in kernels.h; N virtual ranks, m of them per real rank (m = 1: virtual and real are one); P(v)
 * slots of a virtual destination v in one wave. Every pointer is device memory unless it says host.
 *
 * Home rows. A real rank's slabs of one wave, one per real destination, lie behind each other; the slab to d
 * holds m * m virtual slabs, by virtual sender i = 0..m-1, then virtual destination v of d ascending, then
 * slot: home row = base[d] + i * (base[d + 1] - base[d]) / m + before[v] + slot            0 .. home_rows - 1
 * Rows go out from there, and come home to the same numbers. base and before are equal on all ranks.
 *
 * Incoming rows. The receiver d keeps the slab of real source r at r * slab_rows, so that
 *     incoming row = r * slab_rows + home row at r - base[d].
 *
 * Place of an assignment: wave * home_rows + home row, or -1 where it does not travel.
 *
 * Header of a slab, header_bytes from one to the next, in the sender's byte order:
 *     int32 status (0)   uint32 stamp (low half of the move's epoch)   int64 valid[m]   tag[home row -
 * base[d]] where a tag is the ordinal of the expert at its virtual owner + 1, 0 for an empty slot, tag_bytes
 * (2 or 4) wide.
 */
#ifndef EPX_KERNELS_POOLED_WAVE_H
#define EPX_KERNELS_POOLED_WAVE_H

#include <epx/kernels.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Static about a group; the struct itself is host memory, copied by value where a device needs it. */
typedef struct epx_k_pooled_layout {
    int32_t rank, ranks;             /* real */
    int32_t virtual_ranks, splits;   /* N, m */
    int32_t experts, top_k, columns; /* columns = K + X */
    int32_t waves;                   /* W, the divisor of capacities */
    int32_t dropless, extra_wave;
    int64_t assignments_max; /* A_max of one virtual sender */
    double cf, cs;
    /* of N virtual ranks, as epx_owners_t */
    const int32_t *owner;      /* [E] */
    const int32_t *local;      /* [E] */
    const int32_t *first;      /* [N + 1] */
    int32_t local_experts_max; /* the most experts of a virtual rank */
    const int32_t *expert; /* [E] by virtual owner: experts of a real rank stand together, in its own order */
    const int32_t *base;   /* [S + 1] */
    const int32_t *before; /* [N] */
    int32_t home_rows, slab_rows;
    int32_t rows_per_expert; /* batch row of the first row of local expert i: i * rows_per_expert */
    int32_t tag_bytes;
    int64_t header_bytes;
} epx_k_pooled_layout_t;

#define EPX_POOLED_HEADER_VALID 8 /* offset of valid[m] */

/* Gate 1 (drop and spill) of all virtual senders of this rank. */
typedef struct epx_k_pooled_gate1 {
    const epx_k_pooled_layout_t *layout; /* host */
    const epx_route_notice_t *notice;    /* of this rank: T, and whether there is anything to decide */
    const int32_t *expert;               /* [tokens, columns], -1 for none */
    int32_t *place;                      /* out [tokens, columns] */
    int32_t *slot;                       /* scratch [tokens, columns] */
    int64_t *gate;                       /* scratch [N] */
    int64_t *valid;                      /* out [m]: V of each virtual sender */
    /* out: valid, tokens, routed, skipped, dropped_sender, spilled (whatever gate 2 then says) of the head. A
     * bad notice makes the plan dead here, and gives valid[m] = 0; the report's `done` is left to gate 2. */
    epx_k_verdict_t verdict;
} epx_k_pooled_gate1_t;

/* extra_wave: what follows from everybody's counts. Computed again for every wave, so that plans hold the
 * counts only. */
typedef struct epx_k_pooled_extra {
    const epx_k_pooled_layout_t *layout; /* host */
    const int32_t *counts;               /* [N, E] */
    int32_t *remaining;                  /* scratch [N * most experts of a virtual rank + N] */
    /* Either the whole: waves != NULL, place NULL. */
    int32_t *waves;  /* out [1]: waves of the pass, at least 1 */
    int64_t *valid;  /* out [m] */
    int64_t *routed; /* out [1] */
    /* Or one wave: place != NULL. */
    int32_t wave;
    int64_t tokens;
    const int64_t *tokens_device;
    const int32_t *expert, *ordinal; /* [tokens, columns] as read_ids gives them */
    int32_t *move;                   /* scratch [m, E, 3] */
    int32_t *place; /* out [tokens, columns]: home row, or -1 when not of this wave (lo = 0) */
} epx_k_pooled_extra_t;

/* What one wave sends: the list of home rows, and the headers. */
typedef struct epx_k_pooled_pack {
    const epx_k_pooled_layout_t *layout; /* host */
    int64_t tokens;
    const int64_t *tokens_device;
    const int32_t *expert, *place; /* [tokens, columns] */
    int64_t lo;                    /* place - lo in 0 .. home_rows - 1 is of this wave */
    const uint8_t *kept;           /* [home_rows]: rows with 0 are left out; NULL: none are */
    int32_t *list;                 /* out [home_rows]: assignment t * columns + k, or -1 */
    const int64_t *valid;          /* [m] */
    const int32_t *status;         /* [1] goes into the headers where it is negative; NULL: they say EPX_OK */
    uint32_t stamp;
    /* The header of the slab to d goes straight to row `header_row` (-1: row d) of the headers that begin
     * headers_offset behind dst[d]. dst NULL: no headers are wanted. */
    void *const *dst; /* [S] base of each peer */
    int64_t headers_offset;
    int32_t header_row;
    int64_t *start, *count; /* out [home_rows] each, as epx_k_rows of home_rows experts with one row or none;
                               NULL: not wanted */
    int32_t units;          /* multiprocessors that the grid may fill; 0: all (other devices: no meaning) */
} epx_k_pooled_pack_t;

/*
 * Gate 2 of all virtual destinations of this rank, and the layout of the batch. A header with a negative
 * status says that its sender's route failed: the plan is dead here too (EPX_ERR_PEER). In a dead plan
 * every slot counts as empty, nothing is added to the totals.
 */
typedef struct epx_k_pooled_gate2 {
    const epx_k_pooled_layout_t *layout; /* host */
    const unsigned char *headers;        /* [S, header_bytes] as they came */
    uint32_t stamp;                      /* that they must have */
    int32_t *tag;                        /* scratch [S * slab_rows] */
    void **pointer;                      /* scratch [2 * N] */
    int32_t *to;   /* out [S * slab_rows]: batch row of an incoming row, or -1 (empty, refused, padding) */
    int32_t *from; /* out [batch rows]: incoming row of every counted batch row */
    uint8_t *kept; /* out [S * slab_rows]: 1 where `to` is a row */
    int64_t *start, *count;  /* out [El] */
    int32_t counts;          /* 1: kept and dropped_receiver of the head are added to; 2: they begin at 0 */
    int32_t *confirmed;      /* out [1]: 1, whatever has come; or NULL */
    epx_k_verdict_t verdict; /* done with every call; its counts are those of the head after it */
    int64_t *bad; /* out [2]: a source whose header is not of this move, and what its stamp says; or one
                     with a tag out of range, and that tag negated; bad[0] = -1: all is well. No
                     header makes the kernel write outside of its outputs */
} epx_k_pooled_gate2_t;

#ifdef __cplusplus
}
#endif
#endif
