/* The parts of a fault. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_FABRIC_FAULT_INTERNAL_H
#define EPX_FABRIC_FAULT_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "fabric/fault/fault.h"

/* Rows that are held back: they arrive after their signal. */
typedef struct fault_late {
    struct fault_late *next;
    pthread_t thread;
    epx_fault_t *fault;
    int64_t at_ns;
    void *to; /* the peer's segment as this rank sees it */
    /* both [bytes] of a segment: where they agree, a row has been stored */
    uint8_t *one, *other;
    size_t bytes;
} fault_late_t;

struct epx_fault {
    epx_fault_spec_t spec;
    char name[64];
    int32_t rank;
    epx_fault_call_t call;
    const epx_device_ops_t *device; /* where the group's kernels run */
    epx_stream_t beside;            /* where hogs run */
    /* Ends kernels that stand for foreign ones; NULL: none was launched. The watchdog's thread stores to it.
     */
    _Atomic(uint64_t *) stop;
    int64_t acted[EPX_FAULT_RULES];
    _Atomic uint64_t trace;
    /* the fabric that is wrapped now, NULL between two */
    epx_fabric_t *inner;
    _Atomic int32_t closing;
    /* puts */
    epx_kernels_t kernels;
    const epx_kernels_t *real;
    void *const *table; /* peers' bases of the segment */
    size_t segment_bytes;
    int64_t row_bytes;
    fault_late_t *late;
    epx_fault_t *next; /* of those that kernels are looked up in */
};

/* Whether a rule is for the group of this name. */
static inline int epx_fault_names_group(const epx_fault_rule_t *rule, const char *name)
{
    return rule->group[0] == '\0' || strcmp(rule->group, name) == 0;
}

/* Kernels that stand for foreign ones end. */
void epx_fault_end_kernels(epx_fault_t *fault);

/* ---- puts.c ---- */

/* The segment that kernels store to; NULL: none any more. Held-back rows are given up. */
void epx_fault_set_segment(epx_fault_t *fault, const epx_segment_t *segment);

#endif
