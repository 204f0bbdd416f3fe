/*
 * pooled_wave: each sender decides alone, then each receiver decides alone. SPDX-License-Identifier:
 * Apache-2.0
 *
 *   P(d) = max(1, ceil((A_max * El(d)) * cs / (E*W)))      R = max(1, ceil((S * A_max) * cf / (E*W)))
 *   sender's limit      min(P(d), ceil((V(s) * El(d)) * cs / (E*W)))
 *   receiver's limit    min(R, ceil(V * cf / (E*W)))
 *   dropless: P = ceil(A_max / W), R = S * P, and these are the limits
 */
#include "support/oracle.h"

#include <criterion/criterion.h>
#include <stdlib.h>

typedef struct gates {
    oracle_t *o;
    int n;             /* virtual ranks */
    int waves;         /* W, the divisor; extra_wave may take more of them */
    int64_t r, stride; /* R, and rows from one expert's first row to the next's */
} gates_t;

static int64_t at_least_1(int64_t value) { return value < 1 ? 1 : value; }

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t slots_of(const gates_t *g, int d)
{
    const problem_t *p = g->o->p;
    int64_t a_max = oracle_assignments_max(g->o), owned = oracle_owned(g->o, d);
    if (owned == 0)
        return 0;
    if (p->arm.dropless)
        return (a_max + g->waves - 1) / g->waves;
    return at_least_1(oracle_ceil(a_max * owned, p->cs, (int64_t)p->experts * g->waves));
}

static int64_t rows_of_expert(const gates_t *g)
{
    const problem_t *p = g->o->p;
    int64_t a_max = oracle_assignments_max(g->o);
    if (p->arm.dropless)
        return g->n * ((a_max + g->waves - 1) / g->waves);
    return at_least_1(oracle_ceil(g->n * a_max, p->cf, (int64_t)p->experts * g->waves));
}

static int64_t sender_limit(const gates_t *g, int v, int d)
{
    const problem_t *p = g->o->p;
    if (p->arm.dropless)
        return slots_of(g, d);
    int64_t product = oracle_valid(g->o, v, -1) * oracle_owned(g->o, d);
    return smaller(slots_of(g, d), oracle_ceil(product, p->cs, (int64_t)p->experts * g->waves));
}

static int64_t receiver_limit(const gates_t *g)
{
    const problem_t *p = g->o->p;
    if (p->arm.dropless)
        return g->r;
    return smaller(g->r, oracle_ceil(oracle_valid(g->o, -1, -1), p->cf, (int64_t)p->experts * g->waves));
}

/* Takes the next ordinal of the destination: a wave by striping, a slot behind it; or leaves the seat
 * refused. */
static int try_seat(const gates_t *g, seat_t *seat, int64_t ordinal, int64_t limit)
{
    if (ordinal / g->waves >= limit)
        return 0;
    seat->fate = KEPT;
    seat->wave = (int)(ordinal % g->waves);
    seat->slot = ordinal / g->waves;
    return 1;
}

/* Round x: every token's first refused assignment proposes choice K + x. */
static void spill_round(const gates_t *g, int v, int x, int64_t *kept, const int64_t *limit)
{
    const problem_t *p = g->o->p;
    int s = v / p->splits;
    for (int64_t t = 0; t < p->tokens[s]; t++) {
        if (oracle_sender(g->o, s, t) != v)
            continue;
        seat_t *refused = NULL, *choice = oracle_seat(g->o, s, t, p->top_k + x);
        for (int k = 0; k < p->top_k && !refused; k++) {
            if (oracle_seat(g->o, s, t, k)->fate == REFUSED)
                refused = oracle_seat(g->o, s, t, k);
        }
        if (!refused || choice->expert < 0)
            continue;
        int d = oracle_owner(g->o, choice->expert);
        if (try_seat(g, choice, kept[d], limit[d])) {
            kept[d]++;
            refused->fate = REPLACED;
        }
    }
}

static void gate_1(const gates_t *g, int v)
{
    const problem_t *p = g->o->p;
    int s = v / p->splits;
    int64_t *seen = calloc((size_t)g->n, sizeof(*seen)), *kept = calloc((size_t)g->n, sizeof(*kept));
    int64_t *limit = calloc((size_t)g->n, sizeof(*limit));
    for (int d = 0; d < g->n; d++)
        limit[d] = sender_limit(g, v, d);
    for (int64_t t = 0; t < p->tokens[s]; t++) {
        if (oracle_sender(g->o, s, t) != v)
            continue;
        for (int k = 0; k < p->top_k; k++) {
            seat_t *seat = oracle_seat(g->o, s, t, k);
            if (seat->fate == SKIPPED)
                continue;
            int d = oracle_owner(g->o, seat->expert);
            kept[d] += try_seat(g, seat, seen[d]++, limit[d]);
        }
    }
    for (int x = 0; x < p->arm.spill; x++)
        spill_round(g, v, x, kept, limit);
    free(limit);
    free(kept);
    free(seen);
}

/* The next assignment of (v, e) in (token, k) order that has no wave yet. */
static seat_t *next_waiting(const gates_t *g, int v, int e)
{
    const problem_t *p = g->o->p;
    int s = v / p->splits;
    for (int64_t t = 0; t < p->tokens[s]; t++) {
        if (oracle_sender(g->o, s, t) != v)
            continue;
        for (int k = 0; k < p->top_k; k++) {
            seat_t *seat = oracle_seat(g->o, s, t, k);
            if (seat->fate == REFUSED && seat->expert == e)
                return seat;
        }
    }
    return NULL;
}

/* extra_wave, one destination: experts ascending, senders ascending, as much as P and R let through; again
 * until empty. */
static int schedule(const gates_t *g, int d)
{
    int64_t p_d = slots_of(g, d), *used = calloc((size_t)g->n, sizeof(*used));
    int wave = 0;
    for (int moved = 1; moved; wave += moved) {
        moved = 0;
        for (int v = 0; v < g->n; v++)
            used[v] = 0;
        for (int e = 0; e < g->o->p->experts; e++) {
            if (oracle_owner(g->o, e) != d)
                continue;
            int64_t taken = 0;
            for (int v = 0; v < g->n; v++) {
                for (seat_t *seat; used[v] < p_d && taken < g->r && (seat = next_waiting(g, v, e));) {
                    seat->fate = KEPT;
                    seat->wave = wave;
                    seat->slot = used[v]++;
                    taken++;
                    moved = 1;
                }
            }
        }
    }
    free(used);
    return wave;
}

/* Receiver: slot 0 of every source, slot 1 of every source, ... */
static void gate_2(const gates_t *g, int d, int wave, int64_t limit)
{
    const problem_t *p = g->o->p;
    int64_t p_d = slots_of(g, d), *ordinal = calloc((size_t)p->experts, sizeof(*ordinal));
    seat_t **pool = calloc((size_t)(p_d * g->n) + 1, sizeof(*pool));
    for (int s = 0; s < p->ranks; s++) {
        for (int64_t a = 0; a < p->tokens[s] * p->columns; a++) {
            seat_t *seat = &g->o->seat[s][a];
            if (seat->fate != KEPT || seat->wave != wave || oracle_owner(g->o, seat->expert) != d)
                continue;
            seat_t **cell = &pool[seat->slot * g->n + oracle_sender(g->o, s, seat->token)];
            cr_assert(seat->slot < p_d && *cell == NULL, "the oracle gave one slot twice");
            *cell = seat;
        }
    }
    for (int64_t i = 0; i < p_d * g->n; i++) {
        seat_t *seat = pool[i];
        if (!seat)
            continue;
        int64_t j = ordinal[seat->expert]++;
        if (j < limit)
            seat->place = g->o->local[seat->expert] * g->stride + j;
        else
            seat->fate = REFUSED_RECEIVER;
    }
    free(pool);
    free(ordinal);
}

void oracle_pooled(oracle_t *o)
{
    const problem_t *p = o->p;
    gates_t g = {.o = o, .n = p->ranks * p->splits, .waves = p->arm.waves};
    g.r = rows_of_expert(&g);
    g.stride = (g.r + p->row_align - 1) / p->row_align * p->row_align;
    o->waves = g.waves;
    int64_t limit = receiver_limit(&g);
    if (p->arm.overflow == EPX_OVERFLOW_EXTRA_WAVE) {
        o->waves = 1; /* a pass has a wave even when nothing moves: out must become zero */
        limit = g.r;
        for (int d = 0; d < g.n; d++) {
            int waves = schedule(&g, d);
            if (waves > o->waves)
                o->waves = waves;
        }
    } else {
        for (int v = 0; v < g.n; v++)
            gate_1(&g, v);
    }
    for (int wave = 0; wave < o->waves; wave++) {
        for (int d = 0; d < g.n; d++)
            gate_2(&g, d, wave, limit);
    }
}
