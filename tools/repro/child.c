/* A play in a process of its own, with its records in a folder of its own. SPDX-License-Identifier:
 * Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/common/program.h"
#include "tools/repro/repro.h"

void play_set_up(play_t *play, const scenario_t *scenario, const settings_t *settings, int32_t faulty)
{
    *play = (play_t){.scenario = scenario, .settings = settings, .faulty = faulty};
    play->domains = settings->domains;
    play->ranks = settings->ranks;
    if (scenario->domains > play->domains && !settings->domains_given) {
        play->domains = scenario->domains;
        if (!settings->ranks_given)
            play->ranks = 4 * play->domains;
    }
    play->per_domain = play->ranks / play->domains;
    /* The second rank of the last domain: neither the first nor, with more than two, the last of anything. */
    int32_t first = (play->domains - 1) * play->per_domain;
    play->culprit = first + 1 % play->per_domain;
    play->peer = first + 2 % play->per_domain;
    play->steps = scenario->steps > 0 ? scenario->steps : REPRO_STEPS;
    if (strcmp(scenario->name, "clean-soak") == 0) {
        /* Operations over all ranks: a route, and dispatch and combine of every wave. */
        int64_t waves = strcmp(settings->transport, "ring") == 0 ? play->per_domain : REPRO_WAVES;
        int64_t wanted = settings->operations > 0 ? settings->operations : 20000;
        play->steps = wanted / ((1 + 2 * waves) * play->ranks) + 1;
    }
}

/* Threads have one, and processes on a fabric that carries them. */
static int has_group(const play_t *play)
{
    return !play->scenario->processes || strcmp(play->settings->fabric, "local") != 0;
}

/* Fills {rank}, {peer}, {group}, {seq} and {comm} in. */
static void fill_spec(const play_t *play, char *spec, size_t bytes)
{
    int32_t waves = strcmp(play->settings->transport, "ring") == 0 ? play->per_domain : REPRO_WAVES;
    const struct {
        const char *name;
        int32_t value;
        const char *prefix;
    } words[] = {{"{rank}", has_group(play) ? play->culprit % play->per_domain : play->culprit, ""},
                 {"{peer}", play->peer % play->per_domain, ""},
                 {"{group}", play->domains - 1, "rack"},
                 {"{seq}", REPRO_FAULT_STEP * (1 + 2 * waves) + 2, ""},
                 {"{comm}", REPRO_FAULT_STEP + 1, ""}};
    size_t used = 0;
    int with_group = has_group(play);
    for (const char *at = with_group && play->scenario->spec_group != NULL ? play->scenario->spec_group
                                                                           : play->scenario->spec;
         *at != '\0' && used + 32 < bytes;) {
        size_t i = 0;
        while (i < sizeof(words) / sizeof(words[0]) && strncmp(at, words[i].name, strlen(words[i].name)) != 0)
            i++;
        if (i < sizeof(words) / sizeof(words[0])) {
            used += (size_t)snprintf(spec + used, bytes - used, "%s%d", words[i].prefix, words[i].value);
            at += strlen(words[i].name);
        } else {
            spec[used++] = *at++;
        }
    }
    spec[used] = '\0';
}

static void set_number(const char *name, int64_t value)
{
    char text[32];
    snprintf(text, sizeof(text), "%lld", (long long)value);
    setenv(name, text, 1);
}

/* What the library reads in the child. EPX_FAULT of the caller is its own scenario, "given". */
static void set_environment(const play_t *play)
{
    char spec[512];
    const scenario_t *scenario = play->scenario;
    setenv("EPX_RECORD", play->folder, 1);
    set_number("EPX_HANG_MS", play->settings->hang_ms);
    set_number("EPX_TIMEOUT_MS", play->settings->timeout_ms);
    if (play->settings->recover) {
        char mended[64];
        snprintf(mended, sizeof(mended), "failover:%s", play->settings->transport);
        setenv("EPX_ON_HANG", mended, 1);
    }
    if (scenario->check != NULL)
        setenv("EPX_CHECK", scenario->check, 1);
    if (!play->faulty)
        unsetenv("EPX_FAULT");
    if (play->faulty && scenario->spec != NULL) {
        fill_spec(play, spec, sizeof(spec));
        setenv("EPX_FAULT", spec, 1);
    }
}

static int make_folder(play_t *play)
{
    snprintf(play->folder, sizeof(play->folder), "/dev/shm/epx-repro-%d", (int)getpid());
    if (mkdir(play->folder, 0700) != 0 && errno != EEXIST)
        return 0;
    size_t used = strlen(play->folder);
    snprintf(play->folder + used, sizeof(play->folder) - used, "/%s%s", play->scenario->name,
             play->faulty ? "" : ".clean");
    return mkdir(play->folder, 0700) == 0 || errno == EEXIST;
}

/* The report that the library printed: from its first line to the command that replays it. */
static int32_t count_report(const char *path)
{
    char line[2048];
    int32_t lines = 0, inside = 0;
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, "epx: job ", 9) == 0 && lines == 0)
            inside = 1;
        lines += inside;
        if (inside && strstr(line, "epx-repro --replay") != NULL)
            inside = 0;
    }
    if (file != NULL)
        fclose(file);
    return lines;
}

/* In the child; does not return. */
static void be_child(play_t *play, int end, const char *stderr_path)
{
    outcome_t outcome = {0};
    int file = open(stderr_path, O_CREAT | O_WRONLY | O_TRUNC | O_APPEND, 0600);
    if (file >= 0)
        dup2(file, 2);
    set_environment(play);
    if (play->scenario->alone == NULL &&
        (play->scenario->processes || strcmp(play->settings->fabric, "local") != 0))
        play_processes(play, &outcome, end);
    else
        play_here(play, &outcome);
    if (write(end, &outcome, sizeof(outcome)) != (ssize_t)sizeof(outcome))
        _exit(2);
    _exit(0);
}

/* Reads the outcome; 0: none came in time. */
static int receive(int end, int64_t limit_ms, outcome_t *outcome_p)
{
    struct pollfd wait = {.fd = end, .events = POLLIN};
    int64_t deadline = epx_now_ns() + limit_ms * 1000000;
    for (int64_t left = limit_ms; left > 0; left = (deadline - epx_now_ns()) / 1000000) {
        int ready = poll(&wait, 1, (int)(left < 1000 ? left : 1000));
        if (ready > 0)
            return read(end, outcome_p, sizeof(*outcome_p)) == (ssize_t)sizeof(*outcome_p);
        if (ready < 0 && errno != EINTR)
            return 0;
    }
    return 0;
}

int play_apart(const scenario_t *scenario, const settings_t *settings, int32_t faulty, outcome_t *outcome_p,
               int32_t *lines_p, play_t *play_p)
{
    int ends[2];
    char path[300];
    play_set_up(play_p, scenario, settings, faulty);
    *outcome_p = (outcome_t){.culprit = -1, .peer = -1, .detect_ms = -1};
    if (!make_folder(play_p) || pipe(ends) != 0)
        return epx_tool_fail(EPX_EXIT_FAILED, "no folder %s: make room in /dev/shm", play_p->folder);
    snprintf(path, sizeof(path), "%s/stderr.txt", play_p->folder);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        be_child(play_p, ends[1], path);
    }
    close(ends[1]);
    int64_t limit_ms =
        120000 + settings->hang_ms * 60 + (int64_t)(settings->minutes * 60e3) + play_p->steps * 100;
    int came = child > 0 && receive(ends[0], limit_ms, outcome_p);
    close(ends[0]);
    if (!came && child > 0)
        kill(child, SIGKILL);
    if (child > 0)
        waitpid(child, NULL, 0);
    *lines_p = count_report(path);
    if (!came) {
        outcome_p->wrong = 1;
        snprintf(outcome_p->text, sizeof(outcome_p->text), "the play did not end; see %s", path);
    }
    return EPX_EXIT_OK;
}
