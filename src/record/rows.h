/* Rows of a record, for who writes them. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_RECORD_ROWS_H
#define EPX_RECORD_ROWS_H

#include "base/clock.h"
#include "record/recorder_state.h"
#include "record/system.h"

/* One event row; `now` of epx's clock. */
void epx_recorder_event(epx_recorder_h recorder, uint32_t what, uint32_t text, int64_t value, int64_t now);

/* The rows of lanes, [lanes_max]; only where a device writes. */
epx_record_lane_row_t *epx_recorder_lane_rows(epx_recorder_h recorder);
/* The row of a group's lane, NULL: no device writes of it. */
epx_record_lane_row_t *epx_recorder_lane_row(epx_recorder_h recorder, uint32_t group, uint32_t lane);

/* The rank's thread has moved; inline, since every stamp says so. */
static inline void epx_recorder_moved(epx_recorder_h r, int64_t now)
{
    r->head->thread = epx_system_thread();
    epx_put_time(&r->head->moved_ns, now);
}

#endif
