/*
 * The next wave comes while the experts compute this one, on a stream of their own. SPDX-License-Identifier:
 * Apache-2.0
 *
 * Times are the device's: the dispatch of wave 1 begins when the computation of wave 0 has begun, and must
 * have ended before that has. The experts hand back what they got, so that the same step in one stream says
 * what must come out.
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdlib.h>
#include <string.h>

#include "support/drive.h"

TestSuite(overlap, .init = clean_environment);

enum { RANKS = 2, LONG_BYTES = 16 << 20 };

/* How many copies of LONG_BYTES make a computation that is much longer than a dispatch of a few rows. */
static int long_copies(void)
{
    const char *device = getenv("TEST_DEVICE");
    return device != NULL && strcmp(device, "cuda") == 0 ? 1000 : 10;
}

typedef struct lap {
    session_t session;
    epx_plan_h plan;
    buffer_t x;
    void *y[2], *from, *to; /* of the device */
    size_t y_bytes;
    epx_stream_t experts;
    epx_event_t arrived, begun, computed, dispatched;
} lap_t;

static void must(rank_t *self, const char *what, epx_status_t status)
{
    expect_came(self, what, status, EPX_OK);
}

static void lap_open(lap_t *lap, rank_t *self)
{
    const problem_t *p = self->arg;
    const epx_device_ops_t *device = test_device();
    lap->y_bytes = (size_t)lap->session.info.batch_rows_max * problem_row_bytes(p);
    buffer_new(&lap->x, (size_t)p->tokens[self->rank] * problem_row_bytes(p), 16);
    memcpy(lap->x.data, p->x[self->rank], lap->x.bytes);
    lap->y[0] = device_new(lap->y_bytes);
    lap->y[1] = device_new(lap->y_bytes);
    lap->from = device_new(LONG_BYTES);
    lap->to = device_new(LONG_BYTES);
    must(self, "a stream", device->stream_create(&lap->experts));
    epx_event_t *events[] = {&lap->arrived, &lap->begun, &lap->computed, &lap->dispatched};
    for (int i = 0; i < 4; i++)
        must(self, "an event", device->event_create(1, events[i]));
    must(self, "a fill", device->fill(lap->from, 1, LONG_BYTES, rank_stream()));
    expect_status(self, "epx_plan_create", epx_plan_create(lap->session.group, 0, NULL, &lap->plan), EPX_OK);
}

static void lap_close(lap_t *lap, rank_t *self)
{
    const epx_device_ops_t *device = test_device();
    epx_event_t events[] = {lap->arrived, lap->begun, lap->computed, lap->dispatched};
    epx_plan_destroy(&lap->plan);
    for (int i = 0; i < 4; i++)
        device->event_destroy(events[i]);
    device->stream_destroy(lap->experts);
    device_free(lap->y[0], lap->y_bytes);
    device_free(lap->y[1], lap->y_bytes);
    device_free(lap->from, LONG_BYTES);
    device_free(lap->to, LONG_BYTES);
    buffer_free(&lap->x, self, "x");
}

/* The experts of a wave, short, in the rank's own stream. */
static void echo(lap_t *lap, const epx_batch_t *batch, int w)
{
    must(lap->session.self, "a copy",
         test_device()->copy(lap->y[w % 2], batch->rows, lap->y_bytes, rank_stream()));
}

static void serial(lap_t *lap, void *out)
{
    rank_t *self = lap->session.self;
    for (int w = 0; w < epx_plan_waves(lap->plan); w++) {
        epx_batch_t batch = EPX_BATCH_INIT;
        must(self, "epx_dispatch", epx_dispatch(lap->plan, w, lap->x.data, &batch, rank_stream()));
        echo(lap, &batch, w);
        must(self, "epx_combine", epx_combine(lap->plan, w, lap->y[w % 2], out, rank_stream()));
    }
    drained();
}

/* Wave 0's experts, on their own stream, long. */
static void compute(lap_t *lap, const epx_batch_t *batch)
{
    rank_t *self = lap->session.self;
    const epx_device_ops_t *device = test_device();
    must(self, "an event", device->event_record(lap->arrived, rank_stream()));
    must(self, "a wait", device->stream_wait(lap->experts, lap->arrived));
    must(self, "an event", device->event_record(lap->begun, lap->experts));
    for (int i = 0; i < long_copies(); i++)
        must(self, "a copy", device->copy(lap->to, lap->from, LONG_BYTES, lap->experts));
    must(self, "a copy", device->copy(lap->y[0], batch->rows, lap->y_bytes, lap->experts));
    must(self, "an event", device->event_record(lap->computed, lap->experts));
}

static void overlapped(lap_t *lap, void *out)
{
    rank_t *self = lap->session.self;
    const epx_device_ops_t *device = test_device();
    epx_batch_t batch[2] = {EPX_BATCH_INIT, EPX_BATCH_INIT};
    must(self, "epx_dispatch", epx_dispatch(lap->plan, 0, lap->x.data, &batch[0], rank_stream()));
    compute(lap, &batch[0]);
    must(self, "a wait", device->stream_wait(rank_stream(), lap->begun));
    must(self, "epx_dispatch", epx_dispatch(lap->plan, 1, lap->x.data, &batch[1], rank_stream()));
    must(self, "an event", device->event_record(lap->dispatched, rank_stream()));
    must(self, "a wait", device->stream_wait(rank_stream(), lap->computed));
    must(self, "epx_combine", epx_combine(lap->plan, 0, lap->y[0], out, rank_stream()));
    echo(lap, &batch[1], 1);
    must(self, "epx_combine", epx_combine(lap->plan, 1, lap->y[1], out, rank_stream()));
    for (int w = 2; w < epx_plan_waves(lap->plan); w++) {
        epx_batch_t next = EPX_BATCH_INIT;
        must(self, "epx_dispatch", epx_dispatch(lap->plan, w, lap->x.data, &next, rank_stream()));
        echo(lap, &next, w);
        must(self, "epx_combine", epx_combine(lap->plan, w, lap->y[w % 2], out, rank_stream()));
    }
    drained();
}

static void lap_rank(rank_t *self)
{
    const problem_t *p = self->arg;
    lap_t lap = {.plan = NULL};
    buffer_t wanted, out;
    double since_begin = 0, until_end = 0;
    if (!session_open(&lap.session, self, p, NULL))
        return;
    lap_open(&lap, self);
    buffer_new(&wanted, lap.x.bytes, 16);
    buffer_new(&out, lap.x.bytes, 16);
    expect_status(self, "epx_plan_route", session_route(&lap.session, lap.plan), EPX_OK);
    serial(&lap, wanted.data);
    poison(out.data, out.bytes);
    overlapped(&lap, out.data);
    expect(self, memcmp(out.data, wanted.data, out.bytes) == 0, "the sums differ from those of one stream");
    must(self, "a time", test_device()->event_elapsed(lap.begun, lap.dispatched, &since_begin));
    must(self, "a time", test_device()->event_elapsed(lap.dispatched, lap.computed, &until_end));
    expect(self, since_begin > 0 && until_end > 0,
           "wave 1 had come %.0f us after the experts of wave 0 began, and %.0f us before they ended",
           since_begin * 1e6, until_end * 1e6);
    buffer_free(&wanted, self, "wanted");
    buffer_free(&out, self, "out");
    lap_close(&lap, self);
    session_close(&lap.session);
}

ParameterizedTestParameters(overlap, a_wave_comes_while_experts_compute) { return basic_arms(); }

ParameterizedTest(int *arm, overlap, a_wave_comes_while_experts_compute)
{
    if (on_host())
        cr_skip_test("calls on the host are synchronous");
    problem_t *p = problem_new(&arms[*arm], RANKS, 6, 2, 64, 16);
    problem_inputs(p, UNIFORM, (int[]){16, 13}, 5);
    world_note("%s", arms[*arm].name);
    world_run(RANKS, lap_rank, p);
    problem_free(p);
}
