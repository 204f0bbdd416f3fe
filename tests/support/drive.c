/* SPDX-License-Identifier: Apache-2.0 */
#include "support/drive.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD 64

void (*calls_hook)(int begins);

void calls(rank_t *self, const char *call, int number)
{
    self->at = call;
    self->number = number;
    if (calls_hook)
        calls_hook(1);
}

static int came(const pass_t *pass, const char *call, epx_status_t status)
{
    if (calls_hook)
        calls_hook(0);
    return expect_came(pass->session->self, call, status, EPX_OK);
}

/* The address is a multiple of align and, so that more is never taken for granted, not of twice that. */
void buffer_new(buffer_t *b, size_t bytes, size_t align)
{
    b->bytes = bytes;
    b->whole = (bytes + 2 * GUARD + align + 511) / 256 * 256;
    b->base = on_host() ? aligned_alloc(256, b->whole) : both_new(b->whole);
    cr_assert_not_null(b->base);
    poison(b->base, bytes + 2 * GUARD + align);
    b->data = b->base + GUARD + align;
}

void buffer_free(buffer_t *b, rank_t *self, const char *what)
{
    if (!b->base)
        return;
    drained();
    int before = is_poison(b->data - GUARD, GUARD), behind = is_poison(b->data + b->bytes, GUARD);
    expect(self, before && behind, "%s: bytes %s the buffer were written", what,
           before ? "behind" : "before");
    both_free(b->base);
    *b = (buffer_t){0};
}

/* ---- what the library hands out ---------------------------------------------------------------------------- */

/* A thread's copies of a batch. */
static _Thread_local struct {
    void *memory[5];
} seen;

static const void *look_at(int which, const void *device, size_t bytes)
{
    free(seen.memory[which]);
    seen.memory[which] = NULL;
    if (device == NULL)
        return NULL;
    seen.memory[which] = malloc(bytes + 1);
    cr_assert_not_null(seen.memory[which]);
    fetch(seen.memory[which], device, bytes);
    return seen.memory[which];
}

static void forget_batch(void)
{
    for (int i = 0; i < 5; i++)
        look_at(i, NULL, 0);
}

/* Rows that there are to look at: indexed, up to the last that the index names. */
static size_t rows_held(const epx_batch_t *here, size_t rows_max)
{
    size_t rows = 0;
    if (here->row_index == NULL)
        return rows_max;
    for (int32_t e = 0; e < here->local_experts; e++)
        for (int64_t g = here->expert_start[e]; g < here->expert_start[e] + here->expert_count[e]; g++)
            if (here->row_index[g] >= (int32_t)rows && here->row_index[g] < (int32_t)rows_max)
                rows = (size_t)here->row_index[g] + 1;
    return rows;
}

epx_batch_t batch_here(const session_t *session, const epx_batch_t *batch)
{
    const problem_t *p = session->p;
    epx_batch_t here = *batch;
    size_t rows = (size_t)session->info.batch_rows_max, experts = (size_t)session->info.local_experts;
    if (on_host())
        return here;
    drained();
    here.row_index = look_at(1, batch->row_index, rows * sizeof(int32_t));
    here.origin = look_at(2, batch->origin, rows * sizeof(epx_origin_t));
    here.row_aux = look_at(3, batch->row_aux, rows * (size_t)p->aux_bytes);
    look_at(4, NULL, 0);
    int64_t *counts = seen.memory[4] = calloc(2 * experts + 1, sizeof(*counts));
    cr_assert_not_null(counts);
    fetch(counts, batch->expert_start, experts * sizeof(*counts));
    fetch(counts + experts, batch->expert_count, experts * sizeof(*counts));
    here.expert_start = counts;
    here.expert_count = counts + experts;
    here.rows = (void *)(size_t)look_at(0, batch->rows, rows_held(&here, rows) * problem_row_bytes(p));
    return here;
}

int session_open(session_t *session, rank_t *self, const problem_t *p, const epx_group_config_t *config)
{
    epx_group_config_t own = problem_config(p);
    *session = (session_t){.self = self, .p = p, .info = EPX_GROUP_INFO_INIT};
    calls(self, "epx_group_open", 0);
    epx_status_t status = epx_group_open(self->comm, config ? config : &own, &session->group);
    if (calls_hook)
        calls_hook(0);
    if (!expect_status(self, "epx_group_open", status, EPX_OK))
        return 0;
    return expect_status(self, "epx_group_info", epx_group_info(session->group, &session->info), EPX_OK);
}

void session_close(session_t *session)
{
    session->self->at = "epx_group_close";
    drained();
    forget_batch();
    epx_group_close(&session->group);
    expect(session->self, session->group == NULL, "epx_group_close left the handle");
}

void session_problem(session_t *session, const problem_t *p) { session->p = p; }

epx_routing_t session_routing(const session_t *session, buffer_t *ids, buffer_t *weights)
{
    const problem_t *p = session->p;
    int rank = session->self->rank;
    size_t cells = (size_t)p->tokens[rank] * (size_t)p->columns;
    epx_routing_t routing = EPX_ROUTING_INIT;
    buffer_new(ids, cells * type_size(p->id_type), type_size(p->id_type));
    buffer_new(weights, cells * sizeof(float), sizeof(float));
    for (size_t i = 0; i < cells; i++) {
        int64_t wide = p->ids[rank][i];
        int32_t narrow = (int32_t)wide;
        memcpy(ids->data + i * type_size(p->id_type),
               p->id_type == EPX_INT64 ? (void *)&wide : (void *)&narrow, type_size(p->id_type));
    }
    memcpy(weights->data, p->weights[rank], cells * sizeof(float));
    routing.tokens = p->tokens[rank];
    routing.ids = ids->data;
    routing.id_type = p->id_type;
    routing.weights = (const float *)(void *)weights->data;
    return routing;
}

epx_status_t session_route(session_t *session, epx_plan_h plan)
{
    buffer_t ids, weights;
    epx_routing_t routing = session_routing(session, &ids, &weights);
    calls(session->self, "epx_plan_route", 0);
    epx_status_t status = epx_plan_route(plan, &routing, rank_stream());
    if (calls_hook)
        calls_hook(0);
    /* The host reads them before it returns, a device in stream order. */
    drained();
    poison(ids.data, ids.bytes);
    poison(weights.data, weights.bytes);
    buffer_free(&ids, session->self, "ids");
    buffer_free(&weights, session->self, "weights");
    return status;
}

void wave_new(wave_buffers_t *wave, const session_t *session)
{
    const problem_t *p = session->p;
    size_t row = problem_row_bytes(p), rows = (size_t)session->info.batch_rows_max;
    size_t experts = (size_t)session->info.local_experts;
    buffer_new(&wave->rows, rows * row, type_size(p->row_type));
    buffer_new(&wave->y, rows * row, type_size(p->row_type));
    buffer_new(&wave->start, experts * sizeof(int64_t), sizeof(int64_t));
    buffer_new(&wave->count, experts * sizeof(int64_t), sizeof(int64_t));
}

void wave_free(wave_buffers_t *wave, rank_t *self)
{
    buffer_free(&wave->rows, self, "into_rows");
    buffer_free(&wave->y, self, "y");
    buffer_free(&wave->start, self, "into_start");
    buffer_free(&wave->count, self, "into_count");
}

epx_batch_t wave_batch(const pass_t *pass, const wave_buffers_t *wave)
{
    const problem_t *p = pass->session->p;
    epx_batch_t batch = EPX_BATCH_INIT;
    if (pass->into || p->in_caller) {
        batch.into_rows = wave->rows.data;
        batch.into_start = (int64_t *)(void *)wave->start.data;
        batch.into_count = (int64_t *)(void *)wave->count.data;
    }
    if (p->aux_bytes && !pass->no_aux)
        batch.aux = p->aux[pass->session->self->rank];
    return batch;
}

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
    if (row < 0 || row >= pass->session->info.batch_rows_max)
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

/* What a pass holds: x (a copy that must not change), sums, and two waves in flight. */
typedef struct flight {
    pass_t *pass;
    buffer_t x, sum, dweight;
    wave_buffers_t wave[2], again[2];
    buffer_t dx_rows[2];
    epx_batch_t batch[2];
    int ok;
} flight_t;

static void flight_new(flight_t *f, pass_t *pass, unsigned char *const *rows)
{
    session_t *session = pass->session;
    const problem_t *p = session->p;
    size_t row = problem_row_bytes(p), tokens = (size_t)p->tokens[session->self->rank];
    *f = (flight_t){.pass = pass, .ok = 1};
    buffer_new(&f->x, tokens * row, type_size(p->row_type));
    memcpy(f->x.data, rows[session->self->rank], tokens * row);
    buffer_new(&f->sum, (size_t)p->tokens_max * (size_t)p->width * type_size(oracle_out_type(p)),
               type_size(oracle_out_type(p)));
    buffer_new(&f->dweight, (size_t)p->tokens_max * (size_t)p->columns * sizeof(float), sizeof(float));
    for (int i = 0; i < 2; i++) {
        wave_new(&f->wave[i], session);
        wave_new(&f->again[i], session);
        buffer_new(&f->dx_rows[i], f->wave[i].y.bytes, type_size(p->row_type));
    }
}

static void flight_free(flight_t *f, unsigned char *const *rows)
{
    rank_t *self = f->pass->session->self;
    drained();
    expect(self, memcmp(f->x.data, rows[self->rank], f->x.bytes) == 0,
           "the library changed what it was given to send");
    for (int i = 0; i < 2; i++) {
        wave_free(&f->wave[i], self);
        wave_free(&f->again[i], self);
        buffer_free(&f->dx_rows[i], self, "dx_rows");
    }
    buffer_free(&f->x, self, "x");
    buffer_free(&f->sum, self, "out or dx");
    buffer_free(&f->dweight, self, "dweight");
}

static int made(flight_t *f, const char *call, epx_status_t status)
{
    f->ok &= came(f->pass, call, status);
    return f->ok;
}

#define CALL(f, name, wave, ...) \
    (calls((f)->pass->session->self, #name, wave), made(f, #name, name(__VA_ARGS__)))

static void dispatch_start(flight_t *f, int w)
{
    f->batch[w % 2] = wave_batch(f->pass, &f->wave[w % 2]);
    CALL(f, epx_dispatch_start, w, f->pass->plan, w, f->x.data, &f->batch[w % 2], rank_stream());
}

static void dispatch_finish(flight_t *f, int w)
{
    if (CALL(f, epx_dispatch_finish, w, f->pass->plan, w, &f->batch[w % 2], rank_stream()))
        wave_check(f->pass, w, &f->batch[w % 2], 0);
}

static void dispatch(flight_t *f, int w)
{
    f->batch[w % 2] = wave_batch(f->pass, &f->wave[w % 2]);
    if (CALL(f, epx_dispatch, w, f->pass->plan, w, f->x.data, &f->batch[w % 2], rank_stream()))
        wave_check(f->pass, w, &f->batch[w % 2], 0);
}

static void compute(flight_t *f, int w)
{
    buffer_t *y = &f->wave[w % 2].y;
    drained();
    wave_check(f->pass, w, &f->batch[w % 2], 0); /* still there, whatever else is in flight */
    poison(y->data, y->bytes);
    CALL(f, epx_check_poison, w, f->pass->plan, w, y->data, rank_stream());
    wave_expert(f->pass, w, &f->batch[w % 2], y->data);
}

static void combine(flight_t *f, int w)
{
    compute(f, w);
    CALL(f, epx_combine, w, f->pass->plan, w, f->wave[w % 2].y.data, f->sum.data, rank_stream());
}

static void forward_split(flight_t *f, int waves)
{
    pass_t *pass = f->pass;
    dispatch_start(f, 0);
    for (int w = 0; w < waves && f->ok; w++) {
        if (w + 1 < waves)
            dispatch_start(f, w + 1);
        dispatch_finish(f, w);
        if (!f->ok)
            return;
        compute(f, w);
        CALL(f, epx_combine_start, w, pass->plan, w, f->wave[w % 2].y.data, rank_stream());
        CALL(f, epx_combine_finish, w, pass->plan, w, f->sum.data, rank_stream());
    }
}

static void forward(flight_t *f, int waves)
{
    int ahead = f->pass->schedule == PIPELINED && f->pass->session->p->depth > 1;
    if (f->pass->schedule == SPLIT && f->pass->session->p->depth > 1) {
        forward_split(f, waves);
        return;
    }
    for (int w = 0; w < waves && f->ok; w++) {
        if (w == 0 || !ahead)
            dispatch(f, w);
        if (ahead && w + 1 < waves && f->ok)
            dispatch(f, w + 1);
        if (f->ok)
            combine(f, w);
    }
}

static int waves_of(pass_t *pass)
{
    int waves = epx_plan_waves(pass->plan);
    if (!pass->quiet)
        expect(pass->session->self, waves == pass->o->waves, "epx_plan_waves is %d, not %d", waves,
               pass->o->waves);
    return waves;
}

static unsigned char *copy_of(const buffer_t *buffer, size_t bytes)
{
    unsigned char *copy = malloc(bytes + 1);
    cr_assert_not_null(copy);
    drained();
    memcpy(copy, buffer->data, bytes);
    return copy;
}

static size_t sum_bytes(const pass_t *pass)
{
    const problem_t *p = pass->session->p;
    return (size_t)p->tokens[pass->session->self->rank] * (size_t)p->width * type_size(oracle_out_type(p));
}

int pass_forward(pass_t *pass)
{
    const problem_t *p = pass->session->p;
    flight_t f;
    int waves = waves_of(pass);
    if (waves < 1)
        return 0;
    flight_new(&f, pass, p->x);
    forward(&f, waves);
    if (f.ok) {
        pass_check_sum(pass, "out", &f.sum, pass->o->out);
        free(pass->out);
        pass->out = copy_of(&f.sum, sum_bytes(pass));
    }
    flight_free(&f, p->x);
    return f.ok;
}

/* y of this wave as the oracle has it: recomputed by the caller. */
static void fill_y(flight_t *f, int w)
{
    const problem_t *p = f->pass->session->p;
    size_t bytes = problem_row_bytes(p);
    buffer_t *y = &f->wave[w % 2].y;
    drained();
    poison(y->data, y->bytes);
    for (int s = 0; s < p->ranks; s++) {
        for (int64_t a = 0; a < p->tokens[s] * p->columns; a++) {
            const seat_t *seat = &f->pass->o->seat[s][a];
            if (seat->fate == KEPT && seat->wave == w && seat->owner == f->pass->session->self->rank)
                memcpy(y->data + (size_t)seat->place * bytes, f->pass->o->y[s] + (size_t)a * bytes, bytes);
        }
    }
}

/* x again, for the wave whose gradients are coming or have come. */
static void re_dispatch(flight_t *f, int w, buffer_t *x)
{
    epx_batch_t batch = wave_batch(f->pass, &f->again[w % 2]);
    if (CALL(f, epx_dispatch, w, f->pass->plan, w, x->data, &batch, rank_stream()))
        wave_check(f->pass, w, &batch, 0);
}

static void gradients_home(flight_t *f, int w)
{
    buffer_t *dx_rows = &f->dx_rows[w % 2];
    drained();
    float *dweight = f->pass->no_dweight ? NULL : (float *)(void *)f->dweight.data;
    wave_check(f->pass, w, &f->batch[w % 2], 1);
    poison(dx_rows->data, dx_rows->bytes);
    wave_expert_backward(f->pass, w, &f->batch[w % 2], dx_rows->data);
    if (f->pass->schedule != SPLIT) {
        CALL(f, epx_dispatch_backward, w, f->pass->plan, w, dx_rows->data, f->sum.data, dweight,
             rank_stream());
        return;
    }
    CALL(f, epx_dispatch_backward_start, w, f->pass->plan, w, dx_rows->data, rank_stream());
    CALL(f, epx_dispatch_backward_finish, w, f->pass->plan, w, f->sum.data, dweight, rank_stream());
}

static void gradients_out(flight_t *f, int w)
{
    pass_t *pass = f->pass;
    buffer_t *y = &f->wave[w % 2].y;
    epx_batch_t *dy = &f->batch[w % 2];
    fill_y(f, w);
    *dy = wave_batch(pass, &f->wave[w % 2]);
    if (pass->schedule != SPLIT) {
        CALL(f, epx_combine_backward, w, pass->plan, w, f->x.data, y->data, dy, rank_stream());
    } else {
        CALL(f, epx_combine_backward_start, w, pass->plan, w, f->x.data, rank_stream());
        CALL(f, epx_combine_backward_finish, w, pass->plan, w, y->data, dy, rank_stream());
    }
    if (f->ok)
        wave_check(pass, w, dy, 1);
}

static void backward(flight_t *f, int waves, buffer_t *x)
{
    int again = f->pass->re_dispatch;
    int ahead = f->pass->schedule != SERIAL && f->pass->session->p->depth > 1 && !again;
    for (int w = 0; w < waves && f->ok; w++) {
        if (again == 1)
            re_dispatch(f, w, x);
        if ((w == 0 || !ahead) && f->ok)
            gradients_out(f, w);
        if (again == 2 && f->ok)
            re_dispatch(f, w, x);
        if (ahead && w + 1 < waves && f->ok)
            gradients_out(f, w + 1);
        if (f->ok)
            gradients_home(f, w);
    }
}

int pass_backward(pass_t *pass)
{
    const problem_t *p = pass->session->p;
    flight_t f;
    buffer_t x;
    int waves = waves_of(pass), rank = pass->session->self->rank;
    if (waves < 1)
        return 0;
    flight_new(&f, pass, p->dout);
    buffer_new(&x, f.x.bytes, type_size(p->row_type));
    memcpy(x.data, p->x[rank], x.bytes);
    backward(&f, waves, &x);
    if (f.ok) {
        pass_check_sum(pass, "dx", &f.sum, pass->o->dx);
        if (!pass->no_dweight)
            pass_check_dweight(pass, &f.dweight);
        free(pass->dx);
        free(pass->dweight);
        pass->dx = copy_of(&f.sum, sum_bytes(pass));
        pass->dweight =
            (float *)(void *)copy_of(&f.dweight, (size_t)p->tokens[rank] * (size_t)p->columns * 4);
    }
    buffer_free(&x, pass->session->self, "x");
    flight_free(&f, p->dout);
    return f.ok;
}

void pass_free(pass_t *pass)
{
    free(pass->out);
    free(pass->dx);
    free(pass->dweight);
    pass->out = pass->dx = NULL;
    pass->dweight = NULL;
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

static void trial_rank(rank_t *self)
{
    const trial_t *trial = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    if (!session_open(&session, self, trial->problem, NULL))
        return;
    pass_t pass = {.session = &session, .o = trial->oracle, .schedule = trial->schedule, .into = trial->into};
    int ok = expect_status(self, "epx_plan_create", epx_plan_create(session.group, 0, NULL, &plan), EPX_OK);
    pass.plan = plan;
    ok = ok && expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK);
    for (int i = 0; ok && i < (trial->passes ? trial->passes : 1); i++) {
        ok = pass_forward(&pass);
        if (ok)
            pass_stats(&pass);
        if (ok && trial->backward)
            ok = pass_backward(&pass);
    }
    if (!ok)
        epx_group_abort(session.group, "test failed");
    pass_free(&pass);
    epx_plan_destroy(&plan);
    session_close(&session);
}

void trial_run(const trial_t *trial)
{
    char text[200];
    world_note("%s", problem_text(trial->problem, text, sizeof(text)));
    world_run(trial->problem->ranks, trial_rank, (void *)(size_t)trial);
}

typedef struct resolved {
    const problem_t *problem;
    epx_wire_t wire;
} resolved_t;

static void resolve_rank(rank_t *self)
{
    resolved_t *resolved = self->arg;
    session_t session;
    if (session_open(&session, self, resolved->problem, NULL) && self->rank == 0)
        resolved->wire = session.info.wire;
    session_close(&session);
}

oracle_t *oracle_of(const problem_t *p)
{
    resolved_t resolved = {.problem = p, .wire = p->arm.wire};
    if (p->arm.wire == EPX_WIRE_AUTO)
        world_run(p->ranks, resolve_rank, &resolved);
    oracle_t *o = oracle_new(p, resolved.wire);
    oracle_sums(o);
    return o;
}

void problem_check(problem_t *p, schedule_t schedule)
{
    oracle_t *o = oracle_of(p);
    trial_run(&(trial_t){
        .problem = p, .oracle = o, .schedule = schedule, .backward = p->backward != EPX_BACKWARD_NONE});
    oracle_free(o);
    problem_free(p);
}
