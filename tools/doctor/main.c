/* epx-doctor: what a job's flight records say. SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <epx/record.h>

#include "tools/common/command_line.h"
#include "tools/common/program.h"

enum { TEXT_BYTES = 65536 };

typedef struct request {
    int32_t json, follow, all;
    int64_t every_ms, times;
    const char *trace;
} request_t;

static const char notes[] =
    "DIR is the folder that EPX_RECORD named, or one under /dev/shm/epx-UID, and one more for each other "
    "host;\n"
    "records of any subset of the ranks do. The verdict comes from the files alone, by the rules of the "
    "watchdog; where the job runs on\n"
    "this host, its threads are looked at too.\n"
    "\n"
    "examples:\n"
    "  epx-doctor /dev/shm/epx-1000/4711-0\n"
    "  epx-doctor --trace run.json records/     (open run.json in Perfetto)\n"
    "  epx-doctor --follow records/\n"
    "\n"
    "exit code: 0 nothing is stuck, 1 a verdict, 2 bad usage or no record, 3 stuck and not named";

static int parse(request_t *r, int argc, char **argv, int *folder_p)
{
    const epx_option_t options[] = {
        epx_option_flag(0, "json", "print the verdict as JSON, as verdict.json has it", &r->json),
        epx_option_flag('a', "all", "one line for every rank, too", &r->all),
        epx_option_text(0, "trace", "FILE", "write all recorded operations as Chrome trace events",
                        &r->trace),
        epx_option_flag('f', "follow", "show every rank again and again until the job has ended", &r->follow),
        epx_option_int(0, "every", "milliseconds between two looks of --follow", &r->every_ms, 100, 3600000),
        epx_option_int(0, "times", "looks of --follow; 0: until the job has ended", &r->times, 0, 1e9),
        epx_option_end(),
    };
    const epx_program_t program = {.name = "epx-doctor",
                                   .summary = "Reads a job's flight records and says which rank holds it up.",
                                   .operands = "DIR...",
                                   .options = options,
                                   .notes = notes};
    return epx_command_line(&program, argc, argv, folder_p);
}

static void print_rank(const epx_rank_now_t *now)
{
    if (!now->has_record) {
        printf("%5d  no record\n", now->rank);
        return;
    }
    char what[160] = "";
    if (now->op[0] != '\0')
        snprintf(what, sizeof(what), "%s %.24s of %.24s wave %d", now->place, now->op, now->group, now->wave);
    else
        snprintf(what, sizeof(what), "%s", now->place);
    printf("%5d  %3d  %-14.14s %7d  %-10.10s %-9.9s %7llu  %-52.52s", now->rank, now->domain, now->host,
           now->pid, now->closed ? "closed" : now->life, now->phase, (unsigned long long)now->steps, what);
    if (now->waits_for >= 0)
        printf("  for %d, %.1f s", now->waits_for, (double)now->since_ns * 1e-9);
    if (now->marker[0] != '\0')
        printf("  \"%s\"", now->marker);
    putchar('\n');
}

static void print_ranks(epx_records_h records)
{
    printf(" rank  dom  host               pid  thread     phase       steps  operation\n");
    for (int32_t r = 0; r < epx_records_ranks(records); r++) {
        epx_rank_now_t now = EPX_RANK_NOW_INIT;
        if (epx_records_rank(records, r, &now) == EPX_OK)
            print_rank(&now);
    }
}

/* Versions, once for all ranks in a row that have the same. */
static void print_versions(epx_records_h records)
{
    char text[512], next[512];
    int32_t ranks = epx_records_ranks(records);
    for (int32_t r = 0, last; r < ranks; r = last + 1) {
        last = r;
        if (epx_records_versions(records, r, text, sizeof(text)) != EPX_OK || text[0] == '\0')
            continue;
        while (last + 1 < ranks && epx_records_versions(records, last + 1, next, sizeof(next)) == EPX_OK &&
               strcmp(text, next) == 0)
            last++;
        if (last > r)
            printf("  versions   ranks %d-%d: %s\n", r, last, text);
        else
            printf("  versions   rank %d: %s\n", r, text);
    }
}

static void write_piece(void *file, const char *text) { fputs(text, file); }

static int write_trace(epx_records_h records, const char *path)
{
    FILE *file = fopen(path, "w");
    if (file == NULL)
        return epx_tool_fail(EPX_EXIT_USAGE, "%s cannot be written (%s): give another file", path,
                             strerror(errno));
    epx_records_trace(records, write_piece, file);
    if (fclose(file) != 0)
        return epx_tool_fail(EPX_EXIT_FAILED, "%s cannot be written (%s): check the space", path,
                             strerror(errno));
    return EPX_GO_ON;
}

static int follow(const request_t *r, epx_records_h records)
{
    int is_terminal = isatty(STDOUT_FILENO);
    for (int64_t i = 0; (r->times == 0 || i < r->times) && (i == 0 || epx_records_running(records)); i++) {
        struct timespec nap = {.tv_sec = r->every_ms / 1000, .tv_nsec = r->every_ms % 1000 * 1000000};
        if (i > 0) {
            nanosleep(&nap, NULL);
            epx_records_update(records);
        }
        if (is_terminal)
            fputs("\033[H\033[J", stdout);
        print_ranks(records);
        fflush(stdout);
    }
    return EPX_EXIT_OK;
}

static int exit_code(const epx_verdict_t *verdict)
{
    if (verdict->kind == EPX_VERDICT_NONE || verdict->kind == EPX_VERDICT_SLOW)
        return EPX_EXIT_OK;
    return verdict->kind == EPX_VERDICT_UNKNOWN ? EPX_EXIT_NO_VERDICT : EPX_EXIT_FAILED;
}

/* What the watchdog had found when the job still ran: its waits may have been ended since. */
static void show_found_then(const char *folder)
{
    char path[600], text[400];
    snprintf(path, sizeof(path), "%s/verdict.json", folder);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return;
    while (fgets(text, sizeof(text), file) != NULL)
        if (strstr(text, "\"title\"") != NULL || strstr(text, "\"evidence\"") != NULL)
            printf("  then: %s", text);
    printf("  (%s, by the watchdog while it ran)\n", path);
    fclose(file);
}

static int diagnose(const request_t *r, epx_records_h records, const char *folder)
{
    epx_verdict_t verdict = EPX_VERDICT_INIT;
    epx_records_verdict(records, &verdict);
    char *text = epx_tool_alloc(TEXT_BYTES, 1);
    int silent = verdict.kind == EPX_VERDICT_NONE;
    epx_records_report(records, &verdict, r->json, text, TEXT_BYTES);
    if (r->json)
        fputs(text, stdout);
    else if (silent)
        printf("epx-doctor: nothing is stuck: %d ranks, %s\n", epx_records_ranks(records),
               epx_records_running(records) ? "the job runs" : "the job has ended");
    else
        fputs(text, stdout);
    if (silent && !r->json)
        show_found_then(folder);
    if ((silent || r->all) && !r->json)
        print_versions(records);
    free(text);
    if (r->all && !r->json)
        print_ranks(records);
    return exit_code(&verdict);
}

int main(int argc, char **argv)
{
    request_t request = {.every_ms = 1000};
    epx_records_h records = NULL;
    int folder = argc, code = parse(&request, argc, argv, &folder);
    if (code != EPX_GO_ON)
        return epx_tool_end(code);
    if (folder >= argc)
        return epx_tool_fail(
            EPX_EXIT_USAGE,
            "a folder is wanted: give the one with the records, or one for each host (see --help)");
    if (epx_records_open(argv[folder], &records) != EPX_OK)
        return epx_tool_fail(EPX_EXIT_USAGE, "%s", epx_last_error());
    for (int i = folder + 1; i < argc; i++)
        if (epx_records_add(records, argv[i]) != EPX_OK)
            return epx_tool_fail(EPX_EXIT_USAGE, "%s", epx_last_error());
    if (folder + 1 < argc)
        epx_records_update(records);
    code = request.trace != NULL ? write_trace(records, request.trace) : EPX_GO_ON;
    if (code == EPX_GO_ON)
        code = request.follow ? follow(&request, records) : diagnose(&request, records, argv[folder]);
    epx_records_close(&records);
    return epx_tool_end(code);
}
