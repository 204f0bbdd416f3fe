/*
 * What has run, from the files that EPX_STATS wrote: transport, path and bytes of each group as they were
 * counted where bytes moved. SPDX-License-Identifier: Apache-2.0
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/json_read.h"
#include "tools/common/numbers.h"
#include "tools/common/program.h"
#include "tools/common/table.h"
#include "tools/info/info.h"

/* Sums over the steps of one rank that ran alike; a group that failed over has two. */
typedef struct ran {
    char group[64], transport[64], fabric[32], path[96];
    int32_t rank, ranks;
    double steps, routed, dropped, sent, messages;
} ran_t;

typedef struct all_ran {
    ran_t *ran;
    int32_t count, bad_lines;
} all_ran_t;

static ran_t *find(all_ran_t *all, const ran_t *wanted)
{
    for (int32_t i = 0; i < all->count; i++) {
        ran_t *ran = &all->ran[i];
        if (strcmp(ran->group, wanted->group) == 0 && ran->rank == wanted->rank &&
            strcmp(ran->transport, wanted->transport) == 0 && strcmp(ran->path, wanted->path) == 0)
            return ran;
    }
    if ((all->count & (all->count - 1)) == 0) { /* full at every power of two */
        ran_t *more = epx_tool_alloc((size_t)all->count * 2 + 1, sizeof *more);
        if (all->count > 0)
            memcpy(more, all->ran, (size_t)all->count * sizeof *more);
        free(all->ran);
        all->ran = more;
    }
    all->ran[all->count] = *wanted;
    return &all->ran[all->count++];
}

static void add_line(all_ran_t *all, const char *line)
{
    epx_json_document_t document;
    char problem[128];
    if (epx_json_read(line, strlen(line), &document, problem, sizeof problem) != 0) {
        all->bad_lines++; /* the last one of a killed rank */
        return;
    }
    const epx_json_value_t *step = document.value;
    ran_t wanted = {.rank = (int32_t)epx_json_number_of(step, "rank", -1),
                    .ranks = (int32_t)epx_json_number_of(step, "ranks", 0)};
    snprintf(wanted.group, sizeof wanted.group, "%s", epx_json_text_of(step, "group", ""));
    snprintf(wanted.transport, sizeof wanted.transport, "%s", epx_json_text_of(step, "transport", ""));
    snprintf(wanted.fabric, sizeof wanted.fabric, "%s", epx_json_text_of(step, "fabric", ""));
    snprintf(wanted.path, sizeof wanted.path, "%s", epx_json_text_of(step, "path", "unknown"));
    ran_t *ran = find(all, &wanted);
    ran->steps++;
    ran->routed += epx_json_number_of(step, "routed", 0);
    ran->dropped += epx_json_number_of(step, "dropped_sender", 0);
    ran->dropped += epx_json_number_of(step, "dropped_receiver", 0);
    ran->sent += epx_json_number_of(step, "sent_bytes", 0);
    ran->messages += epx_json_number_of(step, "message_bytes", 0);
    epx_json_document_free(&document);
}

static int read_file(all_ran_t *all, const char *folder, const char *name)
{
    char path[4096], line[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return epx_tool_fail(EPX_EXIT_FAILED, "%s cannot be read: %s", path, strerror(errno));
    while (fgets(line, sizeof line, file) != NULL)
        add_line(all, line);
    fclose(file);
    return EPX_EXIT_OK;
}

static int by_group_and_rank(const void *a, const void *b)
{
    const ran_t *x = a, *y = b;
    int order = strcmp(x->group, y->group);
    return order != 0 ? order : (x->rank > y->rank) - (x->rank < y->rank);
}

static int read_folder(all_ran_t *all, const char *folder)
{
    DIR *open = opendir(folder);
    int rc = EPX_EXIT_OK;
    if (open == NULL)
        return epx_tool_fail(EPX_EXIT_FAILED,
                             "--stats: %s cannot be read: %s; name the folder that EPX_STATS named", folder,
                             strerror(errno));
    for (struct dirent *entry = readdir(open); entry != NULL && rc == EPX_EXIT_OK; entry = readdir(open)) {
        const char *end = strrchr(entry->d_name, '.');
        if (end != NULL && strcmp(end, ".jsonl") == 0)
            rc = read_file(all, folder, entry->d_name);
    }
    closedir(open);
    if (rc == EPX_EXIT_OK && all->count == 0)
        rc = epx_tool_fail(EPX_EXIT_FAILED, "--stats: no step is in %s", folder);
    if (all->count > 0)
        qsort(all->ran, (size_t)all->count, sizeof *all->ran, by_group_and_rank);
    return rc;
}

static void show_json(epx_json_t *json, const all_ran_t *all)
{
    epx_json_array(json, "ran");
    for (int32_t i = 0; i < all->count; i++) {
        const ran_t *ran = &all->ran[i];
        epx_json_object(json, NULL);
        epx_json_text(json, "group", ran->group);
        epx_json_int(json, "rank", ran->rank);
        epx_json_int(json, "ranks", ran->ranks);
        epx_json_text(json, "transport", ran->transport);
        epx_json_text(json, "fabric", ran->fabric);
        epx_json_text(json, "path", ran->path);
        epx_json_int(json, "steps", (int64_t)ran->steps);
        epx_json_int(json, "sent_bytes", (int64_t)ran->sent);
        epx_json_int(json, "message_bytes", (int64_t)ran->messages);
        epx_json_real(json, "drop_fraction", ran->routed > 0 ? ran->dropped / ran->routed : 0);
        epx_json_close(json);
    }
    epx_json_close(json);
}

static void show_table(const all_ran_t *all)
{
    static const epx_column_t columns[] = {{"has run", 0}, {"rank", 1},     {"transport", 0},
                                           {"fabric", 0},  {"steps", 1},    {"payload", 1},
                                           {"path", 0},    {"messages", 1}, {"dropped", 1}};
    epx_table_t *table = epx_table_new(columns, sizeof columns / sizeof *columns);
    for (int32_t i = 0; i < all->count; i++) {
        const ran_t *ran = &all->ran[i];
        char sent[32], messages[32];
        epx_table_cell(table, "%s", ran->group);
        epx_table_cell(table, "%d of %d", ran->rank, ran->ranks);
        epx_table_cell(table, "%s", ran->transport);
        epx_table_cell(table, "%s", ran->fabric);
        epx_table_cell(table, "%.0f", ran->steps);
        epx_table_cell(table, "%s", epx_text_of_bytes(sent, sizeof sent, ran->sent));
        epx_table_cell(table, "%s", ran->path);
        epx_table_cell(table, "%s", epx_text_of_bytes(messages, sizeof messages, ran->messages));
        epx_table_cell(table, "%.2f%%", ran->routed > 0 ? 100 * ran->dropped / ran->routed : 0);
    }
    epx_table_print(table, stdout, 0);
    epx_table_free(table);
    if (all->bad_lines > 0)
        printf("  %d line%s could not be read\n", all->bad_lines, all->bad_lines == 1 ? "" : "s");
}

int epx_info_ran(const epx_info_t *info)
{
    all_ran_t all = {0};
    int rc = read_folder(&all, info->stats_folder);
    if (rc == EPX_EXIT_OK && info->json != NULL)
        show_json(info->json, &all);
    else if (rc == EPX_EXIT_OK)
        show_table(&all);
    free(all.ran);
    return rc;
}
