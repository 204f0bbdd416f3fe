/*
 * What an exchange costs in time: a model of named terms. docs/simulation.md has its equations and its
 * errors. SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_SIM_COST_H
#define EPX_SIM_COST_H

#include "bench/common/drops.h"
#include "bench/common/machine.h"
#include "bench/sim/shape.h"

/* Seconds of a step, all layers, forward and backward. The exchange is the sum of the first five. */
typedef enum epx_sim_term {
    EPX_SIM_WIRE = 0,  /* rows over links, mean of the ranks */
    EPX_SIM_MEMORY,    /* rows through memory at either end, mean of the ranks */
    EPX_SIM_LATENCY,   /* calls, whatever they carry */
    EPX_SIM_ROUTE,     /* deciding who is kept, counts exchanged */
    EPX_SIM_SKEW,      /* waiting for the rank with most to move, wave by wave */
    EPX_SIM_HIDDEN,    /* part of the exchange behind the experts' products */
    EPX_SIM_EXPERTS,   /* products of routed experts, mean of the ranks */
    EPX_SIM_IMBALANCE, /* waiting for the rank whose experts have most rows, wave by wave */
    EPX_SIM_ATTENTION, /* scores under the mask */
    EPX_SIM_DENSE,     /* all other products */
    EPX_SIM_RECOMPUTE, /* the forward products once more */
    EPX_SIM_TERMS
} epx_sim_term_t;

/* "wire_ms", ...; and what it is. */
const char *epx_sim_term_name(epx_sim_term_t term);
const char *epx_sim_term_meaning(epx_sim_term_t term);

typedef struct epx_sim_cost {
    double term[EPX_SIM_TERMS];
    double exchange_s;                   /* of a step */
    double exposed_s;                    /* what is not hidden of it */
    double step_s, mfu, mfu_executed;    /* 0..1 */
    double transfer_bytes, remote_bytes; /* of one of the four transfers of a layer, mean of the ranks */
    double exposed_least_s;              /* with everything hidden that the schedule allows */
} epx_sim_cost_t;

typedef struct epx_sim_how {
    int32_t depth;     /* waves in flight */
    int32_t recompute; /* 1: forward products are made again in the backward pass; nothing is sent again */
} epx_sim_how_t;

/* Of one sample; every layer is taken to be like it. */
epx_sim_cost_t epx_sim_cost(const epx_sim_shape_t *shape, const epx_drops_case_t *rules,
                            const epx_drops_t *drops, const epx_machine_t *machine, const epx_sim_how_t *how);

/*
 * Span of a pass of `waves` waves with one link and one processor: out[w] on the link, then work[w] on the
 * processor, then home[w] on the link; out of the next depth - 1 waves goes before home of a wave. In the
 * unit of its arguments.
 */
double epx_sim_span(int32_t waves, int32_t depth, const double *out, const double *work, const double *home);

#endif
