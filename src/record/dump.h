/* The core dump of the culprit's GPU, asked for by the watchdog. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_RECORD_DUMP_H
#define EPX_RECORD_DUMP_H

#include "record/recorder_state.h"

/* One dump on its way. */
typedef struct epx_dump {
    int64_t begun_ns, bytes, still_ns; /* begun_ns 0: not asked yet; still_ns: since when it does not grow */
    int32_t over;
} epx_dump_t;

/* Asks for the dump of a rank of this process at the first call, and waits for nobody: 1 when it is over, or
 * cannot be had (logged). The driver may end the process behind it. */
int epx_dump_is_over(epx_recorder_h recorder, epx_dump_t *dump, int64_t now_ns);

#endif
