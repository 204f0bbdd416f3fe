/* SPDX-License-Identifier: Apache-2.0 */
#include "support/guarded.h"

#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/fail.h"
#include "support/guarded_kernels.h"

#define ARENA_BYTES ((size_t)1 << 38)
#define PAGE ((size_t)4096)

/* ---- memory with two addresses ---------------------------------------------------------------------------- */

static struct {
    pthread_once_t once;
    pthread_mutex_t mutex;
    int file;
    char *shut, *open;
    size_t end, live, live_bytes;
} arena = {.once = PTHREAD_ONCE_INIT, .mutex = PTHREAD_MUTEX_INITIALIZER};

static void die(const char *what)
{
    perror(what);
    abort();
}

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
    signal(number, SIG_DFL);
    raise(number);
}

static void arena_new(void)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_RESETHAND};
    int flags = MAP_SHARED | MAP_NORESERVE;
    arena.file = memfd_create("device", 0);
    if (arena.file < 0 || ftruncate(arena.file, (off_t)ARENA_BYTES) != 0)
        die("device memory");
    arena.shut = mmap(NULL, ARENA_BYTES, PROT_NONE, flags, arena.file, 0);
    arena.open = mmap(NULL, ARENA_BYTES, PROT_NONE, flags, arena.file, 0);
    if (arena.shut == MAP_FAILED || arena.open == MAP_FAILED)
        die("device memory");
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
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

int64_t guarded_live_bytes(void)
{
    pthread_mutex_lock(&arena.mutex);
    size_t bytes = arena.live_bytes;
    pthread_mutex_unlock(&arena.mutex);
    return (int64_t)bytes;
}

static size_t pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

/* Addresses are not used twice as long as anything lives; an inaccessible page stands between blocks. A block
 * ends where its last page does, so that an overrun is seen. */
static void *guarded_allocate(size_t bytes, size_t alignment)
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
        arena.live_bytes += bytes;
    }
    pthread_mutex_unlock(&arena.mutex);
    if (!fits || mprotect(arena.open + at, whole, PROT_READ | PROT_WRITE) != 0)
        return NULL;
    return arena.shut + at;
}

static void drain_all(void);

static void guarded_release(void *memory, size_t bytes)
{
    if (memory == NULL)
        return;
    drain_all();
    size_t at = (size_t)((char *)memory - arena.shut), whole = pages(bytes > 0 ? bytes : 1);
    if (madvise(arena.open + at, whole, MADV_REMOVE) != 0 || mprotect(arena.open + at, whole, PROT_NONE) != 0)
        die("giving device memory back");
    pthread_mutex_lock(&arena.mutex);
    arena.live--;
    arena.live_bytes -= bytes;
    if (arena.live == 0)
        arena.end = 0;
    pthread_mutex_unlock(&arena.mutex);
}

/* ---- streams ------------------------------------------------------------------------------------------------ */

typedef struct op {
    struct op *next;
    guarded_run_fn run;
    _Alignas(16) char payload[];
} op_t;

int guarded_apart, guarded_captures, guarded_lawless;

typedef struct stream {
    pthread_t thread, owner; /* owner: who made it */
    pthread_mutex_t mutex;
    pthread_cond_t work, done;
    op_t *first, **last;
    uint64_t queued, ended; /* operations; under the mutex */
    int closing;
    unsigned dice;
    struct stream *next;
} stream_t;

static struct {
    pthread_once_t once;
    pthread_mutex_t mutex;
    stream_t *all;
    stream_t *standard; /* what NULL means */
    int jitter;
} streams = {.once = PTHREAD_ONCE_INIT, .mutex = PTHREAD_MUTEX_INITIALIZER};

static void hesitate(stream_t *stream)
{
    if (streams.jitter && rand_r(&stream->dice) % 8 == 0)
        nanosleep(&(struct timespec){.tv_nsec = (long)(rand_r(&stream->dice) % 300000)}, NULL);
}

#if defined(__SANITIZE_THREAD__)
/* ThreadSanitizer's own, of which no header tells. */
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
#else
#define AnnotateIgnoreReadsBegin(file, line) ((void)0)
#define AnnotateIgnoreReadsEnd(file, line) ((void)0)
#define AnnotateIgnoreWritesBegin(file, line) ((void)0)
#define AnnotateIgnoreWritesEnd(file, line) ((void)0)
#endif

static void run_op(op_t *op)
{
    int lawless = guarded_lawless;
    if (lawless) {
        AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
        AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    }
    op->run(op->payload);
    if (lawless) {
        AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
        AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    }
}

static void *stream_thread(void *arg)
{
    stream_t *stream = arg;
    pthread_mutex_lock(&stream->mutex);
    for (;;) {
        while (stream->first == NULL && !stream->closing)
            pthread_cond_wait(&stream->work, &stream->mutex);
        op_t *op = stream->first;
        if (op == NULL)
            break;
        stream->first = op->next;
        if (stream->first == NULL)
            stream->last = &stream->first;
        pthread_mutex_unlock(&stream->mutex);
        hesitate(stream);
        run_op(op);
        free(op);
        pthread_mutex_lock(&stream->mutex);
        stream->ended++;
        pthread_cond_broadcast(&stream->done);
    }
    pthread_mutex_unlock(&stream->mutex);
    return NULL;
}

static stream_t *stream_new(void)
{
    static atomic_uint number;
    stream_t *stream = calloc(1, sizeof(*stream));
    pthread_attr_t attributes;
    if (stream == NULL)
        return NULL;
    stream->owner = pthread_self();
    stream->last = &stream->first;
    stream->dice = atomic_fetch_add(&number, 1) * 7919 + 1;
    pthread_mutex_init(&stream->mutex, NULL);
    pthread_cond_init(&stream->work, NULL);
    pthread_cond_init(&stream->done, NULL);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, (size_t)1 << 20);
    if (pthread_create(&stream->thread, &attributes, stream_thread, stream) != 0)
        die("a stream's thread");
    pthread_attr_destroy(&attributes);
    pthread_mutex_lock(&streams.mutex);
    stream->next = streams.all;
    streams.all = stream;
    pthread_mutex_unlock(&streams.mutex);
    return stream;
}

static void streams_new(void)
{
    streams.jitter = getenv("TEST_JITTER") != NULL;
    streams.standard = stream_new();
}

static stream_t *stream_of(epx_stream_t stream)
{
    pthread_once(&streams.once, streams_new);
    return stream != NULL ? stream : streams.standard;
}

static void wait_until(stream_t *stream, uint64_t ended)
{
    pthread_mutex_lock(&stream->mutex);
    while (stream->ended < ended)
        pthread_cond_wait(&stream->done, &stream->mutex);
    pthread_mutex_unlock(&stream->mutex);
}

static uint64_t queued_on(stream_t *stream)
{
    pthread_mutex_lock(&stream->mutex);
    uint64_t queued = stream->queued;
    pthread_mutex_unlock(&stream->mutex);
    return queued;
}

/* Streams are destroyed by threads that may race with this one: theirs stay in the list, empty. */
static void drain_all(void)
{
    pthread_mutex_lock(&streams.mutex);
    stream_t *stream = streams.all;
    pthread_mutex_unlock(&streams.mutex);
    for (; stream != NULL; stream = stream->next)
        if (!guarded_apart || pthread_equal(stream->owner, pthread_self()))
            wait_until(stream, queued_on(stream));
}

epx_status_t guarded_enqueue(epx_stream_t handle, guarded_run_fn run, const void *args, size_t bytes)
{
    stream_t *stream = stream_of(handle);
    op_t *op = malloc(sizeof(*op) + bytes);
    if (op == NULL)
        return EPX_ERR_NO_MEMORY;
    op->next = NULL;
    op->run = run;
    memcpy(op->payload, args, bytes);
    pthread_mutex_lock(&stream->mutex);
    *stream->last = op;
    stream->last = &op->next;
    stream->queued++;
    pthread_cond_signal(&stream->work);
    pthread_mutex_unlock(&stream->mutex);
    return EPX_OK;
}

static epx_status_t guarded_synchronize(epx_stream_t handle)
{
    stream_t *stream = stream_of(handle);
    wait_until(stream, queued_on(stream));
    return EPX_OK;
}

static epx_status_t guarded_stream_create(epx_stream_t *stream_p)
{
    stream_of(NULL);
    *stream_p = stream_new();
    return *stream_p != NULL ? EPX_OK : EPX_ERR_NO_MEMORY;
}

/* What is queued runs on. The struct stays: others may wait for it. */
static void guarded_stream_destroy(epx_stream_t handle)
{
    stream_t *stream = handle;
    if (stream == NULL)
        return;
    pthread_mutex_lock(&stream->mutex);
    stream->closing = 1;
    pthread_cond_signal(&stream->work);
    pthread_mutex_unlock(&stream->mutex);
    pthread_join(stream->thread, NULL);
}

/* ---- events ------------------------------------------------------------------------------------------------- */

typedef struct event {
    pthread_mutex_t mutex;
    stream_t *stream; /* of the last record; NULL: none */
    uint64_t number;  /* operations of that stream that it stands for */
    _Atomic int64_t *time_ns;
} event_t;

static epx_status_t guarded_event_create(int32_t timed, epx_event_t *event_p)
{
    event_t *event = calloc(1, sizeof(*event));
    if (event == NULL)
        return EPX_ERR_NO_MEMORY;
    pthread_mutex_init(&event->mutex, NULL);
    event->time_ns = timed ? calloc(1, sizeof(*event->time_ns)) : NULL;
    *event_p = event;
    return EPX_OK;
}

static void guarded_event_destroy(epx_event_t handle)
{
    event_t *event = handle;
    if (event == NULL)
        return;
    pthread_mutex_destroy(&event->mutex);
    free((void *)event->time_ns);
    free(event);
}

static void run_clock(void *payload)
{
    _Atomic int64_t *time_ns = *(_Atomic int64_t **)payload;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    atomic_store(time_ns, (int64_t)now.tv_sec * 1000000000 + now.tv_nsec);
}

static epx_status_t guarded_event_record(epx_event_t handle, epx_stream_t stream)
{
    event_t *event = handle;
    if (event->time_ns != NULL)
        atomic_store(event->time_ns, 0); /* not yet */
    if (event->time_ns != NULL)
        guarded_enqueue(stream, run_clock, &event->time_ns, sizeof(event->time_ns));
    pthread_mutex_lock(&event->mutex);
    event->stream = stream_of(stream);
    event->number = queued_on(event->stream);
    pthread_mutex_unlock(&event->mutex);
    return EPX_OK;
}

static epx_status_t guarded_event_elapsed(epx_event_t from, epx_event_t to, double *seconds_p)
{
    int64_t begin = atomic_load(((event_t *)from)->time_ns), end = atomic_load(((event_t *)to)->time_ns);
    if (begin == 0 || end == 0)
        return epx_fail(EPX_ERR_FATAL, "guarded: the time between events that have not happened yet");
    *seconds_p = (double)(end - begin) * 1e-9;
    return EPX_OK;
}

typedef struct awaited {
    stream_t *stream;
    uint64_t number;
} awaited_t;

static void run_wait(void *payload)
{
    awaited_t *awaited = payload;
    wait_until(awaited->stream, awaited->number);
}

static epx_status_t guarded_stream_wait(epx_stream_t stream, epx_event_t handle)
{
    event_t *event = handle;
    pthread_mutex_lock(&event->mutex);
    awaited_t awaited = {.stream = event->stream, .number = event->number};
    pthread_mutex_unlock(&event->mutex);
    if (awaited.stream == NULL || awaited.stream == stream_of(stream))
        return EPX_OK;
    return guarded_enqueue(stream, run_wait, &awaited, sizeof(awaited));
}

/* ---- copies ------------------------------------------------------------------------------------------------- */

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
    drain_all();
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
    drain_all();
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
        (epx_device_properties_t){.name = "guarded", .units = 1, .memory_bytes = (int64_t)ARENA_BYTES};
    return EPX_OK;
}

static int32_t guarded_is_capturing(epx_stream_t stream)
{
    (void)stream;
    return guarded_captures;
}

static epx_status_t guarded_drain(void)
{
    drain_all();
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
    .allocate = guarded_allocate,
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
