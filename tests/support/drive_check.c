/* Everything that comes back, against the oracle. SPDX-License-Identifier: Apache-2.0 */
#include "support/drive.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whose row is this? For messages. */
static const char *whose(const problem_t *p, const void *row, char *text, size_t bytes)
{
    snprintf(text, bytes, "nobody's row");
    if (is_poison(row, problem_row_bytes(p)))
        snprintf(text, bytes, "never written");
    for (int s = 0; s < p->ranks; s++) {
        for (int64_t t = 0; t < p->tokens[s]; t++) {
            if (memcmp(row, p->x[s] + (size_t)t * problem_row_bytes(p), problem_row_bytes(p)) == 0)
                snprintf(text, bytes, "the row of rank %d token %d", s, (int)t);
        }
    }
    return text;
}

static const unsigned char *row_at(const pass_t *pass, const epx_batch_t *batch, int64_t place)
{
    int64_t row = batch->row_index ? batch->row_index[place] : place;
    if (row < 0 || row >= batch->rows_max)
        return NULL;
    return (const unsigned char *)batch->rows + (size_t)row * problem_row_bytes(pass->session->p);
}

/* dy is arithmetic, so a NaN may have another payload; dispatched rows are equal bit by bit. */
static int rows_equal(const problem_t *p, const void *a, const void *b, int backward)
{
    if (memcmp(a, b, problem_row_bytes(p)) == 0)
        return 1;
    for (size_t h = 0; backward && h < (size_t)p->width; h++) {
        if (!same_number(row_get(a, p->row_type, h), row_get(b, p->row_type, h)))
            return 0;
    }
    return backward;
}

static void check_row(const pass_t *pass, int wave, const epx_batch_t *batch, const seat_t *seat,
                      int backward)
{
    const problem_t *p = pass->session->p;
    rank_t *self = pass->session->self;
    size_t bytes = problem_row_bytes(p), a = (size_t)seat->token * (size_t)p->columns + (size_t)seat->k;
    const unsigned char *row = row_at(pass, batch, seat->place);
    const unsigned char *wanted =
        backward ? pass->o->dy[seat->from] + a * bytes : p->x[seat->from] + (size_t)seat->token * bytes;
    char text[80];
    if (!expect(self, row != NULL, "wave %d place %d: row_index is out of range", wave, (int)seat->place))
        return;
    expect(self, rows_equal(p, row, wanted, backward),
           "%s wave %d expert %d place %d is not of rank %d token %d k %d, but %s", backward ? "dy" : "batch",
           wave, seat->expert, (int)seat->place, seat->from, seat->token, seat->k,
           backward ? "another" : whose(p, row, text, sizeof(text)));
    if (p->origin && batch->origin && !backward) {
        epx_origin_t origin = batch->origin[seat->place];
        expect(self, origin.rank == seat->from && origin.token == seat->token && origin.k == seat->k,
               "wave %d place %d: origin is (%d, %d, %d), not (%d, %d, %d)", wave, (int)seat->place,
               origin.rank, origin.token, origin.k, seat->from, seat->token, seat->k);
    }
    if (p->aux_bytes && batch->row_aux && !backward) {
        size_t n = (size_t)p->aux_bytes;
        expect(self,
               memcmp((const char *)batch->row_aux + (size_t)seat->place * n,
                      p->aux[seat->from] + (size_t)seat->token * n, n) == 0,
               "wave %d place %d: aux differs", wave, (int)seat->place);
    }
}

static void check_counts(const pass_t *pass, int wave, const epx_batch_t *batch, const epx_batch_t *here)
{
    session_t *session = pass->session;
    rank_t *self = session->self;
    int experts = session->info.local_experts;
    int64_t *start = calloc((size_t)experts * 2 + 1, sizeof(*start)), *count = start + experts, end = 0;
    cr_assert_not_null(start);
    expect(self, batch->local_experts == experts && batch->rows_max == session->info.batch_rows_max,
           "wave %d: local_experts %d rows_max %d", wave, batch->local_experts, (int)batch->rows_max);
    expect_status(self, "epx_batch_counts", epx_batch_counts(pass->plan, batch, start, count, rank_stream()),
                  EPX_OK);
    for (int e = 0; e < experts; e++) {
        int64_t wanted = oracle_count(pass->o, self->rank, wave, e);
        int64_t at = wanted ? oracle_start(pass->o, self->rank, wave, e) : start[e];
        expect(self, count[e] == wanted, "wave %d local expert %d: count %d, not %d", wave, e, (int)count[e],
               (int)wanted);
        expect(self, start[e] == at, "wave %d local expert %d: start %d, not %d", wave, e, (int)start[e],
               (int)at);
        expect(self,
               start[e] >= end && start[e] + count[e] <= batch->rows_max &&
                   start[e] % session->p->row_align == 0,
               "wave %d local expert %d: rows %d..%d overlap, leave the batch or are not aligned", wave, e,
               (int)start[e], (int)(start[e] + count[e]));
        end = start[e] + count[e];
        expect(self, start[e] == here->expert_start[e] && count[e] == here->expert_count[e],
               "wave %d: epx_batch_counts differs from the batch", wave);
    }
    free(start);
}

/* Indexed: each (token, rank) row once; pooled_wave's slots are those of assignments. */
static void check_index(const pass_t *pass, int wave, const epx_batch_t *batch)
{
    const problem_t *p = pass->session->p;
    rank_t *self = pass->session->self;
    size_t rows = (size_t)pass->session->info.batch_rows_max;
    const seat_t **owner = calloc(rows + 1, sizeof(*owner));
    cr_assert_not_null(owner);
    for (int s = 0; s < p->ranks; s++) {
        for (int64_t t = 0; t < p->tokens[s]; t++) {
            int first = -1;
            for (int k = 0; k < p->columns; k++) {
                const seat_t *seat = oracle_seat(pass->o, s, t, k);
                if (seat->fate != KEPT || seat->owner != self->rank || seat->wave != wave)
                    continue;
                int row = batch->row_index[seat->place];
                if (row < 0 || (size_t)row >= rows)
                    continue; /* check_row says so */
                first = first < 0 ? row : first;
                expect(self, row == first || p->arm.kind == POOLED_WAVE,
                       "wave %d: the row of rank %d token %d came twice", wave, s, (int)t);
                expect(self, !owner[row] || (owner[row]->from == s && owner[row]->token == t),
                       "wave %d: row %d stands for two tokens", wave, row);
                owner[row] = seat;
            }
        }
    }
    free(owner);
}

void wave_check(const pass_t *pass, int wave, const epx_batch_t *batch, int backward)
{
    const problem_t *p = pass->session->p;
    rank_t *self = pass->session->self;
    if (pass->quiet)
        return;
    epx_batch_t here = batch_here(pass->session, batch);
    check_counts(pass, wave, batch, &here);
    expect(self, !batch->into_rows || batch->rows == batch->into_rows, "wave %d: not the caller's rows",
           wave);
    if (!backward) {
        expect(self, !p->origin == !batch->origin, "wave %d: origin is %s", wave,
               batch->origin ? "there" : "missing");
        expect(self, !p->aux_bytes == !batch->row_aux, "wave %d: aux is %s", wave,
               batch->row_aux ? "there" : "missing");
        expect(self, (p->arm.batch == EPX_BATCH_INDEXED) == !!batch->row_index, "wave %d: row_index is %s",
               wave, batch->row_index ? "there" : "missing");
    } else {
        expect(self, !batch->row_index, "wave %d: dy rows are one per assignment, and indexed", wave);
    }
    for (int s = 0; s < p->ranks; s++) {
        for (int64_t a = 0; a < p->tokens[s] * p->columns; a++) {
            const seat_t *seat = &pass->o->seat[s][a];
            if (seat->fate == KEPT && seat->owner == self->rank && seat->wave == wave)
                check_row(pass, wave, &here, seat, backward);
        }
    }
    if (batch->row_index && !backward)
        check_index(pass, wave, &here);
}

/* For every counted row of the batch: to[row] = expert(row). All other rows stay poison. */
static void apply(const pass_t *pass, const epx_batch_t *theirs, void *to,
                  void (*expert)(const problem_t *, int, const void *, void *))
{
    epx_batch_t here = batch_here(pass->session, theirs), *batch = &here;
    const problem_t *p = pass->session->p;
    for (int e = 0; e < pass->session->info.local_experts; e++) {
        for (int64_t i = 0; i < batch->expert_count[e]; i++) {
            int64_t place = batch->expert_start[e] + i;
            if (place < 0 || place >= pass->session->info.batch_rows_max)
                return; /* check_counts says so */
            const unsigned char *row = row_at(pass, batch, place);
            if (row)
                expert(p, pass->session->info.local_expert_ids[e], row,
                       (unsigned char *)to + (size_t)place * problem_row_bytes(p));
        }
    }
}

void wave_expert(const pass_t *pass, int wave, const epx_batch_t *batch, void *y)
{
    (void)wave;
    apply(pass, batch, y, problem_expert);
}

void wave_expert_backward(const pass_t *pass, int wave, const epx_batch_t *dy, void *dx_rows)
{
    (void)wave;
    apply(pass, dy, dx_rows, problem_expert_backward);
}

void pass_check_sum(const pass_t *pass, const char *which, const buffer_t *sum, unsigned char *const *wanted)
{
    const problem_t *p = pass->session->p;
    rank_t *self = pass->session->self;
    epx_type_t type = oracle_out_type(p);
    size_t row = (size_t)p->width * type_size(type), n = (size_t)p->tokens[self->rank] * (size_t)p->width;
    if (pass->quiet || pass->loose)
        return;
    drained();
    for (size_t i = 0; i < n; i++) {
        float got = row_get(sum->data, type, i), want = row_get(wanted[self->rank], type, i);
        if (!expect(self, same_number(got, want), "%s[%d, %d] is %.9g, not %.9g", which,
                    (int)(i / (size_t)p->width), (int)(i % (size_t)p->width), (double)got, (double)want))
            return;
    }
    size_t used = (size_t)p->tokens[self->rank] * row;
    expect(self, is_poison(sum->data + used, sum->bytes - used), "%s was written behind its T tokens", which);
}

void pass_check_dweight(const pass_t *pass, const buffer_t *dweight)
{
    const problem_t *p = pass->session->p;
    rank_t *self = pass->session->self;
    size_t n = (size_t)p->tokens[self->rank] * (size_t)p->columns;
    if (pass->quiet || pass->loose)
        return;
    drained();
    for (size_t i = 0; i < n; i++) {
        float got = row_get(dweight->data, EPX_FP32, i), want = pass->o->dweight[self->rank][i];
        if (!expect(self, same_number(got, want), "dweight[%d, %d] is %.9g, not %.9g",
                    (int)(i / (size_t)p->columns), (int)(i % (size_t)p->columns), (double)got, (double)want))
            return;
    }
    expect(self, is_poison(dweight->data + n * 4, dweight->bytes - n * 4),
           "dweight was written behind its T tokens");
}

void pass_stats(const pass_t *pass)
{
    rank_t *self = pass->session->self;
    epx_plan_stats_t got = EPX_PLAN_STATS_INIT;
    const epx_plan_stats_t *want = &pass->o->stats[self->rank];
    expect_status(self, "epx_plan_stats", epx_plan_stats(pass->plan, &got, rank_stream()), EPX_OK);
    const struct {
        const char *name;
        int64_t got, want;
    } row[] = {
        {"routed", got.routed, want->routed},
        {"skipped", got.skipped, want->skipped},
        {"kept", got.kept, want->kept},
        {"spilled", got.spilled, want->spilled},
        {"dropped_sender", got.dropped_sender, want->dropped_sender},
        {"dropped_receiver", got.dropped_receiver, want->dropped_receiver},
        {"tokens", got.tokens, want->tokens},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
        expect(self, row[i].got == row[i].want, "stats: %s is %lld, not %lld", row[i].name,
               (long long)row[i].got, (long long)row[i].want);
    expect(self, got.wait_ns >= 0 && got.wait_peer >= -1 && got.wait_peer < self->ranks,
           "stats: wait_ns %lld, wait_peer %d", (long long)got.wait_ns, got.wait_peer);
}
