/* The services table. SPDX-License-Identifier: Apache-2.0 */
#include "core/services.h"

#include <string.h>

#include "base/fail.h"
#include "device/registry.h"

static const epx_services_t services = {
    .fail = epx_fail, .log = epx_log, .clock_ns = epx_clock_ns, .nap_ns = epx_nap_ns};

const epx_services_t *epx_services(void) { return &services; }

epx_status_t epx_device_use(const char *device, int32_t index)
{
    char reason[256] = "";
    const epx_device_ops_t *ops = NULL;
    for (int32_t i = 0; device != NULL && i < epx_device_count(); i++)
        if (strcmp(epx_device_at(i)->name, device) == 0)
            ops = epx_device_at(i)->ops;
    if (ops == NULL)
        return epx_fail(EPX_ERR_ARG, "epx_device_use: %s is no device; there are host and cuda",
                        device != NULL ? device : "NULL");
    if (ops->probe(reason, sizeof(reason)) <= 0)
        return epx_fail(EPX_ERR_UNSUPPORTED, "epx_device_use: %s: %s", device, reason);
    if (index < 0 || index >= ops->count())
        return epx_fail(EPX_ERR_ARG, "epx_device_use: %s %d; there are 0 to %d", device, index,
                        ops->count() - 1);
    return ops->select(index);
}
