/* What the files of the guarded device share. SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GUARDED_INSIDE_H
#define TESTS_GUARDED_INSIDE_H

#include <epx/device.h>

/* Of addresses; pages are taken when they are used. */
#define GUARDED_BYTES ((int64_t)1 << 38)

/* Ends the process: nothing can be tested here. */
void guarded_die(const char *what);

/* ---- guarded_memory.c: kernels may use a block in between; NULL: no room ---- */

void *guarded_memory_take(size_t bytes, size_t alignment);
void guarded_memory_give(void *memory, size_t bytes);

/* ---- guarded_streams.c: calls of the device's table ---- */

epx_status_t guarded_synchronize(epx_stream_t handle);
epx_status_t guarded_stream_create(epx_stream_t *stream_p);
void guarded_stream_destroy(epx_stream_t handle);
epx_status_t guarded_event_create(int32_t timed, epx_event_t *event_p);
void guarded_event_destroy(epx_event_t handle);
epx_status_t guarded_event_record(epx_event_t handle, epx_stream_t stream);
epx_status_t guarded_event_elapsed(epx_event_t from, epx_event_t to, double *seconds_p);
epx_status_t guarded_stream_wait(epx_stream_t stream, epx_event_t handle);

/* Until all streams, or this thread's alone (guarded_apart), have done what is queued now. */
void guarded_drain_all(void);

#endif
