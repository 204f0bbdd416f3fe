/* The payload of the bit-exact check. SPDX-License-Identifier: Apache-2.0 */
#include "bench/perf/rows.h"

#include <math.h>
#include <string.h>

#include "tools/common/numbers.h"

int32_t epx_perf_element_bytes(epx_type_t type) { return type == EPX_FP32 ? 4 : 2; }

/* Mantissa bits behind the point, and the smallest normal exponent. */
static void form_of(epx_type_t type, int *digits, int *least, int *bias)
{
    *digits = type == EPX_BF16 ? 7 : 10;
    *bias = type == EPX_BF16 ? 127 : 15;
    *least = 1 - *bias;
}

uint32_t epx_perf_encode(epx_type_t type, double value)
{
    int digits, least, bias, exponent;
    if (type == EPX_FP32) {
        float single = (float)value;
        uint32_t bits;
        memcpy(&bits, &single, sizeof bits);
        return bits;
    }
    form_of(type, &digits, &least, &bias);
    uint32_t sign = signbit(value) ? 0x8000u : 0;
    value = fabs(value);
    if (value == 0)
        return sign;
    frexp(value, &exponent);
    exponent = exponent - 1 < least ? least : exponent - 1;
    /* In units of the last place; rint rounds to nearest even, and a carry moves on into the exponent by
     * itself. */
    uint32_t units = (uint32_t)rint(ldexp(value, digits - exponent));
    return sign | (units + ((uint32_t)(exponent + bias - 1) << digits));
}

double epx_perf_decode(epx_type_t type, uint32_t bits)
{
    int digits, least, bias;
    if (type == EPX_FP32) {
        float single;
        memcpy(&single, &bits, sizeof single);
        return single;
    }
    form_of(type, &digits, &least, &bias);
    int exponent = (int)((bits & 0x7fff) >> digits);
    double units = (double)((bits & ((1u << digits) - 1)) | (exponent ? 1u << digits : 0));
    double value = ldexp(units, (exponent ? exponent : 1) - bias - digits);
    return bits & 0x8000 ? -value : value;
}

void epx_perf_set(void *row, epx_type_t type, int64_t h, uint32_t bits)
{
    if (type == EPX_FP32)
        ((uint32_t *)row)[h] = bits;
    else
        ((uint16_t *)row)[h] = (uint16_t)bits;
}

uint32_t epx_perf_get(const void *row, epx_type_t type, int64_t h)
{
    return type == EPX_FP32 ? ((const uint32_t *)row)[h] : ((const uint16_t *)row)[h];
}

/* Digit d of (rank, token). */
static uint32_t digit(int32_t rank, int64_t token, int d)
{
    uint64_t number = d < 2 ? (uint64_t)rank >> 8 * d : (uint64_t)token >> 8 * (d - 2);
    return (uint32_t)(number & 255);
}

static uint64_t key_of(uint64_t seed, uint64_t tensor, int32_t rank, int64_t token, int32_t k)
{
    return epx_mix64(epx_mix64(seed * 8 + tensor + ((uint64_t)rank << 32)) ^ ((uint64_t)token << 16) ^
                     (uint64_t)k);
}

void epx_perf_x_row(void *row, epx_type_t type, int32_t width, uint64_t seed, int32_t rank, int64_t token)
{
    size_t bytes = (size_t)width * (size_t)epx_perf_element_bytes(type);
    uint64_t key = key_of(seed, 0, rank, token, 0);
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t random = epx_mix64(key + at);
        memcpy((char *)row + at, &random, bytes - at < 8 ? bytes - at : 8);
    }
    for (int d = 0; d < EPX_PERF_HEADER && d < width; d++)
        epx_perf_set(row, type, d, epx_perf_encode(type, digit(rank, token, d)));
}

int epx_perf_x_whose(const void *row, epx_type_t type, int32_t *rank_p, int64_t *token_p)
{
    uint64_t number[EPX_PERF_HEADER];
    for (int d = 0; d < EPX_PERF_HEADER; d++) {
        double value = epx_perf_decode(type, epx_perf_get(row, type, d));
        if (!(value >= 0 && value <= 255) || value != floor(value))
            return -1;
        number[d] = (uint64_t)value;
    }
    *rank_p = (int32_t)(number[0] | number[1] << 8);
    *token_p = (int64_t)(number[2] | number[3] << 8 | number[4] << 16 | number[5] << 24);
    return 0;
}

int32_t epx_perf_range(int32_t top_k)
{
    int32_t range = 128 / top_k;
    return range < 1 ? 1 : range > 7 ? 7 : range;
}

void epx_perf_small(int8_t *values, int32_t width, int32_t range, epx_perf_tensor_t tensor, uint64_t seed,
                    int32_t rank, int64_t token, int32_t k)
{
    uint64_t key = key_of(seed, (uint64_t)tensor, rank, token, k), random = 0;
    uint32_t span = 2 * (uint32_t)range + 1;
    int32_t whole = width / 8 * 8;
    for (int32_t h = 0; h < whole; h += 8) {
        random = epx_mix64(key + (uint64_t)h);
        for (int32_t i = 0; i < 8; i++)
            values[h + i] = (int8_t)((int32_t)((uint32_t)(random >> 8 * i & 255) * span >> 8) - range);
    }
    for (int32_t h = whole; h < width; h++) {
        if (h % 8 == 0)
            random = epx_mix64(key + (uint64_t)h);
        values[h] = (int8_t)((int32_t)((random & 255) * span >> 8) - range);
        random >>= 8;
    }
}

void epx_perf_small_row(void *row, epx_type_t type, int32_t width, const int8_t *values)
{
    uint32_t bits[256]; /* of every int8 value there may be */
    for (int v = -8; v <= 8; v++)
        bits[v & 255] = epx_perf_encode(type, v);
    if (type == EPX_FP32)
        for (int32_t h = 0; h < width; h++)
            ((uint32_t *)row)[h] = bits[values[h] & 255];
    else
        for (int32_t h = 0; h < width; h++)
            ((uint16_t *)row)[h] = (uint16_t)bits[values[h] & 255];
}

float epx_perf_weight(uint64_t seed, int32_t rank, int64_t token, int32_t k, int32_t top_k)
{
    return top_k <= 128 && (key_of(seed, 7, rank, token, k) & 1) ? 0.5f : 1.0f;
}
