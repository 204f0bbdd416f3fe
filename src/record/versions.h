/* Which versions of what carries rows a process has loaded. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_RECORD_VERSIONS_H
#define EPX_RECORD_VERSIONS_H

#include <stddef.h>

#include "record/format.h"

/* "2.28.9 (/usr/lib/libnccl.so.2.28.9)", or EPX_VERSIONS_NONE. Fills what is not known yet: libraries may be
 * loaded late. The driver is the kernel's module. */
#define EPX_VERSIONS_NONE "none loaded"
void epx_versions_find(epx_record_head_t *head);

/* The driver's version out of the line by which its module tells it; 0: there is none in it. */
int epx_versions_driver(const char *line, char *text, size_t bytes);

/* One line of all of them, "epx 0.1.0, NCCL ..., UCX ..., driver ..."; what a record of an earlier version of
 * epx does not hold is "not recorded". */
void epx_versions_text(const epx_record_head_t *head, char *text, size_t bytes);

/* 1: both say the same, as far as both say anything. */
int epx_versions_equal(const epx_record_head_t *a, const epx_record_head_t *b);

#endif
