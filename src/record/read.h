/* Reading records, which may be written meanwhile. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_RECORD_READ_H
#define EPX_RECORD_READ_H

#include <stddef.h>

#include "record/format.h"

/* Whether these bytes are a record that this version reads; else *why_p says why not (static). */
int epx_record_is_one(const void *record, size_t bytes, const char **why_p);
/* Copies; 0: there is no such (complete) row. number: 1 .. head.operations; the last ops_max are there. */
int epx_record_operation(const void *record, uint64_t number, epx_record_operation_t *row_p);
int epx_record_event(const void *record, uint64_t number, epx_record_event_t *row_p);
/* number: 1 .. head.links; the last links_max are there. */
int epx_record_link_row(const void *record, uint64_t number, epx_record_link_row_t *row_p);
/* Copies the first `bytes` of an operation's progress words, its peers' behind them; 0: they are another's by
 * now. Words may move. */
int epx_record_progress_copy(const void *record, const epx_record_operation_t *op, void *copy, size_t bytes);
/* Where they are; *peers_p their row (NULL: reused). */
const epx_record_progress_t *epx_record_progress(const void *record, const epx_record_operation_t *op,
                                                 const epx_record_peer_t **peers_p);
const epx_record_group_row_t *epx_record_group_row(const void *record, uint32_t index);
/* Rank of the job of a member, -1: not known. */
int32_t epx_record_member(const void *record, uint32_t group, int32_t rank);
const char *epx_record_text_of(const void *record, uint32_t text);
/* "dispatch", "all_reduce": the kind's name or a foreign operation's text. */
const char *epx_record_kind_of(const void *record, const epx_record_operation_t *op);

#endif
