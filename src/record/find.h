/* Looking for rows of a record. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_RECORD_FIND_H
#define EPX_RECORD_FIND_H

#include "record/read.h"

/* How a rank stands to an operation of another. */
typedef enum epx_has_op {
    EPX_OP_LACKS = 0, /* it has not made it */
    EPX_OP_HAS,
    EPX_OP_PASSED, /* made so long ago that the ring has lost it */
    EPX_OP_SKIPPED /* it has made a later one of the same stream, and not this one */
} epx_has_op_t;

epx_has_op_t epx_facts_find(const void *record, const epx_record_operation_t *like,
                            epx_record_operation_t *found_p);

/* The newest event of one of two kinds at or after a time of the record's clock; 0: none. */
int epx_facts_event(const void *record, uint32_t what, uint32_t or_what, int64_t since_ns,
                    epx_record_event_t *event_p);

#endif
