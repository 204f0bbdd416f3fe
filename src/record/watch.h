/* The watchdog: one thread per process. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_RECORD_WATCH_H
#define EPX_RECORD_WATCH_H

#include "record/recorder_state.h"

/* The watchdog's list; the thread runs while it is not empty. EPX_OK also where no thread could be started
 * (logged): recording goes on. */
void epx_watch_add(epx_recorder_h recorder);
/* Under the watchdog's lock. */
void epx_watch_notes(epx_recorder_h recorder, const epx_recorder_notes_t *notes);
/* When it returns the watchdog does not know the recorder any more. */
void epx_watch_remove(epx_recorder_h recorder);

#endif
