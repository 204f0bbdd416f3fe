/* The guarded device: copies, and its table. SPDX-License-Identifier: Apache-2.0 */
#include "support/guarded.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/guarded_inside.h"
#include "support/guarded_kernels.h"

int guarded_captures;

static void guarded_release(void *memory, size_t bytes)
{
    if (memory == NULL)
        return;
    guarded_drain_all();
    guarded_memory_give(memory, bytes);
}

/* ---- copies ---- */

/* Blocks that host and device see. */
enum { SHARED_MAX = 4096 };
static struct {
    pthread_mutex_t mutex;
    struct {
        char *begin, *end;
    } block[SHARED_MAX];
    int count;
} shared = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void note_shared(char *begin, size_t bytes)
{
    pthread_mutex_lock(&shared.mutex);
    int i = 0;
    while (i < shared.count && shared.block[i].begin != NULL)
        i++;
    if (begin != NULL && i < SHARED_MAX) {
        shared.block[i].begin = begin;
        shared.block[i].end = begin + bytes;
        shared.count += i == shared.count;
    }
    pthread_mutex_unlock(&shared.mutex);
}

static void forget_shared(const void *begin)
{
    pthread_mutex_lock(&shared.mutex);
    for (int i = 0; i < shared.count; i++)
        if (shared.block[i].begin == begin)
            shared.block[i].begin = shared.block[i].end = NULL;
    pthread_mutex_unlock(&shared.mutex);
}

static void *guarded_allocate_shared(size_t bytes)
{
    char *memory = calloc(1, bytes > 0 ? bytes : 1);
    note_shared(memory, bytes);
    return memory;
}

static void guarded_release_shared(void *memory, size_t bytes)
{
    (void)bytes;
    if (memory == NULL)
        return;
    guarded_drain_all();
    forget_shared(memory);
    free(memory);
}

static void *guarded_map_shared(void *memory, size_t bytes)
{
    note_shared(memory, bytes);
    return memory;
}

static void guarded_unmap_shared(void *memory)
{
    guarded_drain_all();
    forget_shared(memory);
}

static int is_shared(const void *p)
{
    int found = 0;
    pthread_mutex_lock(&shared.mutex);
    for (int i = 0; i < shared.count && !found; i++)
        found = (const char *)p >= shared.block[i].begin && (const char *)p < shared.block[i].end;
    pthread_mutex_unlock(&shared.mutex);
    return found;
}

static int is_plain(const void *p) { return !guarded_owns(p) && !is_shared(p); }

typedef struct copy {
    void *to;
    const void *from; /* NULL: what follows */
    size_t bytes;
    int byte; /* of a fill */
} copy_t;

static void run_copy(void *payload)
{
    copy_t *copy = payload;
    memcpy(guarded_open(copy->to), copy->from != NULL ? guarded_open(copy->from) : copy + 1, copy->bytes);
}

static void run_fill(void *payload)
{
    copy_t *copy = payload;
    memset(guarded_open(copy->to), copy->byte, copy->bytes);
}

/* Plain memory is taken along at once. */
static epx_status_t copy_from_plain(void *to, const void *from, size_t bytes, epx_stream_t stream)
{
    copy_t *copy = malloc(sizeof(*copy) + bytes);
    if (copy == NULL)
        return EPX_ERR_NO_MEMORY;
    *copy = (copy_t){.to = to, .bytes = bytes};
    memcpy(copy + 1, from, bytes);
    epx_status_t status = guarded_enqueue(stream, run_copy, copy, sizeof(*copy) + bytes);
    free(copy);
    return status;
}

static epx_status_t guarded_copy(void *to, const void *from, size_t bytes, epx_stream_t stream)
{
    copy_t copy = {.to = to, .from = from, .bytes = bytes};
    if (bytes == 0)
        return EPX_OK;
    if (is_plain(from) && !is_plain(to))
        return copy_from_plain(to, from, bytes, stream);
    epx_status_t status = guarded_enqueue(stream, run_copy, &copy, sizeof(copy));
    return status == EPX_OK && is_plain(to) ? guarded_synchronize(stream) : status;
}

static epx_status_t guarded_fill(void *to, int byte, size_t bytes, epx_stream_t stream)
{
    copy_t copy = {.to = to, .byte = byte, .bytes = bytes};
    return bytes == 0 ? EPX_OK : guarded_enqueue(stream, run_fill, &copy, sizeof(copy));
}

/* Every kernel has a wrapper: who adds one to the table learns it here. */
static int guarded_probe(char *reason, size_t reason_bytes)
{
    void *kernel[sizeof(guarded_kernels) / sizeof(void *)];
    memcpy(kernel, &guarded_kernels, sizeof(kernel));
    snprintf(reason, reason_bytes, "%s", "");
    for (size_t i = 0; i < sizeof(kernel) / sizeof(kernel[0]); i++) {
        if (kernel[i] == NULL) {
            snprintf(reason, reason_bytes,
                     "tests/support/guarded_kernels.c has no kernel %zu of epx_kernels_t", i);
            return 0;
        }
    }
    return 1;
}

static epx_status_t guarded_properties(epx_device_properties_t *properties_p)
{
    *properties_p =
        (epx_device_properties_t){.name = "guarded", .units = 1, .memory_bytes = (int64_t)GUARDED_BYTES};
    return EPX_OK;
}

static int32_t guarded_is_capturing(epx_stream_t stream)
{
    (void)stream;
    return guarded_captures;
}

static epx_status_t guarded_drain(void)
{
    guarded_drain_all();
    return EPX_OK;
}

static int32_t guarded_count(void) { return 1024; }

static int32_t guarded_current(void) { return 0; }

static epx_status_t guarded_select(int32_t index)
{
    (void)index;
    return EPX_OK;
}

const epx_device_ops_t guarded_device = {
    .name = "cuda",
    .host_access = 0,
    .probe = guarded_probe,
    .properties = guarded_properties,
    .allocate = guarded_memory_take,
    .release = guarded_release,
    .allocate_shared = guarded_allocate_shared,
    .release_shared = guarded_release_shared,
    .map_shared = guarded_map_shared,
    .unmap_shared = guarded_unmap_shared,
    .copy = guarded_copy,
    .fill = guarded_fill,
    .synchronize = guarded_synchronize,
    .stream_create = guarded_stream_create,
    .stream_destroy = guarded_stream_destroy,
    .event_create = guarded_event_create,
    .event_destroy = guarded_event_destroy,
    .event_record = guarded_event_record,
    .event_elapsed = guarded_event_elapsed,
    .stream_wait = guarded_stream_wait,
    .put = guarded_copy,
    .is_capturing = guarded_is_capturing,
    .drain = guarded_drain,
    .count = guarded_count,
    .current = guarded_current,
    .select = guarded_select,
    .kernels = &guarded_kernels,
};
