/* The programs' clock. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_TOOLS_CLOCK_H
#define EPX_TOOLS_CLOCK_H

#include <stdint.h>

/* Monotonic time in nanoseconds. */
int64_t epx_now_ns(void);

#endif
