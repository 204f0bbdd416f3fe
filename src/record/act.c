/* What the watchdog does with a verdict. SPDX-License-Identifier: Apache-2.0 */
#include "record/act.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fail.h"
#include "record/recorder_state.h"
#include "record/report.h"

enum { COMMAND_MS = 30000 };

/* A file of the job beside its records. */
static void name_file(char *path, size_t bytes, const char *folder, const char *job, const char *what)
{
    snprintf(path, bytes, "%s/.%s.%s", folder, job, what);
}

static void remove_file(const char *folder, const char *job, const char *what)
{
    char path[EPX_RECORDER_PATH_BYTES + 128];
    name_file(path, sizeof(path), folder, job, what);
    unlink(path);
}

void epx_act_begin(const char *folder, const char *job)
{
    static const char *const files[] = {"reported", "done", "told", "mended"};
    for (size_t i = 0; folder[0] != '\0' && i < sizeof(files) / sizeof(files[0]); i++)
        remove_file(folder, job, files[i]);
}

/* When the job last went on, of this host's clock; 0: it never had to. */
static int64_t mended_ns(const epx_job_view_t *view)
{
    char path[EPX_RECORDER_PATH_BYTES + 128];
    int64_t when = 0;
    name_file(path, sizeof(path), view->folder, view->job, "mended");
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    if (read(file, &when, sizeof(when)) != (ssize_t)sizeof(when))
        when = 0;
    close(file);
    return when;
}

/* What was told stays: a process that is late learns by it that its ranks were meant too. */
void epx_act_forget(const epx_job_view_t *view)
{
    char path[EPX_RECORDER_PATH_BYTES + 128];
    int64_t now = epx_clock_ns();
    remove_file(view->folder, view->job, "reported");
    remove_file(view->folder, view->job, "done");
    name_file(path, sizeof(path), view->folder, view->job, "mended");
    int file = open(path, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0)
        return;
    if (write(file, &now, sizeof(now)) != (ssize_t)sizeof(now))
        epx_log(EPX_LOG_DEBUG, "record", "%s cannot be written: %s", path, strerror(errno));
    close(file);
}

static void touch(const epx_job_view_t *view, const char *what)
{
    char path[EPX_RECORDER_PATH_BYTES + 128];
    name_file(path, sizeof(path), view->folder, view->job, what);
    int file = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    if (file >= 0)
        close(file);
}

int epx_act_is_done(const epx_job_view_t *view, const epx_verdict_t *verdict)
{
    char path[EPX_RECORDER_PATH_BYTES + 128];
    struct stat info;
    name_file(path, sizeof(path), view->folder, view->job, "done");
    return stat(path, &info) == 0 || verdict->found_ns <= mended_ns(view);
}

/* For the other processes of the job on this host: the same build reads it. */
static void write_told(const epx_job_view_t *view, const epx_verdict_t *verdict)
{
    char path[EPX_RECORDER_PATH_BYTES + 128], before[EPX_RECORDER_PATH_BYTES + 64];
    name_file(path, sizeof(path), view->folder, view->job, "told");
    snprintf(before, sizeof(before), "%s/.told.%d", view->folder, (int)getpid());
    FILE *file = fopen(before, "w");
    if (file == NULL)
        return;
    size_t wrote = fwrite(verdict, sizeof(*verdict), 1, file);
    if (fclose(file) != 0 || wrote != 1 || rename(before, path) != 0)
        unlink(before);
}

int epx_act_told(const char *folder, const char *job, epx_verdict_t *verdict_p)
{
    char path[EPX_RECORDER_PATH_BYTES + 128];
    name_file(path, sizeof(path), folder, job, "told");
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t got = read(file, verdict_p, sizeof(*verdict_p));
    close(file);
    return got == (ssize_t)sizeof(*verdict_p) && verdict_p->size == sizeof(*verdict_p);
}

static void write_json(const epx_job_view_t *view, const char *text)
{
    char path[EPX_RECORDER_PATH_BYTES + 64], before[EPX_RECORDER_PATH_BYTES + 64];
    snprintf(path, sizeof(path), "%s/verdict.json", view->folder);
    snprintf(before, sizeof(before), "%s/.verdict.%d", view->folder, (int)getpid());
    FILE *file = fopen(before, "w");
    if (file == NULL)
        return;
    fputs(text, file);
    if (fclose(file) != 0 || rename(before, path) != 0)
        unlink(before); /* a full file system */
}

/* sh -c 'COMMAND "$1"' with the folder; its output is the program's. */
static int32_t start_command(const char *command, const char *folder)
{
    char script[600];
    sigset_t none;
    snprintf(script, sizeof(script), "%s \"$1\"", command);
    sigemptyset(&none);
    pid_t child = fork();
    if (child == 0) {
        /* The watchdog's thread takes no signals; the command does. */
        sigprocmask(SIG_SETMASK, &none, NULL);
        execl("/bin/sh", "sh", "-c", script, "epx", folder, (char *)NULL);
        _exit(127);
    }
    if (child < 0)
        epx_log(EPX_LOG_ERROR, "record", "EPX_ON_HANG_CMD could not be run: %s", strerror(errno));
    return child > 0 ? (int32_t)child : 0;
}

int epx_act_has_ended(int32_t command, int64_t begun_ns, int64_t now_ns)
{
    int status;
    if (waitpid(command, &status, WNOHANG) != 0)
        return 1;
    if (now_ns - begun_ns < (int64_t)COMMAND_MS * 1000000)
        return 0;
    epx_log(EPX_LOG_WARN, "record", "EPX_ON_HANG_CMD has not ended within %d s; the job does not wait for it",
            COMMAND_MS / 1000);
    return 1;
}

void epx_act_done(const epx_job_view_t *view) { touch(view, "done"); }

/* The file that says who reports; an errno where there is none. */
static int claim_report(const epx_job_view_t *view)
{
    char path[EPX_RECORDER_PATH_BYTES + 128];
    name_file(path, sizeof(path), view->folder, view->job, "reported");
    int file = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
    /* Somebody tidied up: /dev/shm is emptied when a user logs out, /tmp once a day. */
    if (file < 0 && errno == ENOENT && epx_system_make_folder(view->folder) == 0)
        file = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
    if (file < 0)
        return errno;
    close(file);
    return 0;
}

int32_t epx_act_report(const epx_job_view_t *view, const epx_verdict_t *verdict, const char *command,
                       int prints, int is_first, int32_t *mute_p)
{
    if (verdict->found_ns <= mended_ns(view))
        return 0; /* others have said it, and gone on */
    int error = claim_report(view);
    *mute_p = error != 0 && error != EEXIST;
    if (error == EEXIST || (*mute_p && !is_first))
        return 0;
    char *text = malloc(2 * EPX_REPORT_BYTES);
    if (text == NULL)
        return 0;
    write_told(view, verdict);
    epx_report_json(view, verdict, text, 2 * EPX_REPORT_BYTES);
    write_json(view, text);
    epx_report_text(view, verdict, text, EPX_REPORT_BYTES);
    if (prints)
        fputs(text, stderr); /* one call: lines of several ranks do not mix */
    free(text);
    int32_t child = command[0] != '\0' ? start_command(command, view->folder) : 0;
    if (child == 0)
        touch(view, "done");
    return child;
}

int epx_act_ends_all(epx_recorder_h r, const epx_verdict_t *verdict)
{
    return r->on_hang == EPX_ON_HANG_ABORT ||
           (r->on_hang == EPX_ON_HANG_FAILOVER && verdict->action != EPX_ACTION_RECOVER);
}

void epx_act_end(epx_recorder_h r, const epx_verdict_t *verdict)
{
    char title[128], reason[192];
    int only_groups = r->on_hang == EPX_ON_HANG_FAILOVER && verdict->action == EPX_ACTION_RECOVER;
    if (r->on_hang != EPX_ON_HANG_ABORT && r->on_hang != EPX_ON_HANG_FAILOVER)
        return;
    epx_verdict_title(verdict, title, sizeof(title));
    snprintf(reason, sizeof(reason), "the watchdog's verdict is %s", title);
    pthread_mutex_lock(&r->lock);
    for (int32_t i = 0; i < EPX_RECORDER_ENDS; i++)
        if (r->end[i].fn != NULL && !(only_groups && r->end[i].is_comm))
            r->end[i].fn(r->end[i].context, reason);
    pthread_mutex_unlock(&r->lock);
}
