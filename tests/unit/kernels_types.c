/* fp32 to and from bf16 and fp16: every 16-bit pattern, and fp32 around every rounding boundary.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <math.h>

#include "kernels/host/types.h"
#include "support/number.h"

static float of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* Value of a 16-bit pattern from the format's definition; exact in double. */
static double value_of(uint16_t half, int fraction_bits, int bias)
{
    int exponent_bits = 15 - fraction_bits, exponent = (half & 0x7fff) >> fraction_bits;
    int fraction = half & ((1 << fraction_bits) - 1);
    double size = exponent == 0 ? ldexp(fraction, 1 - bias - fraction_bits)
                                : ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
    if (exponent == (1 << exponent_bits) - 1)
        size = fraction ? (double)NAN : (double)INFINITY;
    return half & 0x8000 ? -size : size;
}

Test(kernels_types, every_pattern_widens_exactly_and_comes_back)
{
    for (uint32_t half = 0; half < 65536; half++) {
        double bf16 = value_of((uint16_t)half, 7, 127), fp16 = value_of((uint16_t)half, 10, 15);
        float got = epx_fp32_of_bf16((uint16_t)half);
        cr_assert(isnan(bf16) ? isnan(got) : (double)got == bf16 && !signbit(got) == !signbit(bf16),
                  "bf16 %#x", half);
        got = epx_fp32_of_fp16((uint16_t)half);
        cr_assert(isnan(fp16) ? isnan(got) : (double)got == fp16 && !signbit(got) == !signbit(fp16),
                  "fp16 %#x", half);
        if (!isnan(bf16))
            cr_assert_eq(epx_bf16_of_fp32((float)bf16), half);
        if (!isnan(fp16))
            cr_assert_eq(epx_fp16_of_fp32((float)fp16), half);
    }
}

/* Rounds to nearest even by trying: the magnitude lies between the patterns `low` and low + 1. */
static uint16_t nearest(float value, int fraction_bits, int bias)
{
    double size = fabs((double)value);
    uint32_t low = 0, infinity = ((1u << (15 - fraction_bits)) - 1) << fraction_bits, high = infinity;
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (value_of((uint16_t)middle, fraction_bits, bias) <= size)
            low = middle;
        else
            high = middle;
    }
    /* Infinity stands where the next number would be. */
    double below = value_of((uint16_t)low, fraction_bits, bias);
    double above = high == infinity ? ldexp(1, bias + 1) : value_of((uint16_t)high, fraction_bits, bias);
    if (size - below > above - size || (size - below == above - size && (low & 1)))
        low = high;
    return (uint16_t)(sign | low);
}

static void check(uint32_t bits)
{
    float value = of_bits(bits);
    uint16_t bf16 = epx_bf16_of_fp32(value), fp16 = epx_fp16_of_fp32(value);
    if (isnan(value)) {
        cr_assert(isnan(value_of(bf16, 7, 127)) && isnan(value_of(fp16, 10, 15)), "NaN %#x", bits);
        return;
    }
    cr_assert_eq(bf16, nearest(value, 7, 127), "bf16 of %a: %#x", (double)value, bf16);
    cr_assert_eq(fp16, nearest(value, 10, 15), "fp16 of %a: %#x", (double)value, fp16);
}

Test(kernels_types, fp32_rounds_to_nearest_even)
{
    static const uint32_t tails[] = {0,      1,      0x0fff, 0x1000, 0x1001, 0x2fff,
                                     0x3000, 0x7fff, 0x8000, 0x8001, 0xffff};
    dice_t dice = {0x77};
    for (uint32_t up = 0; up < 65536; up++) {
        for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++)
            check(up << 16 | tails[i]);
        check(up << 16 | (uint32_t)dice_range(&dice, 0, 0xffff));
    }
}

Test(kernels_types, hand_values)
{
    cr_assert_eq(epx_bf16_of_fp32(1.0f), 0x3f80);
    cr_assert_eq(epx_bf16_of_fp32(of_bits(0x3f808000)), 0x3f80); /* half way: even below */
    cr_assert_eq(epx_bf16_of_fp32(of_bits(0x3f818000)), 0x3f82); /* half way: even above */
    cr_assert_eq(epx_bf16_of_fp32(of_bits(0x7f7fffff)), 0x7f80); /* the largest fp32 is beyond bf16 */
    cr_assert_eq(epx_bf16_of_fp32(of_bits(0x7f800001)), 0x7fc0); /* a NaN whose payload is cut off */
    cr_assert_eq(epx_bf16_of_fp32(-0.0f), 0x8000);
    cr_assert_eq(epx_fp16_of_fp32(1.0f), 0x3c00);
    cr_assert_eq(epx_fp16_of_fp32(65504.0f), 0x7bff);
    cr_assert_eq(epx_fp16_of_fp32(65519.99f), 0x7bff);
    cr_assert_eq(epx_fp16_of_fp32(65520.0f), 0x7c00);
    cr_assert_eq(epx_fp16_of_fp32(0x1p-24f), 0x0001);
    cr_assert_eq(epx_fp16_of_fp32(0x1p-25f), 0x0000); /* half way to the smallest: even */
    cr_assert_eq(epx_fp16_of_fp32(0x1.8p-24f), 0x0002);
    cr_assert_eq(epx_fp16_of_fp32(-0x1.ff8p-15f), 0x83ff);
    cr_assert_eq(epx_fp16_of_fp32(-0x1.ffcp-15f), 0x8400); /* 1023.5 of the smallest: even, which is normal */
    cr_assert_eq(epx_fp16_of_fp32(of_bits(0x7f800001)), 0x7e00);
    cr_assert_eq(epx_fp16_of_fp32(of_bits(0xff800000)), 0xfc00);
}
