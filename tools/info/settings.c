/* Every setting and where its value comes from. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "tools/common/program.h"
#include "tools/common/table.h"
#include "tools/info/info.h"

typedef struct rows {
    const epx_info_t *info;
    epx_table_t *table;
    int problems;
} rows_t;

/* A default that the transport decides, once it has been chosen. */
static const char *value_of(const epx_info_t *info, const epx_setting_t *setting, char *text, size_t bytes)
{
    snprintf(text, bytes, "%s", setting->value);
    if (setting->value[0] == '\0' && info->usable && strcmp(setting->variable, "EPX_WAVES") == 0)
        snprintf(text, bytes, "%d", info->would.waves);
    return text;
}

static void show_setting(void *context, const epx_setting_t *setting)
{
    rows_t *rows = context;
    epx_json_t *json = rows->info->json;
    char value[1024];
    value_of(rows->info, setting, value, sizeof value);
    rows->problems += setting->problem != NULL && setting->help != NULL;
    if (json != NULL) {
        epx_json_object(json, NULL);
        epx_json_text(json, "variable", setting->variable);
        epx_json_text(json, "value", value);
        epx_json_text(json, "source", epx_source_name(setting->source));
        epx_json_text(json, "set_by", setting->set_by);
        epx_json_text(json, "values", setting->values);
        epx_json_text(json, "help", setting->help);
        epx_json_text(json, "problem", setting->problem);
        epx_json_close(json);
        return;
    }
    epx_table_cell(rows->table, "%s", setting->variable);
    epx_table_cell(rows->table, "%s", value[0] ? value : "-");
    if (setting->source == EPX_SOURCE_PREFIXED)
        epx_table_cell(rows->table, "%s", setting->set_by);
    else
        epx_table_cell(rows->table, "%s", epx_source_name(setting->source));
    if (setting->problem != NULL)
        epx_table_cell(rows->table, "!! %s", setting->problem);
    else
        epx_table_cell(rows->table, "%s: %s", setting->help, setting->values);
}

int epx_info_settings(const epx_info_t *info)
{
    static const epx_column_t columns[] = {
        {"setting", 0}, {"value", 0}, {"from", 0}, {"meaning: values, default first", 0}};
    rows_t rows = {info, epx_table_new(columns, 4), 0};
    if (info->json != NULL)
        epx_json_array(info->json, "settings");
    epx_config_list(&info->config, show_setting, &rows);
    if (info->json != NULL)
        epx_json_close(info->json);
    else
        epx_table_print(rows.table, stdout, 0);
    epx_table_free(rows.table);
    return rows.problems > 0 ? EPX_EXIT_FAILED : EPX_EXIT_OK;
}
