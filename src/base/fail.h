/* Status texts and the log. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_BASE_FAIL_H
#define EPX_BASE_FAIL_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <epx/status.h>

#include "base/clock.h"

/* Sets this thread's last error and returns `status`. The text is cut at 1,023 bytes. */
epx_status_t epx_fail(epx_status_t status, const char *format, ...) __attribute__((format(printf, 2, 3)));

typedef enum epx_log_level {
    EPX_LOG_ERROR = 0,
    EPX_LOG_WARN,
    EPX_LOG_INFO,
    EPX_LOG_DEBUG,
    EPX_LOG_TRACE
} epx_log_level_t;

/* One line on stderr, "epx warn tag: text", when `level` is at or below the set one. */
void epx_log(int level, const char *tag, const char *format, ...) __attribute__((format(printf, 3, 4)));
void epx_log_set_level(int level);
int epx_log_level(void);

#endif
