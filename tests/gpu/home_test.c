/* ragged_home: ranks side by side on one GPU, whose calls come in any order. SPDX-License-Identifier:
 * Apache-2.0 */
#include <string.h>

#include <epx/kernels_ragged.h>

#include "gpu/check.h"
#include "kernels/cuda/table.h"
#include "kernels/host/table.h"

enum { RANKS_MAX = 5, TOKENS_MAX = 200, Y_ROWS = 60, GAP = 3, ROWS_MAX = RANKS_MAX * (TOKENS_MAX + GAP) };

/* What one rank has. base: return rows, then the words. slot: lists of what it sends; own: of what stays. */
typedef struct home_rank {
    twin_t base, y, out, runs, rows, slot_first, slot_count, slot_list, slot_weights;
    twin_t start, count, own_base, own_first, own_count, own_list, own_weights, home, tokens;
    twin_t used, dst;
    int64_t slot_rows, slot_entries;
} home_rank_t;

typedef struct home_case {
    int32_t ranks, width, columns, streams, user_streams;
    epx_type_t type;
    int64_t bytes, words;
    uint8_t places[RANKS_MAX][TOKENS_MAX][RANKS_MAX]; /* [home][token][sender]: terms; 0: no row */
    int32_t tokens[RANKS_MAX];
    home_rank_t of[RANKS_MAX];
} home_case_t;

static int32_t *ints(const twin_t *t) { return (int32_t *)(void *)t->host; }
static int64_t *longs(const twin_t *t) { return (int64_t *)(void *)t->host; }
static float *floats(const twin_t *t) { return (float *)(void *)t->host; }
static epx_run_t *runs_of(const twin_t *t) { return (epx_run_t *)(void *)t->host; }

static void make_rank(home_case_t *c, int32_t r, dice_t *dice)
{
    home_rank_t *f = &c->of[r];
    size_t entries = (size_t)ROWS_MAX * 40;
    c->tokens[r] =
        (int32_t)(dice_range(dice, 0, 9) == 0 ? 0 : dice_range(dice, 1, gpu_small() ? 20 : TOKENS_MAX));
    int32_t few = (int32_t)dice_range(dice, 0, 3); /* some ranks are seldom asked */
    for (int32_t t = 0; t < c->tokens[r]; t++)
        for (int32_t q = 0; q < c->ranks; q++)
            c->places[r][t][q] = (uint8_t)(q != few || dice_range(dice, 0, 40) == 0
                                               ? dice_range(dice, 0, dice_range(dice, 0, 60) == 0 ? 40 : 4)
                                               : 0);
    f->base = twin_make((size_t)(c->words + (int64_t)EPX_HOME_STREAMS * c->ranks * 8));
    f->y = twin_make((size_t)(Y_ROWS * c->bytes)), f->out = twin_make((size_t)(c->tokens[r] * c->bytes) + 16);
    f->runs = twin_make((size_t)c->ranks * sizeof(epx_run_t)), f->rows = twin_make((size_t)c->ranks * 8);
    f->slot_first = twin_make((size_t)ROWS_MAX * 4), f->slot_count = twin_make((size_t)ROWS_MAX * 4);
    f->slot_list = twin_make(entries * 4), f->slot_weights = twin_make(entries * 4);
    f->start = twin_make((size_t)c->ranks * 8), f->count = twin_make((size_t)c->ranks * 8);
    f->own_base = twin_make(8);
    f->own_first = twin_make((size_t)ROWS_MAX * 4), f->own_count = twin_make((size_t)ROWS_MAX * 4);
    f->own_list = twin_make(entries * 4), f->own_weights = twin_make(entries * 4);
    f->home = twin_make((size_t)(c->tokens[r] * c->columns) * 4 + 4), f->tokens = twin_make(8);
    f->used = twin_make((size_t)EPX_HOME_USERS * 4);
    memset(f->used.host, 0x7f, f->used.bytes);
    memset(f->home.host, 0xff, f->home.bytes);
    memset(f->base.host + c->words, 0, f->base.bytes - (size_t)c->words);
    twin_fill_numbers(&f->y, c->type, dice);
    longs(&f->tokens)[0] = c->tokens[r];
    longs(&f->own_base)[0] = dice_range(dice, 0, 100);
}

/* One row of sender q for home r, at return row `row`, in q's slot or, where it stays, in r's own lists. */
static void make_row(home_case_t *c, int32_t q, int32_t r, int64_t row, int32_t terms, int64_t *own_entries,
                     dice_t *dice)
{
    home_rank_t *from = &c->of[q], *to = &c->of[r];
    int mine = q == r;
    int64_t entry = mine ? *own_entries : from->slot_entries;
    int32_t *list = ints(mine ? &to->own_list : &from->slot_list);
    float *weights = floats(mine ? &to->own_weights : &from->slot_weights);
    if (mine) {
        ints(&to->own_first)[row] = (int32_t)(entry - longs(&to->start)[r] + longs(&to->own_base)[0]);
        ints(&to->own_count)[row] = terms;
        *own_entries += terms;
    } else {
        ints(&from->slot_first)[from->slot_rows] = (int32_t)entry;
        ints(&from->slot_count)[from->slot_rows++] = terms;
        from->slot_entries += terms;
    }
    for (int32_t x = 0; x < terms; x++) {
        list[entry + x] = (int32_t)dice_range(dice, 0, Y_ROWS - 1);
        weights[entry + x] = (float)dice_range(dice, -100, 100) / 64;
    }
}

/* All rows that come home to r: regions by sender, with room left between them. */
static void make_home(home_case_t *c, int32_t r, dice_t *dice)
{
    home_rank_t *to = &c->of[r];
    int64_t row = dice_range(dice, 0, GAP), own_entries = 0;
    for (int32_t q = 0; q < c->ranks; q++) {
        int64_t first = row, slot = c->of[q].slot_rows;
        longs(&to->start)[q] = first;
        for (int32_t t = 0; t < c->tokens[r]; t++) {
            if (c->places[r][t][q] == 0)
                continue;
            int32_t *home = ints(&to->home) + (int64_t)t * c->columns;
            while (*home >= 0)
                home++;
            *home = (int32_t)row;
            make_row(c, q, r, row++, c->places[r][t][q], &own_entries, dice);
        }
        int64_t n = row - first;
        longs(&to->count)[q] = n;
        longs(&c->of[q].rows)[r] = n;
        runs_of(&c->of[q].runs)[r] = (epx_run_t){
            .first = slot, .row = first, .peer = r, .rows = (int32_t)(n + dice_range(dice, 0, 2))};
        row += dice_range(dice, 0, GAP - 1);
    }
}

static void send_rank(home_case_t *c, int32_t r)
{
    home_rank_t *f = &c->of[r];
    const twin_t *all[] = {&f->base,        &f->y,          &f->out,       &f->runs,         &f->rows,
                           &f->slot_first,  &f->slot_count, &f->slot_list, &f->slot_weights, &f->start,
                           &f->count,       &f->own_base,   &f->own_first, &f->own_count,    &f->own_list,
                           &f->own_weights, &f->home,       &f->tokens,    &f->used};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        twin_send(all[i]);
    void *host[RANKS_MAX];
    f->dst = twin_make((size_t)c->ranks * sizeof(void *));
    for (int32_t q = 0; q < c->ranks; q++) {
        host[q] = c->of[q].base.host;
        ((void **)(void *)f->dst.host)[q] = c->of[q].base.device;
    }
    twin_send(&f->dst);
    memcpy(f->dst.host, host, (size_t)c->ranks * sizeof(void *));
}

static epx_k_ragged_home_t args_of(const home_case_t *c, int32_t r, int here, int device)
{
    const home_rank_t *f = &c->of[r];
    return (epx_k_ragged_home_t){.dst = side_of(&f->dst, device),
                                 .rank = r,
                                 .ranks = c->ranks,
                                 .words = c->words,
                                 .row_bytes = c->bytes,
                                 .width = c->width,
                                 .columns = c->columns,
                                 .row_type = c->type,
                                 .y = side_of(&f->y, device),
                                 .out = side_of(&f->out, device),
                                 .runs = side_of(&f->runs, device),
                                 .rows = side_of(&f->rows, device),
                                 .first = side_of(&f->slot_first, device),
                                 .count = side_of(&f->slot_count, device),
                                 .list = side_of(&f->slot_list, device),
                                 .weights = side_of(&f->slot_weights, device),
                                 .home_start = side_of(&f->start, device),
                                 .home_count = side_of(&f->count, device),
                                 .own_base = side_of(&f->own_base, device),
                                 .own_first = side_of(&f->own_first, device),
                                 .own_count = side_of(&f->own_count, device),
                                 .own_list = side_of(&f->own_list, device),
                                 .own_weights = side_of(&f->own_weights, device),
                                 .home = side_of(&f->home, device),
                                 .tokens = side_of(&f->tokens, device),
                                 .used = side_of(&f->used, device),
                                 .call = {.add = 0x5eed + (uint64_t)here},
                                 .here = here,
                                 .streams = c->streams,
                                 .user_streams = c->user_streams};
}

/* ---- what has come only in part ---- */

enum { PIECE = 3584, GRAIN = 128 };
static unsigned char all_of[(size_t)RANKS_MAX * EPX_HOME_STREAMS * 8 + (size_t)ROWS_MAX * 7200 * 4];

static uint64_t *word_of(const home_case_t *c, int32_t r, int32_t sender, int32_t stream)
{
    return (uint64_t *)(void *)(c->of[r].base.host + c->words) + (int64_t)sender * EPX_HOME_STREAMS + stream;
}

/* Of each sender's streams some end early at rank r: words tell so, and what they do not tell of is not
 * there. */
static void hold_back(home_case_t *c, int32_t r, dice_t *dice)
{
    home_rank_t *to = &c->of[r];
    int64_t cut = (c->bytes - 1) / PIECE + 1, each = (((c->bytes - 1) / GRAIN) / cut + 1) * GRAIN;
    memcpy(all_of, to->base.host, to->base.bytes);
    for (int32_t s = 0; s < c->ranks; s++) {
        int some = dice_range(dice, 0, 2) > 0;
        for (int32_t w = 0; w < c->streams && s != r && some; w++) {
            uint64_t *word = word_of(c, r, s, w), rounds = *word & 0xffff;
            if (rounds > 0 && dice_range(dice, 0, 3) == 0)
                *word -= (uint64_t)dice_range(dice, 1, (int64_t)rounds);
        }
        for (int64_t unit = 0; unit < longs(&to->count)[s] * cut && s != r; unit++) {
            int64_t from = unit % cut * each, n = from + each < c->bytes ? each : c->bytes - from,
                    row = longs(&to->start)[s] + unit / cut;
            if (n > 0 &&
                (*word_of(c, r, s, (int32_t)(unit % c->streams)) & 0xffff) <= (uint64_t)(unit / c->streams))
                memset(to->base.host + row * c->bytes + from, 0x5a, (size_t)n);
        }
    }
    twin_send(&to->base);
}

static void let_come(home_case_t *c, int32_t r)
{
    memcpy(c->of[r].base.host, all_of, c->of[r].base.bytes);
    twin_send(&c->of[r].base);
}

static void call(home_case_t *c, int32_t r, int here)
{
    epx_k_ragged_home_t host = args_of(c, r, here, 0), device = args_of(c, r, here, 1);
    CHECK(epx_host_ragged_home(&host, NULL) == EPX_OK, "host");
    CHECK(epx_cuda_ragged_home(&device, NULL) == EPX_OK, "%s", epx_last_error());
}

static void ragged_home(void)
{
    static const epx_type_t types[] = {EPX_FP32, EPX_BF16, EPX_FP16};
    static home_case_t c;
    for (dice_t dice; gpu_round(&dice, 40);) {
        memset(&c, 0, sizeof(c));
        c.ranks = (int32_t)dice_range(&dice, 1, RANKS_MAX), c.type = types[dice_range(&dice, 0, 2)];
        c.columns = c.ranks + (int32_t)dice_range(&dice, 0, 3);
        c.width = 8 * (int32_t)dice_range(&dice, 1, dice_range(&dice, 0, 3) == 0 ? 900 : 40);
        c.streams = (int32_t)dice_range(&dice, 1, dice_range(&dice, 0, 1) ? 20 : EPX_HOME_STREAMS);
        c.user_streams = (int32_t)dice_range(&dice, 1, dice_range(&dice, 0, 1) ? 20 : EPX_HOME_USERS);
        c.bytes = c.width * (int64_t)type_size(c.type), c.words = ROWS_MAX * c.bytes;
        for (int32_t r = 0; r < c.ranks; r++)
            make_rank(&c, r, &dice);
        for (int32_t r = 0; r < c.ranks; r++)
            make_home(&c, r, &dice);
        for (int32_t r = 0; r < c.ranks; r++)
            send_rank(&c, r);
        for (int32_t r = 0; r < c.ranks; r++) {
            hold_back(&c, r, &dice);
            call(&c, r, 0);
            let_come(&c, r);
            for (int32_t q = 0; q < c.ranks; q++)
                twin_same_numbers(&c.of[q].base, c.type, "what a start has sent");
        }
        for (int32_t r = 0; r < c.ranks; r++)
            call(&c, r, 1);
        for (int32_t r = 0; r < c.ranks; r++) {
            twin_same_numbers(&c.of[r].out, c.type, "out");
            twin_same_numbers(&c.of[r].base, c.type, "return rows and words");
        }
    }
}

const gpu_test_t gpu_home_tests[] = {{"ragged_home", ragged_home}, {NULL, NULL}};
