/* The heap of tests whose ranks are processes. SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_PROCESSES_HEAP_H
#define TESTS_PROCESSES_HEAP_H

/* What this thread allocates from here on is shared with the processes that are forked for ranks. */
void heap_of_test(void);

/* This process plays a rank: freeing what is the test's does nothing. */
void heap_of_rank(void);

#endif
