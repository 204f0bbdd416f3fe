/*
 * Tables for people: a line of titles, rows, columns as wide as they need.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_TOOLS_TABLE_H
#define EPX_TOOLS_TABLE_H

#include <stdint.h>
#include <stdio.h>

typedef struct epx_column {
    const char *title;
    int right; /* 1: numbers, flush right */
} epx_column_t;

typedef struct epx_table epx_table_t;

/* columns [n], kept by the caller while the table lives. */
epx_table_t *epx_table_new(const epx_column_t *columns, int32_t n);

/* The next cell of the last row; begins a new row when that is full. */
void epx_table_cell(epx_table_t *table, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* indent: blanks before each line. Cells that a row lacks are empty; a last column that is not flush right is
 * not padded. */
void epx_table_print(const epx_table_t *table, FILE *out, int indent);

void epx_table_free(epx_table_t *table);

#endif
