/* The matrix product in plain C, for builds without OpenBLAS. SPDX-License-Identifier: Apache-2.0
 *
 * A and B are packed into strips, then 4 x 8 tiles of C are summed in registers. The vector type is an
 * extension of gcc and clang that becomes what the target has. Each element of C is summed over k in
 * ascending order. */
#include "../math.h"

#define TILE_ROWS 4
#define TILE_COLUMNS 8
#define BLOCK_ROWS 64
#define BLOCK_COLUMNS 128
#define BLOCK_DEPTH 128

typedef epx_real_t vector_t __attribute__((vector_size(TILE_COLUMNS * sizeof(epx_real_t))));

/* A block of A in strips of TILE_ROWS rows, a block of B in strips of TILE_COLUMNS columns, padded with
 * zeros. */
typedef struct packed {
    vector_t b[BLOCK_COLUMNS / TILE_COLUMNS][BLOCK_DEPTH];
    epx_real_t a[BLOCK_ROWS / TILE_ROWS][BLOCK_DEPTH][TILE_ROWS];
} packed_t;

const char *epx_math_gemm_name(void) { return "plain C"; }

void epx_math_gemm_setup(void) {}

static void pack_a(packed_t *to, const epx_real_t *a, int64_t row_step, int64_t depth_step, int64_t rows,
                   int64_t depth)
{
    for (int64_t i = 0; i < rows; i += TILE_ROWS)
        for (int64_t p = 0; p < depth; p++)
            for (int64_t r = 0; r < TILE_ROWS; r++)
                to->a[i / TILE_ROWS][p][r] = i + r < rows ? a[(i + r) * row_step + p * depth_step] : 0;
}

static void pack_b(packed_t *to, const epx_real_t *b, int64_t depth_step, int64_t column_step,
                   int64_t columns, int64_t depth)
{
    for (int64_t j = 0; j < columns; j += TILE_COLUMNS)
        for (int64_t p = 0; p < depth; p++) {
            vector_t packed;
            for (int64_t r = 0; r < TILE_COLUMNS; r++)
                packed[r] = j + r < columns ? b[p * depth_step + (j + r) * column_step] : 0;
            to->b[j / TILE_COLUMNS][p] = packed;
        }
}

/* One tile of C: rows x columns of it are stored. */
static void multiply_tile(const epx_real_t (*a)[TILE_ROWS], const vector_t *b, int64_t depth, epx_real_t beta,
                          epx_real_t *c, int64_t ldc, int64_t rows, int64_t columns)
{
    vector_t sum[TILE_ROWS] = {0};
    for (int64_t p = 0; p < depth; p++) {
        sum[0] += a[p][0] * b[p];
        sum[1] += a[p][1] * b[p];
        sum[2] += a[p][2] * b[p];
        sum[3] += a[p][3] * b[p];
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < columns; j++)
            c[r * ldc + j] = (beta == 0 ? 0 : beta * c[r * ldc + j]) + sum[r][j];
}

static void multiply_block(const packed_t *block, int64_t rows, int64_t columns, int64_t depth,
                           epx_real_t beta, epx_real_t *c, int64_t ldc)
{
    for (int64_t i = 0; i < rows; i += TILE_ROWS)
        for (int64_t j = 0; j < columns; j += TILE_COLUMNS)
            multiply_tile(block->a[i / TILE_ROWS], block->b[j / TILE_COLUMNS], depth, beta, c + i * ldc + j,
                          ldc, rows - i < TILE_ROWS ? rows - i : TILE_ROWS,
                          columns - j < TILE_COLUMNS ? columns - j : TILE_COLUMNS);
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

void epx_math_gemm(epx_layout_t layout, int64_t m, int64_t n, int64_t k, const epx_real_t *a, int64_t lda,
                   const epx_real_t *b, int64_t ldb, epx_real_t beta, epx_real_t *c, int64_t ldc)
{
    packed_t block;
    int64_t a_row = layout == EPX_TN ? 1 : lda, a_depth = layout == EPX_TN ? lda : 1;
    int64_t b_depth = layout == EPX_NT ? 1 : ldb, b_column = layout == EPX_NT ? ldb : 1;
    for (int64_t p = 0; p < k || p == 0; p += BLOCK_DEPTH) {
        int64_t depth = least(k - p, BLOCK_DEPTH);
        for (int64_t j = 0; j < n; j += BLOCK_COLUMNS) {
            int64_t columns = least(n - j, BLOCK_COLUMNS);
            pack_b(&block, b + p * b_depth + j * b_column, b_depth, b_column, columns, depth);
            for (int64_t i = 0; i < m; i += BLOCK_ROWS) {
                int64_t rows = least(m - i, BLOCK_ROWS);
                pack_a(&block, a + i * a_row + p * a_depth, a_row, a_depth, rows, depth);
                multiply_block(&block, rows, columns, depth, p == 0 ? beta : 1, c + i * ldc + j, ldc);
            }
        }
    }
}
