/* SPDX-License-Identifier: Apache-2.0 */
#include "support/oracle.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

seat_t *oracle_seat(const oracle_t *o, int rank, int64_t token, int k)
{
    return &o->seat[rank][token * o->p->columns + k];
}

int64_t oracle_start(const oracle_t *o, int rank, int wave, int local)
{
    return o->start[((size_t)rank * (size_t)o->waves + (size_t)wave) * (size_t)o->local_max + (size_t)local];
}

int64_t oracle_count(const oracle_t *o, int rank, int wave, int local)
{
    return o->count[((size_t)rank * (size_t)o->waves + (size_t)wave) * (size_t)o->local_max + (size_t)local];
}

epx_type_t oracle_out_type(const problem_t *p) { return p->out_type ? p->out_type : p->row_type; }

int oracle_block(int64_t i, int64_t n, int parts)
{
    int64_t end = 0;
    for (int part = 0; part < parts; part++) {
        end += n / parts + (part < n % parts);
        if (i < end)
            return part;
    }
    return -1;
}

int64_t oracle_ceil(int64_t product, double factor, int64_t divisor)
{
    return (int64_t)ceil((double)product * factor / (double)divisor);
}

int oracle_sender(const oracle_t *o, int rank, int64_t token)
{
    int m = o->p->splits;
    return m == 1 ? rank : rank * m + oracle_block(token, o->p->tokens[rank], m);
}

int oracle_owner(const oracle_t *o, int expert)
{
    int rank = o->p->owner[expert], m = o->p->splits;
    return m == 1 ? rank : rank * m + oracle_block(o->local[expert], o->locals[rank], m);
}

int oracle_owned(const oracle_t *o, int virtual_rank)
{
    int owned = 0;
    for (int e = 0; e < o->p->experts; e++)
        owned += oracle_owner(o, e) == virtual_rank;
    return owned;
}

int64_t oracle_valid(const oracle_t *o, int virtual_rank, int expert)
{
    const problem_t *p = o->p;
    int64_t valid = 0;
    for (int s = 0; s < p->ranks; s++) {
        if (virtual_rank >= 0 && virtual_rank / p->splits != s)
            continue;
        for (int64_t t = 0; t < p->tokens[s]; t++) {
            if (virtual_rank >= 0 && oracle_sender(o, s, t) != virtual_rank)
                continue;
            for (int k = 0; k < p->top_k; k++) {
                int64_t id = p->ids[s][t * p->columns + k];
                valid += id >= 0 && (expert < 0 || id == expert);
            }
        }
    }
    return valid;
}

int64_t oracle_assignments_max(const oracle_t *o)
{
    int64_t m = o->p->splits;
    return (o->p->tokens_max + m - 1) / m * o->p->top_k;
}

static void seats_new(oracle_t *o)
{
    const problem_t *p = o->p;
    for (int s = 0; s < p->ranks; s++) {
        o->seat[s] = calloc((size_t)(p->tokens[s] * p->columns) + 1, sizeof(seat_t));
        for (int64_t t = 0; t < p->tokens[s]; t++) {
            for (int k = 0; k < p->columns; k++) {
                seat_t *seat = oracle_seat(o, s, t, k);
                int64_t id = p->ids[s][t * p->columns + k];
                *seat =
                    (seat_t){.from = s, .token = (int)t, .k = k, .expert = (int)id, .owner = -1, .wave = -1};
                seat->place = -1;
                if (id >= 0)
                    seat->owner = p->owner[id];
                if (k < p->top_k)
                    seat->fate = id < 0 ? SKIPPED : REFUSED;
            }
        }
    }
}

/* Every kept row is counted where it stands, and no two may stand in one place. */
static void count_places(oracle_t *o)
{
    const problem_t *p = o->p;
    size_t cells = (size_t)p->ranks * (size_t)o->waves * (size_t)o->local_max;
    for (int s = 0; s < p->ranks; s++) {
        for (int64_t a = 0; a < p->tokens[s] * p->columns; a++) {
            const seat_t *seat = &o->seat[s][a];
            if (seat->fate != KEPT)
                continue;
            size_t cell =
                ((size_t)seat->owner * (size_t)o->waves + (size_t)seat->wave) * (size_t)o->local_max +
                (size_t)o->local[seat->expert];
            cr_assert(cell < cells);
            if (o->count[cell] == 0 || seat->place < o->start[cell])
                o->start[cell] = seat->place;
            o->count[cell]++;
            if (seat->place + 1 > o->rows_needed)
                o->rows_needed = seat->place + 1;
        }
    }
}

static void count_stats(oracle_t *o)
{
    const problem_t *p = o->p;
    for (int s = 0; s < p->ranks; s++) {
        epx_plan_stats_t *mine = &o->stats[s];
        mine->tokens = p->tokens[s];
        for (int64_t a = 0; a < p->tokens[s] * p->columns; a++) {
            const seat_t *seat = &o->seat[s][a];
            int routed = seat->k < p->top_k && seat->fate != SKIPPED;
            epx_plan_stats_t *theirs = seat->owner < 0 ? mine : &o->stats[seat->owner];
            mine->routed += routed;
            mine->skipped += seat->fate == SKIPPED;
            mine->dropped_sender += seat->fate == REFUSED;
            theirs->dropped_receiver += seat->fate == REFUSED_RECEIVER;
            theirs->kept += seat->fate == KEPT;
            /* What the sender sent by another choice; the second gate may still refuse it. */
            mine->spilled += seat->k >= p->top_k && (seat->fate == KEPT || seat->fate == REFUSED_RECEIVER);
            if (seat->fate == KEPT && seat->owner != s) {
                mine->sent_bytes += (int64_t)problem_row_bytes(p);
                theirs->received_bytes += (int64_t)problem_row_bytes(p);
            }
        }
    }
}

oracle_t *oracle_new(const problem_t *p, epx_wire_t wire)
{
    oracle_t *o = calloc(1, sizeof(*o));
    cr_assert_not_null(o);
    o->p = p;
    o->rank_wire = p->arm.kind == RAGGED && wire == EPX_WIRE_RANK;
    o->local = calloc((size_t)p->experts, sizeof(int));
    o->locals = calloc((size_t)p->ranks, sizeof(int));
    o->seat = calloc((size_t)p->ranks, sizeof(*o->seat));
    o->stats = calloc((size_t)p->ranks, sizeof(*o->stats));
    for (int e = 0; e < p->experts; e++)
        o->local[e] = o->locals[p->owner[e]]++;
    for (int r = 0; r < p->ranks; r++)
        o->local_max = o->locals[r] > o->local_max ? o->locals[r] : o->local_max;
    seats_new(o);
    if (p->arm.kind == POOLED_WAVE)
        oracle_pooled(o);
    if (p->arm.kind == RAGGED)
        oracle_ragged(o);
    if (p->arm.kind == RING)
        oracle_ring(o);
    size_t cells = (size_t)p->ranks * (size_t)o->waves * (size_t)o->local_max;
    o->start = calloc(cells + 1, sizeof(int64_t));
    o->count = calloc(cells + 1, sizeof(int64_t));
    count_places(o);
    count_stats(o);
    return o;
}

static void free_all(const oracle_t *o, unsigned char **rows)
{
    if (!rows)
        return;
    for (int s = 0; s < o->p->ranks; s++)
        free(rows[s]);
    free(rows);
}

void oracle_free(oracle_t *o)
{
    for (int s = 0; s < o->p->ranks; s++)
        free(o->seat[s]);
    free_all(o, o->y);
    free_all(o, o->dy);
    free_all(o, o->dx_row);
    free_all(o, o->out);
    free_all(o, o->dx);
    free_all(o, (unsigned char **)o->dweight);
    free(o->seat);
    free(o->local);
    free(o->locals);
    free(o->start);
    free(o->count);
    free(o->stats);
    free(o);
}
