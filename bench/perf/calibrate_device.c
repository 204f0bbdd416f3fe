/*
 * The constants of the cost model on a GPU, by its own clock: every rate while all ranks are busy, as threads
 * that share the GPU, or over fabric nccl with a GPU each. What cannot be measured so says it in its source.
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/perf/calibrate.h"
#include "bench/perf/calibration.h"
#include "bench/perf/player.h"
#include "bench/perf/product.h"
#include "bench/perf/side.h"
#include "tools/common/numbers.h"
#include "tools/common/program.h"
#include "tools/common/terminal.h"

/* UNITS: multiprocessors that are enough for a link, for rows beside a product. */
enum { RUNS = 7, SIDE = 8192, UNITS = 24 };
/* Beyond the caches of any GPU, where it has the memory for it. */
#define BLOCK_BYTES ((int64_t)512 << 20)
#define SMALL_BLOCK_BYTES ((int64_t)4 << 20)

typedef struct bench {
    const epx_perf_settings_t *settings;
    epx_calibration_t found;
    char name[64];
    char no_product[160];
    int32_t apart;        /* a GPU for each rank */
    epx_perf_case_t link; /* what is needed of a case to measure the link */
} bench_t;

typedef struct player {
    epx_rank_t *self;
    bench_t *bench;
    epx_perf_side_t side;
    int64_t block_bytes;
    int32_t units; /* multiprocessors that rows may use; 0: all */
    epx_perf_twin_t to, from, index, start, count;
    epx_group_h group;
    epx_plan_h plan;
    epx_perf_product_t *product; /* rank 0 */
} player_t;

typedef epx_status_t (*work_fn)(player_t *player);

static int failed(const player_t *player) { return player->self->code != EPX_EXIT_OK; }

static void check(player_t *player, epx_status_t status, const char *what)
{
    if (!failed(player))
        epx_rank_check(player->self, status, what);
}

/* ---- work --------------------------------------------------------------------------------------------------------- */

static epx_status_t copy_whole(player_t *player)
{
    return player->side.device->copy(player->to.device, player->from.device, (size_t)player->block_bytes,
                                     player->side.stream);
}

static epx_status_t copy_rows(player_t *player)
{
    int64_t bytes = player->bench->found.row_bytes;
    epx_k_gather_t args = {.units = player->units,
                           .rows = {player->start.device, player->count.device, 1},
                           .index = player->index.device,
                           .src = player->from.device,
                           .dst = player->to.device,
                           .src_stride = bytes,
                           .dst_stride = bytes,
                           .bytes = bytes};
    return player->side.device->kernels->gather(&args, player->side.stream);
}

static epx_status_t multiply(player_t *player)
{
    return epx_perf_product_run(player->product, 0, player->side.stream) == 0 ? EPX_OK : EPX_ERR_FATAL;
}

static epx_status_t empty_calls(player_t *player)
{
    epx_status_t status = EPX_OK;
    for (int i = 0; i < EPX_CALIBRATION_CALLS && status == EPX_OK; i++) {
        epx_batch_t batch = EPX_BATCH_INIT;
        status = epx_dispatch(player->plan, 0, player->from.device, &batch, player->side.stream);
        if (status == EPX_OK)
            status =
                epx_combine(player->plan, 0, player->from.device, player->to.device, player->side.stream);
    }
    return status;
}

/* ---- measuring ---------------------------------------------------------------------------------------------------- */

/* Seconds of `work` on this rank's stream: the median, and of all ranks the mean. together: all do it at
 * once; else rank 0 alone. */
static double seconds_of(player_t *player, work_fn work, int together)
{
    const epx_perf_side_t *side = &player->side;
    double seconds[RUNS] = {0};
    for (int i = -2; i < RUNS; i++) {
        double taken = 0;
        check(player, epx_comm_barrier(player->self->comm), "barrier");
        if (failed(player))
            return 1;
        if (together || player->self->rank == 0) {
            check(player, side->device->event_record(side->begin, side->stream), "an event");
            check(player, work(player), "measuring");
            check(player, side->device->event_record(side->end, side->stream), "an event");
            check(player, side->device->synchronize(side->stream), "measuring");
            check(player, side->device->event_elapsed(side->begin, side->end, &taken), "an event");
        }
        if (i >= 0)
            seconds[i] = taken;
    }
    epx_sort_reals(seconds, RUNS);
    double all = epx_calibration_mean(player->self, seconds[RUNS / 2]);
    return (together ? all : all * player->self->ranks) + 1e-12;
}

/* A product and a copy of rows that takes about as long, one after the other and at once: the share of the
 * shorter that vanishes. Rank 0 alone. */
static double overlap_of(player_t *player, double product_s, double rows_s)
{
    /* The caller has set player->units: rows that may fill the GPU leave a product nothing to run beside. */
    const epx_perf_side_t *side = &player->side;
    epx_stream_t other = NULL;
    epx_event_t done = NULL;
    double both[RUNS] = {0};
    int copies = (int)(product_s / rows_s) + 1;
    check(player, side->device->stream_create(&other), "a stream");
    check(player, side->device->event_create(0, &done), "an event");
    for (int i = -2; i < RUNS && !failed(player); i++) {
        double taken = 0;
        check(player, side->device->event_record(side->begin, side->stream), "an event");
        check(player, side->device->stream_wait(other, side->begin), "an event");
        for (int c = 0; c < copies; c++)
            check(player, copy_rows(player), "measuring");
        if (epx_perf_product_run(player->product, 0, other) != 0)
            check(player, EPX_ERR_FATAL, "a product");
        check(player, side->device->event_record(done, other), "an event");
        check(player, side->device->stream_wait(side->stream, done), "an event");
        check(player, side->device->event_record(side->end, side->stream), "an event");
        check(player, side->device->synchronize(side->stream), "measuring");
        check(player, side->device->event_elapsed(side->begin, side->end, &taken), "an event");
        if (i >= 0)
            both[i] = taken;
    }
    if (done != NULL)
        side->device->event_destroy(done);
    side->device->stream_destroy(other);
    epx_sort_reals(both, RUNS);
    double copy_s = copies * rows_s, shorter = copy_s < product_s ? copy_s : product_s,
           hidden = (copy_s + product_s - both[RUNS / 2]) / shorter;
    return hidden < 0 ? 0 : hidden > 1 ? 1 : hidden;
}

/* ---- one rank ----------------------------------------------------------------------------------------------------- */

static void open_side(player_t *player)
{
    bench_t *bench = player->bench;
    epx_group_info_t info = EPX_GROUP_INFO_INIT;
    epx_group_config_t config = epx_calibration_group(bench->settings, player->self->ranks);
    epx_perf_side_choose(player->self, player->self->rank, config.fabric, config.device);
    if (!failed(player))
        epx_rank_check_settings(player->self, epx_group_open(player->self->comm, &config, &player->group),
                                "group open");
    if (!failed(player))
        check(player, epx_group_info(player->group, &info), "group info");
    if (!failed(player) && player->self->rank == 0)
        bench->apart = player->self->ranks > 1 && strcmp(info.fabric, "nccl") == 0;
    if (!failed(player))
        epx_perf_side_open(player->self, &player->side, info.device);
    if (!failed(player) && player->side.device == NULL)
        epx_rank_fail(player->self, EPX_EXIT_FAILED, "--calibrate: device %s is not a GPU", info.device);
    if (!failed(player))
        check(player, epx_plan_create(player->group, 0, NULL, &player->plan), "plan create");
}

/* No token at all. */
static void route_nothing(player_t *player)
{
    epx_routing_t routing = EPX_ROUTING_INIT;
    if (!failed(player))
        check(player, epx_plan_route(player->plan, &routing, player->side.stream), "route");
}

static void open_memory(player_t *player)
{
    epx_rank_t *self = player->self;
    const epx_perf_side_t *side = &player->side;
    epx_device_properties_t properties = {0};
    check(player, side->device->properties(&properties), "the device");
    player->block_bytes = properties.memory_bytes >= 64 * BLOCK_BYTES ? BLOCK_BYTES : SMALL_BLOCK_BYTES;
    int64_t rows = player->block_bytes / player->bench->found.row_bytes, from = 0;
    int rc = epx_perf_twin_new_device(self, side, &player->to, 1, (size_t)player->block_bytes);
    if (rc == EPX_EXIT_OK)
        rc = epx_perf_twin_new_device(self, side, &player->from, 1, (size_t)player->block_bytes);
    if (rc == EPX_EXIT_OK)
        rc = epx_perf_twin_new(self, side, &player->index, (size_t)rows, sizeof(int32_t));
    if (rc == EPX_EXIT_OK)
        rc = epx_perf_twin_new(self, side, &player->start, 1, sizeof(int64_t));
    if (rc == EPX_EXIT_OK)
        rc = epx_perf_twin_new(self, side, &player->count, 1, sizeof(int64_t));
    if (rc != EPX_EXIT_OK)
        return;
    for (int64_t r = 0; r < rows; r++) {
        ((int32_t *)player->index.host)[r] = (int32_t)from;
        from = (from + 514229) % rows; /* a prime that no number of rows here is a multiple of */
    }
    *(int64_t *)player->count.host = rows;
    if (epx_perf_up(self, side, &player->index) == EPX_EXIT_OK &&
        epx_perf_up(self, side, &player->start) == EPX_EXIT_OK)
        epx_perf_up(self, side, &player->count);
    check(player, side->device->fill(player->from.device, 0x3c, (size_t)player->block_bytes, side->stream),
          "a fill");
    check(player, side->device->fill(player->to.device, 0, (size_t)player->block_bytes, side->stream),
          "a fill");
}

static void close_player(player_t *player)
{
    const epx_device_ops_t *device = player->side.device;
    epx_perf_twin_t *twins[] = {&player->to, &player->from, &player->index, &player->start, &player->count};
    epx_plan_destroy(&player->plan);
    epx_group_close(&player->group);
    epx_perf_product_close(&player->product);
    for (size_t i = 0; i < sizeof twins / sizeof *twins; i++)
        epx_perf_twin_free(device, twins[i]);
    epx_perf_side_close(&player->side);
}

static void keep(player_t *player, epx_constant_t constant, double value)
{
    epx_calibration_keep(player->self, &player->bench->found, constant, value);
}

/* Products, and what can be hidden under them; rank 0 works, the others wait. */
static void measure_products(player_t *player)
{
    bench_t *bench = player->bench;
    epx_device_properties_t properties = {0};
    const epx_device_ops_t *device = player->side.device;
    double there = 0;
    check(player, device->properties(&properties), "the device");
    if (player->self->rank == 0 && !failed(player)) {
        player->product = epx_perf_product_open(device, SIDE, bench->no_product, sizeof bench->no_product);
        snprintf(bench->name, sizeof bench->name, "%s", properties.name);
        there = player->product != NULL;
    }
    there = epx_calibration_mean(player->self, there);
    double product_s = there > 0 ? seconds_of(player, multiply, 0) : 0;
    player->units = UNITS;
    double rows_s = seconds_of(player, copy_rows, 0);
    if (player->self->rank != 0 || failed(player))
        return;
    double gemm =
        there > 0 ? epx_perf_product_flops(player->product) / product_s : 0.7 * properties.peak_flops;
    if (gemm <= 0) {
        epx_rank_fail(player->self, EPX_EXIT_FAILED,
                      "--calibrate: neither cuBLAS nor a known peak of this GPU: %s", bench->no_product);
        return;
    }
    keep(player, EPX_GEMM_FLOPS, gemm);
    keep(player, EPX_PEAK_FLOPS, properties.peak_flops > gemm ? properties.peak_flops : gemm);
    keep(player, EPX_ATTENTION_FLOPS, 0.6 * gemm);
    keep(player, EPX_OVERLAP, there > 0 ? overlap_of(player, product_s, rows_s) : 0.87);
}

/* Of ranks with a GPU each, all at once: seconds of a block by the copy engine, and of as many rows by
 * stores. */
static void measure_link(player_t *player, double *whole_p, double *rows_p)
{
    epx_perf_case_t *link = &player->bench->link;
    epx_perf_part_t mine = {.remote_bytes = {0}};
    epx_perf_player_t other = {.self = player->self,
                               .shared = link,
                               .mine = &mine,
                               .side = player->side,
                               .info = EPX_GROUP_INFO_INIT};
    mine.remote_bytes[EPX_PERF_DISPATCH] = player->block_bytes;
    if (!failed(player))
        check(player, epx_group_info(player->group, &other.info), "group info");
    if (!failed(player))
        epx_perf_measure_link(&other);
    if (failed(player) || player->self->rank != 0) /* rank 0 keeps them */
        return;
    double scale = (double)player->block_bytes / (double)link->link.bytes;
    *whole_p = link->link.engine_s * scale;
    *rows_p = link->link.stores_s * scale;
}

static int play(epx_rank_t *self)
{
    player_t player = {.self = self, .bench = self->context};
    bench_t *bench = player.bench;
    open_side(&player);
    if (!failed(&player))
        open_memory(&player);
    if (!failed(&player)) {
        double bytes = (double)player.block_bytes, whole = seconds_of(&player, copy_whole, 1),
               rows = seconds_of(&player, copy_rows, 1), alone = seconds_of(&player, copy_whole, 0);
        rows *= bytes / (double)(player.block_bytes / bench->found.row_bytes * bench->found.row_bytes);
        keep(&player, EPX_MEMORY_BYTES, 2 * bytes / alone);
        if (bench->apart)
            measure_link(&player, &whole, &rows);
        keep(&player, EPX_LINK_BYTES, bytes / (whole < rows ? whole : rows));
        keep(&player, EPX_LINK_SHARE, whole < rows ? whole / rows : 1);
        keep(&player, EPX_BARRIER_S, epx_calibration_barrier(self));
        route_nothing(&player);
        keep(&player, EPX_OPERATION_S, seconds_of(&player, empty_calls, 1) / (2 * EPX_CALIBRATION_CALLS));
        measure_products(&player);
    }
    close_player(&player);
    return self->code;
}

/* More ranks than before, for nothing but the time of a call. */
static int play_many(epx_rank_t *self)
{
    player_t player = {.self = self, .bench = self->context};
    open_side(&player);
    /* Nothing is read or written: there is no token. */
    if (!failed(&player))
        epx_perf_twin_new_device(self, &player.side, &player.from, 1, 1 << 20);
    if (!failed(&player))
        epx_perf_twin_new_device(self, &player.side, &player.to, 1, 1 << 20);
    route_nothing(&player);
    double time = failed(&player) ? 0 : seconds_of(&player, empty_calls, 1) / (2 * EPX_CALIBRATION_CALLS);
    if (self->rank == 0)
        player.bench->found.many_call_s = time;
    close_player(&player);
    return self->code;
}

/* ---- the file ----------------------------------------------------------------------------------------------------- */

static void describe(const bench_t *bench, epx_machine_t *machine)
{
    int measured = bench->no_product[0] == '\0';
    const char *const sources[EPX_CONSTANTS] = {
        [EPX_PEAK_FLOPS] = "the vendor's table, dense bf16; or the measured products, where that is more",
        [EPX_GEMM_FLOPS] = measured ? "measured: median of products of 8192 x 8192 x 8192 bf16 by cuBLAS"
                                    : "assumed: 0.7 of peak_flops, since cuBLAS was not found",
        [EPX_ATTENTION_FLOPS] = "assumed: 0.6 of gemm_flops; epx has no attention of its own to time here",
        [EPX_MEMORY_BYTES] = "measured: the device's own copy of 512 MiB, read and written bytes",
        [EPX_LINK_BYTES] =
            bench->apart ? "measured: 512 MiB to the next GPU by the copy engine, all GPUs at once"
                         : "measured: copies of 512 MiB by all ranks at once within the one GPU that they "
                           "share: no link is crossed; --fabric nccl measures that of several GPUs",
        [EPX_OPERATION_S] = "measured: half of a dispatch and a combine of no token, ragged, by the "
                            "device's clock, less what ranks add",
        [EPX_BARRIER_S] = "measured: a barrier of the library",
        [EPX_OVERLAP] = measured ? "measured: share of the shorter that vanishes when scattered rows are "
                                   "copied by 24 multiprocessors beside such a product"
                                 : "assumed, since cuBLAS was not found",
    };
    snprintf(machine->name, sizeof machine->name, "%s", bench->name);
    snprintf(
        machine->summary, sizeof machine->summary,
        "%lld ranks as threads %s %s; measured by epx-perf --calibrate --device cuda%s with all ranks busy",
        (long long)bench->found.ranks, bench->apart ? "with a GPU each," : "that share one", bench->name,
        bench->apart ? " --fabric nccl" : "");
    epx_calibration_describe(&bench->found, sources, machine);
    if (!bench->apart)
        return;
    snprintf(machine->source[EPX_LINK_SHARE], sizeof machine->source[0],
             "measured: the same bytes as rows of %lld, by plain stores of a kernel on all multiprocessors",
             (long long)bench->found.row_bytes);
    snprintf(machine->source[EPX_PEER_S], sizeof machine->source[0],
             "assumed: one more 64-bit store that leaves without waiting for the one before; so few GPUs "
             "cannot tell");
}

int epx_perf_calibrate_device(const epx_perf_settings_t *settings, epx_machine_t *machine)
{
    bench_t bench = {.settings = settings, .found = epx_calibration_begin(settings)};
    bench.link = (epx_perf_case_t){.settings = settings, .row_bytes = bench.found.row_bytes, .apart = 1};
    int rc = epx_ranks_play((int32_t)settings->ranks, play, &bench);
    if (rc == EPX_EXIT_OK && !bench.apart)
        rc = epx_ranks_play((int32_t)(EPX_CALIBRATION_MANY * settings->ranks), play_many, &bench);
    epx_progress_clear();
    if (rc != EPX_EXIT_OK)
        return rc;
    if (bench.apart) /* there are no more GPUs for more ranks */
        bench.found.value[EPX_PEER_S] = 1e-8;
    else
        epx_calibration_split_calls(&bench.found);
    describe(&bench, machine);
    return EPX_EXIT_OK;
}
