/*
 * The runner for tests that are compiled without Criterion. SPDX-License-Identifier: Apache-2.0
 *
 *   RUNNER [--jobs N] [--timeout SECONDS] [--filter PATTERN]... [--gpus LIST] [--slowest N]
 *          [--part I/N] [--thin K] [--list]
 *
 * Patterns are those of the shell, over "suite/test". Every job is a process that takes the next test when it
 * is through with one; a test that ends its process is counted, and another process goes on behind it. Of the
 * GPUs in the list every job sees one, in turn. --slowest says which tests took longest.
 * --part: the I-th of N of every test's parameters, beginning with another one in each test, so that the
 * parts together are all, and each has something of everything.
 * --thin: of what is left of each test every K-th, and one at least; again beginning with another one.
 */
#include <criterion/criterion.h>

#include <fnmatch.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/crash.h"
#include "support/world.h"

enum { JOBS_MAX = 64, PATTERNS_MAX = 16, GPUS_MAX = 64 };

/* One test with one parameter. */
typedef struct item {
    const alone_test_t *test;
    void *param;
    size_t number; /* of the parameter */
} item_t;

typedef enum result { PASSED = 'p', FAILED = 'f', SKIPPED = 's' } result_t;

static alone_test_t *tests;
static alone_suite_t *suites;
static item_t *items;
static size_t item_count;
static int jobs = 1, timeout_s = 150;
static const char *patterns[PATTERNS_MAX];
static int pattern_count;
static char *gpus[GPUS_MAX]; /* what CUDA_VISIBLE_DEVICES says in a job */
static int gpu_count, slowest;
static atomic_size_t *turn; /* the next item to run, shared by all processes */
static unsigned part, parts = 1, thin = 1;

/* The test that runs, in its process. */
static struct {
    jmp_buf out;
    int failures, skipped;
    long process;
} now;

void alone_add(alone_test_t *test)
{
    test->next = tests;
    tests = test;
}

void alone_add_suite(alone_suite_t *suite)
{
    suite->next = suites;
    suites = suite;
}

void alone_fail(const char *file, int line, int ends, const char *format, ...)
{
    va_list list;
    fprintf(stderr, "%s:%d: ", file, line);
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fprintf(stderr, "\n");
    now.failures++;
    if (ends && gettid() == now.process)
        longjmp(now.out, 1);
    if (ends) /* no way out of another thread */
        abort();
}

void alone_skip(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fprintf(stderr, "skipped: ");
    vfprintf(stderr, format, list);
    fprintf(stderr, "\n");
    va_end(list);
    now.skipped = 1;
    longjmp(now.out, 1);
}

/* ---- which tests -------------------------------------------------------------------------------------------- */

static int is_wanted(const alone_test_t *test)
{
    char name[256];
    snprintf(name, sizeof(name), "%s/%s", test->suite, test->name);
    int wanted = pattern_count == 0;
    for (int i = 0; i < pattern_count; i++)
        wanted |= fnmatch(patterns[i], name, 0) == 0;
    return wanted;
}

static void add_item(const alone_test_t *test, void *param, size_t number)
{
    items = realloc(items, (item_count + 1) * sizeof(*items));
    if (items == NULL)
        abort();
    items[item_count++] = (item_t){.test = test, .param = param, .number = number};
}

static int by_name(const void *a, const void *b)
{
    const item_t *x = a, *y = b;
    int order = strcmp(x->test->suite, y->test->suite);
    if (order == 0)
        order = strcmp(x->test->name, y->test->name);
    return order != 0 ? order : (x->number > y->number) - (x->number < y->number);
}

static void keep_part(void)
{
    size_t kept = 0, ordinal = 0;
    for (size_t first = 0, end; first < item_count; first = end, ordinal++) {
        size_t own = kept, left;
        for (end = first; end < item_count && items[end].test == items[first].test; end++)
            if ((items[end].number + ordinal) % parts == part)
                items[kept++] = items[end];
        left = kept - own;
        kept = own;
        for (size_t i = 0; i < left; i++)
            if (i % thin == ordinal / parts % (left < thin ? left : thin))
                items[kept++] = items[own + i];
    }
    item_count = kept;
}

static void find_items(void)
{
    for (const alone_test_t *test = tests; test != NULL; test = test->next) {
        if (!is_wanted(test))
            continue;
        if (test->params == NULL) {
            add_item(test, NULL, 0);
            continue;
        }
        struct criterion_test_params params = test->params();
        for (size_t i = 0; i < params.length; i++)
            add_item(test, (char *)params.params + i * params.size, i);
    }
    qsort(items, item_count, sizeof(*items), by_name);
    keep_part();
}

/* ---- running ------------------------------------------------------------------------------------------------ */

static const alone_options_t *suite_of(const alone_test_t *test)
{
    static const alone_options_t none = {0};
    for (const alone_suite_t *suite = suites; suite != NULL; suite = suite->next)
        if (strcmp(suite->name, test->suite) == 0)
            return &suite->options;
    return &none;
}

static void call(void (*fn)(void))
{
    if (fn != NULL)
        fn();
}

/* Apart from run_item: nothing here is used after a jump. */
static void run_body(const item_t *item)
{
    const alone_options_t *suite = suite_of(item->test), *own = &item->test->options;
    call(suite->init);
    call(own->init);
    if (item->test->params != NULL)
        item->test->run_with(item->param);
    else
        item->test->run();
    call(own->fini);
    call(suite->fini);
}

static void run_guarded(const void *item)
{
    now.process = gettid();
    if (setjmp(now.out) == 0)
        run_body(item);
}

/* There where ranks are processes, which are forked beside the test (support/processes). */
__attribute__((weak)) void processes_host(void (*fn)(const void *item), const void *item);

/* Its own limit, its suite's, or the runner's: seconds. */
static unsigned limit_of(const alone_test_t *test)
{
    double own = test->options.timeout > 0 ? test->options.timeout : suite_of(test)->timeout;
    return own > 0 ? (unsigned)own + 1 : (unsigned)timeout_s;
}

static result_t run_item(const item_t *item)
{
    now.failures = now.skipped = 0;
    world_reset();
    alarm(limit_of(item->test));
    if (processes_host != NULL)
        processes_host(run_guarded, item);
    else
        run_guarded(item);
    alarm(0);
    return now.failures > 0 ? FAILED : now.skipped ? SKIPPED : PASSED;
}

/* What a worker says: this item begins ('b'), or ended so. */
typedef struct word {
    uint32_t item;
    char what;
} word_t;

/* Runs items until there are none. */
static void work(int pipe_end)
{
    crash_tells(world_last_words);
    crash_thread_begin();
    for (;;) {
        size_t i = atomic_fetch_add(turn, 1);
        if (i >= item_count)
            break;
        word_t word = {.item = (uint32_t)i, .what = 'b'};
        if (write(pipe_end, &word, sizeof(word)) != sizeof(word))
            _exit(3);
        word.what = (char)run_item(&items[i]);
        if (write(pipe_end, &word, sizeof(word)) != sizeof(word))
            _exit(3);
        if (word.what == FAILED) /* what it has left behind is not the next test's */
            break;
    }
    fflush(NULL);
    _exit(0);
}

typedef struct worker {
    pid_t process;
    int pipe_end;
    size_t item; /* that it runs */
    double begun;
    int number, busy, over;
} worker_t;

static void start(worker_t *worker)
{
    int ends[2];
    if (atomic_load(turn) >= item_count) {
        worker->over = 1;
        return;
    }
    fflush(NULL);
    if (pipe(ends) != 0 || (worker->process = fork()) < 0) {
        perror("a worker");
        exit(3);
    }
    if (worker->process == 0) {
        close(ends[0]);
        if (gpu_count > 0)
            setenv("CUDA_VISIBLE_DEVICES", gpus[worker->number % gpu_count], 1);
        work(ends[1]);
    }
    close(ends[1]);
    worker->pipe_end = ends[0];
    worker->busy = 0;
}

static size_t passed, failed, skipped;
static double *taken; /* [items] seconds */

static double now_s(void)
{
    struct timespec now_time;
    clock_gettime(CLOCK_MONOTONIC, &now_time);
    return (double)now_time.tv_sec + (double)now_time.tv_nsec * 1e-9;
}

static void tell(const item_t *item, const char *what)
{
    printf("[%s] %s::%s", what, item->test->suite, item->test->name);
    if (item->test->params != NULL)
        printf(" (%zu)", item->number);
    printf("\n");
    fflush(stdout);
}

static void tell_slowest(void)
{
    for (int i = 0; i < slowest; i++) {
        size_t most = 0;
        for (size_t a = 1; a < item_count; a++)
            most = taken[a] > taken[most] ? a : most;
        if (item_count == 0 || taken[most] <= 0)
            return;
        char what[32];
        snprintf(what, sizeof(what), "%.1f s", taken[most]);
        tell(&items[most], what);
        taken[most] = 0;
    }
}

/* By what its process has ended. */
static void tell_crash(const item_t *item, int status)
{
    int by_signal = WIFSIGNALED(status), number = by_signal ? WTERMSIG(status) : WEXITSTATUS(status);
    fprintf(stderr, "%s::%s: its process ended by %s %d%s%s\n", item->test->suite, item->test->name,
            by_signal ? "signal" : "exit code", number, by_signal ? ", " : "",
            by_signal ? strsignal(number) : "");
    tell(item, by_signal && number == SIGALRM ? "TIME OUT" : "CRASH");
}

/* The worker's process has ended: well, or in the middle of a test. */
static void ended(worker_t *worker)
{
    int status = 0;
    close(worker->pipe_end);
    waitpid(worker->process, &status, 0);
    if (worker->busy) {
        failed++;
        taken[worker->item] = now_s() - worker->begun;
        tell_crash(&items[worker->item], status);
    }
    start(worker);
}

static void listen_to(worker_t *worker)
{
    word_t word;
    ssize_t bytes = read(worker->pipe_end, &word, sizeof(word));
    if (bytes != sizeof(word)) {
        ended(worker);
        return;
    }
    worker->busy = word.what == 'b';
    worker->item = word.item;
    if (worker->busy)
        worker->begun = now_s();
    else
        taken[word.item] = now_s() - worker->begun;
    passed += word.what == PASSED;
    skipped += word.what == SKIPPED;
    failed += word.what == FAILED;
    if (word.what == FAILED)
        tell(&items[word.item], "FAIL");
}

static void run_all(void)
{
    static worker_t workers[JOBS_MAX];
    struct pollfd ends[JOBS_MAX];
    for (int j = 0; j < jobs; j++) {
        workers[j].number = j;
        start(&workers[j]);
    }
    for (;;) {
        int open = 0, which[JOBS_MAX];
        for (int j = 0; j < jobs; j++) {
            if (workers[j].over)
                continue;
            which[open] = j;
            ends[open++] = (struct pollfd){.fd = workers[j].pipe_end, .events = POLLIN};
        }
        if (open == 0)
            return;
        poll(ends, (nfds_t)open, -1);
        for (int i = 0; i < open; i++)
            if (ends[i].revents != 0)
                listen_to(&workers[which[i]]);
    }
}

static int usage(const char *program)
{
    fprintf(stderr,
            "usage: %s [--jobs N] [--timeout SECONDS] [--filter PATTERN]... [--gpus LIST] [--slowest N] "
            "[--part I/N] [--thin K] [--list]\n",
            program);
    return 2;
}

/* "0,1": cut in place. */
static void read_gpus(char *list)
{
    char *rest = NULL;
    for (char *gpu = strtok_r(list, ",", &rest); gpu != NULL && gpu_count < GPUS_MAX;
         gpu = strtok_r(NULL, ",", &rest))
        gpus[gpu_count++] = gpu;
}

int main(int argc, char **argv)
{
    int only_list = 0;
    for (int i = 1; i < argc; i++) {
        int has_value = i + 1 < argc;
        if (strcmp(argv[i], "--list") == 0)
            only_list = 1;
        else if (strcmp(argv[i], "--jobs") == 0 && has_value)
            jobs = atoi(argv[++i]);
        else if (strcmp(argv[i], "--timeout") == 0 && has_value)
            timeout_s = atoi(argv[++i]);
        else if (strcmp(argv[i], "--filter") == 0 && has_value && pattern_count < PATTERNS_MAX)
            patterns[pattern_count++] = argv[++i];
        else if (strcmp(argv[i], "--gpus") == 0 && has_value)
            read_gpus(argv[++i]);
        else if (strcmp(argv[i], "--slowest") == 0 && has_value)
            slowest = atoi(argv[++i]);
        else if (strcmp(argv[i], "--part") == 0 && has_value &&
                 sscanf(argv[++i], "%u/%u", &part, &parts) == 2)
            part--;
        else if (strcmp(argv[i], "--thin") == 0 && has_value)
            thin = (unsigned)atoi(argv[++i]);
        else
            return usage(argv[0]);
    }
    if (jobs < 1 || jobs > JOBS_MAX || timeout_s < 1 || part >= parts || thin < 1)
        return usage(argv[0]);
    find_items();
    taken = calloc(item_count + 1, sizeof(*taken));
    turn = mmap(NULL, sizeof(*turn), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (taken == NULL || turn == MAP_FAILED) {
        perror("memory");
        return 3;
    }
    for (size_t i = 0; only_list && i < item_count; i++)
        tell(&items[i], "test");
    if (!only_list)
        run_all();
    tell_slowest();
    printf("%zu passed, %zu failed, %zu skipped\n", passed, failed, skipped);
    return failed > 0 || (!only_list && passed + skipped == 0);
}
