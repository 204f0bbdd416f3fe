/* A build without hwloc knows nothing about machines, and says why. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fail.h"
#include "base/features.h"
#include "topology/machine.h"

epx_status_t epx_topology_read(const char *xml, struct epx_topology *machine_p)
{
    (void)xml;
    (void)machine_p;
    const char *reason = "this version lacks it";
    for (const epx_feature_t *feature = epx_features; feature->name != NULL; feature++)
        if (strcmp(feature->name, "hwloc") == 0)
            reason = feature->reason;
    return epx_fail(
        EPX_ERR_UNSUPPORTED,
        "topology: this build has no hwloc (%s): install it, libhwloc-dev on Debian, and build again",
        reason);
}
