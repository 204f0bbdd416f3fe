/* Rows of a record, for who writes them. SPDX-License-Identifier: Apache-2.0 */
#include "record/rows.h"

#include "record/order.h"

/* Orders of stores are F1 to F4 of format.h. */

void epx_recorder_event(epx_recorder_h r, uint32_t what, uint32_t text, int64_t value, int64_t now)
{
    uint64_t number = r->head->events + 1;
    epx_record_event_t *row = &r->events[number & (r->head->events_max - 1)];
    epx_put64(&row->number, 0);
    epx_order_writes();
    row->time_ns = now;
    row->what = what;
    row->text = text;
    row->value = value;
    epx_put64(&row->number, number);
    epx_put64(&r->head->events, number);
}

epx_record_lane_row_t *epx_recorder_lane_rows(epx_recorder_h r)
{
    return (epx_record_lane_row_t *)(void *)(r->device_pages + sizeof(epx_record_device_t));
}

epx_record_lane_row_t *epx_recorder_lane_row(epx_recorder_h r, uint32_t group, uint32_t lane)
{
    epx_record_lane_row_t *rows = epx_recorder_lane_rows(r);
    for (uint32_t i = 0; r->device.mapped != NULL && i < r->head->lanes_max; i++)
        if (rows[i].use != 0 && rows[i].group == group && rows[i].lane == lane)
            return &rows[i];
    return NULL;
}
