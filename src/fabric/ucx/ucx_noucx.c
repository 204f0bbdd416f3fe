/* Fabric `ucx` in a build without UCX: it only says so. SPDX-License-Identifier: Apache-2.0 */
#include "fabric/ucx/ucx.h"

#include <stdio.h>

static int ucx_probe(const epx_device_ops_t *device, char *reason, size_t reason_bytes)
{
    (void)device;
    snprintf(reason, reason_bytes, "not part of this build");
    return 0;
}

const epx_fabric_ops_t epx_fabric_ucx = {.name = "ucx", .probe = ucx_probe};
