/*
 * Rows, sums and gradients: chains of fused multiply-adds from +0 in the plan's order.
 * SPDX-License-Identifier: Apache-2.0
 *
 *   assignment wire, pooled_wave: waves ascending, k ascending within;   ring: hops, k: the same, a hop being
 * a wave rank wire: partial sums per (wave, rank), k ascending, rounded once to the row type; then waves,
 * ranks ascending
 */
#include "support/oracle.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static unsigned char **rows_new(const problem_t *p, size_t row_bytes, int per_token)
{
    unsigned char **rows = calloc((size_t)p->ranks, sizeof(*rows));
    for (int s = 0; s < p->ranks; s++) {
        rows[s] = calloc((size_t)p->tokens[s] * (size_t)per_token + 1, row_bytes);
        cr_assert_not_null(rows[s]);
    }
    return rows;
}

/* 32 lanes, then a tree. */
static float dot(const problem_t *p, const void *a, const void *b)
{
    float lane[32];
    for (int l = 0; l < 32; l++) {
        lane[l] = 0;
        for (size_t h = (size_t)l; h < (size_t)p->width; h += 32) {
            lane[l] = fmaf(row_get(a, p->row_type, h), row_get(b, p->row_type, h), lane[l]);
        }
    }
    for (int step = 16; step >= 1; step /= 2) {
        for (int l = 0; l < step; l++)
            lane[l] += lane[l + step];
    }
    return lane[0];
}

/* Adds the token's rows that `owner` (-1: any) gave in one wave to the chain; with_weight: times their
 * weights. */
static int add_wave(const oracle_t *o, unsigned char **rows, int with_weight, int s, int64_t t, int wave,
                    int owner, float *sum)
{
    const problem_t *p = o->p;
    int added = 0;
    for (int k = 0; k < p->columns; k++) {
        const seat_t *seat = oracle_seat(o, s, t, k);
        if (seat->fate != KEPT || seat->wave != wave || (owner >= 0 && seat->owner != owner))
            continue;
        size_t a = (size_t)(t * p->columns + k);
        float weight = with_weight ? p->weights[s][a] : 1;
        const unsigned char *row = rows[s] + a * problem_row_bytes(p);
        for (size_t h = 0; h < (size_t)p->width; h++)
            sum[h] = fmaf(weight, row_get(row, p->row_type, h), sum[h]);
        added = 1;
    }
    return added;
}

static void sum_token(const oracle_t *o, unsigned char **rows, int with_weight, int s, int64_t t, float *sum,
                      float *part)
{
    const problem_t *p = o->p;
    size_t width = (size_t)p->width;
    memset(sum, 0, width * sizeof(float));
    for (int wave = 0; wave < o->waves; wave++) {
        if (!o->rank_wire) {
            add_wave(o, rows, with_weight, s, t, wave, -1, sum);
            continue;
        }
        for (int owner = 0; owner < p->ranks; owner++) {
            memset(part, 0, width * sizeof(float));
            if (!add_wave(o, rows, with_weight, s, t, wave, owner, part))
                continue;
            for (size_t h = 0; h < width; h++)
                sum[h] = fmaf(1, row_round(p->row_type, part[h]), sum[h]);
        }
    }
}

static void sum_all(const oracle_t *o, unsigned char **rows, int with_weight, unsigned char **out)
{
    const problem_t *p = o->p;
    epx_type_t type = oracle_out_type(p);
    float *sum = calloc((size_t)p->width * 2, sizeof(float));
    cr_assert_not_null(sum);
    for (int s = 0; s < p->ranks; s++) {
        for (int64_t t = 0; t < p->tokens[s]; t++) {
            sum_token(o, rows, with_weight, s, t, sum, sum + p->width);
            for (size_t h = 0; h < (size_t)p->width; h++) {
                row_set(out[s] + (size_t)t * (size_t)p->width * type_size(type), type, h, sum[h]);
            }
        }
    }
    free(sum);
}

/* What the experts make of one assignment, forward and back. */
static void expert_rows(oracle_t *o, int s, int64_t t, int k)
{
    const problem_t *p = o->p;
    const seat_t *seat = oracle_seat(o, s, t, k);
    size_t a = (size_t)(t * p->columns + k), bytes = problem_row_bytes(p);
    const unsigned char *x = p->x[s] + (size_t)t * bytes, *dout = p->dout[s] + (size_t)t * bytes;
    unsigned char *y = o->y[s] + a * bytes, *dy = o->dy[s] + a * bytes;
    if (seat->fate != KEPT)
        return;
    problem_expert(p, seat->expert, x, y);
    for (size_t h = 0; h < (size_t)p->width; h++) {
        row_set(dy, p->row_type, h, p->weights[s][a] * row_get(dout, p->row_type, h));
    }
    problem_expert_backward(p, seat->expert, dy, o->dx_row[s] + a * bytes);
    o->dweight[s][a] = dot(p, dout, y);
}

void oracle_sums(oracle_t *o)
{
    const problem_t *p = o->p;
    size_t out_bytes = (size_t)p->width * type_size(oracle_out_type(p));
    o->y = rows_new(p, problem_row_bytes(p), p->columns);
    o->dy = rows_new(p, problem_row_bytes(p), p->columns);
    o->dx_row = rows_new(p, problem_row_bytes(p), p->columns);
    o->out = rows_new(p, out_bytes, 1);
    o->dx = rows_new(p, out_bytes, 1);
    o->dweight = (float **)rows_new(p, sizeof(float), p->columns);
    for (int s = 0; s < p->ranks; s++) {
        for (int64_t t = 0; t < p->tokens[s]; t++) {
            for (int k = 0; k < p->columns; k++)
                expert_rows(o, s, t, k);
        }
    }
    sum_all(o, o->y, 1, o->out);
    sum_all(o, o->dx_row, 0, o->dx);
}
