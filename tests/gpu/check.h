/*
 * A small runner for tests on machines with a GPU, where there may be no Criterion. SPDX-License-Identifier:
 * Apache-2.0
 *
 * A test is a function; tables of them end with an empty row and stand in main.c. A failed check is counted
 * and printed with the seed of the round that it happened in; the test goes on with the next round, and gives
 * up after a few.
 */
#ifndef TESTS_GPU_CHECK_H
#define TESTS_GPU_CHECK_H

#include <stddef.h>
#include <stdint.h>

#include "support/number.h"

typedef struct gpu_test {
    const char *name;
    void (*run)(void);
} gpu_test_t;

/* Prints the place, the seed of the round and the text, and counts the failure. */
void gpu_failed(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));

#define CHECK(condition, ...)                            \
    do {                                                 \
        if (!(condition))                                \
            gpu_failed(__FILE__, __LINE__, __VA_ARGS__); \
    } while (0)

/*
 * for (dice_t dice; gpu_round(&dice, 40);) runs 40 rounds (times --rounds), each with its own seed, until
 * there have been too many failures. Frees the twins of the round before.
 */
int gpu_round(dice_t *dice, int rounds);

/* 1 with --small: shapes for tools that are hundreds of times slower. */
int gpu_small(void);

/* ---- memory that host and device have each their own of ----------------------------------------------------------- */

typedef struct twin {
    unsigned char *host, *device;
    size_t bytes;
} twin_t;

/* Equal bytes (a pattern) on both sides after twins_send; freed with the round. Aligned to 256. */
twin_t twin_make(size_t bytes);
/* The host's contents go to the device. */
void twin_send(const twin_t *twin);
/* The device's contents are those of the host: bytes, or numbers of a type (NaN equal to NaN). */
void twin_same(const twin_t *twin, const char *what);
void twin_same_numbers(const twin_t *twin, epx_type_t type, const char *what);
/* Copies the device's side to `to`. */
void twin_fetch(const twin_t *twin, void *to);
/* Random numbers of a row type, some of them special. */
void twin_fill_numbers(const twin_t *twin, epx_type_t type, dice_t *dice);
/* The side of a pointer: 0 host, 1 device. */
static inline void *side_of(const twin_t *twin, int device) { return device ? twin->device : twin->host; }
/* As side_of, but NULL for a twin of no bytes. */
static inline void *side_or_null(const twin_t *twin, int device)
{
    return twin->bytes > 0 ? side_of(twin, device) : NULL;
}

/* Waits for the device; a failure ends the program, since nothing that follows could be believed. */
void gpu_finish(void);

#endif
