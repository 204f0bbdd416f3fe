/* The devices of this build. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_DEVICE_REGISTRY_H
#define EPX_DEVICE_REGISTRY_H

#include <epx/device.h>

/* A name that the configuration knows, and its table; where this build lacks it, probe says so and the rest
 * is empty. */
typedef struct epx_device_entry {
    const char *name;
    const epx_device_ops_t *ops;
} epx_device_entry_t;

int32_t epx_device_count(void);
const epx_device_entry_t *epx_device_at(int32_t index);

/* Another table stands in for the device of that name: tests of what a GPU needs run without one. Before any
 * group opens. */
void epx_device_stand_in(const char *name, const epx_device_ops_t *ops);

/* Plain memory, always there: what comms and handles live in. */
const epx_device_ops_t *epx_device_of_host(void);

#endif
