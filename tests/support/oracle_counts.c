/*
 * ragged and ring: everyone sees the same table of counts. SPDX-License-Identifier: Apache-2.0
 *
 *   a chunk of G experts:  phys = G * max(1, ceil((S*A_max) * cf / E))
 *                          cap = clip(ceil((V*G) * cf / E), G, phys)
 *   dropless:              cap = c = V
 */
#include "support/oracle.h"

#include <stdlib.h>

typedef struct chunk {
    oracle_t *o;
    int n, d, part, parts; /* virtual ranks; chunk `part` of `parts` of virtual owner d */
    int64_t valid, cap, c;
} chunk_t;

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* The chunk of its (virtual) owner that an expert is in. */
static int part_of(const oracle_t *o, int expert, int parts)
{
    int d = oracle_owner(o, expert), before = 0;
    for (int e = 0; e < expert; e++)
        before += oracle_owner(o, e) == d;
    return oracle_block(before, oracle_owned(o, d), parts);
}

static int in_chunk(const chunk_t *ch, int e)
{
    return oracle_owner(ch->o, e) == ch->d && part_of(ch->o, e, ch->parts) == ch->part;
}

/* Keeps the first `quota` assignments of sender v to expert e in (token, k) order. */
static void keep_first(const chunk_t *ch, int v, int e, int64_t quota)
{
    const problem_t *p = ch->o->p;
    int s = v / p->splits;
    for (int64_t t = 0; t < p->tokens[s] && quota > 0; t++) {
        if (oracle_sender(ch->o, s, t) != v)
            continue;
        for (int k = 0; k < p->top_k && quota > 0; k++) {
            seat_t *seat = oracle_seat(ch->o, s, t, k);
            if (seat->expert != e)
                continue;
            seat->fate = KEPT;
            quota--;
        }
    }
}

static void keep_prefix(const chunk_t *ch)
{
    int64_t left = ch->cap;
    for (int e = 0; e < ch->o->p->experts; e++) {
        if (!in_chunk(ch, e))
            continue;
        for (int v = 0; v < ch->n; v++) {
            int64_t quota = smaller(oracle_valid(ch->o, v, e), left);
            left -= quota;
            keep_first(ch, v, e, quota);
        }
    }
}

/* How many rows each expert of the chunk gets: up to c each; what some leave of their c goes to the others in
 * ascending order. */
static void waterfill(const chunk_t *ch, int64_t *share)
{
    int64_t left = 0;
    for (int e = 0; e < ch->o->p->experts; e++) {
        if (!in_chunk(ch, e))
            continue;
        share[e] = smaller(oracle_valid(ch->o, -1, e), ch->c);
        left += ch->c - share[e];
    }
    for (int e = 0; e < ch->o->p->experts; e++) {
        if (!in_chunk(ch, e))
            continue;
        int64_t more = smaller(oracle_valid(ch->o, -1, e) - share[e], left);
        share[e] += more;
        left -= more;
    }
}

static void keep_waterfill(const chunk_t *ch, int e, int64_t share)
{
    for (int v = 0; v < ch->n; v++) {
        int64_t quota = smaller(oracle_valid(ch->o, v, e), share);
        share -= quota;
        keep_first(ch, v, e, quota);
    }
}

/* Whole parts of share * n / N first; then one each to the largest remainders, lower senders first among
 * equals. */
static void keep_fair(const chunk_t *ch, int e, int64_t share)
{
    int64_t all = oracle_valid(ch->o, -1, e), left = share;
    int64_t *quota = calloc((size_t)ch->n, sizeof(*quota)), *rest = calloc((size_t)ch->n, sizeof(*rest));
    for (int v = 0; v < ch->n && all > 0; v++) {
        int64_t product = share * oracle_valid(ch->o, v, e);
        quota[v] = product / all;
        rest[v] = product % all;
        left -= quota[v];
    }
    for (; left > 0; left--) {
        int best = 0;
        for (int v = 1; v < ch->n; v++)
            best = rest[v] > rest[best] ? v : best;
        quota[best]++;
        rest[best] = -1;
    }
    for (int v = 0; v < ch->n; v++)
        keep_first(ch, v, e, quota[v]);
    free(rest);
    free(quota);
}

static void accept_chunk(chunk_t *ch)
{
    const problem_t *p = ch->o->p;
    int64_t experts = 0, a_max = oracle_assignments_max(ch->o),
            *share = calloc((size_t)p->experts, sizeof(*share));
    for (int e = 0; e < p->experts; e++)
        experts += in_chunk(ch, e);
    int64_t one = oracle_ceil(ch->n * a_max, p->cf, p->experts), phys = experts * (one < 1 ? 1 : one);
    ch->cap = oracle_ceil(ch->valid * experts, p->cf, p->experts);
    if (ch->cap < experts)
        ch->cap = experts;
    if (ch->cap > phys)
        ch->cap = phys;
    ch->c = oracle_ceil(ch->valid, p->cf, p->experts);
    if (p->arm.dropless)
        ch->cap = ch->c = ch->valid;
    if (p->arm.accept == EPX_ACCEPT_PREFIX) {
        keep_prefix(ch);
    } else {
        waterfill(ch, share);
        for (int e = 0; e < p->experts; e++) {
            if (!in_chunk(ch, e))
                continue;
            if (p->arm.accept == EPX_ACCEPT_WATERFILL)
                keep_waterfill(ch, e, share[e]);
            else
                keep_fair(ch, e, share[e]);
        }
    }
    free(share);
}

static void accept_all(oracle_t *o, int parts)
{
    int n = o->p->ranks * o->p->splits;
    int64_t valid = oracle_valid(o, -1, -1);
    for (int d = 0; d < n; d++) {
        for (int part = 0; part < parts; part++) {
            chunk_t ch = {.o = o, .n = n, .d = d, .part = part, .parts = parts, .valid = valid};
            accept_chunk(&ch);
        }
    }
}

/* Rows of rank r's batch of one wave: experts ascending, senders, tokens, k ascending; experts start aligned.
 */
static void place_rows(oracle_t *o, int r, int wave)
{
    const problem_t *p = o->p;
    int64_t place = 0;
    for (int e = 0; e < p->experts; e++) {
        if (p->owner[e] != r)
            continue;
        place = (place + p->row_align - 1) / p->row_align * p->row_align;
        for (int s = 0; s < p->ranks; s++) {
            for (int64_t a = 0; a < p->tokens[s] * p->columns; a++) {
                seat_t *seat = &o->seat[s][a];
                if (seat->fate == KEPT && seat->expert == e && seat->wave == wave)
                    seat->place = place++;
            }
        }
    }
}

static void place_all(oracle_t *o)
{
    for (int r = 0; r < o->p->ranks; r++) {
        for (int wave = 0; wave < o->waves; wave++)
            place_rows(o, r, wave);
    }
}

void oracle_ragged(oracle_t *o)
{
    const problem_t *p = o->p;
    o->waves = p->arm.waves;
    accept_all(o, o->waves);
    for (int s = 0; s < p->ranks; s++) {
        for (int64_t a = 0; a < p->tokens[s] * p->columns; a++) {
            seat_t *seat = &o->seat[s][a];
            if (seat->fate == KEPT)
                seat->wave = part_of(o, seat->expert, o->waves);
        }
    }
    place_all(o);
}

/* In hop h rank r holds the block of rank r - h. */
void oracle_ring(oracle_t *o)
{
    const problem_t *p = o->p;
    o->waves = p->ranks;
    accept_all(o, 1);
    for (int s = 0; s < p->ranks; s++) {
        for (int64_t a = 0; a < p->tokens[s] * p->columns; a++) {
            seat_t *seat = &o->seat[s][a];
            if (seat->fate == KEPT)
                seat->wave = (seat->owner - s + p->ranks) % p->ranks;
        }
    }
    place_all(o);
}
