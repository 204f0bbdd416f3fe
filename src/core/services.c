/* The services table. SPDX-License-Identifier: Apache-2.0 */
#include "core/services.h"

#include "base/fail.h"

static const epx_services_t services = {
    .fail = epx_fail, .log = epx_log, .clock_ns = epx_clock_ns, .nap_ns = epx_nap_ns};

const epx_services_t *epx_services(void) { return &services; }
