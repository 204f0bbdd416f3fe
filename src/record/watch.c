/* The watchdog. SPDX-License-Identifier: Apache-2.0 */
#include "record/private.h"

void epx_watch_add(epx_recorder_h recorder) { (void)recorder; }
void epx_watch_remove(epx_recorder_h recorder) { (void)recorder; }

int64_t epx_recorder_patience(epx_recorder_h recorder, int64_t timeout_ms, int64_t waited_ns)
{
    (void)recorder, (void)timeout_ms, (void)waited_ns;
    return 0;
}
