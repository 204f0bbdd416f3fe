/* What will be used, and the candidates that were not taken. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "tools/common/numbers.h"
#include "tools/common/program.h"
#include "tools/common/table.h"
#include "tools/info/info.h"

typedef epx_status_t (*list_fn)(const epx_group_config_t *config, epx_candidate_fn fn, void *context);

static const struct {
    const char *kind, *plural;
    list_fn list;
} kinds[] = {
    {"transport", "transports", epx_transport_list},
    {"fabric", "fabrics", epx_fabric_list},
    {"device", "devices", epx_device_list},
};
enum { TRANSPORT, FABRIC, DEVICE, KINDS };

/* ---- the chosen one of each kind ---- */

typedef struct choice {
    const epx_info_t *info;
    epx_table_t *table;
    const char *kind;
    int found;
} choice_t;

static void show_chosen(void *context, const epx_candidate_t *candidate)
{
    choice_t *choice = context;
    if (!candidate->chosen)
        return;
    choice->found = 1;
    if (choice->info->json != NULL) {
        epx_json_object(choice->info->json, choice->kind);
        epx_json_text(choice->info->json, "name", candidate->name);
        epx_json_text(choice->info->json, "why", candidate->reason);
        epx_json_close(choice->info->json);
        return;
    }
    epx_table_cell(choice->table, "%s", choice->kind);
    epx_table_cell(choice->table, "%s", candidate->name);
    epx_table_cell(choice->table, "%s", candidate->reason);
}

static void show_missing(choice_t *choice)
{
    if (choice->info->json != NULL) {
        epx_json_null(choice->info->json, choice->kind);
        return;
    }
    epx_table_cell(choice->table, "%s", choice->kind);
    epx_table_cell(choice->table, "none");
    epx_table_cell(choice->table, "see below");
}

static const char *wire_of(const epx_info_t *info)
{
    return info->would.wire == EPX_WIRE_RANK         ? "rank"
           : info->would.wire == EPX_WIRE_ASSIGNMENT ? "assignment"
                                                     : NULL;
}

/* What follows from the choice. */
static void show_consequences(const epx_info_t *info)
{
    epx_memory_t memory = EPX_MEMORY_INIT;
    char bytes[32] = "unknown", on_device[32] = "unknown";
    int known = epx_group_memory(&info->config, &memory) == EPX_OK;
    if (info->json != NULL) {
        epx_json_int(info->json, "waves", info->would.waves);
        epx_json_text(info->json, "wire", wire_of(info));
        epx_json_int(info->json, "batch_rows_max", info->would.batch_rows_max);
        if (known) {
            epx_json_int(info->json, "memory_bytes", memory.total_bytes);
            epx_json_int(info->json, "memory_device_bytes", memory.device_bytes);
        }
        return;
    }
    if (known) {
        epx_text_of_bytes(bytes, sizeof bytes, (double)memory.total_bytes);
        epx_text_of_bytes(on_device, sizeof on_device, (double)memory.device_bytes);
    }
    if (info->would.waves > 0)
        printf("  %d wave%s", info->would.waves, info->would.waves == 1 ? "" : "s");
    else
        printf("  as many waves as each route needs");
    printf(
        "%s%s, batches of up to %lld rows, %s of memory on each rank,\n  %s of it the device's, outside of a "
        "framework's pool\n",
        wire_of(info) ? ", wire " : "", wire_of(info) ? wire_of(info) : "",
        (long long)info->would.batch_rows_max, bytes, on_device);
}

/* Two NCCLs in one process fight, so it matters which one is there. */
static void show_nccl(const epx_info_t *info)
{
    epx_nccl_info_t nccl = EPX_NCCL_INFO_INIT;
    if (epx_nccl_describe(&nccl) != EPX_OK)
        return;
    int is_there = nccl.loaded[0] != '\0';
    if (info->json != NULL) {
        epx_json_object(info->json, "nccl");
        epx_json_text(info->json, "compiled", nccl.compiled);
        epx_json_text(info->json, "loaded", is_there ? nccl.loaded : NULL);
        epx_json_text(info->json, "file", is_there ? nccl.file : NULL);
        epx_json_text(info->json, "problem", nccl.problem[0] != '\0' ? nccl.problem : NULL);
        epx_json_close(info->json);
        return;
    }
    printf("  NCCL: compiled for %s, loaded is %s%s%s\n", nccl.compiled, is_there ? nccl.loaded : "none",
           is_there ? " from " : "", is_there ? nccl.file : "");
    if (nccl.problem[0] != '\0' && strcmp(nccl.compiled, "no NCCL") != 0)
        printf("  NCCL cannot be used: %s\n", nccl.problem);
}

int epx_info_use(const epx_info_t *info)
{
    static const epx_column_t columns[] = {{"will be used", 0}, {"", 0}, {"because", 0}};
    epx_table_t *table = epx_table_new(columns, 3);
    if (info->json != NULL)
        epx_json_object(info->json, "use");
    for (int i = 0; i < KINDS; i++) {
        choice_t choice = {.info = info, .table = table, .kind = kinds[i].kind};
        kinds[i].list(&info->config, show_chosen, &choice);
        if (!choice.found)
            show_missing(&choice);
    }
    if (info->json == NULL)
        epx_table_print(table, stdout, 0);
    epx_table_free(table);
    if (info->usable)
        show_consequences(info);
    show_nccl(info);
    if (info->json != NULL) {
        epx_json_bool(info->json, "usable", info->usable);
        epx_json_text(info->json, "failure", info->usable ? NULL : info->failure);
        epx_json_close(info->json);
    }
    if (!info->usable)
        return epx_tool_fail(EPX_EXIT_FAILED, "a group of this shape cannot be opened: %s", info->failure);
    return EPX_EXIT_OK;
}

/* ---- all of a kind ---- */

typedef struct rows {
    const epx_info_t *info;
    epx_table_t *table;
} rows_t;

static void show_row(void *context, const epx_candidate_t *candidate)
{
    const rows_t *rows = context;
    epx_json_t *json = rows->info->json;
    if (json != NULL) {
        epx_json_object(json, NULL);
        epx_json_text(json, "name", candidate->name);
        epx_json_text(json, "summary", candidate->summary);
        epx_json_int(json, "score", candidate->score);
        epx_json_bool(json, "chosen", candidate->chosen);
        epx_json_text(json, "reason", candidate->reason);
        epx_json_close(json);
        return;
    }
    epx_table_cell(rows->table, "%s %s", candidate->chosen ? "*" : " ", candidate->name);
    if (candidate->score > 0)
        epx_table_cell(rows->table, "%d", candidate->score);
    else
        epx_table_cell(rows->table, "no");
    epx_table_cell(rows->table, "%s",
                   candidate->score > 0 && !candidate->chosen ? candidate->summary : candidate->reason);
}

static int show_kind(const epx_info_t *info, int kind)
{
    const epx_column_t columns[] = {{kinds[kind].plural, 0}, {"score", 1}, {"", 0}};
    rows_t rows = {info, epx_table_new(columns, 3)};
    if (info->json != NULL)
        epx_json_array(info->json, kinds[kind].plural);
    epx_status_t status = kinds[kind].list(&info->config, show_row, &rows);
    if (info->json != NULL)
        epx_json_close(info->json);
    else
        epx_table_print(rows.table, stdout, 0);
    epx_table_free(rows.table);
    return status == EPX_OK ? EPX_EXIT_OK : EPX_EXIT_FAILED;
}

int epx_info_transports(const epx_info_t *info) { return show_kind(info, TRANSPORT); }

int epx_info_fabrics(const epx_info_t *info) { return show_kind(info, FABRIC); }
