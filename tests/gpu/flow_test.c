/* ragged_flow: ranks side by side on one GPU, whose calls come in any order. SPDX-License-Identifier:
 * Apache-2.0 */
#include <string.h>

#include <epx/kernels_ragged.h>

#include "gpu/check.h"
#include "kernels/cuda/table.h"
#include "kernels/host/table.h"

enum { RANKS_MAX = 5, TOKENS = 50 };

/* What one rank has. base: the words, then the slot; list: of all rows that come to this rank, its own too.
 */
typedef struct flow_rank {
    twin_t base, batch, x, index, runs, first, places, list, start, count, counters, own_first, own_places,
        shift, dst;
} flow_rank_t;

typedef struct flow_case {
    int32_t ranks;
    int64_t bytes, words;
    int32_t rows[RANKS_MAX][RANKS_MAX]; /* [sender][receiver] */
    flow_rank_t of[RANKS_MAX];
} flow_case_t;

static int32_t *ints(const twin_t *t) { return (int32_t *)(void *)t->host; }
static int64_t *longs(const twin_t *t) { return (int64_t *)(void *)t->host; }

/* Rows to r from senders before s. */
static int64_t start_of(const flow_case_t *c, int32_t r, int32_t s)
{
    int64_t sum = 0;
    for (int32_t q = 0; q < s; q++)
        sum += c->rows[q][r];
    return sum;
}

/* Rows from r to receivers before q. */
static int64_t first_of(const flow_case_t *c, int32_t r, int32_t q)
{
    int64_t sum = 0;
    for (int32_t p = 0; p < q; p++)
        sum += c->rows[r][p];
    return sum;
}

static void make_receiver(flow_case_t *c, int32_t r, dice_t *dice)
{
    flow_rank_t *f = &c->of[r];
    int64_t rows = start_of(c, r, c->ranks), places = 0;
    f->base = twin_make((size_t)(c->words + rows * c->bytes) + 16);
    f->first = twin_make((size_t)rows * 4 + 4), f->places = twin_make((size_t)rows * 4 + 4);
    f->start = twin_make((size_t)c->ranks * 8), f->count = twin_make((size_t)c->ranks * 8);
    for (int64_t g = 0; g < rows; g++) {
        ints(&f->first)[g] = (int32_t)places;
        places += ints(&f->places)[g] = (int32_t)dice_range(dice, 0, dice_range(dice, 0, 9) == 0 ? 32 : 5);
    }
    for (int32_t s = 0; s < c->ranks; s++)
        longs(&f->start)[s] = start_of(c, r, s), longs(&f->count)[s] = c->rows[s][r];
    f->list = twin_make((size_t)places * 4 + 4), f->batch = twin_make((size_t)(places * c->bytes) + 16);
    for (int64_t i = 0; i < places; i++) {
        int64_t j = dice_range(dice, 0, i);
        ints(&f->list)[i] = ints(&f->list)[j], ints(&f->list)[j] = (int32_t)i;
    }
    twin_send(&f->base), twin_send(&f->first), twin_send(&f->places), twin_send(&f->start),
        twin_send(&f->count);
    twin_send(&f->list), twin_send(&f->batch);
}

static void make_sender(flow_case_t *c, int32_t r, dice_t *dice)
{
    flow_rank_t *f = &c->of[r];
    int64_t rows = first_of(c, r, c->ranks), own = first_of(c, r, r), shift = dice_range(dice, 0, 1000);
    f->x = twin_make((size_t)(TOKENS * c->bytes)), f->index = twin_make((size_t)rows * 4 + 4);
    f->runs = twin_make((size_t)c->ranks * sizeof(epx_run_t));
    f->own_first = twin_make((size_t)rows * 4 + 4), f->own_places = twin_make((size_t)rows * 4 + 4);
    f->counters = twin_make(sizeof(epx_flow_counters_t)), f->shift = twin_make(16);
    for (size_t i = 0; i < f->x.bytes; i++)
        f->x.host[i] = (unsigned char)(i * 7 + i / 251 + (size_t)r * 31);
    for (int64_t i = 0; i < rows; i++) {
        int mine = i >= own && i < own + c->rows[r][r];
        int64_t g = mine ? start_of(c, r, r) + i - own : 0;
        ints(&f->index)[i] = (int32_t)dice_range(dice, 0, TOKENS - 1);
        ints(&f->own_first)[i] = mine ? ints(&f->first)[g] - (int32_t)shift : -1;
        ints(&f->own_places)[i] = mine ? ints(&f->places)[g] : 1 << 20;
    }
    for (int32_t q = 0; q < c->ranks; q++)
        ((epx_run_t *)(void *)f->runs.host)[q] = (epx_run_t){
            .first = first_of(c, r, q), .row = start_of(c, q, r), .peer = q, .rows = c->rows[r][q]};
    longs(&f->shift)[0] = 1000 + shift, longs(&f->shift)[1] = 1000;
    memset(f->counters.host, 0, f->counters.bytes);
    twin_send(&f->x), twin_send(&f->index), twin_send(&f->runs), twin_send(&f->own_first),
        twin_send(&f->own_places);
    twin_send(&f->counters), twin_send(&f->shift);
}

/* The table of bases has each side's own addresses. */
static void make_table(flow_case_t *c, int32_t r)
{
    void *host[RANKS_MAX];
    c->of[r].dst = twin_make((size_t)c->ranks * sizeof(void *));
    for (int32_t q = 0; q < c->ranks; q++) {
        host[q] = c->of[q].base.host;
        ((void **)(void *)c->of[r].dst.host)[q] = c->of[q].base.device;
    }
    twin_send(&c->of[r].dst);
    memcpy(c->of[r].dst.host, host, (size_t)c->ranks * sizeof(void *));
}

static epx_k_ragged_flow_t args_of(const flow_case_t *c, int32_t r, int here, int device)
{
    const flow_rank_t *f = &c->of[r];
    const int64_t *shift = side_of(&f->shift, device);
    return (epx_k_ragged_flow_t){.dst = side_of(&f->dst, device),
                                 .rank = r,
                                 .ranks = c->ranks,
                                 .rows = c->words,
                                 .row_bytes = c->bytes,
                                 .runs = side_of(&f->runs, device),
                                 .index = side_of(&f->index, device),
                                 .x = side_of(&f->x, device),
                                 .own = {.dst = side_of(&f->batch, device),
                                         .stride = c->bytes,
                                         .first = side_of(&f->own_first, device),
                                         .count = side_of(&f->own_places, device),
                                         .list = side_of(&f->list, device),
                                         .start = shift,
                                         .base = shift + 1},
                                 .start = side_of(&f->start, device),
                                 .count = side_of(&f->count, device),
                                 .first = side_of(&f->first, device),
                                 .places = side_of(&f->places, device),
                                 .list = side_of(&f->list, device),
                                 .src = (char *)side_of(&f->base, device) + c->words,
                                 .counters = side_of(&f->counters, device),
                                 .call = {.add = 0x5eed},
                                 .here = here};
}

static void ragged_flow(void)
{
    for (dice_t dice; gpu_round(&dice, 60);) {
        flow_case_t c = {.ranks = (int32_t)dice_range(&dice, 1, RANKS_MAX)};
        c.bytes = 16 * dice_range(&dice, 1, dice_range(&dice, 0, 3) == 0 ? 900 : 40);
        c.words = (int64_t)EPX_FLOW_PARTS * c.ranks * 8;
        for (int32_t s = 0; s < c.ranks; s++)
            for (int32_t r = 0; r < c.ranks; r++)
                c.rows[s][r] =
                    (int32_t)(dice_range(&dice, 0, 4) == 0 ? 0
                                                           : dice_range(&dice, 0, gpu_small() ? 20 : 150));
        for (int32_t r = 0; r < c.ranks; r++)
            make_receiver(&c, r, &dice);
        for (int32_t r = 0; r < c.ranks; r++)
            make_sender(&c, r, &dice), make_table(&c, r);
        for (int32_t i = 0; i < 2 * c.ranks; i++) { /* all starts, then all that is behind waits */
            int32_t r = i % c.ranks, here = i >= c.ranks;
            epx_k_ragged_flow_t host = args_of(&c, r, here, 0), device = args_of(&c, r, here, 1);
            CHECK(epx_host_ragged_flow(&host, NULL) == EPX_OK, "host");
            CHECK(epx_cuda_ragged_flow(&device, NULL) == EPX_OK, "%s", epx_last_error());
        }
        for (int32_t r = 0; r < c.ranks; r++) {
            twin_same(&c.of[r].batch, "batch");
            twin_same(&c.of[r].base, "words and slot");
        }
    }
}

const gpu_test_t gpu_flow_tests[] = {{"ragged_flow", ragged_flow}, {NULL, NULL}};
