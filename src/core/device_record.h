/*
 * The flight recorder's pages that a device writes to. SPDX-License-Identifier: Apache-2.0
 *
 * The pages are mapped once for a recorder, by the first group whose rows are on a device that the host
 * cannot reach, or by the first mark in a stream. Where they cannot be (another file system than tmpfs),
 * recording goes on with the host's stamps alone; a line of the log says so.
 */
#ifndef EPX_CORE_DEVICE_RECORD_H
#define EPX_CORE_DEVICE_RECORD_H

#include <epx/fabric.h>

#include "record/recorder.h"

/* A device that the host cannot reach gets them, once. */
void epx_device_record_attach(epx_recorder_h recorder, const epx_device_ops_t *device);

/* For a recorder without a group: find_device of its set-up. */
void epx_device_record_find(epx_recorder_h recorder);

/* What the GPU of that number in this process does: `use` of its set-up. */
int epx_device_record_use(int32_t device, epx_recorder_use_t *use_p);

#endif
