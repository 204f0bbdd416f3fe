/* Where the build has no PMIx. SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "launch/internal.h"

int epx_pmix_is_there(epx_launch_variable_fn variable)
{
    (void)variable;
    return 0;
}

const char *epx_pmix_reason(void) { return "not part of this build"; }

epx_status_t epx_pmix_who(epx_launch_t *launch)
{
    (void)launch;
    return epx_fail(EPX_ERR_UNSUPPORTED, "PMIx is not part of this build");
}

epx_status_t epx_pmix_tell(const epx_launch_t *launch, int32_t meeting, char *text, int64_t timeout_ms)
{
    (void)launch, (void)meeting, (void)text, (void)timeout_ms;
    return epx_fail(EPX_ERR_UNSUPPORTED, "PMIx is not part of this build");
}

void epx_pmix_end(void) {}
