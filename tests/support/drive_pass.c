/* Passes, forward and backward, and the usual test made of them. SPDX-License-Identifier: Apache-2.0 */
#include "support/drive.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static int came(const pass_t *pass, const char *call, epx_status_t status)
{
    if (calls_hook)
        calls_hook(0);
    return expect_came(pass->session->self, call, status, EPX_OK);
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
    buffer_new(&f->x, tokens * row, problem_alignment(p, p->row_type));
    memcpy(f->x.data, rows[session->self->rank], tokens * row);
    buffer_new(&f->sum, (size_t)p->tokens_max * (size_t)p->width * type_size(oracle_out_type(p)),
               problem_alignment(p, oracle_out_type(p)));
    buffer_new(&f->dweight, (size_t)p->tokens_max * (size_t)p->columns * sizeof(float), sizeof(float));
    for (int i = 0; i < 2; i++) {
        wave_new(&f->wave[i], session);
        wave_new(&f->again[i], session);
        buffer_new(&f->dx_rows[i], f->wave[i].y.bytes, problem_alignment(p, p->row_type));
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
    epx_batch_t begun = f->batch[w % 2];
    if (w % 2 == 1 && !f->pass->session->p->in_caller) /* where rows go may be said at the finish alone */
        begun.into_rows = NULL;
    CALL(f, epx_dispatch_start, w, f->pass->plan, w, f->x.data, &begun, rank_stream());
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
    buffer_new(&x, f.x.bytes, problem_alignment(p, p->row_type));
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
