/* The matrix product in plain C. SPDX-License-Identifier: Apache-2.0
 *
 * A strip of EPX_TILE_COLUMNS columns of B and up to DEPTH of its rows fits into the first-level cache; all
 * rows of A pass by it, EPX_TILE_ROWS at a time. B is copied into a strip only where it is stored transposed
 * or ends within the strip; A is read where it is, in either layout. Rows past the end of A read its last row
 * again, and are not stored. */
#include "gemm_plain.h"

#define DEPTH 256

/* Vectors of 16 bytes, which every target of gcc and clang has in some form. */
typedef epx_real_t vector_t __attribute__((vector_size(16), aligned(sizeof(epx_real_t)), may_alias));

enum { LANES = 16 / sizeof(epx_real_t), PART_ROWS = 4, PART_COLUMNS = 2 * LANES };

/* A part of a tile that eight registers can sum. */
static void sum_part(int64_t depth, const epx_real_t *const *a, int64_t a_step, const epx_real_t *b,
                     int64_t b_step, epx_real_t *sum)
{
    vector_t part[PART_ROWS][2] = {{{0}}};
    for (int64_t p = 0; p < depth; p++, b += b_step) {
        vector_t left = *(const vector_t *)b, right = *(const vector_t *)(b + LANES);
        for (int r = 0; r < PART_ROWS; r++) {
            part[r][0] += a[r][p * a_step] * left;
            part[r][1] += a[r][p * a_step] * right;
        }
    }
    for (int r = 0; r < PART_ROWS; r++) {
        *(vector_t *)(sum + r * EPX_TILE_COLUMNS) = part[r][0];
        *(vector_t *)(sum + r * EPX_TILE_COLUMNS + LANES) = part[r][1];
    }
}

static void portable_tile(int64_t depth, const epx_real_t *const *a, int64_t a_step, const epx_real_t *b,
                          int64_t b_step, epx_real_t *sum)
{
    for (int r = 0; r < EPX_TILE_ROWS; r += PART_ROWS)
        for (int j = 0; j < EPX_TILE_COLUMNS; j += PART_COLUMNS)
            sum_part(depth, a + r, a_step, b + j, b_step, sum + r * EPX_TILE_COLUMNS + j);
}

static epx_tile_t tile = portable_tile;
static const char *tile_name = "plain C";

void epx_gemm_plain_setup(void)
{
    epx_tile_t better = epx_tile_x86(&tile_name);
    tile = better ? better : portable_tile;
}

const char *epx_gemm_plain_name(void) { return tile_name; }

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Where B has no strip of its own: rows of EPX_TILE_COLUMNS, zeros past the end. */
static void copy_strip(const epx_real_t *b, int64_t depth_step, int64_t column_step, int64_t depth,
                       int64_t columns, epx_real_t *strip)
{
    if (columns < EPX_TILE_COLUMNS)
        for (int64_t i = 0; i < depth * EPX_TILE_COLUMNS; i++)
            strip[i] = 0;
    for (int64_t j = 0; j < columns; j++)
        for (int64_t p = 0; p < depth; p++)
            strip[p * EPX_TILE_COLUMNS + j] = b[p * depth_step + j * column_step];
}

static void add_tile(const epx_real_t *sum, epx_real_t beta, epx_real_t *c, int64_t ldc, int64_t rows,
                     int64_t columns)
{
    for (int64_t r = 0; r < rows; r++, sum += EPX_TILE_COLUMNS, c += ldc) {
        if (beta == 0)
            for (int64_t j = 0; j < columns; j++)
                c[j] = sum[j];
        else
            for (int64_t j = 0; j < columns; j++)
                c[j] = beta * c[j] + sum[j];
    }
}

/* All rows of A beside one strip of B. */
static void multiply_strip(int64_t m, int64_t depth, const epx_real_t *a, int64_t row_step, int64_t a_step,
                           const epx_real_t *b, int64_t b_step, epx_real_t beta, epx_real_t *c, int64_t ldc,
                           int64_t columns)
{
    _Alignas(64) epx_real_t sum[EPX_TILE_ROWS * EPX_TILE_COLUMNS];
    const epx_real_t *row[EPX_TILE_ROWS];
    for (int64_t i = 0; i < m; i += EPX_TILE_ROWS) {
        for (int64_t r = 0; r < EPX_TILE_ROWS; r++)
            row[r] = a + least(i + r, m - 1) * row_step;
        tile(depth, row, a_step, b, b_step, sum);
        add_tile(sum, beta, c + i * ldc, ldc, least(m - i, EPX_TILE_ROWS), columns);
    }
}

void epx_gemm_plain(epx_layout_t layout, int64_t m, int64_t n, int64_t k, const epx_real_t *a, int64_t lda,
                    const epx_real_t *b, int64_t ldb, epx_real_t beta, epx_real_t *c, int64_t ldc)
{
    _Alignas(64) epx_real_t strip[DEPTH * EPX_TILE_COLUMNS];
    int64_t row_step = layout == EPX_TN ? 1 : lda, a_step = layout == EPX_TN ? lda : 1;
    int64_t depth_step = layout == EPX_NT ? 1 : ldb, column_step = layout == EPX_NT ? ldb : 1;
    for (int64_t p = 0; p < k || p == 0; p += DEPTH) {
        int64_t depth = least(k - p, DEPTH);
        for (int64_t j = 0; j < n; j += EPX_TILE_COLUMNS) {
            int64_t columns = least(n - j, EPX_TILE_COLUMNS), b_step = ldb;
            const epx_real_t *from = b + p * depth_step + j * column_step;
            if (layout == EPX_NT || columns < EPX_TILE_COLUMNS) {
                copy_strip(from, depth_step, column_step, depth, columns, strip);
                from = strip;
                b_step = EPX_TILE_COLUMNS;
            }
            multiply_strip(m, depth, a + p * a_step, row_step, a_step, from, b_step, p == 0 ? beta : 1, c + j,
                           ldc, columns);
        }
    }
}
