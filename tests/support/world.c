/* SPDX-License-Identifier: Apache-2.0 */
#include "support/world.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "support/crash.h"
#include "support/device.h"
#include "support/pieces.h"
#include "support/world_inside.h"

#define FAILURES_SHOWN 12
#define RANKS_SHOWN 24
#define PROCESSES_MAX 18
#define STACK_BYTES ((size_t)1 << 20)

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SLOWDOWN 5
#define WATCH_WARNINGS 0 /* a sanitizer's report must reach the real standard error at once */
#else
#define SLOWDOWN 1
#define WATCH_WARNINGS 1
#endif

struct world {
    rank_t *rank;
    rank_fn fn;
    pthread_barrier_t barrier;
    atomic_int running;
};

/* What ranks write; in memory that they share, where they are processes. */
typedef struct notes {
    pthread_mutex_t mutex;
    atomic_int failures;
    char text[FAILURES_SHOWN][400];
} notes_t;

static notes_t own_notes = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static struct {
    int warnings_wanted;
    notes_t *notes;
    int limit_s;
    char note[256];
    int saved_stderr;
    FILE *capture;
    const rank_t *playing; /* [ranks], while they run */
    int ranks_playing;
} state = {.notes = &own_notes, .limit_s = 60, .saved_stderr = -1};

void world_may_warn(void) { state.warnings_wanted = 1; }

void world_reset(void)
{
    if (state.saved_stderr >= 0)
        free(capture_end());
    state.warnings_wanted = 0;
    state.limit_s = 60;
    state.note[0] = 0;
    atomic_store(&state.notes->failures, 0);
}

int ranks_are_processes(void) { return world_play_processes != NULL; }

void world_limit_s(int seconds) { state.limit_s = seconds; }

void world_note(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(state.note, sizeof(state.note), format, list);
    va_end(list);
}

int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void sleep_ms(int ms)
{
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&time, NULL);
}

void world_meet(rank_t *self)
{
    self->at = "world_meet";
    pthread_barrier_wait(&self->world->barrier);
}

int failures(void) { return atomic_load(&state.notes->failures); }

static void add_failure(rank_t *self, const char *format, va_list list)
{
    pthread_mutex_lock(&state.notes->mutex);
    int n = atomic_fetch_add(&state.notes->failures, 1);
    if (n < FAILURES_SHOWN) {
        char *text = state.notes->text[n];
        int used = self ? snprintf(text, 40, "rank %d of %d: ", self->rank, self->ranks) : 0;
        vsnprintf(text + used, sizeof(state.notes->text[n]) - (size_t)used, format, list);
    }
    pthread_mutex_unlock(&state.notes->mutex);
}

int expect(rank_t *self, int ok, const char *format, ...)
{
    if (ok)
        return 1;
    va_list list;
    va_start(list, format);
    add_failure(self, format, list);
    va_end(list);
    return 0;
}

int expect_status(rank_t *self, const char *call, epx_status_t got, epx_status_t wanted)
{
    int ok = expect_came(self, call, got, wanted);
    drained();
    return ok;
}

int expect_came(rank_t *self, const char *call, epx_status_t got, epx_status_t wanted)
{
    return expect(self, got == wanted, "%s gave %s, not %s (%s)", call, epx_status_name(got),
                  epx_status_name(wanted), epx_last_error());
}

int expect_text(rank_t *self, const char *call, ...)
{
    va_list list;
    int ok = 1;
    va_start(list, call);
    for (const char *word = va_arg(list, const char *); word; word = va_arg(list, const char *)) {
        ok &= expect(self, strstr(epx_last_error(), word) != NULL, "%s: the error does not say '%s': %s",
                     call, word, epx_last_error());
    }
    va_end(list);
    return ok;
}

static int write_failures(char *text, size_t bytes)
{
    int n = failures(), used = snprintf(text, bytes, "%d failed expectations", n);
    if (state.note[0])
        used += snprintf(text + used, bytes - (size_t)used, " [%s]", state.note);
    for (int i = 0; i < n && i < FAILURES_SHOWN; i++) {
        used += snprintf(text + used, bytes - (size_t)used, "\n    %s", state.notes->text[i]);
    }
    return n;
}

void settle(void)
{
    static char text[FAILURES_SHOWN * 420 + 400];
    if (write_failures(text, sizeof(text))) {
        if (state.saved_stderr >= 0)
            free(capture_end());
        cr_assert_fail("%s", text);
    }
}

/* A hang is a failure that must not become one of the whole runner. */
void world_report_hang(const rank_t *rank, int ranks)
{
    static char text[FAILURES_SHOWN * 420 + 400];
    if (state.saved_stderr >= 0) {
        char *log = capture_end();
        fputs(log, stderr);
        free(log);
    }
    fprintf(stderr, "HANG: not all of %d ranks ended within %d s\n", ranks, state.limit_s * SLOWDOWN);
    for (int r = 0; r < ranks && r < RANKS_SHOWN; r++) {
        fprintf(stderr, "    rank %d: %s %d\n", r, rank[r].at, rank[r].number);
    }
    write_failures(text, sizeof(text));
    fprintf(stderr, "%s\n", text);
    fflush(NULL);
    abort();
}

/* In a handler of a signal: what the test was at, and what its process has said. */
void world_last_words(int fd)
{
    if (state.note[0] != 0) {
        crash_say(fd, state.note);
        crash_say(fd, "\n");
    }
    for (int r = 0; state.playing != NULL && r < state.ranks_playing && r < RANKS_SHOWN; r++) {
        crash_say_number(fd, "    rank ", r);
        crash_say(fd, ": ");
        crash_say(fd, state.playing[r].at);
        crash_say_number(fd, " ", state.playing[r].number);
        crash_say(fd, "\n");
    }
    if (state.saved_stderr >= 0 && state.capture != NULL)
        crash_say_file(fd, fileno(state.capture));
}

static void *rank_thread(void *arg)
{
    rank_t *self = arg;
    crash_thread_begin();
    rank_device(self->rank);
    self->world->fn(self);
    self->at = "ended";
    epx_comm_destroy(&self->comm);
    rank_stream_end();
    crash_thread_end();
    atomic_fetch_sub(&self->world->running, 1);
    return NULL;
}

static void join_all(world_t *world, pthread_t *thread, int ranks)
{
    int64_t deadline = now_ms() + (int64_t)state.limit_s * SLOWDOWN * 1000;
    for (int wait = 0; atomic_load(&world->running) > 0; wait++) {
        if (now_ms() > deadline)
            world_report_hang(world->rank, ranks);
        sleep_ms(wait < 20 ? 1 : 5);
    }
    for (int r = 0; r < ranks; r++)
        pthread_join(thread[r], NULL);
}

/* A warning that no test asked for is a failure. */
static void check_warnings(char *log)
{
    fputs(log, stderr);
    for (const char *line = log; line && *line; line = strchr(line, '\n'), line += line != NULL) {
        if (strncmp(line, "epx warn", 8) == 0 || strncmp(line, "epx error", 9) == 0)
            expect(NULL, 0, "unexpected: %.*s", (int)strcspn(line, "\n"), line);
    }
    free(log);
}

static void play_threads(world_t *world, int ranks, const pthread_attr_t *attributes)
{
    pthread_t *thread = calloc((size_t)ranks, sizeof(*thread));
    epx_comm_h *comm = calloc((size_t)ranks, sizeof(*comm));
    cr_assert(thread && comm);
    cr_assert_eq(epx_comm_threads(ranks, comm), EPX_OK, "epx_comm_threads: %s", epx_last_error());
    for (int r = 0; r < ranks; r++) {
        world->rank[r].comm = comm[r];
        cr_assert_eq(pthread_create(&thread[r], attributes, rank_thread, &world->rank[r]), 0);
    }
    join_all(world, thread, ranks);
    free(comm);
    free(thread);
}

/* Failures and the meeting of a world whose ranks are processes. */
static void share_notes(void)
{
    pthread_mutexattr_t mutex;
    if (world_shared == NULL || state.notes != &own_notes)
        return;
    notes_t *notes = world_shared(sizeof(*notes));
    cr_assert(notes);
    pthread_mutexattr_init(&mutex);
    pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&notes->mutex, &mutex);
    pthread_mutexattr_destroy(&mutex);
    state.notes = notes;
}

static unsigned ranks_here(int ranks)
{
    unsigned here = 0;
    for (int r = 0; r < ranks; r++)
        here += world_plays == NULL || world_plays(r);
    return here;
}

void world_run(int ranks, rank_fn fn, void *arg)
{
    int watch = WATCH_WARNINGS && !state.warnings_wanted && state.saved_stderr < 0;
    world_t world = {.fn = fn};
    pthread_attr_t attributes;
    pthread_barrierattr_t meeting;
    share_notes();
    world.rank = calloc((size_t)ranks, sizeof(*world.rank));
    test_device(); /* before there are threads */
    if (ranks > ranks_most())
        cr_skip_test("%d ranks need as many GPUs", ranks);
    if (world_play_processes != NULL && ranks > PROCESSES_MAX)
        cr_skip_test("%d ranks are too many for a process each", ranks);
    cr_assert(world.rank);
    atomic_store(&world.running, ranks);
    pthread_barrierattr_init(&meeting);
    pthread_barrierattr_setpshared(&meeting, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&world.barrier, &meeting, ranks_here(ranks));
    pthread_barrierattr_destroy(&meeting);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES * SLOWDOWN);
    if (watch)
        capture_begin();
    for (int r = 0; r < ranks; r++)
        world.rank[r] = (rank_t){.world = &world, .rank = r, .ranks = ranks, .arg = arg, .at = "start"};
    state.ranks_playing = ranks;
    state.playing = world.rank;
    if (world_play_processes != NULL && ranks > 1)
        world_play_processes(&world, world.rank, ranks, fn, (int64_t)state.limit_s * SLOWDOWN * 1000);
    else
        play_threads(&world, ranks, &attributes);
    state.playing = NULL;
    if (watch)
        check_warnings(capture_end());
    pthread_attr_destroy(&attributes);
    pthread_barrier_destroy(&world.barrier);
    free(world.rank);
    settle();
}

void clean_environment(void)
{
    extern char **environ;
    test_fabric_choose();
    for (size_t i = 0; environ[i];) {
        char name[128];
        size_t length = strcspn(environ[i], "=");
        if (strncmp(environ[i], "EPX_", 4) != 0 || length >= sizeof(name)) {
            i++;
            continue;
        }
        memcpy(name, environ[i], length);
        name[length] = 0;
        unsetenv(name);
    }
    if (over_sends())
        setenv("EPX_NCCL_PATH", "sendrecv", 1);
}

void capture_begin(void)
{
    fflush(stderr);
    state.capture = tmpfile();
    cr_assert_not_null(state.capture);
    state.saved_stderr = dup(2);
    crash_stderr(state.saved_stderr);
    dup2(fileno(state.capture), 2);
}

char *capture_end(void)
{
    fflush(stderr);
    dup2(state.saved_stderr, 2);
    crash_stderr(-1);
    close(state.saved_stderr);
    state.saved_stderr = -1;
    long bytes = lseek(fileno(state.capture), 0, SEEK_END);
    char *text = calloc(1, (size_t)bytes + 1);
    rewind(state.capture);
    if (fread(text, 1, (size_t)bytes, state.capture) != (size_t)bytes)
        text[0] = 0;
    fclose(state.capture);
    state.capture = NULL;
    return text;
}
