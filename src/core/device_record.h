/*
 * The flight recorder's pages that a device writes to. SPDX-License-Identifier: Apache-2.0
 *
 * The pages are mapped once for a recorder, by the first group whose rows are on a device that the host
 * cannot reach, or by the first mark in a stream. Where they cannot be (another file system than tmpfs),
 * recording goes on with the host's stamps alone; a line of the log says so.
 */
#ifndef EPX_CORE_DEVICE_RECORD_H
#define EPX_CORE_DEVICE_RECORD_H

#include "core/group.h"

/* The group's lanes get their words. After the group has been told to the recorder. */
void epx_device_record_begin(epx_group_t *group);

/* For a recorder without a group: find_device of its set-up. */
void epx_device_record_find(epx_recorder_h recorder);

/* What the GPU of that number in this process does: `use` of its set-up. */
int epx_device_record_use(int32_t device, epx_recorder_use_t *use_p);

/* A lane's call begins: kind and wave are its name, and nothing has been said of it. */
void epx_device_record_call(epx_plan_h plan, epx_record_kind_t kind, int32_t wave, int32_t starts,
                            epx_stream_t stream);

#endif
