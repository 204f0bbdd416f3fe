/* Counts calls of malloc and its kin on the calling thread. SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_MALLOC_COUNT_H
#define TESTS_MALLOC_COUNT_H

#include <stdint.h>

/* From begins = 1 to begins = 0. Fits drive.h's calls_hook. */
void malloc_look(int begins);
int64_t malloc_requests(void);
/* 0: this build cannot count. */
int malloc_counted(void);

#endif
