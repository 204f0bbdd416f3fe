/* SPDX-License-Identifier: Apache-2.0 */
#include "support/memory.h"

#include <stdlib.h>

#include "support/device.h"
#include "support/number.h"
#include "support/world.h"

typedef struct block {
    struct block *next;
    void *memory;
    size_t bytes;
    int device;
} block_t;

static void *take(void *context, size_t bytes, size_t alignment, int device)
{
    memory_t *m = context;
    void *memory = NULL;
    block_t *block = malloc(sizeof(*block));
    pthread_mutex_lock(&m->mutex);
    int power = alignment && (alignment & (alignment - 1)) == 0;
    m->strange += !power;
    if (m->requests++ != m->fail_at && power && bytes <= (size_t)1 << 36) {
        size_t align = alignment < sizeof(void *) ? sizeof(void *) : alignment;
        if (device && !on_host())
            memory = both_new(bytes);
        else if (posix_memalign(&memory, align, bytes ? bytes : 1) != 0)
            memory = NULL;
    }
    if (memory && block) {
        poison(memory, bytes);
        *block = (block_t){.next = m->blocks, .memory = memory, .bytes = bytes, .device = device};
        m->blocks = block;
        m->requested_bytes += (int64_t)bytes;
        m->device_bytes += device ? (int64_t)bytes : 0;
        m->live++;
        m->live_bytes += (int64_t)bytes;
    } else {
        free(block);
    }
    pthread_mutex_unlock(&m->mutex);
    return memory;
}

static void drop(block_t *block)
{
    if (block->device)
        both_free(block->memory);
    else
        free(block->memory);
    free(block);
}

static void give(void *context, void *memory, size_t bytes, int device)
{
    memory_t *m = context;
    pthread_mutex_lock(&m->mutex);
    block_t **at = &m->blocks;
    while (*at && (*at)->memory != memory)
        at = &(*at)->next;
    block_t *block = *at;
    if (block) {
        m->strange += block->bytes != bytes || !block->device != !device;
        m->live--;
        m->live_bytes -= (int64_t)block->bytes;
        *at = block->next;
        poison(memory, block->bytes); /* who reads it later sees NaNs */
        drop(block);
    } else {
        m->strange += memory != NULL;
    }
    pthread_mutex_unlock(&m->mutex);
}

void memory_new(memory_t *m)
{
    *m = (memory_t){.allocator = {.context = m, .allocate = take, .release = give}, .fail_at = -1};
    pthread_mutex_init(&m->mutex, NULL);
}

void memory_end(memory_t *m, const char *what)
{
    expect(NULL, m->live == 0, "%s: %lld blocks (%lld bytes) were not released", what, (long long)m->live,
           (long long)m->live_bytes);
    expect(NULL, m->strange == 0, "%s: %lld strange requests or releases", what, (long long)m->strange);
    while (m->blocks) {
        block_t *next = m->blocks->next;
        drop(m->blocks);
        m->blocks = next;
    }
    pthread_mutex_destroy(&m->mutex);
}
