/*
 * The inside of a comm. SPDX-License-Identifier: Apache-2.0
 *
 * Collectives go by one of three: the fabric of threads, a circle of the job's link, the caller's all-gather.
 */
#ifndef EPX_CORE_COMM_STATE_H
#define EPX_CORE_COMM_STATE_H

#include <epx/fabric.h>

#include "core/comm_record.h"
#include "core/reach.h"

enum { COMM_BOX_BYTES = 16384, COMM_TIMEOUT_MS = 60000 };

struct epx_comm {
    epx_fabric_t *fabric; /* threads */
    epx_circle_t *circle; /* or processes of the link; holds a reference to it */
    epx_link_t *link;
    epx_bootstrap_t bootstrap; /* or this one */
    epx_reach_t reach;
    int32_t rank, size;
    int64_t timeout_ms;
    uint64_t id, splits; /* of the circle, and how often it was split */
    int32_t *world;      /* [size] ranks of the link */
    /* For an allreduce: [size] pointers where one address space is shared, else [size, COMM_BOX_BYTES]. */
    uint8_t *pieces;
    epx_comm_record_t record;
    /* Comms of those that were left of this one (comm_again.c): a list, destroyed with it. */
    struct epx_comm *again, *owner; /* owner: whose list this one is in; NULL: none's */
    uint64_t meetings;              /* how often they met; equal on those that are left */
};

#endif
