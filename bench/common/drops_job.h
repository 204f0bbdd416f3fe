/* Inside of drops_*.c. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_BENCH_DROPS_JOB_H
#define EPX_BENCH_DROPS_JOB_H

#include <stdatomic.h>

#include "bench/common/drops.h"
#include "src/transport/accept.h"

/* One routing, counted once for all cases. */
typedef struct epx_drops_run {
    const epx_drops_routing_t *routing;
    int32_t threads;
    epx_owners_t owners;
    int32_t *tables; /* what owners points into */
    int32_t *n;      /* [N, E] */
    int64_t *tokens; /* [N] */
    int64_t valid_all, skipped;
} epx_drops_run_t;

/* A move of extra_wave: rows first .. first + rows - 1 of (sender, expert) in (token, k) order. */
typedef struct epx_drops_move {
    int32_t sender, expert, first, rows, wave;
} epx_drops_move_t;

/* One case of it. */
typedef struct epx_drops_job {
    const epx_drops_run_t *run;
    const epx_drops_case_t *how;
    epx_drops_t *out;
    epx_rule_t rule;
    int keep; /* fates are wanted: all tags are held at once, and moves are kept */
    int done; /* no walk over the ids is needed any more */

    /* pooled_wave with gates: tags of the destinations from .. to - 1, [d][wave][sender][P(d)], of 1, 2 or 4
     * bytes; 0 is an empty slot, or after gate 2 with `keep` a refused one */
    int32_t from, to, tag_bytes;
    int64_t *slots;                 /* [N] P(d) */
    int64_t *offset;                /* [N + 1] first tag of d when all are held one behind the other */
    int64_t receiver_limit, budget; /* bytes of tags */
    uint8_t *tags;
    atomic_llong dropped_sender, spilled; /* by gate 1 */

    int32_t *accepted; /* [N, E] ragged, ring */
    int32_t *pairs;    /* [N, C, N] rows of ragged from a sender to an owner */

    epx_drops_move_t *moves; /* extra_wave with `keep` */
    int64_t move_count, move_room;
} epx_drops_job_t;

int epx_drops_gated(const epx_drops_job_t *job); /* pooled_wave with its two gates */

/* drops_pooled.c */
void epx_drops_pooled_open(epx_drops_job_t *job, int64_t budget);
size_t epx_drops_gate_bytes(const epx_drops_run_t *run); /* scratch of epx_drops_gate_sender */
void epx_drops_gate_sender(epx_drops_job_t *job, int32_t s, int64_t tokens, const int32_t *ids,
                           void *scratch);
void epx_drops_pooled_receive(epx_drops_job_t *job);
void epx_drops_pooled_close(epx_drops_job_t *job);
uint32_t epx_drops_tag(const epx_drops_job_t *job, int32_t d, int32_t wave, int32_t s, int32_t slot);
void epx_drops_extra_wave(epx_drops_job_t *job);

/* drops_counts.c: ragged and ring, from the counts; over the ids once more where rows are not assignments */
void epx_drops_accept(epx_drops_job_t *job);
int32_t epx_drops_chunk(const epx_drops_job_t *job, int32_t e);

/* drops_fates.c: after all of it, one rank after the other */
int epx_drops_tell(epx_drops_job_t *job, epx_fate_fn fn, void *context);

/* Allocates the arrays of `out` for so many waves. */
void epx_drops_arrays(epx_drops_job_t *job, int32_t waves);

#endif
