/* Reading runs. SPDX-License-Identifier: Apache-2.0 */
#include "bench/ab/record.h"

#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/json_read.h"
#include "tools/common/program.h"

/* ---- lines --------------------------------------------------------------------------------------------------------- */

static void *grow(void *old, int32_t used, int32_t *room, size_t bytes)
{
    if (used < *room)
        return old;
    int32_t more = *room > 0 ? 2 * *room : 64;
    void *memory = epx_tool_alloc((size_t)more, bytes);
    if (used > 0)
        memcpy(memory, old, (size_t)used * bytes);
    free(old);
    *room = more;
    return memory;
}

static int64_t integer_of(const epx_json_value_t *line, const char *key)
{
    double value = epx_json_number_of(line, key, -1);
    return value >= 0 && value < 9e18 ? (int64_t)value : -1;
}

static void name_path(char *name, const epx_json_value_t *line, const char *key)
{
    const char *now = epx_json_text_of(line, key, "");
    if (now[0] == '\0')
        return;
    if (name[0] == '\0')
        snprintf(name, EPX_AB_NAME, "%s", now);
    else if (strcmp(name, now) != 0)
        snprintf(name, EPX_AB_NAME, "mixed");
}

/* Fractions of an unknown number of assignments, as parts of 10^12. */
static epx_ab_counts_t counts_of_fractions(const epx_json_value_t *line)
{
    const double whole = 1e12;
    double all = epx_json_number_of(line, "drop_fraction", NAN);
    double sender = epx_json_number_of(line, "sender_drop_fraction", NAN);
    double receiver = epx_json_number_of(line, "receiver_drop_fraction", NAN);
    epx_ab_counts_t count = {.valid = -1};
    if (isnan(all) && isnan(sender))
        return count;
    count.valid = (int64_t)whole;
    count.dropped_sender = (int64_t)llround(whole * (isnan(sender) ? all : sender));
    count.dropped_receiver = (int64_t)llround(whole * (isnan(receiver) ? 0 : receiver));
    count.kept = count.valid - count.dropped_sender - count.dropped_receiver;
    return count;
}

static void take_step_line(epx_ab_record_t *record, const epx_json_value_t *line)
{
    record->step = grow(record->step, record->steps, &record->room, sizeof *record->step);
    epx_ab_step_t *step = &record->step[record->steps++];
    *step = epx_ab_unknown_step();
    step->step = integer_of(line, "step");
    step->loss = epx_json_number_of(line, "loss", NAN);
    step->tokens = epx_json_number_of(line, "tokens", NAN);
    step->step_ms = epx_json_number_of(line, "step_ms", NAN);
    step->mfu = epx_json_number_of(line, "mfu", NAN);
    step->mfu_executed = epx_json_number_of(line, "mfu_executed", NAN);
    step->exposed_ms = epx_json_number_of(line, "exchange_ms", epx_json_number_of(line, "exposed_ms", NAN));
    step->experts_ms = epx_json_number_of(line, "experts_ms", NAN);
    step->attention_ms = epx_json_number_of(line, "attention_ms", NAN);
    step->gradients_ms = epx_json_number_of(line, "gradients_ms", NAN);
    step->wait_ms_max = epx_json_number_of(line, "wait_ms_max", NAN);
    step->load_max_over_mean = epx_json_number_of(line, "load_max_over_mean", NAN);
    step->peak_bytes = integer_of(line, "peak_bytes");
    step->count = counts_of_fractions(line);
    name_path(record->transport, line, "transport");
    name_path(record->fabric, line, "fabric");
    record->lines++;
}

static void take_stats_line(epx_ab_record_t *record, const epx_json_value_t *line, int32_t place)
{
    if (place >= record->stats_steps) {
        int32_t room = record->stats_room;
        record->stats = grow(record->stats, record->stats_steps, &record->stats_room, sizeof *record->stats);
        record->stats_files =
            grow(record->stats_files, record->stats_steps, &room, sizeof *record->stats_files);
        epx_ab_step_t none = epx_ab_unknown_step();
        none.count.valid = none.sent_bytes = none.received_bytes = 0;
        none.wait_ms_max = 0;
        record->stats[record->stats_steps++] = none;
    }
    epx_ab_step_t *sum = &record->stats[place];
    epx_ab_counts_t count = {.valid = integer_of(line, "routed"),
                             .kept = integer_of(line, "kept"),
                             .spilled = integer_of(line, "spilled"),
                             .dropped_sender = integer_of(line, "dropped_sender"),
                             .dropped_receiver = integer_of(line, "dropped_receiver")};
    epx_ab_add_counts(&sum->count, &count);
    sum->sent_bytes += integer_of(line, "sent_bytes");
    sum->received_bytes += integer_of(line, "received_bytes");
    sum->wait_ms_max = fmax(sum->wait_ms_max, epx_json_number_of(line, "wait_ms", 0));
    record->stats_files[place]++;
    name_path(record->transport, line, "transport");
    name_path(record->fabric, line, "fabric");
}

/* Kinds by members: stats lines have the counts of one rank. */
static int take(epx_ab_record_t *record, const char *text, int32_t stats_place)
{
    epx_json_document_t document;
    char problem[128];
    int stats = 0;
    const char *at = text + strspn(text, " \t\r\n");
    if (*at != '{' || epx_json_read(text, strlen(text), &document, problem, sizeof problem) != 0)
        return 0;
    const epx_json_value_t *line = document.value;
    if (epx_json_member(line, "rank") != NULL && epx_json_member(line, "routed") != NULL) {
        take_stats_line(record, line, stats_place);
        stats = 1;
    } else if (epx_json_member(line, "step") != NULL) {
        take_step_line(record, line);
    }
    epx_json_document_free(&document);
    return stats;
}

void epx_ab_record_line(epx_ab_record_t *record, const char *line) { take(record, line, 0); }

int epx_ab_record_read(epx_ab_record_t *record, const char *path)
{
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t room = 0;
    int32_t place = 0;
    if (file == NULL)
        return -1;
    while (getline(&line, &room, file) >= 0)
        place += take(record, line, place);
    record->files += place > 0;
    free(line);
    fclose(file);
    return 0;
}

/* ---- folders ------------------------------------------------------------------------------------------------------- */

static int is_lines(const struct dirent *entry)
{
    size_t length = strlen(entry->d_name);
    return length > 6 && strcmp(entry->d_name + length - 6, ".jsonl") == 0;
}

int epx_ab_record_folder(epx_ab_record_t *record, const char *folder)
{
    struct dirent **entries;
    int count = scandir(folder, &entries, is_lines, alphasort);
    for (int i = 0; i < count; i++) {
        char *path = epx_tool_text("%s/%s", folder, entries[i]->d_name);
        epx_ab_record_read(record, path);
        free(path);
        free(entries[i]);
    }
    if (count >= 0)
        free(entries);
    return count;
}

/* ---- runs ---------------------------------------------------------------------------------------------------------- */

/* Counts of all ranks are better than fractions. The n-th line of the job is the n-th cut of the library; a
 * job that cuts more often than it reports (or less) gets no counts. */
static void join_stats(const epx_ab_record_t *record, epx_ab_run_t *run)
{
    if (record->stats_steps != run->steps)
        return;
    run->fractions = 0;
    for (int32_t i = 0; i < run->steps; i++) {
        const epx_ab_step_t *stats = &record->stats[i];
        run->step[i].count = stats->count;
        run->step[i].sent_bytes = stats->sent_bytes;
        run->step[i].received_bytes = stats->received_bytes;
        if (isnan(run->step[i].wait_ms_max))
            run->step[i].wait_ms_max = stats->wait_ms_max;
    }
}

static void add_up(const epx_ab_record_t *record, epx_ab_run_t *run)
{
    if (record->stats_steps == 0)
        return;
    run->accounting[0] = '\0';
    for (int32_t i = 0; i < record->stats_steps && run->accounting[0] == '\0'; i++) {
        const epx_ab_counts_t *c = &record->stats[i].count;
        if (record->stats_files[i] != record->files)
            snprintf(run->accounting, sizeof run->accounting, "step %d was written by %d of %d ranks", i + 1,
                     record->stats_files[i], record->files);
        else if (c->valid < 0 || c->valid != c->kept + c->dropped_sender + c->dropped_receiver)
            snprintf(run->accounting, sizeof run->accounting,
                     "step %d: %" PRId64 " routed, but %" PRId64 " kept + %" PRId64 " + %" PRId64 " dropped",
                     i + 1, c->valid, c->kept, c->dropped_sender, c->dropped_receiver);
    }
}

void epx_ab_record_run(const epx_ab_record_t *record, int32_t discard, epx_ab_result_t *result, int32_t arm,
                       epx_ab_part_t part, int32_t round)
{
    int from_stats =
        record->steps == 0; /* the library's lines alone: no times, no loss, but drops and waits */
    int32_t steps = from_stats ? record->stats_steps : record->steps;
    epx_ab_run_t *run = epx_ab_add_run(result, arm, part, round, steps);
    run->steps = steps;
    if (steps > 0)
        memcpy(run->step, from_stats ? record->stats : record->step, (size_t)steps * sizeof *run->step);
    for (int32_t i = 0; i < steps; i++) {
        run->step[i].discarded = i < discard;
        if (from_stats)
            run->step[i].step = i;
    }
    run->fractions = !from_stats && steps > 0 && run->step[0].count.valid >= 0;
    if (!from_stats)
        join_stats(record, run);
    add_up(record, run);
    snprintf(run->transport, sizeof run->transport, "%s", record->transport);
    snprintf(run->fabric, sizeof run->fabric, "%s", record->fabric);
}

void epx_ab_record_free(epx_ab_record_t *record)
{
    free(record->step);
    free(record->stats);
    free(record->stats_files);
    *record = (epx_ab_record_t){.steps = 0};
}
