/* How a group comes to be, and goes. SPDX-License-Identifier: Apache-2.0 */
#include "core/build.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "core/agree.h"
#include "core/meet.h"
#include "core/memory.h"
#include "core/operation.h"
#include "core/reports.h"
#include "core/services.h"
#include "core/stats.h"
#include "device/registry.h"
#include "transport/common.h"

/* context: the group's device, a constant table that outlives every group; NULL before it has been chosen. */
static void *device_allocate(void *context, size_t bytes, size_t alignment, int device_memory)
{
    const epx_device_ops_t *device = context;
    if (!device_memory || device == NULL)
        device = epx_device_of_host();
    return device->allocate(bytes, alignment);
}

static void device_release(void *context, void *memory, size_t bytes, int device_memory)
{
    const epx_device_ops_t *device = context;
    if (!device_memory || device == NULL)
        device = epx_device_of_host();
    device->release(memory, bytes);
}

/* Copies a text that may be the copy itself; NULL stays NULL. */
static const char *copy_text(char *to, size_t bytes, const char *from)
{
    if (from == NULL)
        return NULL;
    if (from != to)
        snprintf(to, bytes, "%s", from);
    return to;
}

void epx_group_keep_config(epx_group_t *group, const epx_group_config_t *checked)
{
    group->config = *checked;
    copy_text(group->name, sizeof(group->name), checked->name != NULL ? checked->name : "group");
    group->config.name = group->name;
    group->config.transport =
        copy_text(group->transport_text, sizeof(group->transport_text), checked->transport);
    group->config.fabric = copy_text(group->fabric_text, sizeof(group->fabric_text), checked->fabric);
    group->config.device = copy_text(group->device_text, sizeof(group->device_text), checked->device);
    if (checked->allocator != NULL)
        group->allocator = *checked->allocator;
    else
        group->allocator = (epx_allocator_t){.allocate = device_allocate, .release = device_release};
    group->config.allocator = &group->allocator;
}

epx_group_t *epx_group_new(const epx_group_config_t *checked)
{
    epx_allocator_t own = {.allocate = device_allocate, .release = device_release};
    const epx_allocator_t *allocator = checked->allocator != NULL ? checked->allocator : &own;
    epx_group_t *group = epx_group_allocate(allocator, (int64_t)sizeof(*group), 0);
    if (group == NULL)
        return NULL;
    memset(group, 0, sizeof(*group));
    epx_group_keep_config(group, checked);
    return group;
}

void epx_group_free(epx_group_t *group)
{
    epx_allocator_t allocator = group->allocator;
    epx_fault_free(&group->fault);
    allocator.release(allocator.context, group, sizeof(*group), 0);
}

/* Where a graph may be replayed, lanes count on the device, and kernels wait there: beside those others must
 * be able to begin. */
static epx_status_t make_lanes(epx_group_t *group)
{
    int64_t bytes = epx_lane_words_bytes(&group->selection);
    if (bytes > 0 && group->selection.device->load != NULL)
        group->selection.device->load();
    epx_status_t status = epx_block_take(group, &group->lane_words, bytes, 1, "lane words");
    if (status == EPX_OK && bytes > 0)
        status = group->selection.device->fill(group->lane_words.memory, 0, (size_t)bytes, group->control);
    if (status == EPX_OK && bytes > 0)
        status = group->selection.device->synchronize(group->control);
    for (int32_t i = 0; i < group->config.lanes && status == EPX_OK; i++) {
        group->lanes[i].lane = (epx_lane_t){.index = i, .epoch = group->generation << 48};
        if (bytes > 0)
            group->lanes[i].lane.words = (epx_lane_words_t *)group->lane_words.memory + i;
    }
    return status;
}

/* Chooses and allocates everything but what the fabric brings. Not collective. */
static epx_status_t build_locally(epx_group_t *group)
{
    epx_group_config_t *config = &group->config;
    epx_table_layout_t layout = epx_table_layout(config, group->ranks);
    epx_status_t status = epx_block_take(group, &group->tables, layout.bytes, 0, "tables");
    if (status != EPX_OK)
        return status;
    uint8_t *tables = group->tables.memory;
    group->lanes = (epx_group_lane_t *)(void *)(tables + layout.lanes);
    if (config->owner != NULL) {
        memcpy(tables + layout.owner_copy, config->owner, (size_t)config->experts * 4);
        config->owner = (const int32_t *)(const void *)(tables + layout.owner_copy);
    }
    status = epx_select_among(config, group->rank, group->ranks, group->reach, tables + layout.owners, NULL,
                              NULL, &group->selection);
    if (status == EPX_OK)
        status = epx_stats_check(group);
    if (status == EPX_OK && group->fault == NULL)
        status = epx_fault_new(group->selection.settings.fault, group->name, group->rank, &group->fault);
    if (status == EPX_OK && group->fault != NULL)
        status = epx_fault_check(group->fault, group->selection.caps, group->selection.device);
    if (status != EPX_OK)
        return status;
    const epx_sizes_t *sizes = &group->selection.sizes;
    if (group->allocator.allocate == device_allocate)
        group->allocator.context = (void *)(uintptr_t)group->selection.device;
    group->routes = 0;
    if (epx_group_is_remote(group))
        status = group->selection.device->stream_create(&group->control);
    if (status == EPX_OK)
        status = make_lanes(group);
    if (status == EPX_OK)
        status = epx_block_take(group, &group->state, sizes->state_bytes, 0, "the transport's state");
    if (status == EPX_OK)
        status = epx_block_take(group, &group->scratch, sizes->scratch_bytes, 1, "scratch");
    if (status == EPX_OK)
        status = epx_block_take(group, &group->batch, sizes->batch_bytes, 1, "batches");
    return status;
}

/* Who is who in the job, for the flight recorder. */
static void keep_members(epx_group_t *group, const epx_card_t *cards)
{
    int32_t *members = (int32_t *)(void *)((uint8_t *)group->tables.memory +
                                           epx_table_layout(&group->config, group->ranks).members);
    for (int32_t r = 0; r < group->ranks; r++)
        members[r] = cards[r].record_rank;
    group->record_members = members;
    group->record_key = cards[0].record_key;
}

/* Agreement of all ranks; a rank that has no tables yet borrows room for the cards. */
static epx_status_t agree(epx_group_t *group, const epx_bootstrap_t *bootstrap, epx_status_t status, int fill)
{
    epx_card_t mine = {0};
    epx_card_t *borrowed = NULL, *cards = NULL;
    if (group->tables.memory != NULL)
        cards = (epx_card_t *)(void *)((uint8_t *)group->tables.memory +
                                       epx_table_layout(&group->config, group->ranks).cards);
    else
        cards = borrowed = malloc((size_t)bootstrap->size * sizeof(*cards));
    if (cards == NULL)
        return status;
    if (status == EPX_OK && fill)
        epx_card_fill(&mine, &group->config, &group->selection, group->generation);
    mine.record_key = epx_op_new_key(group);
    mine.record_rank = epx_recorder_rank(group->recorder);
    epx_meet_wait(group);
    status = epx_agree(bootstrap, group->name, status, &mine, cards);
    epx_meet_end(group, status);
    if (status == EPX_OK && group->tables.memory != NULL)
        keep_members(group, cards);
    free(borrowed);
    return status;
}

static const epx_kernels_t *kernels_of(epx_group_t *group)
{
    const epx_kernels_t *kernels = group->selection.device->kernels;
    return group->fault != NULL ? epx_fault_kernels(group->fault, kernels) : kernels;
}

/* What EPX_FAULT disturbs goes through a wrapper. Memory for it is the one thing that may be missing here,
 * and no reason to keep the others waiting. */
static void wrap_faults(epx_group_t *group, const epx_fabric_config_t *config)
{
    if (group->fault != NULL &&
        epx_fault_wrap(group->fault, config, group->selection.shape.row_bytes, &group->fabric) != EPX_OK)
        epx_log(EPX_LOG_ERROR, "fault", "%s", epx_last_error());
}

/* Fabric, segment, transport: collective, every rank takes every step or none does. */
static epx_status_t open_parts(epx_group_t *group)
{
    epx_selection_t *selection = &group->selection;
    int64_t segment_bytes = selection->sizes.segment_bytes;
    epx_status_t status = EPX_OK;
    if (segment_bytes > 0) {
        void *memory = group->fabric->ops->segment_allocate != NULL
                           ? group->fabric->ops->segment_allocate(group->fabric, (size_t)segment_bytes)
                           : epx_group_allocate(&group->allocator, segment_bytes, 1);
        status =
            group->fabric->ops->segment_open(group->fabric, memory, (size_t)segment_bytes, &group->segment);
    }
    if (status == EPX_OK) {
        epx_transport_env_t env = {.shape = &selection->shape,
                                   .sizes = &selection->sizes,
                                   .fabric = group->fabric,
                                   .device = selection->device,
                                   .kernels = kernels_of(group),
                                   .services = epx_services(),
                                   .group_name = group->name,
                                   .recorder = group->recorder,
                                   .segment = group->segment,
                                   .scratch = group->scratch.memory,
                                   .batch = group->batch.memory};
        status = selection->transport->open(&env, group->state.memory, &group->transport);
    }
    return status;
}

static epx_status_t build_together(epx_group_t *group, const epx_bootstrap_t *bootstrap)
{
    epx_fabric_config_t config =
        epx_group_fabric_config(&group->selection, group->name, &group->allocator, bootstrap);
    config.meeting = epx_meet_watch(group);
    epx_meet_enter(group); /* what the fabric takes and registers for itself belongs to it */
    epx_status_t status = group->selection.fabric->open(&config, &group->fabric);
    if (status != EPX_OK)
        return status;
    wrap_faults(group, &config);
    return agree(group, bootstrap, epx_group_explain_memory(group, open_parts(group)), 1);
}

epx_status_t epx_group_build(epx_group_t *group, const epx_bootstrap_t *bootstrap, epx_status_t local)
{
    epx_meet_may_end(group);
    epx_status_t status = local != EPX_OK ? local : epx_group_explain_memory(group, build_locally(group));
    status = agree(group, bootstrap, status, 1);
    if (status == EPX_OK)
        status = build_together(group, bootstrap);
    epx_meet_over(group);
    if (status != EPX_OK) {
        epx_group_tear_down(group);
        return status;
    }
    const epx_selection_t *s = &group->selection;
    group->is_open = 1;
    atomic_store(&group->failed, 0);
    epx_op_group_begin(group);
    if (group->rank == 0)
        epx_log(EPX_LOG_INFO, "group",
                "%s: transport %s (%s), fabric %s, device %s, %d ranks, E %d, K %d, H %d, T_max %d, waves "
                "%d, generation "
                "%" PRIu64,
                group->name, s->transport->name, s->why_transport, s->fabric->name, s->device->name,
                group->ranks, s->shape.experts, s->shape.top_k, s->shape.width, s->shape.tokens_max,
                s->sizes.waves, group->generation);
    return EPX_OK;
}

void epx_group_tear_down(epx_group_t *group)
{
    epx_op_group_end(group);
    if (group->transport != NULL)
        group->transport->ops->close(group->transport);
    group->transport = NULL;
    if (group->fabric != NULL)
        group->fabric->ops->close(&group->fabric);
    group->segment = (epx_segment_t){0};
    epx_block_drop(group, &group->lane_words);
    epx_block_drop(group, &group->batch);
    epx_block_drop(group, &group->scratch);
    epx_block_drop(group, &group->state);
    epx_report_end(group);
    if (group->control != NULL)
        group->selection.device->stream_destroy(group->control);
    group->control = NULL;
    epx_block_drop(group, &group->tables);
    group->lanes = NULL;
    group->is_open = 0;
}

epx_status_t epx_group_refuse(const epx_bootstrap_t *bootstrap, epx_status_t status)
{
    epx_group_t nothing = {.ranks = bootstrap->size, .rank = bootstrap->rank};
    snprintf(nothing.name, sizeof(nothing.name), "group");
    return agree(&nothing, bootstrap, status, 0);
}
