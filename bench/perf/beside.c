/*
 * Passes beside a large matrix product: who slows whom. SPDX-License-Identifier: Apache-2.0
 *
 * Each is timed alone, then while the other goes on from before it begins until after it has ended. Rank 0
 * enqueues the products, on a stream of their own. Products go on for most of a second: a GPU that was idle
 * is faster for some milliseconds, until it has come to its power limit, at which a training run keeps it.
 */
#include <stdio.h>
#include <string.h>

#include "bench/perf/player.h"
#include "bench/perf/product.h"
#include "tools/common/numbers.h"
#include "tools/common/program.h"

enum { SIDE = 8192, PRODUCTS = 400, PASSES = 10, RUNS = 3 };
enum { PASSES_MOST = 20000, PRODUCTS_MOST = 1000 /* that wait in a stream */ };

typedef struct beside {
    epx_perf_player_t *player;
    epx_perf_product_t *product; /* rank 0 */
    epx_stream_t stream;         /* rank 0: of the products */
    epx_event_t from, to;        /* rank 0 */
    int32_t units;               /* what the product is told; 0: nothing */
} beside_t;

static int products(beside_t *b, int64_t count)
{
    epx_rank_t *self = b->player->self;
    const epx_device_ops_t *device = b->player->side.device;
    int rc = epx_rank_check(self, device->event_record(b->from, b->stream), "an event");
    for (int64_t i = 0; i < count && rc == EPX_EXIT_OK; i++) {
        int code = epx_perf_product_run(b->product, b->units, b->stream);
        if (code != 0)
            rc = epx_rank_fail(self, EPX_EXIT_FAILED, "cuBLAS failed with code %d", code);
    }
    return rc == EPX_EXIT_OK ? epx_rank_check(self, device->event_record(b->to, b->stream), "an event") : rc;
}

static int passes(beside_t *b, int64_t count)
{
    epx_perf_player_t *player = b->player;
    int rc = EPX_EXIT_OK;
    for (int64_t i = 0; i < count; i++) {
        for (int32_t w = 0; w < player->shared->waves && rc == EPX_EXIT_OK; w++) {
            rc = epx_perf_call(player, EPX_PERF_DISPATCH, w);
            if (rc == EPX_EXIT_OK)
                rc = epx_perf_call(player, EPX_PERF_COMBINE, w);
        }
    }
    return rc;
}

/*
 * `pass_count` passes, of which `before` are enqueued before `product_count` products are. Seconds of one
 * product and of one pass of this rank, of all that ran.
 */
static int together(beside_t *b, int64_t before, int64_t pass_count, int64_t product_count, double *product_p,
                    double *pass_p)
{
    epx_perf_player_t *player = b->player;
    epx_perf_side_t *side = &player->side;
    const epx_device_ops_t *device = side->device;
    int leads = player->self->rank == 0 && product_count > 0;
    int rc = epx_perf_drain(player->self, side);
    if (rc == EPX_EXIT_OK)
        rc = epx_perf_meet(player);
    if (rc == EPX_EXIT_OK && leads && before == 0)
        rc = products(b, product_count);
    if (rc == EPX_EXIT_OK)
        rc = epx_rank_check(player->self, device->event_record(side->begin, side->stream), "an event");
    if (rc == EPX_EXIT_OK)
        rc = passes(b, before);
    if (rc == EPX_EXIT_OK && leads && before > 0)
        rc = products(b, product_count);
    if (rc == EPX_EXIT_OK)
        rc = passes(b, pass_count - before);
    if (rc == EPX_EXIT_OK)
        rc = epx_rank_check(player->self, device->event_record(side->end, side->stream), "an event");
    if (rc == EPX_EXIT_OK)
        rc = epx_perf_drain(player->self, side);
    if (rc == EPX_EXIT_OK && leads)
        rc = epx_rank_check(player->self, device->synchronize(b->stream), "products");
    if (rc == EPX_EXIT_OK)
        rc = epx_rank_check(player->self, device->event_elapsed(side->begin, side->end, pass_p), "an event");
    if (rc == EPX_EXIT_OK && leads)
        rc = epx_rank_check(player->self, device->event_elapsed(b->from, b->to, product_p), "an event");
    *pass_p /= (double)(pass_count > 0 ? pass_count : 1);
    *product_p /= (double)(product_count > 0 ? product_count : 1);
    return rc;
}

/* The median of a few runs, equal on all ranks: rank 0's. */
static int measure(beside_t *b, int64_t before, int64_t pass_count, int64_t product_count, double *product_p,
                   double *pass_p)
{
    double product[RUNS], pass[RUNS], both[2] = {0, 0};
    int rc = EPX_EXIT_OK;
    for (int i = -1; i < RUNS && rc == EPX_EXIT_OK; i++) {
        double one = 0, other = 0;
        rc = together(b, before, pass_count, product_count, &one, &other);
        if (i >= 0)
            product[i] = one, pass[i] = other;
    }
    if (rc == EPX_EXIT_OK && b->player->self->rank == 0) {
        epx_sort_reals(product, RUNS);
        epx_sort_reals(pass, RUNS);
        both[0] = product[RUNS / 2], both[1] = pass[RUNS / 2];
    }
    if (rc == EPX_EXIT_OK)
        rc = epx_rank_check(b->player->self,
                            epx_comm_allreduce(b->player->self->comm, both, 2, EPX_NUMBER_DOUBLE, EPX_SUM),
                            "all-reduce");
    *product_p = both[0], *pass_p = both[1];
    return rc;
}

static int64_t times(double whole, double each, int64_t most)
{
    double n = each > 0 ? whole / each : 0;
    return n < (double)most ? (int64_t)n + 2 : most;
}

static int run(beside_t *b)
{
    epx_perf_beside_t found = {.what = ""};
    int32_t budget = b->player->shared->sm_budget;
    double ignored = 0;
    int rc = measure(b, 0, 0, PRODUCTS, &found.alone_s, &ignored);
    if (rc == EPX_EXIT_OK)
        rc = measure(b, 0, PASSES, 0, &ignored, &found.exchange_alone_s);
    /* Passes around the products, then products around the passes. */
    int64_t around = times(1.5 * PRODUCTS * found.alone_s, found.exchange_alone_s, PASSES_MOST),
            over = times(2 * PASSES * found.exchange_alone_s, found.alone_s, PRODUCTS_MOST);
    if (rc == EPX_EXIT_OK)
        rc = measure(b, 1, around, PRODUCTS, &found.with_s, &ignored);
    if (rc == EPX_EXIT_OK)
        rc = measure(b, 0, PASSES, over, &ignored, &found.exchange_with_s);
    /* Ranks that share the GPU take a budget each. */
    int32_t taken = b->player->shared->apart ? budget : budget * b->player->self->ranks;
    b->units = budget > 0 && taken < b->player->shared->units ? b->player->shared->units - taken : 0;
    if (rc == EPX_EXIT_OK && b->units > 0)
        rc = measure(b, 1, around, PRODUCTS, &found.told_s, &ignored);
    if (rc != EPX_EXIT_OK || b->player->self->rank != 0)
        return rc;
    found.flops = epx_perf_product_flops(b->product);
    snprintf(found.what, sizeof found.what, "product of %d x %d x %d bf16 by cuBLAS", SIDE, SIDE, SIDE);
    b->player->shared->beside = found;
    return rc;
}

/* All ranks learn whether there is a product. */
static int open_product(beside_t *b, int32_t *there_p)
{
    epx_perf_player_t *player = b->player;
    const epx_device_ops_t *device = player->side.device;
    double there = 0;
    int rc = EPX_EXIT_OK;
    if (player->self->rank == 0) {
        b->product = epx_perf_product_open(device, SIDE, player->shared->beside.why_not,
                                           sizeof player->shared->beside.why_not);
        there = b->product != NULL;
        rc = epx_rank_check(player->self, device->stream_create(&b->stream), "a stream");
        if (rc == EPX_EXIT_OK)
            rc = epx_rank_check(player->self, device->event_create(1, &b->from), "an event");
        if (rc == EPX_EXIT_OK)
            rc = epx_rank_check(player->self, device->event_create(1, &b->to), "an event");
    }
    if (rc == EPX_EXIT_OK)
        rc = epx_rank_check(player->self,
                            epx_comm_allreduce(player->self->comm, &there, 1, EPX_NUMBER_DOUBLE, EPX_SUM),
                            "all-reduce");
    *there_p = there > 0;
    return rc;
}

int epx_perf_run_beside(epx_perf_player_t *player)
{
    beside_t b = {.player = player};
    const epx_device_ops_t *device = player->side.device;
    int32_t there = 0;
    if (device == NULL) {
        if (player->self->rank == 0)
            snprintf(player->shared->beside.why_not, sizeof player->shared->beside.why_not,
                     "the host device has no multiprocessors to share");
        return EPX_EXIT_OK;
    }
    int rc = open_product(&b, &there);
    if (rc == EPX_EXIT_OK)
        rc = epx_perf_route(player);
    if (rc == EPX_EXIT_OK && there)
        rc = run(&b);
    epx_perf_product_close(&b.product);
    if (b.from != NULL)
        device->event_destroy(b.from);
    if (b.to != NULL)
        device->event_destroy(b.to);
    device->stream_destroy(b.stream);
    return rc;
}
