/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/kept.h"

#include <stdarg.h>
#include <stdio.h>

char kept_text[512];

epx_status_t kept_fail(epx_status_t status, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(kept_text, sizeof(kept_text), format, list);
    va_end(list);
    return status;
}

const epx_services_t kept_services = {.fail = kept_fail};
