/* SPDX-License-Identifier: Apache-2.0 */
#include "multi/ring_walk.h"

#include <string.h>

enum { DISPATCH, COMBINE, COMBINE_BACKWARD, DISPATCH_BACKWARD };
enum { IDLE, FORWARD, BACKWARD };

/* One call that is allowed next. */
typedef struct choice {
    int lane, move, finish, wave, begins;
} choice_t;

typedef struct choices {
    choice_t choice[64];
    int n;
} choices_t;

static void add(choices_t *choices, int lane, int move, int finish, int wave, int begins)
{
    choices->choice[choices->n++] = (choice_t){lane, move, finish, wave, begins};
}

static void add_forward(choices_t *choices, const walk_lane_t *l, int lane, int depth)
{
    const int *s = l->started, *f = l->finished;
    if (s[DISPATCH] < l->waves && s[DISPATCH] - f[COMBINE] < depth)
        add(choices, lane, DISPATCH, 0, s[DISPATCH], 0);
    if (f[DISPATCH] < s[DISPATCH])
        add(choices, lane, DISPATCH, 1, f[DISPATCH], 0);
    if (s[COMBINE] < f[DISPATCH])
        add(choices, lane, COMBINE, 0, s[COMBINE], 0);
    if (f[COMBINE] < s[COMBINE])
        add(choices, lane, COMBINE, 1, f[COMBINE], 0);
}

/* finished[DISPATCH] of a re-dispatch is the next one that has been started, whatever was left out before it.
 */
static void add_again(choices_t *choices, const walk_lane_t *l, int lane, int depth)
{
    const int *s = l->started, *f = l->finished;
    int first = s[DISPATCH] > f[DISPATCH_BACKWARD] ? s[DISPATCH] : f[DISPATCH_BACKWARD];
    if (f[DISPATCH] < s[DISPATCH]) {
        add(choices, lane, DISPATCH, 1, s[DISPATCH] - 1, 0);
        return;
    }
    for (int w = first; w < l->waves && w - f[DISPATCH_BACKWARD] < depth; w++)
        if (s[COMBINE_BACKWARD] > 0 || w == 0)
            add(choices, lane, DISPATCH, 0, w, 0);
}

static void add_backward(choices_t *choices, const walk_lane_t *l, int lane, int depth)
{
    const int *s = l->started, *f = l->finished;
    if (s[COMBINE_BACKWARD] < l->waves && s[COMBINE_BACKWARD] - f[DISPATCH_BACKWARD] < depth)
        add(choices, lane, COMBINE_BACKWARD, 0, s[COMBINE_BACKWARD], 0);
    if (f[COMBINE_BACKWARD] < s[COMBINE_BACKWARD])
        add(choices, lane, COMBINE_BACKWARD, 1, f[COMBINE_BACKWARD], 0);
    if (s[DISPATCH_BACKWARD] < f[COMBINE_BACKWARD] && f[DISPATCH] >= s[DISPATCH])
        add(choices, lane, DISPATCH_BACKWARD, 0, s[DISPATCH_BACKWARD], 0);
    if (f[DISPATCH_BACKWARD] < s[DISPATCH_BACKWARD])
        add(choices, lane, DISPATCH_BACKWARD, 1, f[DISPATCH_BACKWARD], 0);
    if (l->again)
        add_again(choices, l, lane, depth);
}

static void add_lane(choices_t *choices, const walk_t *walk, int lane)
{
    const walk_lane_t *l = &walk->lane[lane];
    const problem_t *p = walk->session->p;
    if (l->direction == FORWARD)
        add_forward(choices, l, lane, p->depth);
    if (l->direction == BACKWARD)
        add_backward(choices, l, lane, p->depth);
    if (l->direction != IDLE || l->passes_left == 0)
        return;
    add(choices, lane, DISPATCH, 0, 0, FORWARD);
    if (p->backward != EPX_BACKWARD_NONE)
        add(choices, lane, COMBINE_BACKWARD, 0, 0, BACKWARD);
    if (p->backward == EPX_BACKWARD_RECOMPUTE)
        add(choices, lane, DISPATCH, 0, 0, BACKWARD);
}

static void nap(walk_t *walk)
{
    const sleepers_t *s = &walk->sleepers;
    if (s->percent > 0 && dice_range(&walk->naps, 0, 99) < s->percent)
        sleep_ms((int)dice_range(&walk->naps, 1, s->ms));
    if (s->rank == walk->session->self->rank && walk->calls % s->every == s->phase)
        sleep_ms(s->ms);
}

static int good(walk_t *walk, const char *call, epx_status_t status)
{
    if (!expect_status(walk->session->self, call, status, EPX_OK))
        walk->failed = 1;
    return !walk->failed;
}

/* y of a wave as the oracle has it. */
static void fill_y(const walk_t *walk, const walk_lane_t *l, int w, buffer_t *y)
{
    const problem_t *p = walk->session->p;
    size_t bytes = problem_row_bytes(p);
    poison(y->data, y->bytes);
    for (int s = 0; s < p->ranks; s++)
        for (int64_t a = 0; a < p->tokens[s] * p->columns; a++) {
            const seat_t *seat = &l->o->seat[s][a];
            if (seat->fate == KEPT && seat->wave == w && seat->owner == walk->session->self->rank)
                memcpy(y->data + (size_t)seat->place * bytes, l->o->y[s] + (size_t)a * bytes, bytes);
        }
}

static void do_dispatch(walk_t *walk, walk_lane_t *l, const choice_t *c)
{
    int i = c->wave % WALK_DEPTH;
    if (!c->finish) {
        l->batch[i] = wave_batch(&l->pass, &l->forward[i]);
        good(walk, "epx_dispatch_start",
             epx_dispatch_start(l->plan, c->wave, l->x.data, &l->batch[i], rank_stream()));
    } else if (good(walk, "epx_dispatch_finish",
                    epx_dispatch_finish(l->plan, c->wave, &l->batch[i], rank_stream())))
        wave_check(&l->pass, c->wave, &l->batch[i], 0);
}

static void do_combine(walk_t *walk, walk_lane_t *l, const choice_t *c)
{
    int i = c->wave % WALK_DEPTH;
    buffer_t *y = &l->forward[i].y;
    if (!c->finish) {
        wave_check(&l->pass, c->wave, &l->batch[i], 0); /* still there */
        poison(y->data, y->bytes);
        wave_expert(&l->pass, c->wave, &l->batch[i], y->data);
        good(walk, "epx_combine_start", epx_combine_start(l->plan, c->wave, y->data, rank_stream()));
    } else if (good(walk, "epx_combine_finish",
                    epx_combine_finish(l->plan, c->wave, l->sum.data, rank_stream())) &&
               c->wave == l->waves - 1)
        pass_check_sum(&l->pass, "out", &l->sum, l->o->out);
}

static void do_combine_backward(walk_t *walk, walk_lane_t *l, const choice_t *c)
{
    int i = c->wave % WALK_DEPTH;
    if (!c->finish) {
        good(walk, "epx_combine_backward_start",
             epx_combine_backward_start(l->plan, c->wave, l->dout.data, rank_stream()));
        return;
    }
    buffer_t *y = &l->backward[i].y;
    fill_y(walk, l, c->wave, y);
    l->dy[i] = wave_batch(&l->pass, &l->backward[i]);
    if (good(walk, "epx_combine_backward_finish",
             epx_combine_backward_finish(l->plan, c->wave, y->data, &l->dy[i], rank_stream())))
        wave_check(&l->pass, c->wave, &l->dy[i], 1);
}

static void do_dispatch_backward(walk_t *walk, walk_lane_t *l, const choice_t *c)
{
    int i = c->wave % WALK_DEPTH;
    buffer_t *rows = &l->dx_rows[i];
    if (!c->finish) {
        wave_check(&l->pass, c->wave, &l->dy[i], 1); /* still there, beside a re-dispatch */
        poison(rows->data, rows->bytes);
        wave_expert_backward(&l->pass, c->wave, &l->dy[i], rows->data);
        good(walk, "epx_dispatch_backward_start",
             epx_dispatch_backward_start(l->plan, c->wave, rows->data, rank_stream()));
    } else if (good(walk, "epx_dispatch_backward_finish",
                    epx_dispatch_backward_finish(l->plan, c->wave, l->sum.data,
                                                 (float *)(void *)l->dweight.data, rank_stream())) &&
               c->wave == l->waves - 1) {
        pass_check_sum(&l->pass, "dx", &l->sum, l->o->dx);
        pass_check_dweight(&l->pass, &l->dweight);
    }
}

static void begin(walk_t *walk, walk_lane_t *l, int direction)
{
    l->direction = direction;
    l->passes_left--;
    memset(l->started, 0, sizeof(l->started));
    memset(l->finished, 0, sizeof(l->finished));
    l->again = direction == BACKWARD && walk->session->p->backward == EPX_BACKWARD_RECOMPUTE;
    poison(l->sum.data, l->sum.bytes);
    poison(l->dweight.data, l->dweight.bytes);
}

static void make_call(walk_t *walk, const choice_t *c)
{
    static const char *const names[] = {"dispatch", "combine", "combine_backward", "dispatch_backward"};
    static void (*const calls_of[])(walk_t *, walk_lane_t *, const choice_t *) = {
        do_dispatch, do_combine, do_combine_backward, do_dispatch_backward};
    walk_lane_t *l = &walk->lane[c->lane];
    session_problem(walk->session, l->o->p);
    if (c->begins != IDLE)
        begin(walk, l, c->begins);
    calls(walk->session->self, names[c->move], c->wave);
    nap(walk);
    walk->calls++;
    (c->finish ? l->finished : l->started)[c->move] = c->wave + 1;
    calls_of[c->move](walk, l, c);
    int last = l->direction == FORWARD ? COMBINE : DISPATCH_BACKWARD;
    if (l->finished[last] == l->waves)
        l->direction = IDLE;
}

int walk_run(walk_t *walk, int passes, int calls_max)
{
    for (int i = 0; i < walk->lanes; i++)
        walk->lane[i].passes_left = walk->lane[i].held ? 0 : passes;
    for (int n = 0; !walk->failed && (calls_max == 0 || n < calls_max); n++) {
        choices_t choices = {.n = 0};
        for (int i = 0; i < walk->lanes; i++)
            add_lane(&choices, walk, i);
        if (choices.n == 0)
            break;
        make_call(walk, &choices.choice[dice_range(&walk->order, 0, choices.n - 1)]);
    }
    return !walk->failed;
}

static void lane_new(walk_t *walk, walk_lane_t *l, const oracle_t *o)
{
    const problem_t *p = o->p;
    rank_t *self = walk->session->self;
    size_t row = problem_row_bytes(p), rows = (size_t)p->tokens[self->rank] * row;
    *l = (walk_lane_t){.o = o, .waves = o->waves};
    l->pass = (pass_t){.session = walk->session, .o = o};
    buffer_new(&l->x, rows, 4);
    memcpy(l->x.data, p->x[self->rank], rows);
    buffer_new(&l->dout, rows, 4);
    memcpy(l->dout.data, p->dout[self->rank], rows);
    buffer_new(&l->sum, (size_t)p->tokens_max * (size_t)p->width * type_size(oracle_out_type(p)), 4);
    buffer_new(&l->dweight, (size_t)p->tokens_max * (size_t)p->columns * sizeof(float), sizeof(float));
    for (int i = 0; i < WALK_DEPTH; i++) {
        wave_new(&l->forward[i], walk->session);
        wave_new(&l->backward[i], walk->session);
        buffer_new(&l->dx_rows[i], l->forward[i].y.bytes, 4);
    }
}

void walk_new(walk_t *walk, session_t *session, const oracle_t *const *oracle, int lanes, uint64_t seed,
              sleepers_t sleepers)
{
    *walk = (walk_t){.session = session, .lanes = lanes, .sleepers = sleepers};
    walk->order = (dice_t){seed};
    walk->naps = (dice_t){seed * 1000 + (uint64_t)session->self->rank};
    for (int i = 0; i < lanes; i++)
        lane_new(walk, &walk->lane[i], oracle[i]);
}

void walk_route(walk_t *walk, int lane)
{
    walk_lane_t *l = &walk->lane[lane];
    nap(walk);
    if (l->plan == NULL &&
        !good(walk, "epx_plan_create", epx_plan_create(walk->session->group, lane, NULL, &l->plan)))
        return;
    session_problem(walk->session, l->o->p);
    l->pass.plan = l->plan;
    good(walk, "epx_plan_route", session_route(walk->session, l->plan));
}

void walk_abandon(walk_t *walk, int lane)
{
    epx_plan_destroy(&walk->lane[lane].plan);
    walk->lane[lane].direction = IDLE;
}

void walk_attach(walk_t *walk, int lane, void *memory)
{
    walk_lane_t *l = &walk->lane[lane];
    good(walk, "epx_plan_attach", epx_plan_attach(walk->session->group, lane, memory, &l->plan));
    l->pass.plan = l->plan;
}

void walk_free(walk_t *walk)
{
    rank_t *self = walk->session->self;
    for (int i = 0; i < walk->lanes; i++) {
        walk_lane_t *l = &walk->lane[i];
        epx_plan_destroy(&l->plan);
        buffer_free(&l->x, self, "x");
        buffer_free(&l->dout, self, "dout");
        buffer_free(&l->sum, self, "out or dx");
        buffer_free(&l->dweight, self, "dweight");
        for (int w = 0; w < WALK_DEPTH; w++) {
            wave_free(&l->forward[w], self);
            wave_free(&l->backward[w], self);
            buffer_free(&l->dx_rows[w], self, "dx_rows");
        }
    }
}
