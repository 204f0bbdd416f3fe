/* A result as a table, as JSON, as a page. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_AB_REPORT_H
#define EPX_AB_REPORT_H

#include <stdio.h>

#include "bench/ab/result.h"

/* All write the judged result. Files: 0, or EPX_EXIT_FAILED after a message. */
void epx_ab_print(const epx_ab_result_t *result, FILE *out, int colours);
int epx_ab_write_json(const epx_ab_result_t *result, const char *path);
int epx_ab_write_html(const epx_ab_result_t *result, const char *path);

/* ---- what reports share (scope.c) ---------------------------------------------------------------------------------- */

typedef void (*epx_ab_line_fn)(void *context, const char *label, const char *text);

/* The scope, a line at a time: "ranks", "4 threads ...". The last lines, labelled "does not show", say what
 * no reader may conclude. */
void epx_ab_scope_lines(const epx_ab_result_t *result, epx_ab_line_fn line, void *context);

/* Why the arm's rules drop what they drop, in one sentence with numbers; "" where that is not known. */
void epx_ab_drop_reason(const epx_ab_result_t *result, int32_t arm, char *text, size_t bytes);

/* The capacity at which an arm has equal drops or equal memory, and what it drops and takes there. 0: it was
 * not adjusted, and why. */
int epx_ab_say_adjusted(const epx_ab_result_t *result, int32_t arm, epx_ab_part_t part, char *text,
                        size_t bytes);

/* The arm's worst finding on a guard over all arms: VOID before PASSED before UNCHECKED. */
epx_ab_state_t epx_ab_guard_state(const epx_ab_result_t *result, epx_ab_guard_t guard);

/* 1 for verdicts that reports for people show: step time only where there is no MFU. */
int epx_ab_is_shown(const epx_ab_result_t *result, const epx_ab_verdict_t *verdict);

/* What a reader must know before all else, where others kept the machine busy. 0: nothing. */
int epx_ab_say_caution(const epx_ab_result_t *result, char *text, size_t bytes);

/* "3 pairs of runs", with what one difference means. */
void epx_ab_subtitle(const epx_ab_result_t *result, char *text, size_t bytes);

#endif
