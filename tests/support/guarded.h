/*
 * A device that is not there: memory that the host must not touch, and streams that run behind its back.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Stands in for `cuda` where there is no GPU, so that what holds on one is tested on any machine:
 *
 * - Its memory has two addresses. The one that everybody is given cannot be loaded from or stored to: host
 * code of the library that does so ends the test with a backtrace. Kernels, copies and fills translate to the
 * other.
 *
 * - A stream is a thread with a queue; calls return at once. So work that is not ordered by a stream or an
 * event runs in any order (TEST_JITTER=1 sees to it that it does), and ThreadSanitizer sees it.
 *
 * - As on a GPU: a copy from plain host memory takes it before it returns, one to plain host memory returns
 * when it has arrived; memory that is given back waits for all streams, and is inaccessible afterwards.
 *
 * Kernels are those of the host.
 */
#ifndef TESTS_GUARDED_H
#define TESTS_GUARDED_H

#include <epx/device.h>

extern const epx_device_ops_t guarded_device;

/* 1: every thread has a device of its own, and what waits for the device waits for the thread's own streams.
 */
extern int guarded_apart;

/* 1: streams say that they record a graph. */
extern int guarded_captures;

/* 1: a test takes an order away on purpose (a signal is dropped, a group is ended under its kernels): rows
 * that streams touch then race, and ThreadSanitizer says nothing of what streams do. */
extern int guarded_lawless;

typedef void (*guarded_run_fn)(void *payload);

/* Puts run(a copy of args) into the stream. */
epx_status_t guarded_enqueue(epx_stream_t stream, guarded_run_fn run, const void *args, size_t bytes);

/* The address that can be used, of device memory; any other pointer unchanged. */
void *guarded_open(const void *p);
int guarded_owns(const void *p);

#endif
