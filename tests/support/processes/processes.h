/*
 * Ranks as processes, for a runner of its own (tests/PROCESSES, with alone.c). SPDX-License-Identifier:
 * Apache-2.0
 *
 * Tests are written for ranks that are threads: they hand all of them one argument, which lies on the stack
 * or in the heap, and look at it afterwards. Here a test runs on a stack and with a heap that are mapped
 * shared, so that the processes forked for its ranks see the same bytes at the same addresses. A rank's own
 * allocations are private to it and go with it.
 *
 * The test runs on a thread with that stack; the main thread, whose stack is private, forks the ranks when
 * asked.
 *
 * TEST_HOST=0 or 1 and TEST_ROOT=ADDRESS:PORT of host 0, where this port and those behind it are free: the
 * ranks of a test are on two hosts, where the same runner runs the same tests in the same order (--jobs 1).
 * Host 0 plays ranks 0, 3, 6 and so on, host 1 the others. The test's argument is then shared by the ranks of
 * a host only, and so is world_meet: such tests may compare what a rank has got with what it should, not with
 * what another has got.
 */
#ifndef TESTS_PROCESSES_H
#define TESTS_PROCESSES_H

#include "support/world.h"

/* Memory that ranks share, zeroed; for what is neither on a test's stack nor in its heap. */
void *processes_shared(size_t bytes);

/* Forks the ranks 0 .. ranks - 1 that are here; each runs play(context, r) and ends. From the test's thread;
 * returns when all have ended, or calls hang() after limit_ms. ended(context, r, wait status) is told of
 * each. */
typedef struct processes_call {
    int ranks;
    int64_t limit_ms;
    void *context;
    int (*is_here)(int rank);
    void (*play)(void *context, int rank);
    void (*ended)(void *context, int rank, int status);
    void (*hang)(void *context);
} processes_call_t;
void processes_run(const processes_call_t *call);

/* In a rank's process: one more variable of its environment, up to four, which is not there yet. */
void processes_variable(const char *name, const char *value);

/* Runs fn(item) on a thread with a shared stack; the calling thread forks meanwhile. For alone.c. */
void processes_host(void (*fn)(const void *item), const void *item);

#endif
