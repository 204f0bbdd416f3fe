/* Bytes of a group by item, one column per transport. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/numbers.h"
#include "tools/common/program.h"
#include "tools/common/table.h"
#include "tools/info/info.h"

enum { TRANSPORTS_MAX = 16 };

typedef struct column {
    char name[64];
    int known;
    char failure[512];
    epx_memory_t memory;
} column_t;

typedef struct columns {
    int named; /* the environment or the program says which transport: no other would be used */
    int32_t count;
    column_t column[TRANSPORTS_MAX];
} columns_t;

static void look_who_chose(void *context, const epx_setting_t *setting)
{
    columns_t *columns = context;
    if (strcmp(setting->variable, "EPX_TRANSPORT") == 0 && strcmp(setting->value, "auto") != 0)
        columns->named = 1;
}

static void add_column(void *context, const epx_candidate_t *candidate)
{
    columns_t *columns = context;
    if (columns->count == TRANSPORTS_MAX || (columns->named && !candidate->chosen))
        return;
    column_t *column = &columns->column[columns->count++];
    snprintf(column->name, sizeof column->name, "%s", candidate->name);
}

static void ask(const epx_info_t *info, const columns_t *columns, column_t *column)
{
    epx_group_config_t config = info->config;
    if (!columns->named)
        config.transport = column->name;
    column->memory = (epx_memory_t)EPX_MEMORY_INIT;
    column->known = epx_group_memory(&config, &column->memory) == EPX_OK;
    if (!column->known)
        snprintf(column->failure, sizeof column->failure, "%s", epx_last_error());
}

static void json_column(epx_json_t *json, const column_t *column)
{
    epx_json_object(json, NULL);
    epx_json_text(json, "transport", column->name);
    epx_json_text(json, "failure", column->known ? NULL : column->failure);
    if (column->known) {
        epx_json_array(json, "items");
        for (int32_t i = 0; i < column->memory.items; i++) {
            epx_json_object(json, NULL);
            epx_json_text(json, "name", column->memory.item[i].name);
            epx_json_int(json, "bytes", column->memory.item[i].bytes);
            epx_json_bool(json, "device_memory", column->memory.item[i].device_memory);
            epx_json_close(json);
        }
        epx_json_close(json);
        epx_json_int(json, "total_bytes", column->memory.total_bytes);
        epx_json_int(json, "device_bytes", column->memory.device_bytes);
        epx_json_int(json, "plan_bytes", column->memory.plan_bytes);
        epx_json_int(json, "plan_handle_bytes", column->memory.plan_handle_bytes);
    }
    epx_json_close(json);
}

/* Bytes of the item of that name; -1 where the transport has none. */
static int64_t item_bytes(const column_t *column, const char *name)
{
    for (int32_t i = 0; i < column->memory.items; i++)
        if (strcmp(column->memory.item[i].name, name) == 0)
            return column->memory.item[i].bytes;
    return -1;
}

static void bytes_cell(epx_table_t *table, int64_t bytes)
{
    char text[32];
    epx_table_cell(table, "%s", bytes < 0 ? "-" : epx_text_of_bytes(text, sizeof text, (double)bytes));
}

/* The items in the order of the first transport that has them. */
static void item_rows(epx_table_t *table, const columns_t *columns)
{
    for (int32_t c = 0; c < columns->count; c++) {
        for (int32_t i = 0; columns->column[c].known && i < columns->column[c].memory.items; i++) {
            const char *name = columns->column[c].memory.item[i].name;
            int shown = 0;
            for (int32_t before = 0; before < c; before++)
                shown |= columns->column[before].known && item_bytes(&columns->column[before], name) >= 0;
            if (shown)
                continue;
            epx_table_cell(table, "%s", name);
            epx_table_cell(table, "%s", columns->column[c].memory.item[i].device_memory ? "device" : "host");
            for (int32_t k = 0; k < columns->count; k++)
                bytes_cell(table, columns->column[k].known ? item_bytes(&columns->column[k], name) : -1);
        }
    }
}

static void sum_row(epx_table_t *table, const columns_t *columns, const char *name, const char *where,
                    size_t offset)
{
    epx_table_cell(table, "%s", name);
    epx_table_cell(table, "%s", where);
    for (int32_t c = 0; c < columns->count; c++) {
        int64_t bytes;
        memcpy(&bytes, (const char *)&columns->column[c].memory + offset, sizeof bytes);
        bytes_cell(table, columns->column[c].known ? bytes : -1);
    }
}

static void print_columns(const columns_t *columns)
{
    epx_column_t titles[TRANSPORTS_MAX + 2] = {{"memory of a rank", 0}, {"where", 0}};
    for (int32_t c = 0; c < columns->count; c++)
        titles[c + 2] = (epx_column_t){columns->column[c].name, 1};
    epx_table_t *table = epx_table_new(titles, columns->count + 2);
    item_rows(table, columns);
    sum_row(table, columns, "group, in all", "", offsetof(epx_memory_t, total_bytes));
    sum_row(table, columns, "of it on the device", "", offsetof(epx_memory_t, device_bytes));
    sum_row(table, columns, "each plan", "device", offsetof(epx_memory_t, plan_bytes));
    sum_row(table, columns, "each plan's handle", "host", offsetof(epx_memory_t, plan_handle_bytes));
    int known = 0;
    for (int32_t c = 0; c < columns->count; c++)
        known += columns->column[c].known;
    if (known > 0)
        epx_table_print(table, stdout, 0);
    epx_table_free(table);
    for (int32_t c = 0; c < columns->count; c++)
        if (!columns->column[c].known)
            printf("%s: %s\n", columns->column[c].name, columns->column[c].failure);
}

int epx_info_memory(const epx_info_t *info)
{
    columns_t *columns = epx_tool_alloc(1, sizeof *columns);
    epx_config_list(&info->config, look_who_chose, columns);
    epx_transport_list(&info->config, add_column, columns);
    for (int32_t c = 0; c < columns->count; c++)
        ask(info, columns, &columns->column[c]);
    if (info->json != NULL) {
        epx_json_array(info->json, "memory");
        for (int32_t c = 0; c < columns->count; c++)
            json_column(info->json, &columns->column[c]);
        epx_json_close(info->json);
    } else {
        print_columns(columns);
    }
    free(columns);
    return EPX_EXIT_OK;
}
