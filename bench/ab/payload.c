/*
 * Rows that say whose they are, through the very group that is timed. SPDX-License-Identifier: Apache-2.0
 *
 * All numbers are small integers, so that every product and every sum is exact in fp32 whatever its order:
 * what comes back must be equal bit by bit, for any transport. Experts return their rows unchanged, so that
 *     out[t] = sum of weights of kept k times x[t],   dx[t] = the same sum times dout[t],
 *     dweight[t, k] = dout[t] . x[t], or 0 where dropped.
 * Who is kept is the transport's to say: receivers tell, and the library's own count must agree.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/ab/rank.h"
#include "tools/common/numbers.h"
#include "tools/common/program.h"
#include "train/fail.h"

typedef struct check {
    epx_ab_rank_t *self;
    epx_exchange_t *exchange;
    int64_t tokens, top_k, width, ranks; /* of each rank of the group; ranks of the group */
    int64_t waves;
    int32_t *ids;
    epx_real_t *weights, *x, *dout, *out, *dx, *dweights;
    epx_rows_t rows;
    epx_real_t **y;  /* [waves][rows_max, width] */
    int64_t **place; /* [waves][rows_max] global assignment of each row */
    uint64_t *kept;  /* one bit per assignment of the group, for each replica; summed over all ranks */
    int64_t kept_words;
    char *wrong;
} check_t;

/* ---- what is sent -------------------------------------------------------------------------------------------------- */

enum { LOW = 1024, INDEX_DIGITS = 3 };

/* Row of global token g: its number in three digits, then small numbers that depend on it. */
static epx_real_t x_at(int64_t g, int64_t h)
{
    if (h < INDEX_DIGITS)
        return (epx_real_t)(g >> (10 * h) & (LOW - 1));
    return (epx_real_t)(epx_mix64((uint64_t)(g * 131071 + h)) % LOW);
}

/* -1, 0 or 1, so that dot products stay exact. */
static epx_real_t dout_at(int64_t g, int64_t h)
{
    return (epx_real_t)((int)(epx_mix64(~(uint64_t)(g * 524287 + h)) % 3) - 1);
}

static int64_t expert_at(const check_t *c, int64_t g, int64_t k)
{
    int64_t experts = c->exchange->experts;
    return ((int64_t)(epx_mix64((uint64_t)g + 77) % (uint64_t)experts) + k) % experts;
}

static epx_real_t weight_at(int64_t g, int64_t k)
{
    return (epx_real_t)(1 + epx_mix64((uint64_t)(g * 64 + k)) % 8);
}

static void fill(check_t *c)
{
    int64_t first = c->self->group * c->tokens;
    for (int64_t t = 0; t < c->tokens; t++) {
        for (int64_t k = 0; k < c->top_k; k++) {
            c->ids[t * c->top_k + k] = (int32_t)expert_at(c, first + t, k);
            c->weights[t * c->top_k + k] = weight_at(first + t, k);
        }
        for (int64_t h = 0; h < c->width; h++) {
            c->x[t * c->width + h] = x_at(first + t, h);
            c->dout[t * c->width + h] = dout_at(first + t, h);
        }
    }
}

/* ---- what came ----------------------------------------------------------------------------------------------------- */

static void complain(check_t *c, const char *what, int64_t g, int64_t h, epx_real_t got, epx_real_t expected)
{
    if (c->wrong[0] == '\0')
        snprintf(c->wrong, EPX_AB_TEXT,
                 "%s of rank %lld, token %lld: element %lld is %.9g, not %.9g (seen on rank %lld)", what,
                 (long long)(g / c->tokens), (long long)(g % c->tokens), (long long)h, (double)got,
                 (double)expected, (long long)c->self->rank);
}

static int same_bits(epx_real_t a, epx_real_t b) { return memcmp(&a, &b, sizeof a) == 0; }

/* The token that a row says it is of; -1 for none. */
static int64_t token_of(const check_t *c, const epx_real_t *row)
{
    int64_t g = 0;
    for (int64_t h = 0; h < INDEX_DIGITS && h < c->width; h++) {
        if (!(row[h] >= 0 && row[h] < LOW))
            return -1;
        g |= (int64_t)row[h] << (10 * h);
    }
    return g < c->ranks * c->tokens ? g : -1;
}

static void look_at_row(check_t *c, int64_t wave, int64_t expert, int64_t at)
{
    const epx_real_t *row = c->rows.rows + at * c->width;
    int64_t g = token_of(c, row), k = 0;
    c->place[wave][at] = -1;
    while (g >= 0 && k < c->top_k && expert_at(c, g, k) != expert)
        k++;
    if (g < 0 || k == c->top_k) {
        if (c->wrong[0] == '\0')
            snprintf(c->wrong, EPX_AB_TEXT,
                     "a row came to expert %lld on rank %lld that nobody sent there (wave %lld)",
                     (long long)expert, (long long)c->self->rank, (long long)wave);
        return;
    }
    for (int64_t h = 0; h < c->width; h++)
        if (!same_bits(row[h], x_at(g, h)))
            complain(c, "a dispatched row", g, h, row[h], x_at(g, h));
    int64_t a = c->place[wave][at] = g * c->top_k + k;
    uint64_t *word = &c->kept[c->self->replica * c->kept_words + a / 32], bit = (uint64_t)1 << (a % 32);
    if (*word & bit && c->wrong[0] == '\0')
        snprintf(c->wrong, EPX_AB_TEXT, "the row of rank %lld, token %lld came to expert %lld twice",
                 (long long)(g / c->tokens), (long long)(g % c->tokens), (long long)expert);
    *word |= bit;
}

static void look_at_gradient_row(check_t *c, int64_t wave, int64_t at)
{
    const epx_real_t *row = c->rows.rows + at * c->width;
    int64_t a = c->place[wave][at];
    for (int64_t h = 0; a >= 0 && h < c->width; h++) {
        epx_real_t expected = weight_at(a / c->top_k, a % c->top_k) * dout_at(a / c->top_k, h);
        if (row[h] != expected)
            complain(c, "a gradient row", a / c->top_k, h, row[h], expected);
    }
}

static int each_row(check_t *c, int64_t wave, int backward)
{
    for (int64_t e = 0; e < c->exchange->local_experts; e++) {
        for (int64_t i = 0; i < c->rows.count[e]; i++) {
            int64_t at = c->rows.start[e] + i;
            if (at < 0 || at >= c->exchange->rows_max)
                return epx_train_fail(EPX_TRAIN_FAILED, "a batch names row %lld of %lld", (long long)at,
                                      (long long)c->exchange->rows_max);
            if (backward)
                look_at_gradient_row(c, wave, at);
            else
                look_at_row(c, wave, c->exchange->first_expert + e, at);
        }
    }
    return EPX_TRAIN_OK;
}

/* ---- the passes ---------------------------------------------------------------------------------------------------- */

static int forward(check_t *c)
{
    const epx_exchange_ops_t *ops = c->exchange->ops;
    size_t row_bytes = (size_t)(c->exchange->rows_max * c->width) * sizeof(epx_real_t);
    int code = ops->route(c->exchange, 0, c->ids, c->weights, c->tokens);
    if (code != EPX_TRAIN_OK)
        return code;
    c->waves = ops->waves(c->exchange, 0);
    c->y = epx_tool_alloc((size_t)c->waves + 1, sizeof *c->y);
    c->place = epx_tool_alloc((size_t)c->waves + 1, sizeof *c->place);
    for (int64_t w = 0; code == EPX_TRAIN_OK && w < c->waves; w++) {
        c->y[w] = epx_tool_alloc(1, row_bytes);
        c->place[w] = epx_tool_alloc((size_t)c->exchange->rows_max, sizeof **c->place);
        code = ops->dispatch(c->exchange, 0, w, c->x, &c->rows);
        if (code == EPX_TRAIN_OK)
            code = each_row(c, w, 0);
        memcpy(c->y[w], c->rows.rows, row_bytes);
        if (code == EPX_TRAIN_OK)
            code = ops->combine(c->exchange, 0, w, c->y[w], c->out);
    }
    return code;
}

static int backward(check_t *c)
{
    const epx_exchange_ops_t *ops = c->exchange->ops;
    int code = EPX_TRAIN_OK;
    for (int64_t w = 0; code == EPX_TRAIN_OK && w < c->waves; w++) {
        code = ops->combine_backward(c->exchange, 0, w, c->dout, c->y[w], &c->rows);
        if (code == EPX_TRAIN_OK)
            code = each_row(c, w, 1);
        if (code == EPX_TRAIN_OK)
            code = ops->dispatch_backward(c->exchange, 0, w, c->rows.rows, c->dx, c->dweights);
    }
    return code;
}

static int is_kept(const check_t *c, int64_t a)
{
    return c->kept[c->self->replica * c->kept_words + a / 32] >> (a % 32) & 1;
}

/* Sums of this rank's tokens. */
static void look_at_sums(check_t *c)
{
    int64_t first = c->self->group * c->tokens;
    for (int64_t t = 0; t < c->tokens; t++) {
        epx_real_t weight = 0, dot = 0;
        for (int64_t k = 0; k < c->top_k; k++)
            weight += is_kept(c, (first + t) * c->top_k + k) ? weight_at(first + t, k) : 0;
        for (int64_t h = 0; h < c->width; h++) {
            epx_real_t x = x_at(first + t, h), dout = dout_at(first + t, h);
            epx_real_t out = c->out[t * c->width + h], dx = c->dx[t * c->width + h];
            dot += x * dout;
            if (!same_bits(out, weight * x))
                complain(c, "the sum", first + t, h, out, weight * x);
            if (dx != weight * dout)
                complain(c, "the gradient sum", first + t, h, dx, weight * dout);
        }
        for (int64_t k = 0; k < c->top_k; k++) {
            epx_real_t expected = is_kept(c, (first + t) * c->top_k + k) ? dot : 0;
            if (c->dweights[t * c->top_k + k] != expected)
                complain(c, "the weights' gradient", first + t, k, c->dweights[t * c->top_k + k], expected);
        }
    }
}

/* The library's count of kept assignments is the number of rows that came. */
static int look_at_count(check_t *c)
{
    epx_plan_stats_t stats;
    int64_t counts[2] = {0, 0};
    int code = c->exchange->ops->stats(c->exchange, 0, &stats);
    counts[0] = code == EPX_TRAIN_OK ? stats.kept : 0;
    if (code == EPX_TRAIN_OK)
        code = c->exchange->ops->sum(c->exchange, counts, 1);
    for (int64_t i = 0; i < c->self->session->settings->replicas * c->kept_words; i++)
        counts[1] += __builtin_popcountll(c->kept[i]);
    if (code == EPX_TRAIN_OK && counts[0] != counts[1] && c->wrong[0] == '\0')
        snprintf(c->wrong, EPX_AB_TEXT, "the library counts %lld assignments as kept and %lld rows came",
                 (long long)counts[0], (long long)counts[1]);
    return code;
}

/* All ranks learn what the lowest rank found. */
static int share_findings(check_t *c)
{
    char *all = epx_tool_alloc((size_t)c->self->ranks, EPX_AB_TEXT);
    int code = epx_train_status(epx_comm_allgather(c->self->world, c->wrong, all, EPX_AB_TEXT));
    for (int64_t r = 0; code == EPX_TRAIN_OK && r < c->self->ranks; r++) {
        if (all[r * EPX_AB_TEXT] != '\0') {
            memcpy(c->wrong, all + r * EPX_AB_TEXT, EPX_AB_TEXT);
            break;
        }
    }
    free(all);
    return code;
}

/* ---- memory -------------------------------------------------------------------------------------------------------- */

static void take_memory(check_t *c)
{
    size_t assignments = (size_t)(c->tokens * c->top_k), elements = (size_t)(c->tokens * c->width);
    size_t local = (size_t)c->exchange->local_experts + 1;
    c->ids = epx_tool_alloc(assignments, sizeof *c->ids);
    c->weights = epx_tool_alloc(assignments, sizeof *c->weights);
    c->dweights = epx_tool_alloc(assignments, sizeof *c->dweights);
    c->x = epx_tool_alloc(elements, sizeof *c->x);
    c->dout = epx_tool_alloc(elements, sizeof *c->dout);
    c->out = epx_tool_alloc(elements, sizeof *c->out);
    c->dx = epx_tool_alloc(elements, sizeof *c->dx);
    c->rows.rows = epx_tool_alloc((size_t)(c->exchange->rows_max * c->width), sizeof(epx_real_t));
    c->rows.start = epx_tool_alloc(local, sizeof(int64_t));
    c->rows.count = epx_tool_alloc(local, sizeof(int64_t));
    c->kept_words = (c->ranks * c->tokens * c->top_k + 31) / 32;
    c->kept = epx_tool_alloc((size_t)(c->self->session->settings->replicas * c->kept_words), sizeof *c->kept);
}

static void free_memory(check_t *c)
{
    for (int64_t w = 0; w < c->waves; w++) {
        free(c->y[w]);
        free(c->place[w]);
    }
    void *const all[] = {c->y,   c->place, c->ids,       c->weights,    c->dweights,   c->x,   c->dout,
                         c->out, c->dx,    c->rows.rows, c->rows.start, c->rows.count, c->kept};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

int epx_ab_check_payload(epx_ab_rank_t *self, char *wrong)
{
    epx_exchange_t *exchange = epx_trainer_model(self->trainer)->exchange;
    check_t c = {.self = self,
                 .exchange = exchange,
                 .tokens = exchange->tokens_max,
                 .top_k = exchange->top_k,
                 .width = exchange->width,
                 .ranks = self->session->settings->ep,
                 .wrong = wrong};
    memset(wrong, 0, EPX_AB_TEXT);
    take_memory(&c);
    fill(&c);
    int code = forward(&c);
    if (code == EPX_TRAIN_OK)
        code = backward(&c);
    int64_t words = self->session->settings->replicas * c.kept_words;
    if (code == EPX_TRAIN_OK)
        code = epx_train_status(epx_comm_allreduce(self->world, c.kept, words, EPX_NUMBER_INT64,
                                                   EPX_SUM)); /* 32 bits in 64: none meet */
    if (code == EPX_TRAIN_OK) {
        look_at_sums(&c);
        code = look_at_count(&c);
    }
    if (code == EPX_TRAIN_OK)
        code = share_findings(&c);
    free_memory(&c);
    return code;
}
