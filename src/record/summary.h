/*
 * What a rank tells ranks on other hosts. SPDX-License-Identifier: Apache-2.0
 *
 * A summary is a small record: the same format, with as much of the tables as a verdict needs (open
 * operations and the last few, groups and texts in use, events of links and pools, lanes). So the classifier
 * and reports read it as they read a file.
 */
#ifndef EPX_RECORD_SUMMARY_H
#define EPX_RECORD_SUMMARY_H

#include <stddef.h>

/* Copies what stands in a record now, while it may be written; 0: it does not fit. `to` at a multiple of 64.
 */
size_t epx_summary_make(const void *record, void *to, size_t bytes);

#endif
