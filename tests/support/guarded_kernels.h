/* The kernels of the guarded device, and what they need of it. SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GUARDED_KERNELS_H
#define TESTS_GUARDED_KERNELS_H

#include <epx/device.h>

extern const epx_kernels_t guarded_kernels;

typedef void (*guarded_run_fn)(void *payload);

/* Puts run(a copy of args) into the stream. */
epx_status_t guarded_enqueue(epx_stream_t stream, guarded_run_fn run, const void *args, size_t bytes);

/* The address that can be used, of device memory; any other pointer unchanged. */
void *guarded_open(const void *p);
int guarded_owns(const void *p);

#endif
