/* SPDX-License-Identifier: Apache-2.0 */
#include "support/number.h"

#include <math.h>
#include <string.h>

uint64_t dice_bits(dice_t *dice)
{
    uint64_t z = dice->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t dice_range(dice_t *dice, int64_t lo, int64_t hi)
{
    return lo + (int64_t)(dice_bits(dice) % (uint64_t)(hi - lo + 1));
}

double dice_unit(dice_t *dice) { return (double)(dice_bits(dice) >> 11) / 9007199254740992.0; }

size_t type_size(epx_type_t type)
{
    switch (type) {
    case EPX_BF16:
    case EPX_FP16: return 2;
    case EPX_INT64: return 8;
    default: return 4;
    }
}

const char *type_name(epx_type_t type)
{
    static const char *const names[] = {"default", "fp32", "bf16", "fp16", "int32", "int64"};
    return names[type];
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* bf16 is the upper half of fp32. */
static uint16_t to_bf16(float value)
{
    uint32_t bits = bits_of(value);
    if (isnan(value))
        return (uint16_t)((bits >> 16) | 0x40);
    uint32_t low = bits & 0xffff, up = bits >> 16;
    if (low > 0x8000 || (low == 0x8000 && (up & 1)))
        up++;
    return (uint16_t)up;
}

/* fp16: 1 sign, 5 exponent (bias 15), 10 fraction bits; every step below is exact in double but for one
 * nearbyint. */
static uint16_t to_fp16(float value)
{
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    if (isnan(value))
        return (uint16_t)(sign | 0x7e00);
    double size = fabs((double)value);
    if (size >= 65520.0)
        return (uint16_t)(sign | 0x7c00);
    if (size < 0x1p-14)
        return (uint16_t)(sign | (uint16_t)nearbyint(size * 0x1p24));
    int exponent;
    double fraction = frexp(size, &exponent); /* size = fraction * 2^exponent, fraction in [0.5, 1) */
    int whole = (int)nearbyint(fraction * 2048.0);
    return (uint16_t)(sign | (((exponent + 14) << 10) + whole - 1024));
}

static float from_fp16(uint16_t half)
{
    int exponent = (half >> 10) & 31, fraction = half & 1023;
    double size = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
    if (exponent == 31)
        size = fraction ? (double)NAN : (double)INFINITY;
    return (float)(half & 0x8000 ? -size : size);
}

float row_get(const void *row, epx_type_t type, size_t i)
{
    uint16_t half;
    float value;
    if (type == EPX_FP32) {
        memcpy(&value, (const char *)row + 4 * i, 4);
        return value;
    }
    memcpy(&half, (const char *)row + 2 * i, 2);
    return type == EPX_BF16 ? float_of((uint32_t)half << 16) : from_fp16(half);
}

void row_set(void *row, epx_type_t type, size_t i, float value)
{
    if (type == EPX_FP32) {
        memcpy((char *)row + 4 * i, &value, 4);
        return;
    }
    uint16_t half = type == EPX_BF16 ? to_bf16(value) : to_fp16(value);
    memcpy((char *)row + 2 * i, &half, 2);
}

float row_round(epx_type_t type, float value)
{
    char cell[4];
    row_set(cell, type, 0, value);
    return row_get(cell, type, 0);
}

int same_number(float a, float b) { return bits_of(a) == bits_of(b) || (isnan(a) && isnan(b)); }

void poison(void *memory, size_t bytes)
{
    uint16_t pattern = 0x7fff;
    for (size_t i = 0; i < bytes; i++)
        ((unsigned char *)memory)[i] = (unsigned char)(pattern >> (8 * (i & 1)));
}

int is_poison(const void *memory, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (((const unsigned char *)memory)[i] != (i & 1 ? 0x7f : 0xff))
            return 0;
    }
    return 1;
}
