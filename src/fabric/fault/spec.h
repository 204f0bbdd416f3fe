/*
 * What EPX_FAULT says: which calls are disturbed, where in them, and how. SPDX-License-Identifier: Apache-2.0
 *
 * A specification is rules separated by ';', a rule is key=value words. docs/faults.md has the grammar.
 */
#ifndef EPX_FABRIC_FAULT_SPEC_H
#define EPX_FABRIC_FAULT_SPEC_H

#include <stddef.h>
#include <stdint.h>

#include <epx/status.h>

enum { EPX_FAULT_RULES = 16, EPX_FAULT_ANY = -1 };

/* Where in a call. */
typedef enum epx_fault_point {
    EPX_FAULT_ENQUEUE = 0, /* before anything of the call has happened */
    EPX_FAULT_BEGIN,       /* the call is there, its work has not begun */
    EPX_FAULT_PUT_PRE,     /* before and after rows are stored at peers */
    EPX_FAULT_PUT_POST,
    EPX_FAULT_SIGNAL_PRE, /* before and after a peer's word is set */
    EPX_FAULT_SIGNAL_POST,
    EPX_FAULT_WAIT_PRE, /* before the words of peers are waited for */
    EPX_FAULT_END,      /* the work is done and recorded, the call has not returned */
    EPX_FAULT_REGISTER, /* a segment is opened */
    EPX_FAULT_EXCHANGE, /* before an all-gather of counts or status */
    EPX_FAULT_POINTS
} epx_fault_point_t;

typedef enum epx_fault_do {
    EPX_FAULT_DROP = 0,
    EPX_FAULT_DELAY,
    EPX_FAULT_DUPLICATE,
    EPX_FAULT_REORDER,
    EPX_FAULT_STALE,
    EPX_FAULT_FLIP,
    EPX_FAULT_STOP,
    EPX_FAULT_KILL,
    EPX_FAULT_EXIT,
    EPX_FAULT_SPIN,
    EPX_FAULT_SKIP,
    EPX_FAULT_HOG,
    EPX_FAULT_DOS
} epx_fault_do_t;

typedef enum epx_fault_op {
    EPX_FAULT_OP_ROUTE = 0,
    EPX_FAULT_OP_DISPATCH,
    EPX_FAULT_OP_COMBINE,
    EPX_FAULT_OP_COMBINE_BACKWARD,
    EPX_FAULT_OP_DISPATCH_BACKWARD,
    EPX_FAULT_OP_ALLREDUCE,
    EPX_FAULT_OP_ALLGATHER,
    EPX_FAULT_OP_BARRIER,
    EPX_FAULT_OPS
} epx_fault_op_t;

typedef struct epx_fault_rule {
    int32_t rank, wave, peer; /* or EPX_FAULT_ANY */
    int32_t op;               /* epx_fault_op_t, or EPX_FAULT_ANY: any of a group, none of a comm */
    int64_t seq;              /* number of the operation in its group, from 1, or EPX_FAULT_ANY */
    char group[32];           /* its name, "" any */
    epx_fault_point_t at;
    epx_fault_do_t what;
    int64_t argument; /* milliseconds, bit, multiprocessors; 0 where there is none */
    int64_t times;    /* acts so often at most; 0: always */
    double chance;    /* of acting where all else fits, by the seed; 1: always */
} epx_fault_rule_t;

typedef struct epx_fault_spec {
    uint64_t seed;
    int32_t rules;
    epx_fault_rule_t rule[EPX_FAULT_RULES];
} epx_fault_spec_t;

/* EPX_OK, or EPX_ERR_ARG with the word that is wrong and what is allowed in `problem`. "" has no rules. */
epx_status_t epx_fault_parse(const char *text, epx_fault_spec_t *spec_p, char *problem, size_t problem_bytes);

const char *epx_fault_point_name(epx_fault_point_t point);
const char *epx_fault_do_name(epx_fault_do_t what);
const char *epx_fault_op_name(int32_t op);

#endif
