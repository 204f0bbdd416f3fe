/* The row arithmetic that any CPU can run. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/host/rows_body.h"

static void add_plain(float *acc, const void *row, float weight, int64_t n, epx_type_t type,
                      int32_t from_zero)
{
    add_body(acc, row, weight, n, type, from_zero);
}

static void store_plain(void *row, const float *acc, int64_t n, epx_type_t type)
{
    store_body(row, acc, n, type);
}

static void scale_plain(void *to, const void *from, float weight, int64_t n, epx_type_t type)
{
    scale_body(to, from, weight, n, type);
}

static float dot_plain(const void *a, const void *b, int64_t n, epx_type_t type)
{
    return dot_body(a, b, n, type);
}

const epx_row_ops_t epx_row_ops_plain = {
    .name = "plain", .add = add_plain, .store = store_plain, .scale = scale_plain, .dot = dot_plain};
