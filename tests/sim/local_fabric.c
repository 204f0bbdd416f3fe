/*
 * Takes the place of two files of the library: the linker finds their functions here first.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "sim/local_fabric.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "fabric/local/local.h"
#include "sim/fibres.h"

const char *const local_mutant_names[LOCAL_MUTANTS] = {"faithful", "missing fence", "missing signal",
                                                       "a step early"};
local_mutant_t local_mutant;

/* A copy that is held back until its fibre has come by some more points. */
typedef struct held {
    void *to, *bytes;
    size_t n;
    int points;
} held_t;
static held_t held[16];

static void let_go(int self)
{
    held_t *copy = &held[self];
    if (copy->to == NULL || copy->points-- > 0)
        return;
    memcpy(copy->to, copy->bytes, copy->n);
    free(copy->bytes);
    copy->to = NULL;
}

static void point(void)
{
    int self = sim_self();
    if (self < 0)
        return;
    let_go(self);
    if (sim_dice(2) == 0)
        sim_turn();
}

static void copy_slowly(void *to, const void *from, size_t n)
{
    size_t half = n / 2;
    int self = sim_self();
    if (self >= 0 && local_mutant == LOCAL_NO_FENCE && held[self].to == NULL && sim_dice(4) == 0) {
        held[self] = (held_t){.to = to, .bytes = malloc(n + 1), .n = n, .points = 6};
        memcpy(held[self].bytes, from, n);
        return;
    }
    memcpy(to, from, half);
    point();
    memcpy((char *)to + half, (const char *)from + half, n - half);
}

static int is_lost(void) { return sim_self() >= 0 && local_mutant == LOCAL_NO_SIGNAL && sim_dice(400) == 0; }

static uint64_t early(uint64_t value)
{
    return sim_self() >= 0 && local_mutant == LOCAL_EARLY && value > 2 && sim_dice(40) == 0 ? value + 2
                                                                                            : value;
}

/* What a rank stores into a word. Where it sleeps (an address, no epoch) is never lost. */
static void store(_Atomic uint64_t *word, uint64_t value)
{
    point();
    if (value > UINT32_MAX)
        *word = value;
    else if (!is_lost())
        *word = early(value);
}

/* Every access to a word is a point; plain accesses to _Atomic words are the strongest ones. */
#undef atomic_load_explicit
#undef atomic_store_explicit
#undef atomic_exchange_explicit
#define atomic_load_explicit(word, order) (point(), *(word))
#define atomic_store_explicit(word, value, order) store(word, (uint64_t)(value))
#define atomic_exchange_explicit(word, value, order) store(word, (uint64_t)(value))
#define memcpy(to, from, n) copy_slowly(to, from, n)

#include "fabric/local/exchange.c"
#include "fabric/local/words.c"
