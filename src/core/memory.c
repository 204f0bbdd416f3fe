/* The memory of a group, and what it comes to. SPDX-License-Identifier: Apache-2.0 */
#include "core/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/structs.h"
#include "core/agree.h"
#include "core/comm_again.h"
#include "core/reports.h"
#include "core/services.h"
#include "transport/common.h"

void *epx_group_allocate(const epx_allocator_t *allocator, int64_t bytes, int32_t device_memory)
{
    return allocator->allocate(allocator->context, (size_t)bytes, EPX_AREA_ALIGN, device_memory);
}

epx_status_t epx_block_take(epx_group_t *group, epx_block_t *block, int64_t bytes, int32_t device_memory,
                            const char *what)
{
    *block = (epx_block_t){.bytes = bytes, .device_memory = device_memory};
    if (bytes == 0)
        return EPX_OK;
    block->memory = epx_group_allocate(&group->allocator, bytes, device_memory);
    if (block->memory == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "%s: rank %d: no memory for %" PRId64 " bytes of %s", group->name,
                        group->rank, bytes, what);
    if (!device_memory)
        memset(block->memory, 0, (size_t)bytes);
    return EPX_OK;
}

void epx_block_drop(epx_group_t *group, epx_block_t *block)
{
    if (block->memory != NULL)
        group->allocator.release(group->allocator.context, block->memory, (size_t)block->bytes,
                                 block->device_memory);
    *block = (epx_block_t){0};
}

/* ---- sizes ---- */

epx_table_layout_t epx_table_layout(const epx_group_config_t *config, int32_t ranks)
{
    epx_table_layout_t l = {0};
    l.cards = epx_take_area(&l.bytes, (int64_t)ranks * (int64_t)sizeof(epx_card_t));
    l.owners = epx_take_area(&l.bytes, epx_shape_table_bytes(config, ranks));
    l.owner_copy = epx_take_area(&l.bytes, (int64_t)config->experts * 4);
    l.lanes = epx_take_area(&l.bytes, (int64_t)config->lanes * (int64_t)sizeof(epx_group_lane_t));
    l.members = epx_take_area(&l.bytes, (int64_t)ranks * 4);
    return l;
}

int64_t epx_lane_words_bytes(const epx_selection_t *selection)
{
    int resident = (selection->caps & EPX_FABRIC_CAPTURABLE) != 0;
    return resident ? selection->shape.lanes * (int64_t)sizeof(epx_lane_words_t) : 0;
}

/* Where the parts of a handle's block are: the struct, the transport's state, the report where the host
 * reaches the device's memory. */
int64_t epx_plan_report_offset(const epx_selection_t *selection)
{
    return epx_round_up((int64_t)sizeof(struct epx_plan) + selection->sizes.plan_state_bytes, 64);
}

int64_t epx_plan_handle_bytes(const epx_selection_t *selection)
{
    return epx_plan_report_offset(selection) +
           (selection->device->host_access ? epx_report_bytes(selection) : 0);
}

epx_fabric_config_t epx_group_fabric_config(const epx_selection_t *selection, const char *name,
                                            const epx_allocator_t *allocator,
                                            const epx_bootstrap_t *bootstrap)
{
    epx_fabric_config_t config = {
        .name = name,
        .device = selection->device,
        .channels = selection->sizes.channels,
        .failure_channels = selection->sizes.failure_channels + epx_refusal_channels(&selection->shape),
        .exchange_channels = selection->shape.lanes,
        .exchange_bytes = (size_t)selection->sizes.exchange_bytes,
        .segments_max = 1,
        .caps = selection->caps & ~(uint32_t)EPX_FABRIC_HOST_ACCESS,
        .allocator = allocator,
        .services = epx_services(),
    };
    if (bootstrap != NULL) {
        config.bootstrap = *bootstrap;
        config.survivors = epx_comm_survivors_of(bootstrap);
    }
    return config;
}

/* ---- items ---- */

static void add_item(epx_memory_t *memory, const char *name, int64_t bytes, int32_t device_memory)
{
    int32_t i = memory->items++;
    snprintf(memory->item[i].name, sizeof(memory->item[i].name), "%s", name);
    memory->item[i].bytes = bytes;
    memory->item[i].device_memory = device_memory;
    memory->total_bytes += bytes;
    memory->device_bytes += device_memory ? bytes : 0;
}

/* The items of a group's memory; *memory begun with its size. */
static void fill_memory(const epx_group_config_t *config, const epx_selection_t *selection, int32_t ranks,
                        epx_memory_t *memory)
{
    const epx_sizes_t *sizes = &selection->sizes;
    epx_fabric_config_t fabric = epx_group_fabric_config(selection, "group", NULL, NULL);
    add_item(memory, "group", (int64_t)sizeof(epx_group_t), 0);
    add_item(memory, "tables", epx_table_layout(config, ranks).bytes, 0);
    int64_t fabric_device = 0;
    add_item(memory, "fabric words", selection->fabric->memory(&fabric, ranks, &fabric_device), 0);
    add_item(memory, "transport state", sizes->state_bytes, 0);
    add_item(memory, "segment", sizes->segment_bytes - sizes->staging_bytes, 1);
    if (sizes->staging_bytes > 0)
        add_item(memory, "staging", sizes->staging_bytes, 1);
    add_item(memory, "scratch", sizes->scratch_bytes, 1);
    add_item(memory, "batches", sizes->batch_bytes, 1);
    if (epx_lane_words_bytes(selection) > 0)
        add_item(memory, "lane words", epx_lane_words_bytes(selection), 1);
    if (fabric_device > 0)
        add_item(memory, "fabric tables", fabric_device, 1);
    memory->plan_bytes = sizes->plan_bytes;
    memory->plan_handle_bytes = epx_plan_handle_bytes(selection);
}

epx_status_t epx_group_memory(const epx_group_config_t *config, epx_memory_t *memory_p)
{
    epx_group_config_t checked;
    if (memory_p == NULL || !epx_struct_fits(memory_p, memory_p->size, sizeof(epx_memory_t)))
        return epx_fail(EPX_ERR_ARG, "epx_group_memory: begin the answer with EPX_MEMORY_INIT");
    int32_t ranks = config != NULL && config->ranks > 0 ? config->ranks : 1;
    epx_status_t status = epx_shape_check(config, ranks, &checked);
    if (status != EPX_OK)
        return status;
    void *tables = malloc((size_t)epx_shape_table_bytes(&checked, ranks));
    epx_selection_t *selection = malloc(sizeof(*selection));
    if (tables == NULL || selection == NULL) {
        status = epx_fail(EPX_ERR_NO_MEMORY, "epx_group_memory: no memory for the tables of %d ranks", ranks);
        goto free_tables;
    }
    status = epx_select(&checked, 0, ranks, tables, NULL, NULL, selection);
    if (status != EPX_OK)
        goto free_tables;
    *memory_p = (epx_memory_t){.size = memory_p->size};
    fill_memory(&checked, selection, ranks, memory_p);
free_tables:
    free(selection);
    free(tables);
    return status;
}

epx_status_t epx_group_explain_memory(const epx_group_t *group, epx_status_t status)
{
    epx_memory_t memory = EPX_MEMORY_INIT;
    char text[512];
    if (status != EPX_ERR_NO_MEMORY || group->selection.transport == NULL ||
        group->selection.sizes.plan_bytes == 0)
        return status;
    fill_memory(&group->config, &group->selection, group->ranks, &memory);
    size_t used = (size_t)snprintf(text, sizeof(text), "of %" PRId64 " bytes in all", memory.total_bytes);
    for (int32_t i = 0; i < memory.items && used < sizeof(text); i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, ", %s %" PRId64, memory.item[i].name,
                                 memory.item[i].bytes);
    return epx_fail(status, "%.300s (%s); lower tokens_max, lanes, depth or the capacity factors",
                    epx_last_error(), text);
}
