/* The memory of a group. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_CORE_MEMORY_H
#define EPX_CORE_MEMORY_H

#include "core/group_state.h"

/* NULL: no memory. */
void *epx_group_allocate(const epx_allocator_t *allocator, int64_t bytes, int32_t device_memory);

/* A block of it, cleared where the host reaches it; of 0 bytes: none. `what` is named in the error. */
epx_status_t epx_block_take(epx_group_t *group, epx_block_t *block, int64_t bytes, int32_t device_memory,
                            const char *what);
void epx_block_drop(epx_group_t *group, epx_block_t *block);

/* Where the parts of the tables block are. */
typedef struct epx_table_layout {
    int64_t cards, owners, owner_copy, lanes, members, bytes;
} epx_table_layout_t;
epx_table_layout_t epx_table_layout(const epx_group_config_t *config, int32_t ranks);

/* Bytes of the lanes' resident words; 0 where the host counts. */
int64_t epx_lane_words_bytes(const epx_selection_t *selection);

/* Host bytes of a plan's handle. */
int64_t epx_plan_handle_bytes(const epx_selection_t *selection);
/* Where in such a handle the report is, where the host reaches the device's memory. */
int64_t epx_plan_report_offset(const epx_selection_t *selection);

/* The fabric configuration of a selection. */
epx_fabric_config_t epx_group_fabric_config(const epx_selection_t *selection, const char *name,
                                            const epx_allocator_t *allocator,
                                            const epx_bootstrap_t *bootstrap);

/* A want of memory is told with the sizes by item; returns status. */
epx_status_t epx_group_explain_memory(const epx_group_t *group, epx_status_t status);

#endif
