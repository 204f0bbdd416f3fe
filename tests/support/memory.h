/*
 * An allocator that counts, poisons, checks what comes back, and can fail. SPDX-License-Identifier:
 * Apache-2.0
 */
#ifndef TESTS_MEMORY_H
#define TESTS_MEMORY_H

#include <pthread.h>
#include <stdint.h>

#include <epx/epx.h>

struct block;

typedef struct memory {
    epx_allocator_t allocator; /* for epx_group_config_t */
    pthread_mutex_t mutex;
    int64_t requests, requested_bytes, device_bytes; /* since memory_new */
    int64_t live, live_bytes;
    int64_t fail_at; /* the request (from 0) that gets NULL; -1: none */
    int64_t strange; /* releases of what is not live, or with other bytes or another kind of memory */
    struct block *blocks;
} memory_t;

void memory_new(memory_t *memory);
/* Counts a failure for what is still live, and for strange releases. Threads must have ended. */
void memory_end(memory_t *memory, const char *what);

#endif
