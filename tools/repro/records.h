/* A folder of flight records, read whole. SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_REPRO_RECORDS_H
#define TOOLS_REPRO_RECORDS_H

#include "src/record/classify.h"
#include "tools/repro/repro.h"

typedef struct records {
    int32_t ranks;       /* of the job */
    int32_t found;       /* records that are there */
    const void **record; /* [ranks] NULL: missing */
} records_t;

/* EPX_EXIT_OK, or the code after a message. Memory stays until the process ends. */
int records_open(const char *folder, records_t *records_p);

static inline const epx_record_head_t *records_head(const records_t *records, int32_t rank)
{
    return records->record[rank];
}

/* The number of the oldest operation that is still there, 1 or more; the newest is head->operations. */
uint64_t records_oldest(const epx_record_head_t *head);

#endif
