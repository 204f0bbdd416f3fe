/*
 * The same work for many items, over threads. SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_BENCH_PARALLEL_H
#define EPX_BENCH_PARALLEL_H

#include <stddef.h>
#include <stdint.h>

/* scratch: [scratch_bytes] of the calling thread, zeroed before its first item, 64-byte aligned. */
typedef void (*epx_item_fn)(void *context, int32_t item, void *scratch);

/*
 * Calls fn for every item 0 .. items - 1 and returns when all are done. Items are taken in ascending order by
 * `threads` threads, the calling one included; fewer where the system gives fewer. fn must not depend on
 * which thread runs it.
 */
void epx_parallel(int32_t threads, int32_t items, epx_item_fn fn, void *context, size_t scratch_bytes);

/* Processors that this process may use, at least 1. */
int32_t epx_processors(void);

#endif
