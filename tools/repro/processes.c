/* Ranks that are processes, for faults that end or stop one. SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fabric/fault/fault.h"
#include "tools/common/program.h"
#include "tools/repro/repro.h"

/* A port that nobody has now, for the ranks to meet at. */
static int free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    int file = socket(AF_INET, SOCK_STREAM, 0);
    if (file < 0 || bind(file, (struct sockaddr *)&address, sizeof(address)) != 0 ||
        getsockname(file, (struct sockaddr *)&address, &bytes) != 0)
        return -1;
    close(file);
    return ntohs(address.sin_port);
}

static void set_number(const char *name, int64_t value)
{
    char text[32];
    snprintf(text, sizeof(text), "%lld", (long long)value);
    setenv(name, text, 1);
}

static void nap_ms(int64_t ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* What a rank tells the judge. */
typedef struct word {
    int32_t rank, ended;
    epx_verdict_t verdict;
    int64_t time_ns;
    char text[256];
} word_t;

typedef struct watcher {
    epx_recorder_h recorder;
    int32_t rank;
    int end;
} watcher_t;

static void tell(int end, const word_t *word)
{
    if (write(end, word, sizeof(*word)) != (ssize_t)sizeof(*word))
        _exit(3);
}

/* Tells of the first verdict, from beside the rank's own thread. */
static void *watch_rank(void *argument)
{
    const watcher_t *watcher = argument;
    for (;;) {
        word_t word = {.rank = watcher->rank, .verdict = EPX_VERDICT_INIT};
        epx_record_verdict(watcher->recorder, &word.verdict);
        word.time_ns = epx_now_ns();
        if (word.verdict.kind != EPX_VERDICT_NONE && word.verdict.kind != EPX_VERDICT_SLOW) {
            tell(watcher->end, &word);
            return NULL;
        }
        nap_ms(5);
    }
}

/* Steps of one rank: an all-reduce each, with a marker before it. */
static void be_rank(const play_t *play, int32_t rank, int end)
{
    epx_comm_h world = NULL;
    word_t word = {.rank = rank, .ended = 1, .verdict = EPX_VERDICT_INIT};
    set_number("EPX_RANK", rank);
    epx_status_t status = epx_comm_world(&world);
    epx_recorder_h recorder = status == EPX_OK ? epx_comm_recorder(world) : NULL;
    watcher_t watcher = {.recorder = recorder, .rank = rank, .end = end};
    pthread_t thread;
    if (recorder != NULL && pthread_create(&thread, NULL, watch_rank, &watcher) != 0)
        status = EPX_ERR_FATAL;
    if (status == EPX_OK)
        epx_comm_set_timeout(world, play->settings->timeout_ms);
    int32_t mark = epx_record_text(recorder, "attention");
    for (int64_t step = 0; status == EPX_OK && step < play->steps; step++) {
        float values[64] = {(float)rank};
        epx_mark(recorder, mark, NULL);
        nap_ms(2);
        /* The judge takes the time from here where the rank will not be there any more. */
        if (play->faulty && rank == play->culprit && step == REPRO_FAULT_STEP) {
            word_t now = {.rank = rank, .verdict = EPX_VERDICT_INIT, .time_ns = epx_now_ns()};
            tell(end, &now);
        }
        status = epx_comm_allreduce(world, values, 64, EPX_NUMBER_FLOAT, EPX_SUM);
        epx_record_step(recorder);
    }
    if (status != EPX_OK) {
        word.ended = -1;
        snprintf(word.text, sizeof(word.text), "%.200s (%s)", epx_last_error(), epx_status_name(status));
        /* Stays as it is until it has been judged. */
        nap_ms(play->settings->hang_ms + 5000);
    }
    tell(end, &word);
    if (status == EPX_OK)
        epx_comm_destroy(&world);
    _exit(0);
}

static void keep(const word_t *word, int64_t acted_ns, outcome_t *outcome)
{
    const epx_verdict_t *verdict = &word->verdict;
    outcome->kind = verdict->kind;
    outcome->culprit = verdict->rank;
    outcome->peer = verdict->peer;
    outcome->detect_ms = acted_ns != 0 ? (double)(word->time_ns - acted_ns) * 1e-6 : -1;
    snprintf(outcome->verdict, sizeof(outcome->verdict), "%s", epx_verdict_name(verdict->kind));
    snprintf(outcome->op, sizeof(outcome->op), "%s", verdict->op);
    snprintf(outcome->marker, sizeof(outcome->marker), "%s", verdict->marker);
    snprintf(outcome->group, sizeof(outcome->group), "%s", verdict->group);
    snprintf(outcome->text, sizeof(outcome->text), "%s", verdict->text);
}

/* Listens until somebody has a verdict, or all are through. */
static void judge(const play_t *play, int end, outcome_t *outcome)
{
    int64_t acted_ns = 0, deadline = epx_now_ns() + (play->settings->hang_ms * 12 + 30000) * 1000000;
    int32_t through = 0;
    struct pollfd wait = {.fd = end, .events = POLLIN};
    while (through < play->ranks && outcome->kind == EPX_VERDICT_NONE && epx_now_ns() < deadline) {
        word_t word;
        if (poll(&wait, 1, 100) <= 0)
            continue;
        if (read(end, &word, sizeof(word)) != (ssize_t)sizeof(word))
            break;
        if (word.verdict.kind != EPX_VERDICT_NONE)
            keep(&word, acted_ns, outcome);
        else if (word.ended == 0)
            acted_ns = word.time_ns;
        through += word.ended != 0;
        outcome->completed += word.ended > 0;
        if (word.ended < 0 && outcome->text[0] == '\0')
            snprintf(outcome->text, sizeof(outcome->text), "rank %d: %s", word.rank, word.text);
    }
    outcome->steps = play->steps;
    if (outcome->kind != EPX_VERDICT_NONE)
        nap_ms(300); /* the report goes out behind the verdict */
}

void play_processes(play_t *play, outcome_t *outcome, int pipe_end)
{
    char root[64];
    int ends[2], port = free_port();
    pid_t child[REPRO_RANKS_MAX];
    (void)pipe_end;
    *outcome = (outcome_t){.culprit = -1, .peer = -1, .detect_ms = -1, .ended = 1};
    snprintf(root, sizeof(root), "127.0.0.1:%d", port);
    setenv("EPX_ROOT", root, 1);
    set_number("EPX_WORLD_SIZE", play->ranks);
    if (port < 0 || pipe(ends) != 0) {
        outcome->wrong = 1;
        snprintf(outcome->text, sizeof(outcome->text),
                 "no port on the loopback interface for ranks to meet at");
        return;
    }
    for (int32_t r = 0; r < play->ranks; r++) {
        child[r] = fork();
        if (child[r] == 0) {
            close(ends[0]);
            be_rank(play, r, ends[1]);
        }
    }
    close(ends[1]);
    judge(play, ends[0], outcome);
    for (int32_t r = 0; r < play->ranks; r++) {
        if (child[r] <= 0)
            continue;
        if (outcome->completed < play->ranks)
            kill(child[r], SIGKILL);
        waitpid(child[r], NULL, 0);
    }
}
