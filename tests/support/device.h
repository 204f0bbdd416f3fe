/*
 * The device that tests run on, by TEST_DEVICE: host (the default), guarded (a simulated one that host code
 * must not touch, see guarded.h), cuda (a GPU). SPDX-License-Identifier: Apache-2.0
 *
 * What a test hands to the library is memory that host and device see at one address, so that tests look at
 * it as they always do, once the device is through with it: expect_status and drained() wait for that. What
 * the library hands out (the rows of its own batches, a plan's bytes) is the device's alone: see fetch().
 */
#ifndef TESTS_DEVICE_H
#define TESTS_DEVICE_H

#include <stddef.h>

#include <epx/device.h>

const epx_device_ops_t *test_device(void);
/* For a group's configuration. */
const char *test_device_name(void);
/* 1: the host may load and store all memory, and calls are synchronous. */
int on_host(void);
/* Tests of what has no meaning elsewhere begin with it; ends the test with the reason printed. */
void only_on_host(const char *why);

/* This thread plays rank `rank`: over fabric `nccl` it has a GPU of its own. */
void rank_device(int rank);
/* 1: what ends a wait on the device is told by a later call. */
int errors_come_late(void);

/* 1: fabric `nccl` moves rows by sends and receives (TEST_NCCL_PATH=sendrecv). */
int over_sends(void);
/* Most ranks that a test can have. */
int ranks_most(void);

/* This thread's stream: NULL on the host. Threads that use one call rank_stream_end when they end. */
epx_stream_t rank_stream(void);
void rank_stream_end(void);
/* Waits for everything on this thread's stream. */
void drained(void);

/* Memory for both, aligned for any type (to 256 bytes where it is not the host's); never NULL. */
void *both_new(size_t bytes);
void both_free(void *memory);

/* Memory of the device; 256-byte aligned, never NULL. */
void *device_new(size_t bytes);
void device_free(void *memory, size_t bytes);
/* Copies in any direction, and waits for it. */
void fetch(void *to, const void *from, size_t bytes);
/* Fills device memory with the NaN pattern (number.h), and waits for it. */
void device_poison(void *memory, size_t bytes);

#endif
