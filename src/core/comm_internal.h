/*
 * The inside of a comm. SPDX-License-Identifier: Apache-2.0
 *
 * Collectives go by one of three: the fabric of threads, a circle of the job's link, the caller's all-gather.
 */
#ifndef EPX_CORE_COMM_INTERNAL_H
#define EPX_CORE_COMM_INTERNAL_H

#include <epx/fabric.h>

#include "core/comm.h"
#include "core/comm_record.h"

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

/* Of the fabric of a comm of threads. bootstrap may be NULL. */
epx_fabric_config_t epx_comm_fabric_config(const epx_bootstrap_t *bootstrap);

/* A comm on one of the two, NULL: no memory. */
struct epx_comm *epx_comm_make(epx_fabric_t *fabric, const epx_bootstrap_t *bootstrap);

/* The comm is the first of its job; the name is equal on all its ranks. */
void epx_comm_begin_record(struct epx_comm *comm, const char *job);
/* The comm (NULL: this rank has none) came of a split of `whole`; member [size] ranks of the whole. */
void epx_comm_part_record(struct epx_comm *whole, int32_t colour, const int32_t *member,
                          struct epx_comm *part);

/* ---- comm_world.c ---- */

/* A comm of processes: world [size] ranks of the link, mine among them. NULL: no memory. Not collective. */
struct epx_comm *epx_comm_of_link(epx_link_t *link, uint64_t id, const int32_t *world, int32_t size);
/* Lets go of the circle and the link. */
void epx_comm_leave_link(struct epx_comm *comm);
/* How far apart ranks with these cards are. */
epx_reach_t epx_reach_of_cards(const epx_link_card_t *card, const int32_t *rank, int32_t size);
/* What an error of a circle's collective says; returns status. */
epx_status_t epx_comm_explain(const struct epx_comm *comm, epx_status_t status,
                              const epx_circle_result_t *result);

/* The ranks of one colour by (key, rank) into member [size]; a rank without a colour is alone. Their number.
 */
typedef struct epx_split_card {
    int32_t colour, key;
} epx_split_card_t;
int32_t epx_comm_choose_members(const epx_split_card_t *cards, int32_t size, int32_t me, int32_t *member);

/* One number of two, for names of circles. */
uint64_t epx_comm_mix(uint64_t a, uint64_t b);

/* ---- comm_again.c ---- */

void epx_comm_destroy_again(struct epx_comm *comm);

/* Splits a comm of the link. */
epx_status_t epx_comm_split_link(epx_comm_h comm, int32_t colour, int32_t key, epx_comm_h *part_p);

#endif
