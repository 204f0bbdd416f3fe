/* Memory with two addresses, for the guarded device. SPDX-License-Identifier: Apache-2.0 */
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support/guarded.h"
#include "support/guarded_inside.h"

#define ARENA_BYTES ((size_t)GUARDED_BYTES)
#define PAGE ((size_t)4096)

void guarded_die(const char *what)
{
    perror(what);
    abort();
}

static struct {
    pthread_once_t once;
    pthread_mutex_t mutex;
    int file;
    char *shut, *open;
    size_t end, live;
    struct sigaction before[2]; /* of SIGSEGV, of SIGBUS */
} arena = {.once = PTHREAD_ONCE_INIT, .mutex = PTHREAD_MUTEX_INITIALIZER};

/* Where host code touched what is the device's. */
static void on_fault(int number, siginfo_t *info, void *context)
{
    (void)context;
    const char *at = info->si_addr;
    static const char text[] = "host code touched device memory:\n",
                      gone[] = "a kernel touched device memory that was given back:\n";
    void *frame[40];
    if (at >= arena.shut && at < arena.shut + ARENA_BYTES) {
        if (write(2, text, sizeof(text) - 1) > 0)
            backtrace_symbols_fd(frame, backtrace(frame, 40), 2);
    } else if (at >= arena.open && at < arena.open + ARENA_BYTES) {
        if (write(2, gone, sizeof(gone) - 1) > 0)
            backtrace_symbols_fd(frame, backtrace(frame, 40), 2);
    }
    sigaction(number, &arena.before[number == SIGBUS], NULL);
    raise(number);
}

static void arena_new(void)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_RESETHAND};
    int flags = MAP_SHARED | MAP_NORESERVE;
    arena.file = memfd_create("device", 0);
    if (arena.file < 0 || ftruncate(arena.file, (off_t)ARENA_BYTES) != 0)
        guarded_die("device memory");
    arena.shut = mmap(NULL, ARENA_BYTES, PROT_NONE, flags, arena.file, 0);
    arena.open = mmap(NULL, ARENA_BYTES, PROT_NONE, flags, arena.file, 0);
    if (arena.shut == MAP_FAILED || arena.open == MAP_FAILED)
        guarded_die("device memory");
    sigaction(SIGSEGV, &action, &arena.before[0]);
    sigaction(SIGBUS, &action, &arena.before[1]);
}

int guarded_owns(const void *p)
{
    const char *at = p;
    return at != NULL && at >= arena.shut && at < arena.shut + ARENA_BYTES;
}

void *guarded_open(const void *p)
{
    return guarded_owns(p) ? arena.open + ((const char *)p - arena.shut) : (void *)(size_t)p;
}

static size_t pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

/* Addresses are not used twice as long as anything lives; an inaccessible page stands between blocks. A block
 * ends where its last page does, so that an overrun is seen. */
void *guarded_memory_take(size_t bytes, size_t alignment)
{
    pthread_once(&arena.once, arena_new);
    size_t whole = pages(bytes > 0 ? bytes : 1);
    if (alignment > PAGE)
        return NULL;
    pthread_mutex_lock(&arena.mutex);
    size_t at = arena.end;
    int fits = at + whole + PAGE <= ARENA_BYTES;
    if (fits) {
        arena.end += whole + PAGE;
        arena.live++;
    }
    pthread_mutex_unlock(&arena.mutex);
    if (!fits || mprotect(arena.open + at, whole, PROT_READ | PROT_WRITE) != 0)
        return NULL;
    return arena.shut + at;
}

void guarded_memory_give(void *memory, size_t bytes)
{
    size_t at = (size_t)((char *)memory - arena.shut), whole = pages(bytes > 0 ? bytes : 1);
    if (madvise(arena.open + at, whole, MADV_REMOVE) != 0 || mprotect(arena.open + at, whole, PROT_NONE) != 0)
        guarded_die("giving device memory back");
    pthread_mutex_lock(&arena.mutex);
    arena.live--;
    if (arena.live == 0)
        arena.end = 0;
    pthread_mutex_unlock(&arena.mutex);
}
