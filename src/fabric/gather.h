/*
 * The small all-gather of fabrics whose hosts see words and boxes. SPDX-License-Identifier: Apache-2.0
 *
 * One sequence for each channel, e = 1, 2, ... A word is (e << 1) | (1 when the sender's step e - 1 failed).
 * Boxes alternate by the parity of e.
 *
 * - I1  A rank posts step e only after every rank is past step e - 2: its word or failure word has reached
 * e - 1. So box e & 1 is not overwritten while a slow rank still reads step e - 2 from it, and a word can be
 * at most one step ahead of its slowest reader.
 *
 * - I2  Step e of rank p has arrived: its word is e, or it is e + 1 without the failed bit.
 *
 * - I3  Step e of rank p has failed: the word is below e and the failure word has reached e, or the word is
 * e + 1 with the bit. A failing rank waits for nobody: it writes no box.
 */
#ifndef EPX_FABRIC_GATHER_H
#define EPX_FABRIC_GATHER_H

#include <epx/fabric.h>

/* Who takes part: all ranks, or the survivors. */
typedef struct epx_circle {
    const int32_t *rank; /* [size] fabric ranks; NULL: all, in order */
    int32_t size, me;    /* my place */
} epx_circle_t;

/* How a meeting of survivors ends. alive [S]: 1 for who was there in time; EPX_ERR_PEER where this rank was
 * not. room [S] takes their ranks, and stays with the circle. */
epx_status_t epx_circle_close(const epx_fabric_t *fabric, const char *name, const uint8_t *alive,
                              int32_t *room, epx_circle_t *circle_p);

/* By what they meet from then on: allgather(context, ...) is the fabric's. */
static inline epx_bootstrap_t epx_circle_bootstrap(const epx_circle_t *circle, void *context,
                                                   int (*allgather)(void *context, const void *send,
                                                                    void *receive, size_t bytes))
{
    return (epx_bootstrap_t){.size_of_struct = sizeof(epx_bootstrap_t),
                             .context = context,
                             .rank = circle->me,
                             .size = circle->size,
                             .allgather = allgather};
}

static inline int32_t epx_circle_rank(const epx_circle_t *circle, int32_t i)
{
    return circle->rank != NULL ? circle->rank[i] : i;
}

/* One rank's side of a channel; used by that rank's thread alone. */
typedef struct epx_gather_side {
    uint64_t sequence;
    uint32_t failed_before; /* 1: my last step failed */
} epx_gather_side_t;

typedef struct epx_gather epx_gather_t;

/* What a fabric brings. Words of rank p stand at p, also among survivors. */
typedef struct epx_gather_ops {
    /* Acquire order. */
    uint64_t (*word)(const epx_gather_t *gather, int32_t p);
    uint64_t (*failure)(const epx_gather_t *gather, int32_t p);
    /* My block of a step to where the circle finds it. */
    epx_status_t (*push)(const epx_gather_t *gather, uint64_t step, const void *send, size_t bytes);
    /* My word, or failure word, at the circle. */
    epx_status_t (*post)(const epx_gather_t *gather, uint64_t value, int failed);
    /* Rank p's block of a step that has arrived. */
    const void *(*box)(const epx_gather_t *gather, int32_t p, uint64_t step);
    /* Noted before a look. */
    uint32_t (*count)(const epx_gather_t *gather);
    /* A look at p has failed: sleeps until it may be worth another, and says how that ended: TIMEOUT, ABORTED
     * or PEER (*culprit_p: who). *last_look_p = 1: to be returned only if one more look fails as well. */
    epx_status_t (*pause)(epx_gather_t *gather, int32_t p, int32_t *spin, uint32_t count, int32_t *culprit_p,
                          int32_t *last_look_p);
    /* Rank p's word has been seen; or NULL. */
    void (*saw)(const epx_gather_t *gather, int32_t p);
} epx_gather_ops_t;

/* One all-gather in progress. */
struct epx_gather {
    const epx_gather_ops_t *ops;
    void *fabric, *watch; /* of the fabric's own use */
    epx_gather_side_t *side;
    int32_t channel;
    epx_circle_t circle;
    size_t box_bytes;
    int64_t timeout_ms;
    epx_wait_result_t *result;
};

/* Host memory: `send` [bytes] to receive [size, bytes], in pieces of a box. EPX_ERR_PEER naming the rank
 * whose step failed, in result->peer, result->failure = that step. */
epx_status_t epx_gather(epx_gather_t *gather, const void *send, void *receive, size_t bytes);

/* This rank's step is bad; waits for nobody. */
epx_status_t epx_gather_fail(epx_gather_t *gather);

/* The parts, for who moves blocks on a device. */
/* Waits until p has arrived at `step` (or, credit: is past step - 2). */
epx_status_t epx_gather_await(epx_gather_t *gather, int32_t p, uint64_t step, int credit);
epx_status_t epx_gather_post(epx_gather_t *gather, uint64_t step, int failed);

#endif
