/*
 * The ranks of a comm that are left meet again, for a group whose fabric has no way of its own for that.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Processes: those that the link has not lost make a barrier on a circle of their own, whose name is their
 * list. The hub answers all of them or none, and tells a death to all in the same order as its answers; so
 * who has an answer has the same list as the others, and who hears of a death first takes the shorter list
 * and tries again. A process that lives and does not come makes it fail in time: it cannot be told from one
 * that will.
 */
#include "core/comm_again.h"

#include <stdlib.h>

#include "base/fail.h"
#include "core/comm_gather.h"
#include "core/comm_link.h"

static void destroy(struct epx_comm *comm)
{
    epx_comm_leave_link(comm);
    free(comm->pieces);
    free(comm);
}

void epx_comm_destroy_again(struct epx_comm *comm)
{
    while (comm->again != NULL) {
        struct epx_comm *next = comm->again->again;
        destroy(comm->again);
        comm->again = next;
    }
}

/* Ranks of the link that are still there; their number. */
static int32_t list_here(const struct epx_comm *comm, int32_t *world)
{
    int32_t count = 0;
    for (int32_t i = 0; i < comm->size; i++)
        if (epx_link_state(comm->link, comm->world[i]) == EPX_LINK_HERE)
            world[count++] = comm->world[i];
    return count;
}

static uint64_t name_of(const struct epx_comm *comm, const int32_t *world, int32_t count)
{
    uint64_t id = epx_comm_mix(epx_comm_mix(comm->id, comm->meetings), UINT64_C(0x616761696e));
    for (int32_t i = 0; i < count; i++)
        id = epx_comm_mix(id, (uint64_t)(uint32_t)world[i]);
    return id;
}

/* One try. PEER: somebody has gone meanwhile. */
static epx_status_t try_with(const struct epx_comm *comm, const int32_t *world, int32_t count,
                             int64_t timeout_ms, struct epx_comm **part_p)
{
    struct epx_comm *part = epx_comm_of_link(comm->link, name_of(comm, world, count), world, count);
    if (part == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "comm: rank %d: no memory for the %d ranks that are left",
                        comm->rank, count);
    int64_t usual_ms = part->timeout_ms;
    part->record.fault_asked = 1; /* EPX_FAULT means the comms of the program */
    part->timeout_ms = timeout_ms;
    epx_status_t status = epx_comm_barrier(part);
    part->timeout_ms = usual_ms;
    if (status == EPX_OK)
        *part_p = part;
    else
        destroy(part);
    return status;
}

static epx_status_t meet_by_link(struct epx_comm *comm, int64_t timeout_ms, uint8_t *alive_p,
                                 epx_bootstrap_t *bootstrap_p)
{
    int64_t deadline_ns = epx_clock_ns() + timeout_ms * 1000000, left_ms = timeout_ms;
    int32_t *world = malloc((size_t)comm->size * sizeof(*world));
    struct epx_comm *part = NULL, *owner = comm->owner != NULL ? comm->owner : comm;
    epx_status_t status = EPX_ERR_PEER;
    int32_t count = world != NULL ? list_here(comm, world) : 0, before = count + 1;
    if (world == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "comm: rank %d: no memory to meet again", comm->rank);
    comm->meetings++;
    while (status == EPX_ERR_PEER && count < before && left_ms > 0) {
        status = try_with(comm, world, count, left_ms, &part);
        before = count;
        count = list_here(comm, world);
        left_ms = (deadline_ns - epx_clock_ns()) / 1000000;
    }
    free(world);
    if (status != EPX_OK)
        return status;
    part->owner = owner;
    part->again = owner->again;
    owner->again = part;
    for (int32_t i = 0; i < comm->size; i++)
        alive_p[i] = 0;
    for (int32_t k = 0, i = 0; k < part->size; i++) {
        alive_p[i] = comm->world[i] == part->world[k];
        k += alive_p[i];
    }
    *bootstrap_p = epx_comm_bootstrap(part);
    return EPX_OK;
}

static epx_status_t survivors(void *context, int64_t timeout_ms, uint8_t *alive_p,
                              epx_bootstrap_t *bootstrap_p)
{
    struct epx_comm *comm = context;
    if (comm->circle != NULL)
        return meet_by_link(comm, timeout_ms, alive_p, bootstrap_p);
    return comm->fabric->ops->survivors(comm->fabric, timeout_ms, alive_p, bootstrap_p);
}

epx_comm_survivors_fn epx_comm_survivors_of(const epx_bootstrap_t *bootstrap)
{
    const struct epx_comm *comm = epx_comm_of_bootstrap(bootstrap);
    return comm != NULL && (comm->circle != NULL || comm->fabric != NULL) ? survivors : NULL;
}
