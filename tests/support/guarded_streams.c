/* Streams and events of the guarded device: threads with queues. SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/fail.h"
#include "support/guarded.h"
#include "support/guarded_inside.h"

typedef struct op {
    struct op *next;
    guarded_run_fn run;
    _Alignas(16) char payload[];
} op_t;

int guarded_apart, guarded_lawless;

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
        guarded_die("a stream's thread");
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
void guarded_drain_all(void)
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

epx_status_t guarded_synchronize(epx_stream_t handle)
{
    stream_t *stream = stream_of(handle);
    wait_until(stream, queued_on(stream));
    return EPX_OK;
}

epx_status_t guarded_stream_create(epx_stream_t *stream_p)
{
    stream_of(NULL);
    *stream_p = stream_new();
    return *stream_p != NULL ? EPX_OK : EPX_ERR_NO_MEMORY;
}

/* What is queued runs on. The struct stays: others may wait for it. */
void guarded_stream_destroy(epx_stream_t handle)
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

epx_status_t guarded_event_create(int32_t timed, epx_event_t *event_p)
{
    event_t *event = calloc(1, sizeof(*event));
    if (event == NULL)
        return EPX_ERR_NO_MEMORY;
    pthread_mutex_init(&event->mutex, NULL);
    event->time_ns = timed ? calloc(1, sizeof(*event->time_ns)) : NULL;
    *event_p = event;
    return EPX_OK;
}

void guarded_event_destroy(epx_event_t handle)
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

epx_status_t guarded_event_record(epx_event_t handle, epx_stream_t stream)
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

epx_status_t guarded_event_elapsed(epx_event_t from, epx_event_t to, double *seconds_p)
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

epx_status_t guarded_stream_wait(epx_stream_t stream, epx_event_t handle)
{
    event_t *event = handle;
    pthread_mutex_lock(&event->mutex);
    awaited_t awaited = {.stream = event->stream, .number = event->number};
    pthread_mutex_unlock(&event->mutex);
    if (awaited.stream == NULL || awaited.stream == stream_of(stream))
        return EPX_OK;
    return guarded_enqueue(stream, run_wait, &awaited, sizeof(awaited));
}
