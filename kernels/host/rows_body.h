/*
 * The bodies of epx_row_ops_t. Each version inlines them into functions compiled for its instructions.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_KERNELS_HOST_ROWS_BODY_H
#define EPX_KERNELS_HOST_ROWS_BODY_H

#include "kernels/host/rows.h"
#include "kernels/host/types.h"

#include <math.h>

#define DOT_LANES 32

/* `type` is a constant in every use, so that the choice is made by the compiler. */
EPX_INLINE float row_load(const void *row, int64_t h, epx_type_t type)
{
    if (type == EPX_FP32)
        return ((const float *)row)[h];
    uint16_t half = ((const uint16_t *)row)[h];
    return type == EPX_BF16 ? epx_fp32_of_bf16(half) : epx_fp32_of_fp16(half);
}

EPX_INLINE void row_put(void *row, int64_t h, float value, epx_type_t type)
{
    if (type == EPX_FP32)
        ((float *)row)[h] = value;
    else
        ((uint16_t *)row)[h] = type == EPX_BF16 ? epx_bf16_of_fp32(value) : epx_fp16_of_fp32(value);
}

EPX_INLINE void add_typed(float *restrict acc, const void *restrict row, float weight, int64_t n,
                          epx_type_t type, int32_t from_zero)
{
    if (from_zero)
        for (int64_t h = 0; h < n; h++)
            acc[h] = fmaf(weight, row_load(row, h, type), 0.0f);
    else
        for (int64_t h = 0; h < n; h++)
            acc[h] = fmaf(weight, row_load(row, h, type), acc[h]);
}

EPX_INLINE void add_body(float *acc, const void *row, float weight, int64_t n, epx_type_t type,
                         int32_t from_zero)
{
    if (type == EPX_FP32)
        add_typed(acc, row, weight, n, EPX_FP32, from_zero);
    else if (type == EPX_BF16)
        add_typed(acc, row, weight, n, EPX_BF16, from_zero);
    else
        add_typed(acc, row, weight, n, EPX_FP16, from_zero);
}

EPX_INLINE void store_typed(void *restrict row, const float *restrict acc, int64_t n, epx_type_t type)
{
    for (int64_t h = 0; h < n; h++)
        row_put(row, h, acc[h], type);
}

EPX_INLINE void store_body(void *row, const float *acc, int64_t n, epx_type_t type)
{
    if (type == EPX_FP32)
        store_typed(row, acc, n, EPX_FP32);
    else if (type == EPX_BF16)
        store_typed(row, acc, n, EPX_BF16);
    else
        store_typed(row, acc, n, EPX_FP16);
}

EPX_INLINE void scale_typed(void *to, const void *from, float weight, int64_t n, epx_type_t type)
{
    for (int64_t h = 0; h < n; h++)
        row_put(to, h, weight * row_load(from, h, type), type);
}

EPX_INLINE void scale_body(void *to, const void *from, float weight, int64_t n, epx_type_t type)
{
    if (type == EPX_FP32)
        scale_typed(to, from, weight, n, EPX_FP32);
    else if (type == EPX_BF16)
        scale_typed(to, from, weight, n, EPX_BF16);
    else
        scale_typed(to, from, weight, n, EPX_FP16);
}

EPX_INLINE float dot_typed(const void *restrict a, const void *restrict b, int64_t n, epx_type_t type)
{
    float lane[DOT_LANES] = {0};
    int64_t whole = n - n % DOT_LANES;
    for (int64_t h = 0; h < whole; h += DOT_LANES)
        for (int32_t l = 0; l < DOT_LANES; l++)
            lane[l] = fmaf(row_load(a, h + l, type), row_load(b, h + l, type), lane[l]);
    for (int64_t h = whole; h < n; h++)
        lane[h - whole] = fmaf(row_load(a, h, type), row_load(b, h, type), lane[h - whole]);
    for (int32_t half = DOT_LANES / 2; half > 0; half /= 2)
        for (int32_t l = 0; l < half; l++)
            lane[l] += lane[l + half];
    return lane[0];
}

EPX_INLINE float dot_body(const void *a, const void *b, int64_t n, epx_type_t type)
{
    if (type == EPX_FP32)
        return dot_typed(a, b, n, EPX_FP32);
    if (type == EPX_BF16)
        return dot_typed(a, b, n, EPX_BF16);
    return dot_typed(a, b, n, EPX_FP16);
}

#endif
