/* A fabric of epx-perf's own. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "bench/perf/own.h"
#include "src/core/services.h"
#include "src/device/registry.h"
#include "src/fabric/registry.h"
#include "tools/common/program.h"

enum { ALIGNMENT = 256 };

static void *allocate(void *context, size_t bytes, size_t alignment, int device_memory)
{
    const epx_device_ops_t *device = context;
    return device_memory ? device->allocate(bytes, alignment) : epx_tool_alloc(1, bytes);
}

static void release(void *context, void *memory, size_t bytes, int device_memory)
{
    const epx_device_ops_t *device = context;
    if (device_memory)
        device->release(memory, bytes);
    else
        free(memory);
}

static int gather(void *context, const void *send, void *receive, size_t bytes)
{
    epx_perf_player_t *player = context;
    return epx_comm_allgather(player->self->comm, send, receive, bytes) == EPX_OK ? 0 : -1;
}

static const epx_fabric_ops_t *fabric_of(const char *name)
{
    for (int32_t i = 0; i < epx_fabric_count(); i++)
        if (strcmp(epx_fabric_at(i)->name, name) == 0)
            return epx_fabric_at(i)->ops;
    return NULL;
}

int epx_perf_own_open(epx_perf_player_t *player, const char *name, int32_t channels, size_t bytes,
                      epx_perf_own_t *own)
{
    const epx_device_ops_t *device = player->side.device != NULL ? player->side.device : epx_device_of_host();
    const epx_fabric_ops_t *ops = fabric_of(player->info.fabric);
    epx_bootstrap_t bootstrap = EPX_BOOTSTRAP_INIT;
    if (ops == NULL)
        return epx_rank_fail(player->self, EPX_EXIT_FAILED, "%s: fabric %s is not of this build", name,
                             player->info.fabric);
    bootstrap.context = player;
    bootstrap.rank = player->self->rank;
    bootstrap.size = player->self->ranks;
    bootstrap.allgather = gather;
    own->allocator =
        (epx_allocator_t){.context = (void *)(uintptr_t)device, .allocate = allocate, .release = release};
    epx_fabric_config_t config = {.name = name,
                                  .bootstrap = bootstrap,
                                  .device = device,
                                  .channels = channels,
                                  .failure_channels = 1,
                                  .exchange_channels = 1,
                                  .exchange_bytes = 64,
                                  .segments_max = 1,
                                  .caps = ops->caps_among != NULL ? ops->caps_among(player->shared->one_clock)
                                                                  : ops->caps,
                                  .allocator = &own->allocator,
                                  .services = epx_services()};
    int rc = epx_rank_check(player->self, ops->open(&config, &own->fabric), name);
    if (rc != EPX_EXIT_OK)
        return rc;
    void *memory = ops->segment_allocate != NULL ? ops->segment_allocate(own->fabric, bytes)
                                                 : device->allocate(bytes, ALIGNMENT);
    return epx_rank_check(player->self, ops->segment_open(own->fabric, memory, bytes, &own->segment),
                          "a segment");
}

void epx_perf_own_close(epx_perf_own_t *own)
{
    if (own->fabric != NULL)
        own->fabric->ops->close(&own->fabric);
}
