/* Looking for rows of a record. SPDX-License-Identifier: Apache-2.0 */
#include "record/find.h"

static uint64_t get64(const uint64_t *from) { return __atomic_load_n(from, __ATOMIC_ACQUIRE); }

/* The first number that may still be in the ring. */
static uint64_t oldest_of(const epx_record_head_t *head, uint64_t newest)
{
    return newest > head->ops_max ? newest - head->ops_max + 1 : 1;
}

epx_has_op_t epx_facts_find(const void *record, const epx_record_operation_t *like,
                            epx_record_operation_t *found_p)
{
    const epx_record_head_t *head = record;
    uint64_t newest = get64(&head->operations), oldest = oldest_of(head, newest);
    int has_earlier = 0, has_later = 0;
    for (uint64_t n = newest; n >= oldest; n--) {
        epx_record_operation_t op;
        if (!epx_record_operation(record, n, &op) || op.group_key != like->group_key ||
            op.stream != like->stream)
            continue;
        if (op.sequence == like->sequence) {
            *found_p = op;
            return EPX_OP_HAS;
        }
        has_later |= op.sequence > like->sequence;
        has_earlier |= op.sequence < like->sequence;
    }
    if (!has_later)
        return EPX_OP_LACKS;
    return has_earlier || oldest == 1 ? EPX_OP_SKIPPED : EPX_OP_PASSED;
}

int epx_facts_event(const void *record, uint32_t what, uint32_t or_what, int64_t since_ns,
                    epx_record_event_t *event_p)
{
    const epx_record_head_t *head = record;
    uint64_t newest = get64(&head->events);
    uint64_t oldest = newest > head->events_max ? newest - head->events_max + 1 : 1;
    for (uint64_t n = newest; n >= oldest; n--) {
        epx_record_event_t event;
        if (!epx_record_event(record, n, &event) || (event.what != what && event.what != or_what))
            continue;
        if (event.time_ns < since_ns)
            continue;
        *event_p = event;
        return 1;
    }
    return 0;
}
