/*
 * Where a routing comes from, and the routing itself. SPDX-License-Identifier: Apache-2.0
 *
 *   dirichlet:alpha=104,sigma=0.09,seed=1
 *
 * Every sequence has its own popularity of experts, drawn from Dirichlet(alpha * q), where q is a
 * lognormal(sigma) popularity of all sequences, with sum 1. Tokens choose different experts in proportion to
 * it.
 *
 *   uniform, zipf:s=1, hot:fraction=0.5,experts=4, one-expert, self, peer, empty-rank
 *
 * As epx-perf has them.
 *
 *   file:PATH
 *
 * Recorded, binary or text.
 *
 * A token's choices follow from (seed, rank, sequence, token) alone.
 */
#ifndef EPX_SIM_ROUTING_H
#define EPX_SIM_ROUTING_H

#include "bench/common/drops.h"
#include "bench/common/skew.h"
#include "bench/sim/shape.h"
#include "train/routing_file.h"

typedef enum epx_sim_routing_kind {
    EPX_SIM_BY_SEQUENCE = 0,
    EPX_SIM_BY_PATTERN,
    EPX_SIM_BY_FILE
} epx_sim_routing_kind_t;

typedef struct epx_sim_routing {
    epx_sim_routing_kind_t kind;
    double alpha, sigma; /* alpha infinite: every sequence has popularity q */
    int64_t seed;        /* of the specification; -1: none */
    epx_skew_t skew;
    const char *path;
} epx_sim_routing_t;

/* Reads a specification; 0, or -1 with "what is wrong: what to do". target: an epx_sim_routing_t. */
int epx_sim_routing_read(void *target, const char *text, char *problem, size_t problem_bytes);

/* Writes it as epx_sim_routing_read takes it, without the seed. */
void epx_sim_routing_text(const epx_sim_routing_t *routing, char *text, size_t bytes);

/* ---- input: all samples ------------------------------------------------------------------------------------------- */

/* One sample is one layer of one step of one group: a seed of a generator, or a part of a file. */
typedef struct epx_sim_input {
    const epx_sim_routing_t *routing;
    const epx_sim_shape_t *shape;
    int32_t columns; /* K, and with spill more */
    int32_t splits;  /* ranks for each recorded one */
    uint64_t seed;   /* of the first sample */
    int32_t samples;
    int estimate; /* only counts are known: their order is made up */
    const epx_routing_file_t *file;
} epx_sim_input_t;

/*
 * file: of a routing of that kind, read, outlives the input; shape->ranks a multiple of the recorded group's.
 * seeds: how many samples of a generator.
 */
int epx_sim_input_open(const epx_sim_routing_t *routing, const epx_sim_shape_t *shape,
                       const epx_routing_file_t *file, int32_t columns, uint64_t seed, int32_t seeds,
                       epx_sim_input_t *input_p, char *problem, size_t problem_bytes);

/* ---- source: one sample ------------------------------------------------------------------------------------------- */

typedef struct epx_sim_source {
    epx_drops_routing_t routing; /* context is the source: it must not move */
    const epx_sim_input_t *input;
    int32_t sample;
    uint64_t seed;
    double *popularity; /* [E] alpha * q of Dirichlet, or q */
    void *kept; /* [N, T, columns] of uint16 or int32: ids of ranks that were asked for before; or NULL */
    int64_t *kept_tokens; /* [N] T + 1; 0: not kept yet */
} epx_sim_source_t;

/* keep: ids will be asked for more than once; they are kept where that takes no more than a gigabyte. */
void epx_sim_source_open(epx_sim_source_t *source, const epx_sim_input_t *input, int32_t sample, int keep);
void epx_sim_source_close(epx_sim_source_t *source);

/* dirichlet.c: alpha * q of the source's seed, or q where alpha is infinite. */
void epx_sim_popularity(const epx_sim_routing_t *routing, uint64_t seed, int32_t experts, double *popularity);

/* One sequence: weights [E], largest 1, none 0. Returns the seed of its tokens' streams. */
uint64_t epx_sim_sequence(const epx_sim_source_t *source, int64_t sequence, double *weight);

#endif
