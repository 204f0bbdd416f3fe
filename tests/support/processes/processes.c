/* Ranks as processes: see processes.h. SPDX-License-Identifier: Apache-2.0 */
#include "support/processes/processes.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/processes/heap.h"

enum { RANKS_MAX = 64, VARIABLES_MAX = 4 };

#define STACK_BYTES ((size_t)16 << 20)

/* Between the test's thread and the main one. */
static struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    const processes_call_t *call; /* asked for; NULL: nothing, or done */
    int test_is_over;
    void (*fn)(const void *);
    const void *item;
} desk = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

void *processes_shared(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return memory != MAP_FAILED ? memory : NULL;
}

void processes_run(const processes_call_t *call)
{
    pthread_mutex_lock(&desk.mutex);
    desk.call = call;
    pthread_cond_broadcast(&desk.changed);
    while (desk.call != NULL)
        pthread_cond_wait(&desk.changed, &desk.mutex);
    pthread_mutex_unlock(&desk.mutex);
}

/* The test's own environment, and what setenv knows of it, are in memory that all ranks share: a rank gets an
 * array of its own, and no rank calls setenv. */
static size_t environment_used;

static void own_environment(void)
{
    extern char **environ;
    size_t count = 0;
    while (environ[count] != NULL)
        count++;
    char **copy = calloc(count + 1 + VARIABLES_MAX, sizeof(*copy));
    if (copy == NULL)
        _exit(1);
    memcpy(copy, environ, count * sizeof(*copy));
    environ = copy;
    environment_used = count;
}

void processes_variable(const char *name, const char *value)
{
    extern char **environ;
    size_t bytes = strlen(name) + strlen(value) + 2;
    char *text = malloc(bytes);
    if (text == NULL)
        _exit(1);
    snprintf(text, bytes, "%s=%s", name, value);
    environ[environment_used++] = text;
}

/* In the child: the thread that forked is all there is of the parent. */
static void play(const processes_call_t *call, int rank, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    alarm(0);
    heap_of_rank();
    own_environment();
    call->play(call->context, rank);
    /* Streams that the test has opened, and their locks, are in memory that all ranks share, and exit takes
     * them. */
    fflush(stdout);
    fflush(stderr);
    _exit(0);
}

static void fork_all(const processes_call_t *call)
{
    pid_t process[RANKS_MAX], parent = getpid();
    int left = 0;
    int64_t deadline = now_ms() + call->limit_ms;
    fflush(NULL);
    for (int r = 0; r < call->ranks; r++) {
        process[r] = 0;
        if (!call->is_here(r))
            continue;
        process[r] = fork();
        if (process[r] == 0)
            play(call, r, parent);
        if (process[r] > 0)
            left++;
        else
            call->ended(call->context, r, -1);
    }
    for (int wait = 0; left > 0; wait++) {
        for (int r = 0; r < call->ranks; r++) {
            int status;
            if (process[r] <= 0 || waitpid(process[r], &status, WNOHANG) != process[r])
                continue;
            process[r] = 0;
            left--;
            call->ended(call->context, r, status);
        }
        if (now_ms() > deadline)
            call->hang(call->context); /* ends this process, and the ranks with it */
        sleep_ms(wait < 20 ? 1 : 5);
    }
}

static void *run_test(void *nothing)
{
    heap_of_test();
    desk.fn(desk.item);
    pthread_mutex_lock(&desk.mutex);
    desk.test_is_over = 1;
    pthread_cond_broadcast(&desk.changed);
    pthread_mutex_unlock(&desk.mutex);
    return nothing;
}

void processes_host(void (*fn)(const void *item), const void *item)
{
    static void *stack;
    pthread_t thread;
    pthread_attr_t attributes;
    if (stack == NULL) /* once in each worker: its tests share with their own ranks only */
        stack = processes_shared(STACK_BYTES);
    desk.fn = fn;
    desk.item = item;
    desk.test_is_over = 0;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, stack, STACK_BYTES);
    if (stack == NULL || pthread_create(&thread, &attributes, run_test, NULL) != 0) {
        fprintf(stderr, "no thread for a test\n");
        _exit(3);
    }
    pthread_mutex_lock(&desk.mutex);
    while (!desk.test_is_over) {
        const processes_call_t *call = desk.call;
        if (call == NULL) {
            pthread_cond_wait(&desk.changed, &desk.mutex);
            continue;
        }
        pthread_mutex_unlock(&desk.mutex);
        fork_all(call);
        pthread_mutex_lock(&desk.mutex);
        desk.call = NULL;
        pthread_cond_broadcast(&desk.changed);
    }
    pthread_mutex_unlock(&desk.mutex);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
}
