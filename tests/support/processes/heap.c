/* The heap of tests whose ranks are processes: see processes.h. SPDX-License-Identifier: Apache-2.0 */
#include "support/processes/heap.h"

#include "conformance/malloc_count.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* glibc's own names for its allocator, which serves all but the test's thread. */
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *memory, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);
extern void __libc_free(void *memory);

/* Blocks are of 2^k or 1.5 * 2^k bytes, behind a head of 16; what is freed goes to a list by size. The arena
 * is one mapping, of which pages are used from the front. */
enum { CLASSES = 96, HEAD = 16 };

#define ARENA_BYTES ((size_t)16 << 30)

typedef struct head {
    uint64_t class;
    uint64_t shift; /* from the block's start to this head */
} head_t;

typedef struct arena {
    atomic_flag lock;
    size_t used;
    void *free[CLASSES];
} arena_t;

static arena_t *arena;
static int is_rank; /* a process forked for one */
static _Thread_local int is_test;

/* In place of conformance/malloc_count.c. */
static _Thread_local int looking;
static _Thread_local int64_t requests;

/* The library is linked into this program; what UCX takes for itself while it sends is not the library's. */
extern const char __executable_start, etext;

static void count_call(const void *caller)
{
    if (looking && (uintptr_t)caller >= (uintptr_t)&__executable_start &&
        (uintptr_t)caller < (uintptr_t)&etext)
        requests++;
}

void malloc_look(int begins) { looking = begins; }

int64_t malloc_requests(void) { return requests; }

int malloc_counted(void) { return 1; }

void heap_of_rank(void) { is_rank = 1; }

void heap_of_test(void)
{
    if (arena == NULL) {
        arena = mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE,
                     -1, 0);
        if (arena == MAP_FAILED)
            _exit(70);
        arena->used = (sizeof(*arena) + 4095) & ~(size_t)4095;
    }
    is_test = 1;
}

static size_t class_bytes(uint64_t class)
{
    size_t power = (size_t)32 << (class / 2);
    return class % 2 == 0 ? power : power + power / 2;
}

static uint64_t class_of(size_t bytes)
{
    uint64_t class = 0;
    while (class_bytes(class) < bytes)
        class ++;
    return class;
}

static void lock(void)
{
    while (atomic_flag_test_and_set_explicit(&arena->lock, memory_order_acquire))
        ;
}

static void unlock(void) { atomic_flag_clear_explicit(&arena->lock, memory_order_release); }

static int is_shared(const void *memory)
{
    return arena != NULL && (uintptr_t)memory - (uintptr_t)arena < ARENA_BYTES;
}

static void *take(size_t bytes, size_t alignment)
{
    size_t room = bytes + HEAD + (alignment > HEAD ? alignment : 0);
    uint64_t class = class_of(room);
    if (class >= CLASSES || room < bytes)
        return NULL;
    lock();
    char *block = arena->free[class];
    if (block != NULL) {
        memcpy(&arena->free[class], block, sizeof(void *));
    } else if (arena->used + class_bytes(class) <= ARENA_BYTES) {
        block = (char *)arena + arena->used;
        arena->used += class_bytes(class);
    }
    unlock();
    if (block == NULL)
        return NULL;
    uintptr_t at = ((uintptr_t)block + HEAD + alignment - 1) & ~(uintptr_t)(alignment - 1);
    head_t *head = (head_t *)(at - HEAD);
    *head = (head_t){.class = class, .shift = (uint64_t)((char *)head - block)};
    return (void *)at;
}

static head_t *head_of(void *memory) { return (head_t *)((uintptr_t)memory - HEAD); }

static size_t room_of(void *memory)
{
    head_t *head = head_of(memory);
    return class_bytes(head->class) - head->shift - HEAD;
}

static void give(void *memory)
{
    head_t *head = head_of(memory);
    char *block = (char *)head - head->shift;
    uint64_t class = head->class;
    size_t bytes = class_bytes(class);
    if (is_rank)
        return;                       /* the test's, not a rank's */
    if (bytes >= ((size_t)1 << 20)) { /* large ones give their pages back */
        uintptr_t first = ((uintptr_t)block + 8191) & ~(uintptr_t)4095;
        uintptr_t last = ((uintptr_t)block + bytes) & ~(uintptr_t)4095;
        (void)!madvise((void *)first, last - first, MADV_REMOVE);
    }
    lock();
    memcpy(block, &arena->free[class], sizeof(void *));
    arena->free[class] = block;
    unlock();
}

void *malloc(size_t bytes)
{
    count_call(__builtin_return_address(0));
    return is_test ? take(bytes > 0 ? bytes : 1, 16) : __libc_malloc(bytes);
}

void free(void *memory)
{
    if (is_shared(memory))
        give(memory);
    else
        __libc_free(memory);
}

void *calloc(size_t count, size_t bytes)
{
    size_t all;
    count_call(__builtin_return_address(0));
    if (!is_test)
        return __libc_calloc(count, bytes);
    if (__builtin_mul_overflow(count, bytes, &all))
        return NULL;
    void *memory = take(all > 0 ? all : 1, 16);
    return memory != NULL ? memset(memory, 0, all) : NULL;
}

void *realloc(void *memory, size_t bytes)
{
    count_call(__builtin_return_address(0));
    if (!is_shared(memory) && (!is_test || memory != NULL))
        return __libc_realloc(memory, bytes);
    size_t old = memory != NULL ? room_of(memory) : 0;
    if (bytes <= old && bytes > 0)
        return memory;
    void *more = is_test ? take(bytes > 0 ? bytes : 1, 16) : __libc_malloc(bytes);
    if (more != NULL && memory != NULL) {
        memcpy(more, memory, old < bytes ? old : bytes);
        give(memory);
    }
    return more;
}

void *memalign(size_t alignment, size_t bytes)
{
    count_call(__builtin_return_address(0));
    return is_test ? take(bytes > 0 ? bytes : 1, alignment < 16 ? 16 : alignment)
                   : __libc_memalign(alignment, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }

int posix_memalign(void **memory_p, size_t alignment, size_t bytes)
{
    *memory_p = memalign(alignment, bytes);
    return *memory_p != NULL ? 0 : ENOMEM;
}

size_t malloc_usable_size(void *memory)
{
    return is_shared(memory) ? room_of(memory) : 0; /* nobody here asks for others */
}
