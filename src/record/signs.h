/* What the watchdog sees of a rank of this process, and tells of it. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_RECORD_SIGNS_H
#define EPX_RECORD_SIGNS_H

#include "record/recorder_state.h"

/* A close look pays: a wait is half as long as the budget, or some tenths of a second already (a process may
 * be gone), or an error was reported a moment ago. */
int epx_signs_are_bad(epx_recorder_h recorder, int64_t now, int64_t tick);

/* Notes what is known of its device; asking may take a millisecond. */
void epx_signs_note_use(epx_recorder_h recorder);

/* Leaves its summary for ranks on other hosts, with what its thread does, while somebody asks. */
void epx_signs_tell(epx_recorder_h recorder, int64_t now);

#endif
