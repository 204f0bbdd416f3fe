/*
 * A budget of multiprocessors is all that kernels which follow each other hold. SPDX-License-Identifier:
 * Apache-2.0
 *
 * While the first of three such kernels runs, as many blocks as there are other multiprocessors are launched,
 * each of which needs one alone for a while. Together they take that while, and twice as long if blocks of
 * the next kernel already stand on some: those then have to wait for others to end.
 */
#include <stdio.h>
#include <time.h>

#include <epx/kernels_ragged.h>

#include "device/cuda/cuda.h"
#include "gpu/check.h"
#include "kernels/cuda/table.h"

enum { BUDGET = 2, BYTES = 8192, ROWS = 49152, READ = 64, FOLLOWING = 3, TRIES = 20 };

typedef struct bench {
    epx_stream_t rows, others;
    epx_event_t begun, from, to;
    int32_t units;
    double first_s, held_s; /* what one kernel takes, and each of the others holds a multiprocessor for */
    twin_t source, index, start, list, run, peer;
    void *target;
} bench_t;

/* Numbers that kernels are given: 0, ROWS, READ. */
static int64_t *at(const bench_t *b, int i) { return (int64_t *)side_of(&b->start, 1) + i; }

/* Each moves ROWS rows, from a few that stay in the cache. */
static epx_status_t push_rows(const bench_t *b)
{
    epx_k_push_t args = {.dst = side_of(&b->peer, 1),
                         .index = side_of(&b->index, 1),
                         .runs = side_of(&b->run, 1),
                         .run_count = 1,
                         .part = {{.kind = EPX_PART_COPY,
                                   .src = side_of(&b->source, 1),
                                   .src_stride = BYTES,
                                   .divide = 1,
                                   .dst_stride = BYTES,
                                   .bytes = BYTES}},
                         .parts = 1,
                         .rank = -1,
                         .units = BUDGET};
    return epx_cuda_push(&args, b->rows);
}

static epx_status_t return_rows(const bench_t *b)
{
    const int32_t *list = side_of(&b->list, 1);
    epx_k_ragged_return_t args = {.dst = side_of(&b->peer, 1),
                                  .dst_stride = BYTES,
                                  .sum_offset = -1,
                                  .runs = side_of(&b->run, 1),
                                  .rows = at(b, 1),
                                  .run_count = 1,
                                  .first = list,
                                  .count = list + ROWS,
                                  .list = side_of(&b->index, 1),
                                  .width = BYTES / 2,
                                  .row_type = EPX_BF16,
                                  .src = side_of(&b->source, 1),
                                  .row_bytes = BYTES,
                                  .units = BUDGET};
    return epx_cuda_ragged_return(&args, b->rows);
}

static epx_status_t gather_rows(const bench_t *b)
{
    epx_k_gather_t args = {.rows = {at(b, 0), at(b, 1), 1},
                           .index = side_of(&b->index, 1),
                           .src = side_of(&b->source, 1),
                           .dst = b->target,
                           .src_stride = BYTES,
                           .dst_stride = BYTES,
                           .bytes = BYTES,
                           .units = BUDGET};
    return epx_cuda_gather(&args, b->rows);
}

static epx_status_t combine_rows(const bench_t *b)
{
    epx_k_combine_t args = {.units = BUDGET,
                            .tokens = ROWS,
                            .columns = 1,
                            .width = BYTES / 2,
                            .row_type = EPX_BF16,
                            .out_type = EPX_BF16,
                            .place = side_of(&b->index, 1),
                            .hi = READ,
                            .rows = side_of(&b->source, 1),
                            .row_stride = BYTES,
                            .out = b->target,
                            .first = 1,
                            .last = 1};
    return epx_cuda_combine(&args, b->rows);
}

static epx_status_t reduce_rows(const bench_t *b)
{
    epx_k_reduce_t args = {.first = side_of(&b->list, 1),
                           .count = (int32_t *)side_of(&b->list, 1) + ROWS,
                           .n = ROWS,
                           .list = side_of(&b->index, 1),
                           .width = BYTES / 2,
                           .row_type = EPX_BF16,
                           .rows = side_of(&b->source, 1),
                           .row_stride = BYTES,
                           .out = b->target,
                           .out_stride = BYTES,
                           .units = BUDGET};
    return epx_cuda_reduce(&args, b->rows);
}

static epx_status_t scatter_rows(const bench_t *b)
{
    epx_k_scatter_t args = {.rows = {at(b, 0), at(b, 2), 1},
                            .first = (int32_t *)side_of(&b->list, 1) + 2 * ROWS,
                            .count = (int32_t *)side_of(&b->list, 1) + 2 * ROWS + READ,
                            .list = side_of(&b->list, 1),
                            .src = side_of(&b->source, 1),
                            .dst = b->target,
                            .src_stride = BYTES,
                            .dst_stride = BYTES,
                            .bytes = BYTES,
                            .units = BUDGET};
    return epx_cuda_scatter(&args, b->rows);
}

static const struct {
    const char *name;
    epx_status_t (*run)(const bench_t *b);
} kernels[] = {{"push", push_rows},       {"ragged_return", return_rows}, {"gather", gather_rows},
               {"combine", combine_rows}, {"reduce", reduce_rows},        {"scatter", scatter_rows}};

static void fill(bench_t *b)
{
    b->source = twin_make((size_t)READ * BYTES), b->index = twin_make(ROWS * 4), b->start = twin_make(24);
    b->list = twin_make((2 * ROWS + 2 * READ) * 4);
    b->run = twin_make(sizeof(epx_run_t)), b->peer = twin_make(sizeof(void *));
    int32_t *index = (int32_t *)(void *)b->index.host, *list = (int32_t *)(void *)b->list.host;
    for (int32_t i = 0; i < ROWS; i++)
        index[i] = i % READ, list[i] = i, list[ROWS + i] = 1;
    for (int32_t i = 0; i < READ; i++)
        list[2 * ROWS + i] = i * (ROWS / READ), list[2 * ROWS + READ + i] = ROWS / READ;
    int64_t *start = (int64_t *)(void *)b->start.host;
    start[0] = 0, start[1] = ROWS, start[2] = READ;
    *(epx_run_t *)(void *)b->run.host = (epx_run_t){.rows = ROWS};
    *(void **)(void *)b->peer.host = b->target;
    twin_send(&b->source), twin_send(&b->index), twin_send(&b->start), twin_send(&b->list);
    twin_send(&b->run), twin_send(&b->peer);
}

static int prepare(bench_t *b)
{
    epx_device_properties_t properties = {0};
    b->target = epx_device_cuda.allocate((size_t)ROWS * BYTES, 256);
    int good = epx_device_cuda.properties(&properties) == EPX_OK && b->target != NULL &&
               epx_device_cuda.stream_create(&b->rows) == EPX_OK &&
               epx_device_cuda.stream_create(&b->others) == EPX_OK &&
               epx_device_cuda.event_create(1, &b->begun) == EPX_OK &&
               epx_device_cuda.event_create(1, &b->from) == EPX_OK &&
               epx_device_cuda.event_create(1, &b->to) == EPX_OK;
    CHECK(good, "%s", epx_last_error());
    b->units = properties.units;
    return good;
}

static void put_away(bench_t *b)
{
    epx_device_cuda.event_destroy(b->begun), epx_device_cuda.event_destroy(b->from);
    epx_device_cuda.event_destroy(b->to);
    epx_device_cuda.stream_destroy(b->rows), epx_device_cuda.stream_destroy(b->others);
    epx_device_cuda.release(b->target, (size_t)ROWS * BYTES);
}

static epx_status_t note(epx_event_t event, epx_stream_t stream)
{
    return epx_device_cuda.event_record(event, stream);
}

/* How long one takes at least; the others are there for a fifth of that. */
static void look_alone(bench_t *b, int k)
{
    b->first_s = 1;
    for (int i = 0; i < 5; i++) {
        double took = 0;
        CHECK(note(b->begun, b->rows) == EPX_OK && kernels[k].run(b) == EPX_OK &&
                  note(b->to, b->rows) == EPX_OK && epx_device_cuda.synchronize(b->rows) == EPX_OK &&
                  epx_device_cuda.event_elapsed(b->begun, b->to, &took) == EPX_OK,
              "%s: %s", kernels[k].name, epx_last_error());
        b->first_s = took < b->first_s ? took : b->first_s;
    }
    b->held_s = b->first_s / 5;
}

/* Seconds that `blocks` of the others took beside kernels k; 0: they did not begin and end beside the first.
 * Nothing may stand between the kernels: the next one begins early behind a kernel only. */
static double beside(const bench_t *b, int k, int32_t blocks)
{
    double took = 0, before = 0, all = 0;
    epx_k_spin_t spin = {.ns = (int64_t)(b->held_s * 1e9), .units = blocks};
    struct timespec pause = {.tv_nsec = 60000};
    epx_status_t status = note(b->begun, b->rows);
    for (int i = 0; i < FOLLOWING && status == EPX_OK; i++)
        status = kernels[k].run(b);
    nanosleep(&pause, NULL);
    if (status == EPX_OK)
        status = note(b->from, b->others);
    if (status == EPX_OK)
        status = epx_cuda_spin(&spin, b->others);
    if (status == EPX_OK)
        status = note(b->to, b->others);
    if (status == EPX_OK)
        status = epx_device_cuda.synchronize(b->others);
    if (status == EPX_OK)
        status = epx_device_cuda.synchronize(b->rows);
    if (status == EPX_OK)
        status = epx_device_cuda.event_elapsed(b->from, b->to, &took);
    if (status == EPX_OK)
        status = epx_device_cuda.event_elapsed(b->begun, b->from, &before);
    if (status == EPX_OK)
        status = epx_device_cuda.event_elapsed(b->begun, b->to, &all);
    CHECK(status == EPX_OK, "%s: %s", kernels[k].name, epx_last_error());
    return before > 0 && all < 0.95 * b->first_s ? took : 0;
}

/* One look that shows what must be is enough: it cannot come about otherwise. */
static void look_beside(const bench_t *b, int k)
{
    double least = 1, most = 0, held = b->held_s;
    int32_t free = b->units - BUDGET;
    int looks = 0;
    for (int i = 0; i < TRIES && (looks < 3 || least > 1.5 * held); i++) {
        double took = beside(b, k, free);
        least = took > 0 && took < least ? took : least;
        looks += took > 0;
    }
    CHECK(looks > 0, "%s (%.0f us) always ended too soon", kernels[k].name, b->first_s * 1e6);
    CHECK(least < 1.5 * held, "%s: %d other multiprocessors were free in %.0f us, not %.0f", kernels[k].name,
          free, least * 1e6, held * 1e6);
    /* One more than are free: this test can tell. */
    for (int i = 0; i < TRIES && most < 1.9 * held; i++)
        most = beside(b, k, free + 1);
    CHECK(most >= 1.9 * held, "%s does not hold %d multiprocessors: one more was free in %.0f us",
          kernels[k].name, BUDGET, most * 1e6);
    printf("  %s by %d multiprocessors, %.0f us: others by %d for %.0f us took %.0f, by one more %.0f\n",
           kernels[k].name, BUDGET, b->first_s * 1e6, free, held * 1e6, least * 1e6, most * 1e6);
}

static void budget_is_all(void)
{
    dice_t dice;
    bench_t b = {0};
    if (!gpu_round(&dice, 1))
        return;
    if (prepare(&b)) {
        fill(&b);
        for (int k = 0; k < (int)(sizeof kernels / sizeof *kernels); k++) {
            look_alone(&b, k);
            look_beside(&b, k);
        }
    }
    put_away(&b);
    while (gpu_round(&dice, 1))
        ;
}

const gpu_test_t gpu_budget_tests[] = {{"budget_is_all", budget_is_all}, {NULL, NULL}};
