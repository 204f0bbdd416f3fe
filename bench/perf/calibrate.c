/* The constants of the cost model, measured on this machine. SPDX-License-Identifier: Apache-2.0 */
#include "bench/perf/calibrate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <epx/info.h>

#include "bench/common/machine.h"
#include "bench/perf/calibration.h"
#include "tools/common/numbers.h"
#include "tools/common/program.h"
#include "tools/common/ranks.h"
#include "tools/common/table.h"
#include "tools/common/terminal.h"
#include "train/fail.h"
#include "train/math.h"
#include "train/peak.h"

enum { WINDOWS = 5, SIDE = 512 };
#define WINDOW_NS 40000000
#define BLOCK_BYTES ((int64_t)32 << 20) /* beyond the caches, of each rank */

/* One measurement of all ranks. */
typedef struct bench {
    const epx_perf_settings_t *settings;
    epx_calibration_t found;
    char **block; /* [ranks] each [2 * BLOCK_BYTES], written by others too */
} bench_t;

typedef struct player {
    epx_rank_t *self;
    bench_t *bench;
    char *mine, *next; /* this rank's block, and that of the rank it writes to */
    epx_attention_t attention;
    epx_real_t *a, *b, *c;
    epx_real_t *qkv, *out, *dout, *dqkv, *logsum, *scratch;
} player_t;

/* Does some work once and returns how much it was, in the constant's unit. */
typedef double (*work_fn)(player_t *player);

/* ---- work --------------------------------------------------------------------------------------------------------- */

static double multiply(player_t *player)
{
    epx_math_gemm(EPX_NN, SIDE, SIDE, SIDE / 2, player->a, SIDE / 2, player->b, SIDE, 0, player->c, SIDE);
    return 2.0 * SIDE * SIDE * SIDE / 2;
}

/* Forward and backward; the backward pass counts as two forward ones. */
static double attend(player_t *player)
{
    const epx_attention_t *shape = &player->attention;
    double heads = (double)shape->heads, tokens = (double)shape->sequence, width = (double)shape->head_width;
    epx_math_attention(shape, player->qkv, player->out, player->logsum, player->scratch);
    epx_math_attention_backward(shape, player->qkv, player->out, player->logsum, player->dout, player->dqkv,
                                player->scratch);
    return 3 * (4 * heads * width + 3 * heads) * tokens * (tokens + 1) / 2;
}

/* Read and written bytes. */
static double copy_own(player_t *player)
{
    memcpy(player->mine + BLOCK_BYTES, player->mine, (size_t)BLOCK_BYTES);
    return 2.0 * (double)BLOCK_BYTES;
}

static double copy_to_next(player_t *player)
{
    memcpy(player->next + BLOCK_BYTES, player->mine, (size_t)BLOCK_BYTES);
    return (double)BLOCK_BYTES;
}

/* The same bytes, a row at a time, read in a scattered order. */
static double rows_to_next(player_t *player)
{
    int64_t bytes = player->bench->found.row_bytes, rows = BLOCK_BYTES / bytes, from = 0;
    for (int64_t r = 0; r < rows; r++) {
        memcpy(player->next + BLOCK_BYTES + r * bytes, player->mine + from * bytes, (size_t)bytes);
        from = (from + 514229) % rows; /* a prime that no number of rows here is a multiple of */
    }
    return (double)(rows * bytes);
}

/* ---- measuring ---------------------------------------------------------------------------------------------------- */

static int failed(player_t *player) { return player->self->code != EPX_EXIT_OK; }

static void meet(player_t *player)
{
    if (!failed(player))
        epx_rank_check(player->self, epx_comm_barrier(player->self->comm), "barrier");
}

/* Work per second of one rank while all do it: the median of several windows of the ranks' mean. */
static double rate_of(player_t *player, work_fn work)
{
    double rate[WINDOWS];
    for (int i = 0; i < WINDOWS; i++) {
        double done = 0;
        meet(player);
        int64_t begun = epx_now_ns(), now = begun;
        for (; now - begun < WINDOW_NS; now = epx_now_ns())
            done += work(player);
        rate[i] = epx_calibration_mean(player->self, done / ((double)(now - begun) * 1e-9));
    }
    epx_sort_reals(rate, WINDOWS);
    return rate[WINDOWS / 2];
}

/* ---- calls without rows -------------------------------------------------------------------------------------------- */

/* Median seconds of a dispatch and of a combine of no token at all. */
static double empty_calls(player_t *player, epx_plan_h plan)
{
    epx_routing_t routing = EPX_ROUTING_INIT;
    double *seconds = epx_tool_alloc(EPX_CALIBRATION_CALLS, sizeof *seconds);
    char unused[64];
    for (int i = 0; i < EPX_CALIBRATION_CALLS && !failed(player); i++) {
        epx_batch_t batch = EPX_BATCH_INIT;
        epx_rank_check(player->self, epx_plan_route(plan, &routing, NULL), "route");
        int64_t begun = epx_now_ns();
        if (!failed(player))
            epx_rank_check(player->self, epx_dispatch(plan, 0, unused, &batch, NULL), "dispatch");
        if (!failed(player))
            epx_rank_check(player->self, epx_combine(plan, 0, unused, unused, NULL), "combine");
        seconds[i] = (double)(epx_now_ns() - begun) * 0.5e-9;
    }
    epx_sort_reals(seconds, EPX_CALIBRATION_CALLS);
    double median = seconds[EPX_CALIBRATION_CALLS / 2];
    free(seconds);
    return median;
}

static double call_time(player_t *player)
{
    epx_group_config_t config = epx_calibration_group(player->bench->settings, player->self->ranks);
    epx_group_h group = NULL;
    epx_plan_h plan = NULL;
    double time = 0;
    if (!failed(player))
        epx_rank_check_settings(player->self, epx_group_open(player->self->comm, &config, &group),
                                "group open");
    if (!failed(player))
        epx_rank_check(player->self, epx_plan_create(group, 0, NULL, &plan), "plan create");
    if (!failed(player))
        time = empty_calls(player, plan);
    epx_plan_destroy(&plan);
    epx_group_close(&group);
    return epx_calibration_mean(player->self, time);
}

/* ---- one rank ----------------------------------------------------------------------------------------------------- */

static void open_player(player_t *player)
{
    bench_t *bench = player->bench;
    player->attention = (epx_attention_t){
        .sequences = 1, .sequence = 512, .heads = 4, .kv_heads = 1, .head_width = 64, .window = 0};
    const epx_attention_t *shape = &player->attention;
    size_t tokens = (size_t)shape->sequence,
           wide = (size_t)((shape->heads + 2 * shape->kv_heads) * shape->head_width);
    size_t narrow = (size_t)(shape->heads * shape->head_width), real = sizeof(epx_real_t);
    player->mine = bench->block[player->self->rank];
    player->next = bench->block[(player->self->rank + 1) % player->self->ranks];
    memset(player->mine, player->self->rank + 1, (size_t)(2 * BLOCK_BYTES));
    player->a = epx_tool_alloc(SIDE * SIDE, real);
    player->b = epx_tool_alloc(SIDE * SIDE, real);
    player->c = epx_tool_alloc(SIDE * SIDE, real);
    player->qkv = epx_tool_alloc(tokens * wide, real);
    player->dqkv = epx_tool_alloc(tokens * wide, real);
    player->out = epx_tool_alloc(tokens * narrow, real);
    player->dout = epx_tool_alloc(tokens * narrow, real);
    player->logsum = epx_tool_alloc(tokens * (size_t)shape->heads, real);
    player->scratch = epx_tool_alloc((size_t)epx_math_attention_scratch(shape), real);
    for (size_t i = 0; i < SIDE * SIDE; i++)
        player->a[i] = player->b[i] = (epx_real_t)((double)(i % 13) / 16);
    for (size_t i = 0; i < tokens * wide; i++)
        player->qkv[i] = (epx_real_t)((double)(i % 17) / 32);
}

static void close_player(player_t *player)
{
    void *all[] = {player->a,    player->b,    player->c,      player->qkv,    player->out,
                   player->dout, player->dqkv, player->logsum, player->scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void keep(player_t *player, epx_constant_t constant, double value)
{
    epx_calibration_keep(player->self, &player->bench->found, constant, value);
}

static int play(epx_rank_t *self)
{
    player_t player = {.self = self, .bench = self->context};
    double peak = 0;
    open_player(&player);
    if (epx_peak_measure(self->comm, &peak) != EPX_TRAIN_OK)
        epx_rank_fail(self, EPX_EXIT_FAILED, "%s", epx_train_error());
    double gemm = rate_of(&player, multiply), each = peak / self->ranks;
    keep(&player, EPX_GEMM_FLOPS, gemm);
    keep(&player, EPX_PEAK_FLOPS,
         each > gemm ? each : gemm); /* a busy machine may find its best window late */
    keep(&player, EPX_ATTENTION_FLOPS, rate_of(&player, attend));
    keep(&player, EPX_MEMORY_BYTES, rate_of(&player, copy_own));
    double whole = rate_of(&player, copy_to_next), rows = rate_of(&player, rows_to_next);
    keep(&player, EPX_LINK_BYTES, whole > rows ? whole : rows);
    keep(&player, EPX_LINK_SHARE, whole > rows ? rows / whole : 1);
    keep(&player, EPX_BARRIER_S, epx_calibration_barrier(self));
    keep(&player, EPX_OPERATION_S, call_time(&player));
    close_player(&player);
    return self->code;
}

/* More ranks than before, for nothing but the time of a call. */
static int play_many(epx_rank_t *self)
{
    player_t player = {.self = self, .bench = self->context};
    double time = call_time(&player);
    if (self->rank == 0)
        player.bench->found.many_call_s = time;
    return self->code;
}

/* ---- the file ----------------------------------------------------------------------------------------------------- */

static void describe(const bench_t *bench, epx_machine_t *machine)
{
    static const char *const sources[EPX_CONSTANTS] = {
        [EPX_PEAK_FLOPS] = "measured: best window of fp32 products of 384 x 384 x 384",
        [EPX_GEMM_FLOPS] = "measured: median window of fp32 products of 512 x 512 x 256",
        [EPX_ATTENTION_FLOPS] =
            "measured: attention of the training loop, causal, 4 heads of 64, 512 tokens, "
            "forward and backward counted as three times the forward's products",
        [EPX_MEMORY_BYTES] = "measured: memcpy of 32 MiB, read and written bytes",
        [EPX_LINK_BYTES] = "measured: memcpy of 32 MiB into the memory of the next rank",
        [EPX_OPERATION_S] =
            "measured: half of a dispatch and a combine of no token, ragged, less what ranks add",
        [EPX_BARRIER_S] = "measured: a barrier of the library",
        [EPX_OVERLAP] = "the host device computes in the thread that calls, so nothing is hidden",
    };
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    snprintf(machine->name, sizeof machine->name, "host");
    snprintf(machine->summary, sizeof machine->summary,
             "%lld ranks as threads on %ld cores, products by %s; measured by epx-perf --calibrate with all "
             "ranks busy",
             (long long)bench->found.ranks, cores, epx_math_gemm_name());
    epx_calibration_describe(&bench->found, sources, machine);
}

static void show(const epx_machine_t *machine, const char *path, epx_json_t *json)
{
    static const epx_column_t columns[] = {{"constant", 0}, {"value", 1}, {"unit", 0}, {"source", 0}};
    if (json != NULL) {
        epx_json_object(json, NULL);
        epx_json_text(json, "program", "epx-perf");
        epx_json_text(json, "version", epx_version());
        epx_json_text(json, "mode", "calibrate");
        epx_json_text(json, "file", path);
        epx_json_object(json, "constants");
        for (int i = 0; i < EPX_CONSTANTS; i++)
            epx_json_real(json, epx_constant_row((epx_constant_t)i)->name, machine->value[i]);
        epx_json_close(json);
        epx_json_close(json);
        return;
    }
    epx_table_t *table = epx_table_new(columns, sizeof columns / sizeof *columns);
    for (int i = 0; i < EPX_CONSTANTS; i++) {
        epx_table_cell(table, "%s", epx_constant_row((epx_constant_t)i)->name);
        epx_table_cell(table, "%.4g", machine->value[i]);
        epx_table_cell(table, "%s", epx_constant_row((epx_constant_t)i)->unit);
        epx_table_cell(table, "%s", machine->source[i]);
    }
    printf("%s\n\n", machine->summary);
    epx_table_print(table, stdout, 2);
    epx_table_free(table);
    printf("\n%s: for epx-sim --machine\n", path);
}

static int calibrate_host(const epx_perf_settings_t *settings, epx_machine_t *machine)
{
    bench_t bench = {.settings = settings, .found = epx_calibration_begin(settings)};
    bench.block = epx_tool_alloc((size_t)settings->ranks, sizeof *bench.block);
    for (int64_t r = 0; r < settings->ranks; r++)
        bench.block[r] = epx_tool_alloc(2, (size_t)BLOCK_BYTES);
    epx_math_gemm_setup();
    int rc = epx_ranks_play((int32_t)settings->ranks, play, &bench);
    if (rc == EPX_EXIT_OK)
        rc = epx_ranks_play((int32_t)(EPX_CALIBRATION_MANY * settings->ranks), play_many, &bench);
    epx_progress_clear();
    if (rc == EPX_EXIT_OK) {
        epx_calibration_split_calls(&bench.found);
        describe(&bench, machine);
    }
    for (int64_t r = 0; r < settings->ranks; r++)
        free(bench.block[r]);
    free(bench.block);
    return rc;
}

/* The name of the device that groups of this process take, as far as one was named. */
static void find_device(void *context, const epx_setting_t *setting)
{
    if (strcmp(setting->variable, "EPX_DEVICE") == 0)
        snprintf(context, 32, "%.31s", setting->value);
}

int epx_perf_calibrate(const epx_perf_settings_t *settings, epx_json_t *json)
{
    epx_machine_t *machine = epx_tool_alloc(1, sizeof *machine);
    epx_group_config_t config = epx_perf_group_config(settings, "ragged", 1);
    char problem[512], device[32] = "";
    epx_config_list(&config, find_device, device);
    int rc = strcmp(device, "cuda") == 0 ? epx_perf_calibrate_device(settings, machine)
                                         : calibrate_host(settings, machine);
    if (rc == EPX_EXIT_OK && epx_machine_write(settings->calibrate, machine, problem, sizeof problem) != 0)
        rc = epx_tool_fail(EPX_EXIT_FAILED, "--calibrate: %s", problem);
    if (rc == EPX_EXIT_OK)
        show(machine, settings->calibrate, json);
    if (rc == EPX_EXIT_OK && json != NULL && epx_json_end(json) != 0)
        rc = EPX_EXIT_FAILED;
    free(machine);
    return rc;
}
