/* The report of a verdict. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_RECORD_REPORT_H
#define EPX_RECORD_REPORT_H

#include "record/view.h"

/* The report in at most EPX_REPORT_LINES lines. */
enum { EPX_REPORT_LINES = 25, EPX_REPORT_BYTES = 8192 };
void epx_report_text(const epx_job_view_t *view, const epx_verdict_t *verdict, char *text, size_t bytes);
/* The same as JSON. */
void epx_report_json(const epx_job_view_t *view, const epx_verdict_t *verdict, char *text, size_t bytes);

#endif
