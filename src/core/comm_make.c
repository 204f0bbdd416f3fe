/* A comm comes to be, whatever it stands on. SPDX-License-Identifier: Apache-2.0 */
#include "core/comm_make.h"

#include <stdlib.h>

#include "core/services.h"
#include "device/registry.h"

static void *comm_allocate(void *context, size_t bytes, size_t alignment, int device_memory)
{
    (void)context, (void)device_memory;
    return epx_device_of_host()->allocate(bytes, alignment);
}

static void comm_release(void *context, void *memory, size_t bytes, int device_memory)
{
    (void)context, (void)device_memory;
    epx_device_of_host()->release(memory, bytes);
}

static const epx_allocator_t comm_allocator = {.allocate = comm_allocate, .release = comm_release};

epx_fabric_config_t epx_comm_fabric_config(const epx_bootstrap_t *bootstrap)
{
    epx_fabric_config_t config = {.name = "comm",
                                  .device = epx_device_of_host(),
                                  .exchange_channels = 1,
                                  .exchange_bytes = COMM_BOX_BYTES,
                                  .allocator = &comm_allocator,
                                  .services = epx_services()};
    if (bootstrap != NULL)
        config.bootstrap = *bootstrap;
    return config;
}

struct epx_comm *epx_comm_make(epx_fabric_t *fabric, const epx_bootstrap_t *bootstrap)
{
    struct epx_comm *comm = calloc(1, sizeof(*comm));
    if (comm == NULL)
        return NULL;
    comm->fabric = fabric;
    comm->timeout_ms = COMM_TIMEOUT_MS;
    comm->rank = fabric != NULL ? fabric->rank : bootstrap->rank;
    comm->size = fabric != NULL ? fabric->ranks : bootstrap->size;
    comm->reach = fabric != NULL ? EPX_REACH_PROCESS : EPX_REACH_NETWORK;
    if (fabric == NULL)
        comm->bootstrap = *bootstrap;
    comm->pieces = malloc((size_t)comm->size * (fabric != NULL ? sizeof(void *) : COMM_BOX_BYTES));
    if (comm->pieces == NULL) {
        free(comm);
        return NULL;
    }
    return comm;
}

static void end_comm(void *comm, const char *reason)
{
    (void)reason;
    epx_comm_abort(comm);
}

/* What a record knows of its comm. */
static void tie_record(struct epx_comm *comm)
{
    comm->record.end = end_comm;
    comm->record.comm = comm;
    comm->record.link = comm->link;
}

void epx_comm_begin_record(struct epx_comm *comm, const char *job)
{
    epx_comm_record_begin(&comm->record, job, comm->rank, comm->size);
    tie_record(comm);
}

void epx_comm_part_record(struct epx_comm *whole, int32_t colour, const int32_t *member,
                          struct epx_comm *part)
{
    if (part == NULL) {
        epx_comm_record_no_part(&whole->record);
        return;
    }
    epx_comm_record_part(&whole->record, colour, member, part->rank, part->size, &part->record);
    tie_record(part);
}
