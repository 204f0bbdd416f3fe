/* Memory that host and device see, for the plans of a group. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_CORE_REPORTS_H
#define EPX_CORE_REPORTS_H

#include "core/group_state.h"
#include "transport/common.h"

/* A report with what stands behind it; NULL: no memory. */
epx_route_report_t *epx_report_take(epx_group_t *group);
void epx_report_give(epx_group_t *group, epx_route_report_t *report);

/* Bytes of one, a multiple of 64. */
int64_t epx_report_bytes(const epx_selection_t *selection);
/* All of them; no kernel writes to them any more. */
void epx_report_end(epx_group_t *group);

#endif
