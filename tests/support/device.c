/* SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/registry.h"
#include "fabric/nccl/library.h"
#include "fabric/nccl/nccl.h"
#include "fabric/registry.h"
#include "support/guarded.h"
#include "support/number.h"

static struct {
    pthread_once_t once;
    const epx_device_ops_t *ops;
} device = {.once = PTHREAD_ONCE_INIT};

static void give(void *library, const char *name, const void *function, size_t bytes)
{
    void *at = dlsym(library, name);
    if (at == NULL) {
        fprintf(stderr, "TEST_NCCL has no %s\n", name);
        exit(2);
    }
    memcpy(at, function, bytes);
}

/* TEST_RANKS_EACH=4: so many ranks on each GPU, where NCCL can (NCCL_MULTI_RANK_GPU_ENABLE).
 * TEST_FABRIC=nccl: that one in the place of `local`, over NCCL itself or over the library that TEST_NCCL
 * names, which takes its memory from the device of the tests. */
static void choose_fabric(void)
{
    const char *wanted = getenv("TEST_FABRIC"), *library = getenv("TEST_NCCL");
    if (wanted == NULL || strcmp(wanted, "nccl") != 0)
        return;
    if (library != NULL) {
        void *fake = dlopen(library, RTLD_NOW);
        epx_status_t (*enqueue)(epx_stream_t, guarded_run_fn, const void *, size_t) = guarded_enqueue;
        void *(*open)(const void *) = guarded_open;
        if (fake == NULL) {
            fprintf(stderr, "TEST_NCCL=%s: %s\n", library, dlerror());
            exit(2);
        }
        give(fake, "fake_allocate", &device.ops->allocate, sizeof(device.ops->allocate));
        give(fake, "fake_enqueue", &enqueue, sizeof(enqueue));
        give(fake, "fake_open", &open, sizeof(open));
        epx_nccl_stand_in(library);
    }
    guarded_apart = 1;
    epx_fabric_stand_in("local", &epx_fabric_nccl);
}

static void choose(void)
{
    const char *wanted = getenv("TEST_DEVICE");
    char reason[320] = "it is not known";
    device.ops = epx_device_of_host();
    if (wanted == NULL || strcmp(wanted, "host") == 0)
        return;
    device.ops = NULL;
    if (strcmp(wanted, "guarded") == 0) {
        epx_device_stand_in("cuda", &guarded_device);
        device.ops = &guarded_device;
    } else {
        for (int32_t i = 0; i < epx_device_count(); i++)
            if (strcmp(epx_device_at(i)->name, wanted) == 0)
                device.ops = epx_device_at(i)->ops;
    }
    if (device.ops == NULL || device.ops->probe(reason, sizeof(reason)) <= 0) {
        fprintf(stderr, "TEST_DEVICE=%s: %s\n", wanted, reason);
        exit(2);
    }
    choose_fabric();
}

const epx_device_ops_t *test_device(void)
{
    pthread_once(&device.once, choose);
    return device.ops;
}

const char *test_device_name(void) { return test_device()->name; }

int on_host(void) { return test_device()->host_access; }

void only_on_host(const char *why)
{
    if (!on_host())
        cr_skip_test("on the host only: %s", why);
}

static void must(epx_status_t status, const char *what)
{
    if (status == EPX_OK)
        return;
    fprintf(stderr, "%s: %s\n", what, epx_last_error());
    abort();
}

static int is_over_nccl(void)
{
    const char *wanted = getenv("TEST_FABRIC");
    return wanted != NULL && strcmp(wanted, "nccl") == 0;
}

void rank_device(int rank)
{
    if (is_over_nccl())
        must(test_device()->select(rank % test_device()->count()), "a GPU of the rank's own");
}

/* By sends and receives the host waits, as over `local`. */
int over_sends(void)
{
    const char *path = getenv("TEST_NCCL_PATH");
    return is_over_nccl() && path != NULL && strcmp(path, "sendrecv") == 0;
}

int errors_come_late(void) { return is_over_nccl() && !over_sends(); }

int ranks_most(void)
{
    const char *each = getenv("TEST_RANKS_EACH");
    if (!is_over_nccl())
        return 1 << 20;
    return test_device()->count() * (each != NULL ? atoi(each) : 1);
}

/* ---- streams ------------------------------------------------------------------------------------------------ */

static _Thread_local epx_stream_t mine;

epx_stream_t rank_stream(void)
{
    if (!on_host() && mine == NULL)
        must(test_device()->stream_create(&mine), "a stream for the rank");
    return mine;
}

void rank_stream_end(void)
{
    if (mine == NULL)
        return;
    drained();
    test_device()->stream_destroy(mine);
    mine = NULL;
}

void drained(void)
{
    if (mine != NULL)
        must(test_device()->synchronize(mine), "waiting for the rank's stream");
}

/* ---- memory for both ---------------------------------------------------------------------------------------- */

/* Such memory is slow to get: blocks by powers of two, cut from large pieces and kept for the next test. */
enum { CLASSES = 40, LEAST = 256, PIECE = 16 << 20 };

typedef struct block {
    struct block *next;
    int size_class;
} block_t;

static struct {
    pthread_mutex_t mutex;
    block_t *free[CLASSES];
    char *piece;
    size_t left;
} both = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void *from_device(size_t bytes)
{
    void *memory = test_device()->allocate_shared(bytes + LEAST);
    if (memory == NULL) {
        fprintf(stderr, "no %zu bytes for host and device\n", bytes);
        abort();
    }
    return (char *)memory + (LEAST - (size_t)memory % LEAST) % LEAST;
}

/* A block of that class and its header before it, under the mutex. */
static block_t *cut(int size_class)
{
    size_t bytes = ((size_t)LEAST << size_class) + LEAST;
    block_t *block = both.free[size_class];
    if (block != NULL) {
        both.free[size_class] = block->next;
        return block;
    }
    if (bytes > PIECE)
        return from_device(bytes);
    if (bytes > both.left) {
        both.piece = from_device(PIECE);
        both.left = PIECE;
    }
    block = (block_t *)(void *)both.piece;
    both.piece += bytes;
    both.left -= bytes;
    return block;
}

void *both_new(size_t bytes)
{
    int size_class = 0;
    if (on_host()) {
        void *memory = malloc(bytes > 0 ? bytes : 1);
        if (memory == NULL)
            abort();
        return memory;
    }
    while (((size_t)LEAST << size_class) < bytes)
        size_class++;
    pthread_mutex_lock(&both.mutex);
    block_t *block = cut(size_class);
    block->size_class = size_class;
    pthread_mutex_unlock(&both.mutex);
    return (char *)block + LEAST;
}

void both_free(void *memory)
{
    if (memory == NULL || on_host()) {
        free(memory);
        return;
    }
    block_t *block = (block_t *)(void *)((char *)memory - LEAST);
    pthread_mutex_lock(&both.mutex);
    block->next = both.free[block->size_class];
    both.free[block->size_class] = block;
    pthread_mutex_unlock(&both.mutex);
}

/* ---- memory of the device ----------------------------------------------------------------------------------- */

void *device_new(size_t bytes)
{
    void *memory = test_device()->allocate(bytes > 0 ? bytes : 1, 256);
    if (memory == NULL) {
        fprintf(stderr, "no %zu bytes on the device\n", bytes);
        abort();
    }
    return memory;
}

void device_free(void *memory, size_t bytes)
{
    if (memory != NULL)
        test_device()->release(memory, bytes > 0 ? bytes : 1);
}

void fetch(void *to, const void *from, size_t bytes)
{
    if (on_host()) {
        memcpy(to, from, bytes);
        return;
    }
    must(test_device()->copy(to, from, bytes, rank_stream()), "a copy");
    drained();
}

void device_poison(void *memory, size_t bytes)
{
    if (on_host()) {
        poison(memory, bytes);
        return;
    }
    void *pattern = malloc(bytes + 1);
    if (pattern == NULL)
        abort();
    poison(pattern, bytes);
    fetch(memory, pattern, bytes);
    free(pattern);
}
