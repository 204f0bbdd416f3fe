/*
 * fp32 to and from bf16 and fp16: round to nearest even, infinities and subnormals as IEEE 754 has them, a
 * NaN stays a NaN (quiet, its upper payload kept, so that a NaN whose payload lies in the lost bits does not
 * become an infinity). Written without branches so that loops over rows vectorise. Also for the tests of
 * others and for train/. SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_KERNELS_HOST_TYPES_H
#define EPX_KERNELS_HOST_TYPES_H

#include <stdint.h>
#include <string.h>

#define EPX_INLINE static inline __attribute__((always_inline))

EPX_INLINE uint32_t epx_fp32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

EPX_INLINE float epx_fp32_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

EPX_INLINE float epx_fp32_of_bf16(uint16_t value) { return epx_fp32_of_bits((uint32_t)value << 16); }

EPX_INLINE uint16_t epx_bf16_of_fp32(float value)
{
    uint32_t bits = epx_fp32_bits(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t nan = (bits >> 16) | 0x40u;
    return (uint16_t)((int32_t)(bits & 0x7fffffffu) > 0x7f800000 ? nan : rounded);
}

/*
 * `yes` or `no` by a mask: a conditional would let the compiler move a floating-point operation under a
 * branch, and then refuse to vectorise it. Comparisons are signed, as vector instructions have them: all
 * operands lie below 2^31.
 */
EPX_INLINE int32_t epx_select(int32_t condition, int32_t yes, int32_t no)
{
    int32_t mask = -condition;
    return (yes & mask) | (no & ~mask);
}

EPX_INLINE float epx_fp32_of_fp16(uint16_t value)
{
    int32_t magnitude = (value & 0x7fff) << 13;
    uint32_t sign = ((uint32_t)value & 0x8000u) << 16;
    /* Rebias the exponent by 112; infinities and NaN by 112 more. A subnormal is the fraction of a number
     * whose leading one, 2^-14, is then taken off again, exactly. A signalling NaN becomes quiet, as it does
     * in hardware. */
    int32_t normal = magnitude + (112 << 23);
    int32_t special = magnitude + (224 << 23);
    int32_t subnormal =
        (int32_t)epx_fp32_bits(epx_fp32_of_bits((uint32_t)magnitude + (113u << 23)) - 0x1p-14f);
    int32_t bits = epx_select(magnitude < (1 << 23), subnormal, normal);
    bits = epx_select(magnitude >= (31 << 23), special, bits);
    bits |= epx_select(magnitude > (31 << 23), 0x400000, 0);
    return epx_fp32_of_bits((uint32_t)bits | sign);
}

EPX_INLINE uint16_t epx_fp16_of_fp32(float value)
{
    uint32_t bits = epx_fp32_bits(value), sign = (bits >> 16) & 0x8000u;
    int32_t magnitude = (int32_t)(bits & 0x7fffffffu);
    int32_t normal = (magnitude - (112 << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    /* Below 2^-14 an addition of 0.5 leaves the wanted 10 bits at the end of the fraction, rounded by the
     * addition. */
    int32_t subnormal = (int32_t)epx_fp32_bits(epx_fp32_of_bits((uint32_t)magnitude) + 0.5f) - 0x3f000000;
    int32_t nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
    int32_t half = epx_select(magnitude < (113 << 23), subnormal, normal);
    half = epx_select(magnitude >= 0x477ff000, 0x7c00, half); /* 65520 and more round to infinity */
    half = epx_select(magnitude > 0x7f800000, nan, half);
    return (uint16_t)((uint32_t)half | sign);
}

#endif
