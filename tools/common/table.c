/* Tables for people. SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/table.h"

#include <stdarg.h>
#include <stdlib.h>

#include "tools/common/program.h"

struct epx_table {
    const epx_column_t *columns;
    int32_t n;
    size_t cells, room;
    char **cell;
};

epx_table_t *epx_table_new(const epx_column_t *columns, int32_t n)
{
    epx_table_t *table = epx_tool_alloc(1, sizeof *table);
    table->columns = columns;
    table->n = n;
    return table;
}

void epx_table_cell(epx_table_t *table, const char *format, ...)
{
    va_list values;
    char *text = NULL;
    if (table->cells == table->room) {
        table->room = table->room ? 2 * table->room : 64;
        table->cell = realloc(table->cell, table->room * sizeof *table->cell);
    }
    va_start(values, format);
    int bytes = vasprintf(&text, format, values);
    va_end(values);
    if (bytes < 0 || table->cell == NULL)
        exit(epx_tool_fail(EPX_EXIT_FAILED, "no memory for a table: end other programs"));
    table->cell[table->cells++] = text;
}

/* Characters, not bytes: those that continue a UTF-8 sequence do not count. */
static int width_of(const char *text)
{
    int width = 0;
    for (; *text != '\0'; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

static void print_cell(const epx_table_t *table, FILE *out, int32_t c, int width, const char *text)
{
    int pad = width - width_of(text), last = c == table->n - 1;
    if (c > 0 && (!last || text[0] != '\0' || table->columns[c].right))
        fputs("  ", out);
    if (table->columns[c].right)
        fprintf(out, "%*s%s", pad, "", text);
    else
        fprintf(out, "%s%*s", text, last ? 0 : pad, "");
    if (last)
        fputc('\n', out);
}

void epx_table_print(const epx_table_t *table, FILE *out, int indent)
{
    size_t n = (size_t)table->n, rows = (table->cells + n - 1) / n;
    int *width = epx_tool_alloc(n, sizeof *width);
    for (size_t c = 0; c < n; c++)
        width[c] = width_of(table->columns[c].title);
    for (size_t i = 0; i < table->cells; i++) {
        int w = width_of(table->cell[i]);
        width[i % n] = w > width[i % n] ? w : width[i % n];
    }
    fprintf(out, "%*s", indent, "");
    for (int32_t c = 0; c < table->n; c++)
        print_cell(table, out, c, width[c], table->columns[c].title);
    for (size_t i = 0; i < rows * n; i++) {
        if (i % n == 0)
            fprintf(out, "%*s", indent, "");
        print_cell(table, out, (int32_t)(i % n), width[i % n], i < table->cells ? table->cell[i] : "");
    }
    free(width);
}

void epx_table_free(epx_table_t *table)
{
    for (size_t i = 0; i < table->cells; i++)
        free(table->cell[i]);
    free(table->cell);
    free(table);
}
