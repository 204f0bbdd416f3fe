/* Running commands, reading folders. SPDX-License-Identifier: Apache-2.0 */
#include "bench/ab/external.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/ab/machine.h"
#include "bench/ab/record.h"
#include "bench/ab/schedule.h"
#include "tools/common/program.h"
#include "tools/common/terminal.h"

/* ---- a command ------------------------------------------------------------------------------------------------------ */

typedef struct child {
    pid_t pid;
    int output;       /* its stdout */
    char rest[65536]; /* an unfinished line */
    size_t length;
} child_t;

static int start_child(const char *command, const char *stats, child_t *child)
{
    int ends[2];
    if (pipe(ends) != 0)
        return -1;
    child->pid = fork();
    if (child->pid == 0) {
        setpgid(0, 0); /* so that a time-out ends all that the command has started */
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        setenv("EPX_STATS", stats, 1);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    child->output = ends[0];
    child->length = 0;
    if (child->pid < 0)
        close(ends[0]);
    return child->pid < 0 ? -1 : 0;
}

/* Hands over whole lines; a line too long for any record is cut. */
static void take_output(child_t *child, epx_ab_record_t *record, size_t got)
{
    char *line = child->rest, *end = child->rest + child->length + got, *newline;
    while ((newline = memchr(line, '\n', (size_t)(end - line))) != NULL) {
        *newline = '\0';
        epx_ab_record_line(record, line);
        line = newline + 1;
    }
    child->length = (size_t)(end - line);
    memmove(child->rest, line, child->length);
    if (child->length == sizeof child->rest - 1)
        child->length = 0;
}

/* Reads until the command closes its output. 0, or -1 when time is up. */
static int read_output(child_t *child, epx_ab_record_t *record, int64_t until_ns, const char *name)
{
    for (;;) {
        struct pollfd wait = {.fd = child->output, .events = POLLIN};
        int64_t left_ms = (until_ns - epx_now_ns()) / 1000000;
        if (left_ms <= 0)
            return -1;
        if (poll(&wait, 1, left_ms > 1000 ? 1000 : (int)left_ms) <= 0)
            continue;
        ssize_t got =
            read(child->output, child->rest + child->length, sizeof child->rest - 1 - child->length);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        take_output(child, record, (size_t)got);
        epx_progress("%s: %d steps", name, record->steps);
    }
    child->rest[child->length] = '\0';
    epx_ab_record_line(record, child->rest); /* a last line without an end */
    return 0;
}

static int wait_child(const child_t *child)
{
    int status = 0;
    while (waitpid(child->pid, &status, 0) < 0 && errno == EINTR)
        continue;
    return status;
}

static void remove_folder(const char *folder)
{
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        char *path = epx_tool_text("%s/%s", folder, entry->d_name);
        unlink(path);
        free(path);
    }
    if (dir != NULL)
        closedir(dir);
    rmdir(folder);
}

/* One run; what went wrong, or "". */
static void run_command(const epx_ab_settings_t *settings, const epx_ab_arm_t *arm, epx_ab_record_t *record,
                        char *failed)
{
    char stats[] = "/tmp/epx-ab-XXXXXX";
    child_t *child = epx_tool_alloc(1, sizeof *child);
    failed[0] = '\0';
    if (mkdtemp(stats) == NULL || start_child(arm->command, stats, child) != 0) {
        snprintf(failed, EPX_AB_TEXT, "the command cannot be started: %s", strerror(errno));
        free(child);
        return;
    }
    int in_time = read_output(child, record, epx_now_ns() + settings->timeout_s * 1000000000, arm->name) == 0;
    if (!in_time)
        kill(-child->pid, SIGKILL);
    close(child->output);
    int status = wait_child(child);
    if (!in_time)
        snprintf(failed, EPX_AB_TEXT, "the command took longer than --timeout-s %lld",
                 (long long)settings->timeout_s);
    else if (WIFSIGNALED(status))
        snprintf(failed, EPX_AB_TEXT, "the command was ended by signal %d", WTERMSIG(status));
    else if (WEXITSTATUS(status) != 0)
        snprintf(failed, EPX_AB_TEXT, "the command ended with status %d", WEXITSTATUS(status));
    epx_ab_record_folder(record, stats);
    if (failed[0] == '\0' && record->steps == 0 && record->stats_steps == 0)
        snprintf(failed, EPX_AB_TEXT,
                 "the command wrote no step: it must print JSON lines with \"step\", or call epx_step");
    remove_folder(stats);
    free(child);
}

static void external_scope(epx_ab_result_t *result)
{
    result->external = 1;
    snprintf(result->scope.regime, sizeof result->scope.regime, "not known");
    snprintf(result->scope.regime_why, sizeof result->scope.regime_why, "another program's job");
    snprintf(result->scope.checkpoint, sizeof result->scope.checkpoint, "whatever the jobs start from");
}

int epx_ab_run_commands(const epx_ab_settings_t *settings, epx_ab_result_t *result)
{
    int32_t arms = settings->arms, pairs = (int32_t)settings->pairs, none[EPX_AB_ARMS] = {0};
    epx_ab_item_t *items = epx_tool_alloc((size_t)(pairs * (3 * arms + 2)), sizeof *items);
    int32_t count = epx_ab_schedule_rounds(arms, pairs, none, none, items);
    result->arms = arms;
    memcpy(result->arm, settings->arm, sizeof result->arm);
    external_scope(result);
    for (int32_t i = 0; i < count; i++) {
        if (items[i].arm < 0)
            continue;
        epx_ab_record_t record = {.steps = 0};
        char failed[EPX_AB_TEXT];
        int64_t throttles = epx_ab_throttles_now();
        run_command(settings, &settings->arm[items[i].arm], &record, failed);
        epx_ab_record_run(&record, (int32_t)settings->discard, result, items[i].arm, items[i].part,
                          items[i].round);
        epx_ab_run_t *run = &result->run[result->runs - 1];
        memcpy(run->failed, failed, sizeof failed);
        run->throttles = throttles < 0 ? -1 : epx_ab_throttles_now() - throttles;
        epx_ab_record_free(&record);
    }
    epx_progress_clear();
    free(items);
    return EPX_EXIT_OK;
}

/* ---- folders -------------------------------------------------------------------------------------------------------- */

static int is_visible(const struct dirent *entry) { return entry->d_name[0] != '.'; }

static int is_folder(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

static int ends_in_jsonl(const char *path)
{
    size_t length = strlen(path);
    return length > 6 && strcmp(path + length - 6, ".jsonl") == 0;
}

/* The runs of one folder: every folder in it, every file of step lines, and one of all files of stats lines
 * together. */
static int32_t read_arm(const epx_ab_settings_t *settings, int32_t a, epx_ab_result_t *result)
{
    struct dirent **entries;
    const char *folder = settings->folder[a];
    int32_t runs = 0, discard = (int32_t)settings->discard;
    epx_ab_record_t shared = {.steps = 0};
    int count = scandir(folder, &entries, is_visible, alphasort);
    for (int i = 0; i < count; i++) {
        char *path = epx_tool_text("%s/%s", folder, entries[i]->d_name);
        epx_ab_record_t record = {.steps = 0};
        int inner = is_folder(path);
        if (inner)
            epx_ab_record_folder(&record, path);
        else if (ends_in_jsonl(path))
            epx_ab_record_read(&record, path);
        if (record.steps > 0 || (inner && record.stats_steps > 0))
            epx_ab_record_run(&record, discard, result, a, EPX_AB_PLAIN, runs++);
        else if (record.stats_steps > 0)
            epx_ab_record_read(&shared, path);
        epx_ab_record_free(&record);
        free(path);
        free(entries[i]);
    }
    if (count >= 0)
        free(entries);
    if (runs == 0 && shared.stats_steps > 0)
        epx_ab_record_run(&shared, discard, result, a, EPX_AB_PLAIN, runs++);
    epx_ab_record_free(&shared);
    return runs;
}

/* The last part of a path, slashes at its end aside. */
static void name_of(const char *path, char *name, size_t bytes)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t from = end;
    while (from > 0 && path[from - 1] != '/')
        from--;
    snprintf(name, bytes, "%.*s", (int)(end - from), path + from);
}

/* Run r + 1 again as the A/A partner of run r. */
static void pair_neighbours(epx_ab_result_t *result, int32_t a, int32_t runs)
{
    for (int32_t r = 0; r + 1 < runs; r++) {
        const epx_ab_run_t *next = epx_ab_find_run(result, a, EPX_AB_PLAIN, r + 1, 1);
        int32_t steps = next->steps;
        epx_ab_run_t *again = epx_ab_add_run(result, a, EPX_AB_AGAIN, r, steps);
        next = epx_ab_find_run(result, a, EPX_AB_PLAIN, r + 1, 1); /* the list may have moved */
        again->steps = steps;
        memcpy(again->step, next->step, (size_t)steps * sizeof *again->step);
        again->fractions = next->fractions;
    }
}

int epx_ab_read_folders(const epx_ab_settings_t *settings, epx_ab_result_t *result)
{
    int32_t runs[EPX_AB_ARMS], most = 0;
    result->arms = settings->folders;
    external_scope(result);
    for (int32_t a = 0; a < result->arms; a++) {
        epx_ab_arm_t *arm = &result->arm[a];
        *arm = (epx_ab_arm_t){.folder = settings->folder[a]};
        name_of(settings->folder[a], arm->name, sizeof arm->name);
        for (int32_t b = 0; b < a; b++)
            if (strcmp(arm->name, result->arm[b].name) == 0)
                snprintf(arm->name, sizeof arm->name, "%.*s", EPX_AB_NAME - 1, settings->folder[a]);
        if (!is_folder(settings->folder[a]))
            return epx_tool_fail(EPX_EXIT_USAGE, "%s is no folder: --compare takes a folder for each arm",
                                 settings->folder[a]);
        runs[a] = read_arm(settings, a, result);
        if (runs[a] == 0)
            return epx_tool_fail(
                EPX_EXIT_USAGE,
                "%s has no run: it needs .jsonl files of steps (epx-train --json, or EPX_STATS)",
                settings->folder[a]);
        most = runs[a] > most ? runs[a] : most;
    }
    for (int32_t a = 0; a < result->arms; a++)
        pair_neighbours(result, a, runs[a]);
    result->scope.pairs = most;
    return EPX_EXIT_OK;
}
