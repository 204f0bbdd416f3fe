/*
 * Faults on purpose: a fabric that wraps another and disturbs chosen calls. SPDX-License-Identifier:
 * Apache-2.0
 *
 * A group (or a comm) whose settings name faults has one epx_fault_t. The library tells it which call it
 * makes (epx_fault_call) and comes by at the points that it sees itself (enqueue, begin, end); the wrapped
 * fabric comes by at the others. The object outlives recoveries of its group, so that a rule which has acted
 * `times` times is done.
 *
 * - F1: what acts and when depends on the specification, the rank and the calls alone, never on time: the
 * same program, specification and seed give the same schedule, and the same trace.
 *
 * - F2: nothing of it is there where EPX_FAULT is not set: no wrapper, no changed kernel.
 *
 * - F3: one rank's calls come from one thread at a time, as for its group. Peers are touched as the rank
 * itself would touch them.
 */
#ifndef EPX_FABRIC_FAULT_FAULT_H
#define EPX_FABRIC_FAULT_FAULT_H

#include <epx/fabric.h>

#include "fabric/fault/spec.h"

typedef struct epx_fault epx_fault_t;

/* *fault_p = NULL where the text has no rule for this group. name: the group's, for `group=`. ARG with the
 * text set for a bad specification. */
epx_status_t epx_fault_new(const char *text, const char *name, int32_t rank, epx_fault_t **fault_p);
void epx_fault_free(epx_fault_t **fault_p);

/* Whether the rules can be followed on this fabric and device (which is kept); UNSUPPORTED with the text set
 * where not. */
epx_status_t epx_fault_check(epx_fault_t *fault, uint32_t caps, const epx_device_ops_t *device);

/* Wraps an open fabric, which then belongs to the wrapper. On an error *fabric_p is as it was. */
epx_status_t epx_fault_wrap(epx_fault_t *fault, const epx_fabric_config_t *config, int64_t row_bytes,
                            epx_fabric_t **fabric_p);

/* For a caller whose calls go through no wrapper: the fabric that tells when they have ended (NULL: ranks are
 * processes). fault may be NULL. */
void epx_fault_watch(epx_fault_t *fault, epx_fabric_t *fabric);

/* The kernels to use instead of `kernels`, for the put points; valid while the fault is. */
const epx_kernels_t *epx_fault_kernels(epx_fault_t *fault, const epx_kernels_t *kernels);

/* The operation that the rank is in from here on. */
typedef struct epx_fault_call {
    int32_t op; /* epx_fault_op_t */
    int32_t wave;
    uint64_t seq;
    epx_stream_t stream; /* that the call was given */
} epx_fault_call_t;
void epx_fault_call(epx_fault_t *fault, const epx_fault_call_t *call);

/* What the rules want done that only the caller of epx_fault_at can do. */
typedef struct epx_fault_hits {
    uint32_t what; /* 1 << epx_fault_do_t */
    int64_t argument[EPX_FAULT_DOS];
} epx_fault_hits_t;

static inline int epx_fault_hit(const epx_fault_hits_t *hits, epx_fault_do_t what)
{
    return (int)(hits->what >> what & 1);
}

/* The rank has come to a point of its call. Waits, spins, stops and ends right here, whatever the rules say;
 * the rest is the caller's. peer: at the put and signal points, else EPX_FAULT_ANY. */
epx_fault_hits_t epx_fault_at(epx_fault_t *fault, epx_fault_point_t point, int32_t peer);

/* Whether any rule could act at this point of the call, for whatever peer. */
int epx_fault_may(const epx_fault_t *fault, epx_fault_point_t point);

/* A hash of all that has acted so far, equal for equal schedules: a sum over all faults of this process,
 * ended ones included. */
uint64_t epx_fault_trace_of_process(void);

/* When a rule of any of them acted first, by epx_clock_ns; 0: none has. */
int64_t epx_fault_first_ns_of_process(void);

#endif
