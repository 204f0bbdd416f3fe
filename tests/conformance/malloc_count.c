/*
 * Counts what this program takes from the C library while a thread says that it looks.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Sanitizers bring their own malloc: there nothing is counted, and malloc_counted says so.
 */
#include "conformance/malloc_count.h"

#include <stddef.h>

static _Thread_local int looking;
static _Thread_local int64_t requests;

void malloc_look(int begins) { looking = begins; }

int64_t malloc_requests(void) { return requests; }

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

int malloc_counted(void) { return 0; }

#else

/* glibc's own names for its allocator; a program's malloc takes the place of the library's in every shared
 * object. */
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *memory, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

int malloc_counted(void) { return 1; }

void *malloc(size_t bytes)
{
    requests += looking;
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    requests += looking;
    return __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    requests += looking;
    return __libc_realloc(memory, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    requests += looking;
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    requests += looking;
    *memory = __libc_memalign(alignment, bytes);
    return *memory ? 0 : 12;
}

#endif
