/* Services that keep the text of the last error. SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_KEPT_H
#define TESTS_UNIT_KEPT_H

#include <epx/fabric.h>

extern char kept_text[512];
epx_status_t kept_fail(epx_status_t status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* With nothing but `fail`. */
extern const epx_services_t kept_services;

#endif
