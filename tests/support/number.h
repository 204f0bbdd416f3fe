/* Numbers for tests: a seeded source, row types, bit comparison. SPDX-License-Identifier: Apache-2.0
 *
 * Written from the definitions of the formats, not from the library: what it converts is an expected value.
 */
#ifndef TESTS_NUMBER_H
#define TESTS_NUMBER_H

#include <stddef.h>
#include <stdint.h>

#include <epx/epx.h>

/* splitmix64; equal seeds give equal numbers. */
typedef struct dice {
    uint64_t state;
} dice_t;

uint64_t dice_bits(dice_t *dice);
/* Uniform in lo .. hi, both included. */
int64_t dice_range(dice_t *dice, int64_t lo, int64_t hi);
/* Uniform in [0, 1). */
double dice_unit(dice_t *dice);

/* Bytes of one element of a row type. */
size_t type_size(epx_type_t type);
const char *type_name(epx_type_t type);

/* Element `i` of an array of a row type, as fp32, and back by round to nearest even. */
float row_get(const void *row, epx_type_t type, size_t i);
void row_set(void *row, epx_type_t type, size_t i, float value);
/* value rounded to the type and read back. */
float row_round(epx_type_t type, float value);

/* Equal bit by bit; two NaNs are equal whatever their payload. */
int same_number(float a, float b);

/* Fills memory so that every fp32, bf16 and fp16 read from it is a NaN; is_poison: all bytes still are that.
 */
void poison(void *memory, size_t bytes);
int is_poison(const void *memory, size_t bytes);

#endif
