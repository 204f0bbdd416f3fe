/* Devices, what they can do, and the build's optional parts. SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/numbers.h"
#include "tools/common/peaks.h"
#include "tools/common/program.h"
#include "tools/common/table.h"
#include "tools/info/info.h"

/* ---- measuring the host ---- */

enum { COPY_BYTES = 64 << 20, COPY_ROUNDS = 4 };

static void *copy_block(void *argument)
{
    char *block = argument;
    for (int i = 0; i < COPY_ROUNDS; i++)
        memcpy(block + COPY_BYTES / 2, block, COPY_BYTES / 2);
    return NULL;
}

/* Bytes read and written per second by `threads` threads at once, the best of three; 0: not known. */
static double measure_copy(int32_t threads)
{
    double best = 0;
    pthread_t *thread = epx_tool_alloc((size_t)threads, sizeof *thread);
    char *memory = epx_tool_alloc((size_t)threads, COPY_BYTES);
    for (int attempt = 0; attempt < 3; attempt++) {
        int32_t started = 0;
        int64_t begun = epx_now_ns();
        while (started < threads &&
               pthread_create(&thread[started], NULL, copy_block, memory + (size_t)started * COPY_BYTES) == 0)
            started++;
        for (int32_t i = 0; i < started; i++)
            pthread_join(thread[i], NULL);
        double rate = (double)started * COPY_BYTES * COPY_ROUNDS / ((double)(epx_now_ns() - begun) * 1e-9);
        best = rate > best ? rate : best;
    }
    free(memory);
    free(thread);
    return best;
}

/* The processor's own name, or "". */
static void processor_name(char *text, size_t bytes)
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    text[0] = '\0';
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || colon == NULL)
            continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(text, bytes, "%s", colon + 2);
        break;
    }
    if (file != NULL)
        fclose(file);
}

/* ---- devices ---- */

typedef struct rows {
    const epx_info_t *info;
    epx_table_t *table;
} rows_t;

typedef struct facts {
    int known;
    epx_device_properties_t properties;
    char name[128];
    double copy, peak;
    int measured;
} facts_t;

static void learn(const epx_candidate_t *candidate, facts_t *facts)
{
    *facts = (facts_t){0};
    if (candidate->score <= 0 || epx_device_describe(candidate->name, &facts->properties) != EPX_OK)
        return;
    facts->known = 1;
    snprintf(facts->name, sizeof facts->name, "%s", facts->properties.name);
    facts->copy = facts->properties.copy_bytes_per_s;
    facts->peak = facts->properties.peak_flops;
    const epx_peak_t *peak = epx_peak_of(facts->name);
    if (!(facts->peak > 0) && peak != NULL)
        facts->peak = peak->flops;
    if (strcmp(candidate->name, "host") == 0) {
        char processor[128];
        processor_name(processor, sizeof processor);
        if (processor[0] != '\0')
            snprintf(facts->name, sizeof facts->name, "%s", processor);
        facts->copy = measure_copy(facts->properties.units);
        facts->measured = 1;
    }
}

static void json_device(epx_json_t *json, const epx_candidate_t *candidate, const facts_t *facts)
{
    epx_json_object(json, NULL);
    epx_json_text(json, "name", candidate->name);
    epx_json_int(json, "score", candidate->score);
    epx_json_bool(json, "chosen", candidate->chosen);
    epx_json_text(json, "reason", candidate->reason);
    if (facts->known) {
        epx_json_text(json, "model", facts->name);
        epx_json_int(json, "units", facts->properties.units);
        epx_json_int(json, "memory_bytes", facts->properties.memory_bytes);
        if (facts->copy > 0)
            epx_json_real(json, "copy_bytes_per_s", facts->copy);
        else
            epx_json_null(json, "copy_bytes_per_s");
        epx_json_bool(json, "copy_measured", facts->measured);
        if (facts->peak > 0)
            epx_json_real(json, "peak_flops", facts->peak);
        else
            epx_json_null(json, "peak_flops");
    }
    epx_json_close(json);
}

static void show_device(void *context, const epx_candidate_t *candidate)
{
    const rows_t *rows = context;
    facts_t facts;
    char memory[32], copy[32];
    learn(candidate, &facts);
    if (rows->info->json != NULL) {
        json_device(rows->info->json, candidate, &facts);
        return;
    }
    epx_table_cell(rows->table, "%s %s", candidate->chosen ? "*" : " ", candidate->name);
    if (!facts.known) {
        epx_table_cell(rows->table, "no");
        epx_table_cell(rows->table, "-");
        epx_table_cell(rows->table, "-");
        epx_table_cell(rows->table, "-");
        epx_table_cell(rows->table, "%s", candidate->reason);
        return;
    }
    epx_table_cell(rows->table, "%d", candidate->score);
    epx_table_cell(rows->table, "%d", facts.properties.units);
    epx_table_cell(rows->table, "%s",
                   epx_text_of_bytes(memory, sizeof memory, (double)facts.properties.memory_bytes));
    epx_table_cell(rows->table, "%s/s%s", epx_text_of_bytes(copy, sizeof copy, facts.copy),
                   facts.measured ? ", measured" : "");
    epx_table_cell(rows->table, "%s", facts.name);
}

static void show_peaks(epx_json_t *json)
{
    if (json != NULL)
        epx_json_array(json, "gpu_peaks");
    else
        printf("\ndense bf16 rate that MFU is a share of (the host's is measured by epx-train):");
    for (int32_t i = 0; epx_peak_at(i) != NULL; i++) {
        const epx_peak_t *peak = epx_peak_at(i);
        if (json != NULL) {
            epx_json_object(json, NULL);
            epx_json_text(json, "name", peak->name);
            epx_json_real(json, "peak_flops", peak->flops);
            epx_json_close(json);
        } else {
            printf("%s %s %.4g TFLOP/s", i ? "," : "", peak->name, peak->flops * 1e-12);
        }
    }
    if (json != NULL)
        epx_json_close(json);
    else
        putchar('\n');
}

int epx_info_devices(const epx_info_t *info)
{
    static const epx_column_t columns[] = {
        {"devices", 0}, {"score", 1}, {"units", 1}, {"memory", 1}, {"copy (read + written)", 1}, {"", 0}};
    rows_t rows = {info, epx_table_new(columns, 6)};
    if (info->json != NULL)
        epx_json_array(info->json, "devices");
    epx_device_list(&info->config, show_device, &rows);
    if (info->json != NULL)
        epx_json_close(info->json);
    else
        epx_table_print(rows.table, stdout, 0);
    epx_table_free(rows.table);
    show_peaks(info->json);
    return EPX_EXIT_OK;
}

/* ---- the build ---- */

int epx_info_build(const epx_info_t *info)
{
    static const epx_column_t columns[] = {{"optional part", 0}, {"built in", 0}, {"", 0}};
    epx_table_t *table = epx_table_new(columns, 3);
    epx_build_part_t part;
    if (info->json != NULL)
        epx_json_array(info->json, "build");
    for (int32_t i = 0; epx_build_part(i, &part) == EPX_OK; i++) {
        if (info->json != NULL) {
            epx_json_object(info->json, NULL);
            epx_json_text(info->json, "name", part.name);
            epx_json_bool(info->json, "compiled", part.compiled);
            epx_json_text(info->json, "reason", part.reason);
            epx_json_close(info->json);
            continue;
        }
        epx_table_cell(table, "%s", part.name);
        epx_table_cell(table, "%s", part.compiled ? "yes" : "no");
        epx_table_cell(table, "%s", part.reason);
    }
    if (info->json != NULL)
        epx_json_close(info->json);
    else
        epx_table_print(table, stdout, 0);
    epx_table_free(table);
    return EPX_EXIT_OK;
}
