/* Opening, closing and recovering groups. SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "core/agree.h"
#include "core/comm.h"
#include "core/comm_again.h"
#include "core/comm_gather.h"
#include "core/group.h"
#include "core/operation.h"
#include "core/services.h"
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

void *epx_group_allocate(const epx_allocator_t *allocator, int64_t bytes, int32_t device_memory)
{
    return allocator->allocate(allocator->context, (size_t)bytes, EPX_AREA_ALIGN, device_memory);
}

static epx_status_t take_block(epx_group_t *group, epx_block_t *block, int64_t bytes, int32_t device_memory,
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

static void drop_block(epx_group_t *group, epx_block_t *block)
{
    if (block->memory != NULL)
        group->allocator.release(group->allocator.context, block->memory, (size_t)block->bytes,
                                 block->device_memory);
    *block = (epx_block_t){0};
}

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

int64_t epx_lane_words_bytes(const epx_selection_t *selection)
{
    int resident = (selection->caps & EPX_FABRIC_CAPTURABLE) != 0;
    return resident ? selection->shape.lanes * (int64_t)sizeof(epx_lane_words_t) : 0;
}

/* Where a graph may be replayed, lanes count on the device. */
static epx_status_t make_lanes(epx_group_t *group)
{
    int64_t bytes = epx_lane_words_bytes(&group->selection);
    epx_status_t status = take_block(group, &group->lane_words, bytes, 1, "lane words");
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
    epx_status_t status = take_block(group, &group->tables, layout.bytes, 0, "tables");
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
        status = take_block(group, &group->state, sizes->state_bytes, 0, "the transport's state");
    if (status == EPX_OK)
        status = take_block(group, &group->scratch, sizes->scratch_bytes, 1, "scratch");
    if (status == EPX_OK)
        status = take_block(group, &group->batch, sizes->batch_bytes, 1, "batches");
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

/* A want of memory is told with the sizes by item. */
static epx_status_t explain_memory(const epx_group_t *group, epx_status_t status)
{
    epx_memory_t memory = EPX_MEMORY_INIT;
    char text[512];
    if (status != EPX_ERR_NO_MEMORY || group->selection.transport == NULL ||
        group->selection.sizes.plan_bytes == 0)
        return status;
    epx_group_fill_memory(&group->config, &group->selection, group->ranks, &memory);
    size_t used = (size_t)snprintf(text, sizeof(text), "of %" PRId64 " bytes in all", memory.total_bytes);
    for (int32_t i = 0; i < memory.items && used < sizeof(text); i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, ", %s %" PRId64, memory.item[i].name,
                                 memory.item[i].bytes);
    return epx_fail(status, "%.300s (%s); lower tokens_max, lanes, depth or the capacity factors",
                    epx_last_error(), text);
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
    /* Fabrics of graphs meet in a library of their own, which does not say when. */
    epx_meet_enter(group, (selection->caps & EPX_FABRIC_CAPTURABLE) != 0);
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
    epx_meet_end(group, status);
    return status;
}

static epx_status_t build_together(epx_group_t *group, const epx_bootstrap_t *bootstrap)
{
    epx_fabric_config_t config =
        epx_group_fabric_config(&group->selection, group->name, &group->allocator, bootstrap);
    config.meeting = epx_meet_watch(group);
    epx_status_t status = group->selection.fabric->open(&config, &group->fabric);
    if (status != EPX_OK)
        return status;
    wrap_faults(group, &config);
    return agree(group, bootstrap, explain_memory(group, open_parts(group)), 1);
}

epx_status_t epx_group_build(epx_group_t *group, const epx_bootstrap_t *bootstrap, epx_status_t local)
{
    epx_status_t status = local != EPX_OK ? local : explain_memory(group, build_locally(group));
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
    drop_block(group, &group->lane_words);
    drop_block(group, &group->batch);
    drop_block(group, &group->scratch);
    drop_block(group, &group->state);
    epx_report_end(group);
    if (group->control != NULL)
        group->selection.device->stream_destroy(group->control);
    group->control = NULL;
    drop_block(group, &group->tables);
    group->lanes = NULL;
    group->is_open = 0;
}

/* The struct itself comes from the caller's allocator too. NULL: no memory. */
static epx_group_t *make_struct(const epx_group_config_t *checked)
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

static void free_struct(epx_group_t *group)
{
    epx_allocator_t allocator = group->allocator;
    epx_fault_free(&group->fault);
    allocator.release(allocator.context, group, sizeof(*group), 0);
}

/* A rank that cannot even begin still meets the others, so that nobody waits for it. */
static epx_status_t refuse_together(const epx_bootstrap_t *bootstrap, epx_status_t status)
{
    epx_group_t nothing = {.ranks = bootstrap->size, .rank = bootstrap->rank};
    snprintf(nothing.name, sizeof(nothing.name), "group");
    return agree(&nothing, bootstrap, status, 0);
}

static epx_status_t open_on(epx_comm_h comm, const epx_group_config_t *config, epx_group_h *group_p)
{
    epx_group_config_t checked;
    epx_bootstrap_t bootstrap = epx_comm_bootstrap(comm);
    epx_status_t status = group_p != NULL ? epx_shape_check(config, bootstrap.size, &checked)
                                          : epx_fail(EPX_ERR_ARG, "epx_group_open: group_p is NULL");
    if (status == EPX_OK && checked.ranks != 0 && checked.ranks != bootstrap.size)
        status = epx_fail(EPX_ERR_ARG, "epx_group_open: ranks is %d, the comm has %d; leave it 0",
                          checked.ranks, bootstrap.size);
    if (status != EPX_OK)
        return refuse_together(&bootstrap, status);
    epx_group_t *group = make_struct(&checked);
    if (group == NULL)
        return refuse_together(&bootstrap,
                               epx_fail(EPX_ERR_NO_MEMORY, "rank %d: no memory for the group's %zu bytes",
                                        bootstrap.rank, sizeof(*group)));
    group->rank = bootstrap.rank;
    group->ranks = bootstrap.size;
    group->reach = epx_comm_reach(comm);
    group->generation = 1;
    group->recorder = checked.recorder != NULL ? checked.recorder : epx_comm_recorder(comm);
    epx_meet_on_comm(group, comm);
    status = epx_group_build(group, &bootstrap, EPX_OK);
    if (status != EPX_OK) {
        free_struct(group);
        return status;
    }
    *group_p = group;
    return EPX_OK;
}

epx_status_t epx_group_open(epx_comm_h comm, const epx_group_config_t *config, epx_group_h *group_p)
{
    if (comm == NULL)
        return epx_fail(EPX_ERR_ARG,
                        "epx_group_open: comm is NULL; make one with epx_comm_world or epx_comm_threads");
    epx_comm_opens(comm, 1);
    epx_status_t status = open_on(comm, config, group_p);
    epx_comm_opens(comm, 0);
    return status;
}

void epx_group_close(epx_group_h *group_p)
{
    if (group_p == NULL || *group_p == NULL)
        return;
    epx_group_t *group = *group_p;
    *group_p = NULL;
    epx_group_detach_plans(group);
    epx_stats_close(group);
    epx_group_tear_down(group);
    free_struct(group);
}

/* ---- recovery --------------------------------------------------------------------------------------------------- */

/* The configuration to go on with: the new one checked, or the old one fitted to the ranks that are left. */
static epx_status_t next_config(epx_group_t *group, const epx_group_config_t *config, int32_t ranks,
                                epx_group_config_t *next_p)
{
    /* Checked first: the copy below must not read behind a shorter struct. */
    epx_group_config_t base = group->config;
    if (config != NULL) {
        epx_status_t status = epx_shape_check(config, group->ranks, &base);
        if (status != EPX_OK)
            return status;
        if (config->virtual_ranks == 0)
            base.virtual_ranks = 0;
    }
    base.ranks = 0;
    base.allocator = group->config.allocator;
    if (ranks != group->ranks) {
        base.owner = NULL;
        if (base.virtual_ranks % ranks != 0 || config == NULL)
            base.virtual_ranks = 0;
    }
    return epx_shape_check(&base, ranks, next_p);
}

/* A new configuration that cannot be is refused before anything is touched: nothing has changed, call again.
 */
static epx_status_t check_next(const epx_group_t *group, const epx_group_config_t *config)
{
    epx_group_config_t checked;
    epx_memory_t memory = EPX_MEMORY_INIT;
    if (config == NULL)
        return EPX_OK;
    epx_status_t status = epx_shape_check(config, group->ranks, &checked);
    checked.ranks = group->ranks;
    return status == EPX_OK ? epx_group_memory(&checked, &memory) : status;
}

epx_status_t epx_group_recover(epx_group_h group, const epx_group_config_t *config)
{
    if (group == NULL)
        return epx_fail(EPX_ERR_ARG, "epx_group_recover: group is NULL");
    if (group->fabric == NULL)
        return epx_fail(EPX_ERR_ABORTED, "%s: an earlier recovery failed; close the group", group->name);
    epx_status_t status = check_next(group, config);
    if (status != EPX_OK)
        return status;
    epx_bootstrap_t bootstrap;
    uint8_t *alive = malloc((size_t)group->ranks);
    if (alive == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "%s: no memory to recover", group->name);
    epx_fabric_t *old_fabric = group->fabric;
    epx_meet_survivors(group);
    status = old_fabric->ops->survivors(old_fabric, group->selection.shape.timeout_ms, alive, &bootstrap);
    epx_meet_end(group, status);
    if (status == EPX_OK)
        epx_meet_again(group, alive, &bootstrap);
    free(alive);
    if (status != EPX_OK)
        return status;
    /* The survivors meet over the old fabric until the new one stands; its memory goes when the last of them
     * closes it. */
    epx_group_config_t next;
    epx_group_detach_plans(group);
    epx_paths_t paths = epx_group_paths(group, group->sent_bytes_closed_plans);
    group->stored_bytes = paths.stored_bytes;
    group->message_bytes = paths.message_bytes;
    group->sent_bytes_before = group->sent_bytes_closed_plans;
    status = next_config(group, config, bootstrap.size, &next);
    /* The watchdog may be ending the waits of what goes now: it is done with that, or does not begin. */
    epx_recorder_forget(group->recorder, group->record_ending);
    group->record_ending = 0;
    epx_block_t old_tables = group->tables; /* the old owner table may be the new one's source */
    group->tables = (epx_block_t){0};
    group->fabric = NULL;
    epx_group_tear_down(group);
    /* Before the watchdog knows the new group: what it may still want to end is the old one. */
    epx_record_verdict_clear(group->recorder);
    if (status == EPX_OK)
        epx_group_keep_config(group, &next);
    group->rank = bootstrap.rank;
    group->ranks = bootstrap.size;
    group->generation++;
    status = epx_group_build(group, &bootstrap, status);
    drop_block(group, &old_tables);
    old_fabric->ops->close(&old_fabric);
    if (status != EPX_OK) {
        atomic_store(&group->failed, EPX_ERR_ABORTED);
        snprintf(group->failed_text, sizeof(group->failed_text), "%.480s", epx_last_error());
    }
    return status;
}
