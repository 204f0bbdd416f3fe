/*
 * What every call must compute, worked out assignment by assignment from the rules alone.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Shares no code with the library and does not include its accept rules: loops over all assignments of all
 * ranks, without prefix sums, counts tables or layouts. Slow, and meant to be read beside the rules:
 *
 *   oracle_gates.c   pooled_wave: two gates, spill, extra_wave
 *   oracle_counts.c  ragged, ring: prefix, waterfill, fair over the table of counts; rows in their places
 *   oracle_sums.c    out, dy, dx, dweight as exact chains
 */
#ifndef TESTS_ORACLE_H
#define TESTS_ORACLE_H

#include "support/problem.h"

typedef enum fate {
    UNUSED = 0, /* a spill column that replaced nothing */
    SKIPPED,    /* -1 */
    KEPT,
    REFUSED,         /* at the sender: dropped there unless another choice replaces it */
    REPLACED,        /* refused, and a spill choice of the same token took its place */
    REFUSED_RECEIVER /* by pooled_wave's second gate */
} fate_t;

/* One assignment (s, t, k). */
typedef struct seat {
    fate_t fate;
    int from, token, k;
    int expert, owner; /* real rank */
    int wave;
    int64_t slot;  /* pooled_wave: within (virtual sender, virtual destination, wave) */
    int64_t place; /* row in the owner's batch of this wave */
} seat_t;

typedef struct oracle {
    const problem_t *p;
    int rank_wire;
    int waves;
    int local_max;          /* most experts of a rank */
    int *local, *locals;    /* [E] ordinal among its owner's experts; [S] El */
    seat_t **seat;          /* [S][T * columns] */
    int64_t *start, *count; /* [S, waves, local_max] */
    int64_t rows_needed;    /* a batch never ends behind it */
    epx_plan_stats_t
        *stats; /* [S]; bytes: payload rows of one forward pass are in sent_bytes, received_bytes */
    /* oracle_sums */
    unsigned char **y, **dy, **dx_row; /* [S][T * columns, H] row type: at the owner, by assignment */
    unsigned char **out, **dx;         /* [S][T, H] out type */
    float **dweight;                   /* [S][T, columns] */
} oracle_t;

/* Decides everything but sums. wire: as the group resolved it. */
oracle_t *oracle_new(const problem_t *problem, epx_wire_t wire);
/* Computes rows and sums too. */
void oracle_sums(oracle_t *oracle);
void oracle_free(oracle_t *oracle);

seat_t *oracle_seat(const oracle_t *oracle, int rank, int64_t token, int k);
int64_t oracle_start(const oracle_t *oracle, int rank, int wave, int local);
int64_t oracle_count(const oracle_t *oracle, int rank, int wave, int local);
epx_type_t oracle_out_type(const problem_t *problem);

/* ---- parts, for the oracle's own files ------------------------------------------------------------------------------- */

/* The block that item i of n falls in, when the first n mod parts blocks get one more. */
int oracle_block(int64_t i, int64_t n, int parts);
/* ceil(product * factor / divisor), the one formula of all capacities. */
int64_t oracle_ceil(int64_t product, double factor, int64_t divisor);
/* Virtual rank of a token's sender and of an expert; with one split these are the real ones. */
int oracle_sender(const oracle_t *oracle, int rank, int64_t token);
int oracle_owner(const oracle_t *oracle, int expert);
/* How many experts a virtual rank owns. */
int oracle_owned(const oracle_t *oracle, int virtual_rank);
/* Valid assignments of one virtual sender, or of all (-1), to one expert, or to all (-1). */
int64_t oracle_valid(const oracle_t *oracle, int virtual_rank, int expert);
/* A_max of one virtual sender. */
int64_t oracle_assignments_max(const oracle_t *oracle);

void oracle_pooled(oracle_t *oracle);
void oracle_ragged(oracle_t *oracle);
void oracle_ring(oracle_t *oracle);

#endif
