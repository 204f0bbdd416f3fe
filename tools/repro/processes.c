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

/* What a rank tells the judge. */
typedef struct word {
    int32_t rank;
    int32_t ended; /* 1: all steps made, -1: not all */
    int32_t slow, recovered, recoveries;
    epx_verdict_t verdict;
    int64_t time_ns, acted_ns; /* now, and when a fault of this rank acted first; 0: none has */
    int64_t step;
    uint64_t trace;
    char text[256];
} word_t;

static void tell(int end, const word_t *word)
{
    if (write(end, word, sizeof(*word)) != (ssize_t)sizeof(*word))
        _exit(3);
}

/* One rank's process. */
typedef struct self {
    actor_t *actor;
    int end;
} self_t;

static word_t word_of(const self_t *self)
{
    play_t *play = self->actor->play;
    word_t word = {.rank = self->actor->rank,
                   .verdict = EPX_VERDICT_INIT,
                   .time_ns = epx_now_ns(),
                   .acted_ns = atomic_load(&play->acted_ns),
                   .step = self->actor->step,
                   .trace = epx_fault_trace_of_process()};
    int64_t faulted = epx_fault_first_ns_of_process();
    if (word.acted_ns == 0 || (faulted != 0 && faulted < word.acted_ns))
        word.acted_ns = faulted;
    return word;
}

/* Tells of the first fault, of SLOW, and of the first verdict, from beside the rank's own thread. */
static void *watch_rank(void *argument)
{
    const self_t *self = argument;
    int told_act = 0, told_slow = 0;
    for (;; repro_nap_ms(5)) {
        epx_recorder_h recorder = __atomic_load_n(&self->actor->recorder, __ATOMIC_ACQUIRE);
        word_t word = word_of(self);
        if (recorder != NULL)
            epx_record_verdict(recorder, &word.verdict);
        int is_slow = word.verdict.kind == EPX_VERDICT_SLOW;
        if (is_slow ||
            (word.verdict.kind != EPX_VERDICT_NONE && play_mends(self->actor->play, &word.verdict)))
            word.verdict.kind = EPX_VERDICT_NONE;
        word.slow = is_slow;
        if ((word.acted_ns != 0 && !told_act) || (is_slow && !told_slow) ||
            word.verdict.kind != EPX_VERDICT_NONE)
            tell(self->end, &word);
        told_act |= word.acted_ns != 0;
        told_slow |= is_slow;
        if (word.verdict.kind != EPX_VERDICT_NONE)
            return NULL;
    }
}

/* Steps without a group: an all-reduce each, with a marker before it. Processes can do that on any fabric. */
static int reduce_steps(actor_t *actor)
{
    const play_t *play = actor->play;
    epx_comm_set_timeout(actor->world, play->settings->timeout_ms);
    __atomic_store_n(&actor->recorder, epx_comm_recorder(actor->world), __ATOMIC_RELEASE);
    int32_t mark = epx_record_text(actor->recorder, "attention");
    for (actor->step = 0; actor->step < play->steps; actor->step++) {
        float values[64] = {(float)actor->rank};
        epx_mark(actor->recorder, mark, NULL);
        repro_nap_ms(2);
        if (play->faulty && actor_is_culprit(actor) && actor->step == REPRO_FAULT_STEP) {
            /* It may be gone before anybody could ask it. */
            self_t self = {.actor = actor, .end = actor->tokens};
            actor_acts(actor);
            word_t word = word_of(&self);
            tell(self.end, &word);
        }
        if (!actor_check(actor, epx_comm_allreduce(actor->world, values, 64, EPX_NUMBER_FLOAT, EPX_SUM)))
            return 0;
        epx_record_step(actor->recorder);
    }
    return 1;
}

static void be_rank(play_t *play, int32_t rank, int end)
{
    actor_t actor = {
        .play = play, .rank = rank, .domain = rank / play->per_domain, .place = rank % play->per_domain};
    self_t self = {.actor = &actor, .end = end};
    pthread_t thread;
    set_number("EPX_RANK", rank);
    int good = pthread_create(&thread, NULL, watch_rank, &self) == 0;
    good = good && actor_check(&actor, epx_comm_world(&actor.world));
    actor.tokens = end; /* reduce_steps has no other use for it */
    if (good)
        good = strcmp(play->settings->fabric, "local") == 0 ? reduce_steps(&actor)
                                                            : actor_open(&actor) && actor_steps(&actor);
    word_t word = word_of(&self);
    word.ended = good ? 1 : -1;
    word.recovered = actor.recovered;
    word.recoveries = links_recoveries(&actor);
    snprintf(word.text, sizeof(word.text), "%.255s", actor.failed ? actor.error : "");
    tell(end, &word);
    /* Stays as it is until it has been judged. */
    if (!good)
        repro_nap_ms(play->settings->hang_ms * 40 + 60000);
    else
        actor_close(&actor);
    _exit(0);
}

static void keep(const word_t *word, int64_t acted_ns, outcome_t *outcome)
{
    const epx_verdict_t *verdict = &word->verdict;
    outcome->kind = verdict->kind;
    outcome->culprit = verdict->rank;
    outcome->peer = verdict->peer;
    outcome->wave = verdict->wave;
    /* A death may be seen here a moment after others have told of it. */
    int64_t after_ns = word->time_ns > acted_ns ? word->time_ns - acted_ns : 0;
    outcome->detect_ms = acted_ns != 0 ? (double)after_ns * 1e-6 : -1;
    snprintf(outcome->verdict, sizeof(outcome->verdict), "%s", epx_verdict_name(verdict->kind));
    snprintf(outcome->op, sizeof(outcome->op), "%s", verdict->op);
    snprintf(outcome->marker, sizeof(outcome->marker), "%s", verdict->marker);
    snprintf(outcome->field, sizeof(outcome->field), "%s", verdict->field);
    snprintf(outcome->group, sizeof(outcome->group), "%s", verdict->group);
    snprintf(outcome->text, sizeof(outcome->text), "%s", verdict->text);
}

static void hear(const word_t *word, int64_t *acted_ns, outcome_t *outcome)
{
    if (word->acted_ns != 0 && (*acted_ns == 0 || word->acted_ns < *acted_ns)) {
        *acted_ns = word->acted_ns;
        outcome->trace += word->trace;
    }
    outcome->slow |= word->slow;
    if (word->step > outcome->steps)
        outcome->steps = word->step;
    if (word->verdict.kind != EPX_VERDICT_NONE)
        keep(word, *acted_ns, outcome);
    outcome->completed += word->ended > 0;
    outcome->recoveries += word->recoveries;
    outcome->recovered += word->ended > 0 && word->recovered;
    if (word->ended < 0 && outcome->text[0] == '\0')
        snprintf(outcome->text, sizeof(outcome->text), "rank %d: %s", word->rank, word->text);
}

/* When a rank's process has ended or was stopped: that is when its fault acted. */
static void look_after(const play_t *play, pid_t *child, int64_t *acted_ns)
{
    for (int32_t r = 0; r < play->ranks; r++) {
        int status;
        if (child[r] <= 0 || waitpid(child[r], &status, WNOHANG | WUNTRACED) != child[r])
            continue;
        if (*acted_ns == 0 && (!WIFEXITED(status) || WEXITSTATUS(status) != 0))
            *acted_ns = epx_now_ns();
        if (!WIFSTOPPED(status))
            child[r] = 0;
    }
}

/* Listens until somebody has a verdict, all are through, or nothing can come any more. */
static void judge(const play_t *play, int end, pid_t *child, outcome_t *outcome)
{
    int64_t acted_ns = 0, patience_ns = (play->settings->hang_ms * 12 + 6000) * 1000000, quiet_ns = 0;
    int64_t deadline = epx_now_ns() + 300000000000 + (int64_t)(play->settings->minutes * 60e9);
    int32_t through = 0;
    struct pollfd wait = {.fd = end, .events = POLLIN};
    while (through < play->ranks && outcome->kind == EPX_VERDICT_NONE && epx_now_ns() < deadline) {
        word_t word;
        if (quiet_ns != 0 && epx_now_ns() - quiet_ns > patience_ns && play->settings->minutes <= 0)
            break;
        look_after(play, child, &acted_ns);
        if (poll(&wait, 1, 5) <= 0)
            continue;
        if (read(end, &word, sizeof(word)) != (ssize_t)sizeof(word))
            break;
        look_after(play, child, &acted_ns);
        hear(&word, &acted_ns, outcome);
        through += word.ended > 0;
        if (quiet_ns == 0 && (acted_ns != 0 || word.ended < 0))
            quiet_ns = epx_now_ns();
    }
    if (outcome->kind != EPX_VERDICT_NONE)
        repro_nap_ms(300); /* the report goes out behind the verdict */
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
    fflush(NULL);
    for (int32_t r = 0; r < play->ranks; r++) {
        child[r] = fork();
        if (child[r] == 0) {
            close(ends[0]);
            be_rank(play, r, ends[1]);
        }
    }
    close(ends[1]);
    judge(play, ends[0], child, outcome);
    for (int32_t r = 0; r < play->ranks; r++) {
        if (child[r] <= 0)
            continue;
        if (outcome->completed < play->ranks)
            kill(child[r], SIGKILL);
        waitpid(child[r], NULL, 0);
    }
}
