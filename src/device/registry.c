/* The devices of this build. SPDX-License-Identifier: Apache-2.0 */
#include "device/registry.h"

#include <string.h>

#include "device/cuda/cuda.h"
#include "device/host/host.h"

static epx_device_entry_t devices[] = {{"host", &epx_device_host}, {"cuda", &epx_device_cuda}};

enum { DEVICES = sizeof(devices) / sizeof(devices[0]) };

int32_t epx_device_count(void) { return DEVICES; }

const epx_device_entry_t *epx_device_at(int32_t index) { return &devices[index]; }

void epx_device_stand_in(const char *name, const epx_device_ops_t *ops)
{
    for (int32_t i = 0; i < DEVICES; i++)
        if (strcmp(devices[i].name, name) == 0)
            devices[i].ops = ops;
}

const epx_device_ops_t *epx_device_of_host(void) { return &epx_device_host; }
