/* Records read from outside: epx-doctor's side. SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/decimal.h"
#include "base/fail.h"
#include "record/versions.h"
#include "record/report.h"

enum { LOOKS = 3, LOOK_MS = 120 };

/* A watchdog that has written within this time belongs to a process that lives. */
#define FRESH_NS ((int64_t)1000000000)

struct epx_records {
    epx_job_view_t *view;
    int32_t running;
    epx_verdict_t verdict;
};

/* The head of one file of a folder; 0: it is no record, *why_p says why. */
static int read_head(const char *folder, const char *name, epx_record_head_t *head, const char **why_p)
{
    char path[EPX_RECORDER_PATH_BYTES + 300];
    struct stat info = {0};
    size_t length = strlen(name), suffix = strlen(EPX_RECORD_SUFFIX);
    if (length <= suffix || strcmp(name + length - suffix, EPX_RECORD_SUFFIX) != 0)
        return 0;
    snprintf(path, sizeof(path), "%s/%.255s", folder, name);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t got = read(file, head, sizeof(*head));
    int known = fstat(file, &info);
    close(file);
    *why_p = "it is cut short";
    if (got != (ssize_t)sizeof(*head) || known != 0 || info.st_size < EPX_RECORD_HEAD_BYTES)
        return 0;
    *why_p = head->magic != EPX_RECORD_MAGIC ? "it is no flight record" : "another version of epx wrote it";
    return head->magic == EPX_RECORD_MAGIC && head->format == EPX_RECORD_FORMAT && head->ranks > 0 &&
           head->ranks <= 1 << 20;
}

epx_status_t epx_records_open(const char *folder, epx_records_h *records_p)
{
    epx_record_head_t newest = {0}, head;
    const char *why = "there is no file *" EPX_RECORD_SUFFIX;
    if (folder == NULL || records_p == NULL || strlen(folder) >= EPX_RECORDER_PATH_BYTES - 32)
        return epx_fail(EPX_ERR_ARG, "epx_records_open: give a folder and records_p");
    DIR *list = opendir(folder);
    if (list == NULL)
        return epx_fail(EPX_ERR_ARG, "%s cannot be read: %s", folder, strerror(errno));
    for (const struct dirent *entry = readdir(list); entry != NULL; entry = readdir(list))
        if (read_head(folder, entry->d_name, &head, &why) &&
            head.opened_realtime_ns > newest.opened_realtime_ns)
            newest = head;
    closedir(list);
    if (newest.ranks == 0)
        return epx_fail(EPX_ERR_ARG, "%s holds no flight record: %s; EPX_RECORD names the folder of a job",
                        folder, why);
    epx_records_h records = calloc(1, sizeof(*records));
    newest.job[sizeof(newest.job) - 1] = '\0';
    if (records != NULL)
        records->view = epx_view_open(folder, newest.job, newest.ranks);
    if (records == NULL || records->view == NULL) {
        free(records);
        return epx_fail(EPX_ERR_NO_MEMORY, "no memory for the records of %d ranks", newest.ranks);
    }
    epx_records_update(records);
    *records_p = records;
    return EPX_OK;
}

void epx_records_close(epx_records_h *records_p)
{
    if (records_p == NULL || *records_p == NULL)
        return;
    epx_view_close(&(*records_p)->view);
    free(*records_p);
    *records_p = NULL;
}

epx_status_t epx_records_add(epx_records_h records, const char *folder)
{
    struct stat info;
    if (records == NULL || folder == NULL || strlen(folder) >= EPX_RECORDER_PATH_BYTES - 32 ||
        records->view->folders == EPX_VIEW_FOLDERS)
        return epx_fail(EPX_ERR_ARG, "epx_records_add: give a folder; at most %d besides the first",
                        (int)EPX_VIEW_FOLDERS);
    if (stat(folder, &info) != 0 || !S_ISDIR(info.st_mode))
        return epx_fail(EPX_ERR_ARG, "%s cannot be read: %s", folder,
                        errno != 0 ? strerror(errno) : "it is no folder");
    snprintf(records->view->more[records->view->folders++], EPX_RECORDER_PATH_BYTES, "%s", folder);
    return EPX_OK;
}

/* Whether some process of the job can be asked about and lives. */
static int is_running(const epx_job_view_t *view, int64_t now)
{
    for (int32_t r = 0; r < view->ranks; r++) {
        const epx_record_head_t *head = view->rank[r].record;
        epx_system_thread_info_t info;
        if (head == NULL || head->life != EPX_RECORD_OPENED || head->boot != epx_system_boot() ||
            now - head->watched_ns >= FRESH_NS || now < head->opened_ns)
            continue;
        epx_system_look(head->pid, head->pid, &info);
        if (head->pid_space != epx_system_pid_space() ||
            (info.state != 0 && info.state != 'Z' && info.state != 'X'))
            return 1;
    }
    return 0;
}

void epx_records_update(epx_records_h records)
{
    epx_job_view_t *view = records->view;
    epx_view_map(view);
    records->running = is_running(view, epx_clock_ns());
    for (int32_t i = 0; records->running && i < LOOKS; i++) {
        if (i > 0)
            epx_nap_ns((int64_t)LOOK_MS * 1000000);
        epx_view_look(view, epx_clock_ns());
    }
    records->verdict = (epx_verdict_t)EPX_VERDICT_INIT;
    epx_view_classify(view, records->running ? epx_clock_ns() : 0, &records->verdict);
}

int32_t epx_records_running(epx_records_h records) { return records != NULL && records->running; }

int32_t epx_records_ranks(epx_records_h records) { return records != NULL ? records->view->ranks : 0; }

epx_status_t epx_records_verdict(epx_records_h records, epx_verdict_t *verdict_p)
{
    if (records == NULL || verdict_p == NULL || verdict_p->size < sizeof(*verdict_p))
        return epx_fail(EPX_ERR_ARG, "epx_records_verdict: begin the answer with EPX_VERDICT_INIT");
    size_t size = verdict_p->size;
    *verdict_p = records->verdict;
    verdict_p->size = size;
    return EPX_OK;
}

size_t epx_records_report(epx_records_h records, const epx_verdict_t *verdict, int32_t as_json, char *text,
                          size_t bytes)
{
    if (records == NULL || verdict == NULL || text == NULL || bytes == 0)
        return 0;
    if (as_json)
        epx_report_json(records->view, verdict, text, bytes);
    else
        epx_report_text(records->view, verdict, text, bytes);
    return strlen(text);
}

epx_status_t epx_records_versions(epx_records_h records, int32_t rank, char *text, size_t bytes)
{
    if (records == NULL || text == NULL || bytes == 0 || rank < 0 || rank >= records->view->ranks)
        return epx_fail(EPX_ERR_ARG, "epx_records_versions: give a rank of the job and room for a text");
    const epx_record_head_t *head = records->view->rank[rank].record;
    text[0] = '\0';
    if (head != NULL)
        epx_versions_text(head, text, bytes);
    return EPX_OK;
}

epx_status_t epx_records_rank(epx_records_h records, int32_t rank, epx_rank_now_t *now_p)
{
    static const char *const lives[] = {"not known",  "runs",      "sleeps",
                                        "is stopped", "has ended", "has ended"};
    static const char *const places[] = {"", "closed", "outside", "enqueued", "inside", "waits"};
    if (records == NULL || now_p == NULL || now_p->size < sizeof(*now_p) || rank < 0 ||
        rank >= records->view->ranks)
        return epx_fail(EPX_ERR_ARG, "epx_records_rank: give a rank of the job and EPX_RANK_NOW_INIT");
    const epx_rank_facts_t *f = &records->view->facts[rank];
    const epx_record_head_t *head = f->record;
    *now_p =
        (epx_rank_now_t){.size = now_p->size, .rank = rank, .has_record = head != NULL, .waits_for = f->next};
    if (head == NULL)
        return EPX_OK;
    now_p->closed = head->life == EPX_RECORD_CLOSED;
    now_p->domain = head->domain;
    now_p->pid = head->pid;
    now_p->steps = head->steps;
    now_p->operations = head->operations;
    now_p->heartbeats = head->heartbeats;
    now_p->since_ns = records->verdict.found_ns != 0 ? records->verdict.found_ns - f->since_ns
                                                     : (records->running ? epx_clock_ns() - f->since_ns : 0);
    snprintf(now_p->host, sizeof(now_p->host), "%.63s", head->host);
    snprintf(now_p->life, sizeof(now_p->life), "%s", lives[f->life]);
    snprintf(now_p->phase, sizeof(now_p->phase), "%.39s", head->phase_name);
    snprintf(now_p->place, sizeof(now_p->place), "%s", places[f->place]);
    snprintf(now_p->marker, sizeof(now_p->marker), "%.55s", epx_record_text_of(head, head->mark));
    if (f->op.number == 0)
        return EPX_OK;
    const epx_record_group_row_t *group = epx_record_group_row(head, f->op.group);
    snprintf(now_p->op, sizeof(now_p->op), "%.55s", epx_record_kind_of(head, &f->op));
    snprintf(now_p->group, sizeof(now_p->group), "%.63s", group != NULL ? group->name : "");
    now_p->wave = f->op.wave;
    now_p->sequence = f->op.sequence;
    return EPX_OK;
}

/* ---- Chrome trace events ---------------------------------------------------------------------------------------- */

typedef struct trace {
    void (*write)(void *context, const char *text);
    void *context;
    int32_t first;
    int64_t base_ns; /* of wall time: what all ranks share */
} trace_t;

/* A text as JSON wants it: bytes that would end or break the string become blanks. */
static void tame(char *to, size_t bytes, const char *from)
{
    size_t i = 0;
    for (; from[i] != '\0' && i + 1 < bytes; i++)
        to[i] = (unsigned char)from[i] < 0x20 || from[i] == '"' || from[i] == '\\' ? ' ' : from[i];
    to[i] = '\0';
}

static void put_event(trace_t *trace, const char *text)
{
    trace->write(trace->context, trace->first ? "\n" : ",\n");
    trace->write(trace->context, text);
    trace->first = 0;
}

/* Microseconds of the shared time. */
static double at_us(const trace_t *trace, const epx_record_head_t *head, int64_t time_ns)
{
    return (double)(time_ns - head->opened_ns + head->opened_realtime_ns - trace->base_ns) * 1e-3;
}

/* An event's text: its times have decimal points. */
static void event_text(char *text, size_t bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void event_text(char *text, size_t bytes, const char *format, ...)
{
    va_list arguments;
    locale_t before = epx_decimal_begin();
    va_start(arguments, format);
    vsnprintf(text, bytes, format, arguments);
    va_end(arguments);
    epx_decimal_end(before);
}

static void trace_operation(trace_t *trace, const epx_record_head_t *head, const epx_record_operation_t *op,
                            int64_t last_ns)
{
    char text[512], name[64], group_text[64];
    const epx_record_group_row_t *group = epx_record_group_row(head, op->group);
    int open = op->state != EPX_RECORD_ENDED;
    int64_t begun = op->begun_ns != 0 ? op->begun_ns : op->enqueued_ns, ended = open ? last_ns : op->ended_ns;
    tame(name, sizeof(name), epx_record_kind_of(head, op));
    tame(group_text, sizeof(group_text), group != NULL ? group->name : "");
    event_text(
        text, sizeof(text),
        "{\"name\": \"%s%s\", \"cat\": \"%s\", \"ph\": \"X\", \"ts\": %.3f, \"dur\": %.3f, \"pid\": %d, "
        "\"tid\": %u, "
        "\"args\": {\"wave\": %d, \"sequence\": %" PRIu64 ", \"bytes\": %" PRId64 ", \"status\": %d}}",
        name, open ? " (open)" : "", group_text, at_us(trace, head, begun),
        (double)(ended > begun ? ended - begun : 0) * 1e-3, head->rank, op->stream / 2, op->wave,
        op->sequence, op->bytes, op->status);
    put_event(trace, text);
}

static void trace_rank(trace_t *trace, const epx_record_head_t *head)
{
    char text[512], host[64], name[64];
    int64_t last_ns = head->watched_ns > head->moved_ns ? head->watched_ns : head->moved_ns;
    tame(host, sizeof(host), head->host);
    event_text(text, sizeof(text),
               "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": %d, \"args\": {\"name\": \"rank %d, "
               "domain %d, %s\"}}",
               head->rank, head->rank, head->domain, host);
    put_event(trace, text);
    uint64_t newest = head->operations, oldest = newest > head->ops_max ? newest - head->ops_max + 1 : 1;
    for (uint64_t n = oldest; n <= newest; n++) {
        epx_record_operation_t op;
        if (epx_record_operation(head, n, &op))
            trace_operation(trace, head, &op, last_ns);
    }
    newest = head->events;
    oldest = newest > head->events_max ? newest - head->events_max + 1 : 1;
    for (uint64_t n = oldest; n <= newest; n++) {
        epx_record_event_t event;
        if (!epx_record_event(head, n, &event) || event.what != EPX_RECORD_EVENT_MARK)
            continue;
        tame(name, sizeof(name), epx_record_text_of(head, event.text));
        event_text(
            text, sizeof(text),
            "{\"name\": \"%s\", \"cat\": \"mark\", \"ph\": \"i\", \"s\": \"p\", \"ts\": %.3f, \"pid\": "
            "%d, \"tid\": 0}",
            name, at_us(trace, head, event.time_ns), head->rank);
        put_event(trace, text);
    }
}

epx_status_t epx_records_trace(epx_records_h records, void (*write)(void *context, const char *text),
                               void *context)
{
    if (records == NULL || write == NULL)
        return epx_fail(EPX_ERR_ARG, "epx_records_trace: records and write must be there");
    trace_t trace = {.write = write, .context = context, .first = 1, .base_ns = INT64_MAX};
    const epx_job_view_t *view = records->view;
    for (int32_t r = 0; r < view->ranks; r++) {
        const epx_record_head_t *head = view->rank[r].record;
        if (head != NULL && head->opened_realtime_ns < trace.base_ns)
            trace.base_ns = head->opened_realtime_ns;
    }
    write(context, "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [");
    for (int32_t r = 0; r < view->ranks; r++)
        if (view->rank[r].record != NULL)
            trace_rank(&trace, view->rank[r].record);
    write(context, "\n]}\n");
    return EPX_OK;
}
