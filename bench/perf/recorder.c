/*
 * What the flight recorder costs. SPDX-License-Identifier: Apache-2.0
 *
 * Two trainers of the same seed stand side by side in every rank's thread, one on a comm that is recorded and
 * one on a comm that is not; they make the same step one after the other, in turns first. A pair gives one
 * ratio. Where the two happen to lie in memory tells between them too, so every round makes them anew, now
 * the one first and now the other. The watchdog's thread runs beside both and is measured by itself.
 */
#include "bench/perf/recorder.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <epx/record.h>

#include "tools/common/numbers.h"
#include "tools/common/program.h"
#include "tools/common/terminal.h"
#include "train/train.h"

enum { OFF = 0, ON = 1, ARMS = 2, WARM_UP = 4, EVENTS = 1000, BATCHES = 200 };

static int64_t cpu_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* ---- one host event ---------------------------------------------------------------------------------------- */

typedef struct events {
    epx_recorder_h recorder;
    int32_t text, group;
} events_t;

static void make_marks(const events_t *e)
{
    for (int32_t i = 0; i < EVENTS; i++)
        epx_mark(e->recorder, e->text, NULL);
}

static void make_heartbeats(const events_t *e)
{
    for (int32_t i = 0; i < EVENTS; i++)
        epx_heartbeat(e->recorder);
}

/* Four events each: enqueued, begun, all are there, ended. */
static void make_operations(const events_t *e)
{
    epx_record_op_t op = EPX_RECORD_OP_INIT;
    op.group_id = e->group;
    op.text_id = e->text;
    for (int32_t i = 0; i < EVENTS / 4; i++) {
        uint64_t number = epx_record_enqueue(e->recorder, &op);
        epx_record_begin(e->recorder, number);
        epx_record_seen(e->recorder, number);
        epx_record_end(e->recorder, number, EPX_OK);
    }
}

static const struct {
    const char *name;
    void (*make)(const events_t *events);
} kinds[] = {
    {"a mark", make_marks}, {"a heartbeat", make_heartbeats}, {"a stamp of an operation", make_operations}};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* Median over batches of the nanoseconds of one event, by the thread's own clock. */
static int time_events(double ns[KINDS], const char *folder)
{
    static double batch[BATCHES];
    events_t events = {NULL, 0, 0};
    epx_recorder_config_t config = EPX_RECORDER_CONFIG_INIT;
    epx_record_group_t group = EPX_RECORD_GROUP_INIT;
    config.job = "events", config.ranks = 8, config.no_watchdog = 1;
    setenv("EPX_RECORD", folder, 1);
    epx_status_t status = epx_record_open(&config, &events.recorder);
    if (status != EPX_OK)
        return epx_tool_fail_status(status, "cannot open a record");
    group.name = "events", group.ranks = 8;
    events.group = epx_record_group(events.recorder, &group);
    events.text = epx_record_text(events.recorder, "an event");
    for (int32_t k = 0; k < KINDS; k++) {
        kinds[k].make(&events);
        for (int32_t b = 0; b < BATCHES; b++) {
            int64_t since = cpu_ns(CLOCK_THREAD_CPUTIME_ID);
            kinds[k].make(&events);
            batch[b] = (double)(cpu_ns(CLOCK_THREAD_CPUTIME_ID) - since) / EVENTS;
        }
        epx_sort_reals(batch, BATCHES);
        ns[k] = epx_quantile(batch, BATCHES, 0.5);
    }
    epx_record_close(&events.recorder);
    return EPX_EXIT_OK;
}

/* ---- the training step ------------------------------------------------------------------------------------- */

typedef struct trial {
    const epx_perf_settings_t *settings;
    epx_train_config_t train;
    int32_t ranks, round, pairs;
    epx_comm_h *comm[ARMS]; /* [ranks] */
    pthread_barrier_t meet;
    atomic_llong cpu[ARMS]; /* of a step, summed over ranks */
    atomic_int failed;      /* the first failure's exit code; 0: none */
    char error[512];
    double *wall_ratio, *cpu_ratio; /* [rounds * pairs] */
    double step_ms[ARMS];
    int64_t cpu_all, cpu_ranks, wall_all; /* of the process, of its ranks, and the time that passed */
    atomic_llong cpu_of_ranks;
    char transport[64];
} trial_t;

typedef struct place {
    trial_t *trial;
    int32_t rank;
    pthread_t thread;
    epx_trainer_t *trainer[ARMS];
    double loss[ARMS];
} place_t;

static void gave_up(trial_t *trial, int code, const char *why)
{
    int first = 0;
    if (atomic_compare_exchange_strong(&trial->failed, &first, code))
        snprintf(trial->error, sizeof trial->error, "%s", why);
}

static int first_arm(int32_t turn) { return (turn & 1) != 0 ? ON : OFF; }

/* A step of one arm; rank 0's time from the first to the last rank, 0 after a failure. */
static int64_t make_step(place_t *place, int arm)
{
    trial_t *trial = place->trial;
    epx_metrics_t metrics;
    pthread_barrier_wait(&trial->meet);
    int64_t since = epx_now_ns(), cpu = cpu_ns(CLOCK_THREAD_CPUTIME_ID);
    int code = EPX_TRAIN_OK;
    if (!atomic_load(&trial->failed))
        code = epx_trainer_step(place->trainer[arm], &metrics);
    if (code != EPX_TRAIN_OK)
        gave_up(trial, code, epx_train_error());
    else
        place->loss[arm] = metrics.loss;
    atomic_fetch_add(&trial->cpu[arm], cpu_ns(CLOCK_THREAD_CPUTIME_ID) - cpu);
    pthread_barrier_wait(&trial->meet);
    return epx_now_ns() - since;
}

static void make_pair(place_t *place, int32_t pair)
{
    trial_t *trial = place->trial;
    int64_t ns[ARMS];
    int first = first_arm(pair + trial->round);
    if (place->rank == 0)
        atomic_store(&trial->cpu[OFF], 0), atomic_store(&trial->cpu[ON], 0);
    ns[first] = make_step(place, first);
    ns[1 - first] = make_step(place, 1 - first);
    if (place->loss[ON] < place->loss[OFF] || place->loss[ON] > place->loss[OFF])
        gave_up(trial, EPX_EXIT_FAILED, "the losses of a recorded and an unrecorded step differ");
    if (place->rank != 0 || pair < 0)
        return;
    int32_t at = trial->round * trial->pairs + pair;
    trial->wall_ratio[at] = (double)ns[ON] / (double)ns[OFF];
    trial->cpu_ratio[at] = (double)atomic_load(&trial->cpu[ON]) / (double)atomic_load(&trial->cpu[OFF]);
    for (int arm = 0; arm < ARMS; arm++)
        trial->step_ms[arm] += (double)ns[arm] * 1e-6;
}

static int set_up(place_t *place, int arm)
{
    trial_t *trial = place->trial;
    int code = epx_trainer_create(&trial->train, trial->comm[arm][place->rank], &place->trainer[arm]);
    if (code == EPX_TRAIN_OK)
        code = epx_trainer_open_group(place->trainer[arm], &trial->train.group);
    if (code != EPX_TRAIN_OK)
        gave_up(trial, code, epx_train_error());
    return code == EPX_TRAIN_OK;
}

static void *play(void *context)
{
    place_t *place = context;
    trial_t *trial = place->trial;
    epx_group_info_t info = EPX_GROUP_INFO_INIT;
    int first = first_arm(trial->round);
    if (set_up(place, first))
        set_up(place, 1 - first);
    pthread_barrier_wait(&trial->meet);
    for (int32_t pair = -WARM_UP; pair < trial->pairs && !atomic_load(&trial->failed); pair++) {
        make_pair(place, pair);
        pthread_barrier_wait(&trial->meet); /* all have looked at `failed` of this pair behind it */
    }
    if (place->rank == 0 && !atomic_load(&trial->failed) &&
        epx_trainer_group_info(place->trainer[ON], &info) == EPX_TRAIN_OK)
        snprintf(trial->transport, sizeof trial->transport, "%s", info.transport);
    epx_trainer_destroy(&place->trainer[OFF]);
    epx_trainer_destroy(&place->trainer[ON]);
    atomic_fetch_add(&trial->cpu_of_ranks, cpu_ns(CLOCK_THREAD_CPUTIME_ID));
    return NULL;
}

/* The comms of one arm, whose recorders are opened while EPX_RECORD says what they are to be. */
static int make_comms(trial_t *trial, int arm, const char *folder)
{
    setenv("EPX_RECORD", arm == ON ? folder : "off", 1);
    epx_status_t status = epx_comm_threads(trial->ranks, trial->comm[arm]);
    if (status != EPX_OK)
        return epx_tool_fail_status(status, "cannot make ranks");
    for (int32_t r = 0; r < trial->ranks; r++)
        if ((epx_comm_recorder(trial->comm[arm][r]) != NULL) != (arm == ON))
            return epx_tool_fail(EPX_EXIT_FAILED, "rank %d could not be recorded: %s", r, epx_last_error());
    return EPX_EXIT_OK;
}

static int play_round(trial_t *trial, const char *folder)
{
    place_t *place = epx_tool_alloc((size_t)trial->ranks, sizeof *place);
    int first = first_arm(trial->round), rc = make_comms(trial, first, folder);
    if (rc == EPX_EXIT_OK)
        rc = make_comms(trial, 1 - first, folder);
    int64_t since = epx_now_ns(), cpu = cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
    int64_t by_me = cpu_ns(CLOCK_THREAD_CPUTIME_ID);
    for (int32_t r = 0; r < trial->ranks && rc == EPX_EXIT_OK; r++) {
        place[r] = (place_t){.trial = trial, .rank = r};
        pthread_create(&place[r].thread, NULL, play, &place[r]);
    }
    for (int32_t r = 0; r < trial->ranks && rc == EPX_EXIT_OK; r++)
        pthread_join(place[r].thread, NULL);
    trial->wall_all += epx_now_ns() - since;
    trial->cpu_all += cpu_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu - (cpu_ns(CLOCK_THREAD_CPUTIME_ID) - by_me);
    for (int arm = 0; arm < ARMS; arm++)
        for (int32_t r = 0; r < trial->ranks; r++)
            epx_comm_destroy(&trial->comm[arm][r]);
    free(place);
    if (rc == EPX_EXIT_OK && atomic_load(&trial->failed))
        rc = epx_tool_fail(atomic_load(&trial->failed), "%s", trial->error);
    return rc;
}

/* ---- what came of it --------------------------------------------------------------------------------------- */

/* The median of sorted values, and between which of them it lies with 95% confidence. */
typedef struct span {
    double median, low, high;
} span_t;

static span_t span_of(double *values, size_t count)
{
    epx_sort_reals(values, count);
    double reach = 0.98 * sqrt((double)count), middle = ((double)count - 1) / 2;
    size_t low = middle > reach ? (size_t)(middle - reach) : 0, high = count - 1 - low;
    return (span_t){epx_quantile(values, count, 0.5), values[low], values[high]};
}

static void show_span(epx_json_t *json, const char *key, const char *words, span_t span)
{
    if (json == NULL) {
        printf("  %-34s %.4f  (95%%: %.4f to %.4f)\n", words, span.median, span.low, span.high);
        return;
    }
    epx_json_object(json, key);
    epx_json_real(json, "median", span.median);
    epx_json_real(json, "low", span.low);
    epx_json_real(json, "high", span.high);
    epx_json_close(json);
}

static void show_head(const trial_t *trial, const double ns[KINDS], epx_json_t *json)
{
    if (json == NULL) {
        printf("host events, median of %d batches of %d (target: at most 150 ns)\n", BATCHES, EVENTS);
        for (int k = 0; k < KINDS; k++)
            printf("  %-34s %.1f ns\n", kinds[k].name, ns[k]);
        printf(
            "training step, preset %s, %d ranks, %s: recorded over not recorded, %d pairs of steps in each "
            "of %d rounds (target: at most 1.005)\n",
            trial->train.preset, trial->ranks, trial->transport, trial->pairs, EPX_PERF_RECORDER_ROUNDS);
        return;
    }
    epx_json_object(json, NULL);
    epx_json_text(json, "program", "epx-perf");
    epx_json_text(json, "version", epx_version());
    epx_json_text(json, "mode", "recorder");
    epx_json_text(json, "preset", trial->train.preset);
    epx_json_text(json, "transport", trial->transport);
    epx_json_int(json, "ranks", trial->ranks);
    epx_json_int(json, "pairs", trial->pairs * EPX_PERF_RECORDER_ROUNDS);
    epx_json_real(json, "mark_ns", ns[0]);
    epx_json_real(json, "heartbeat_ns", ns[1]);
    epx_json_real(json, "stamp_ns", ns[2]);
}

static int show(trial_t *trial, const double ns[KINDS], epx_json_t *json)
{
    size_t count = (size_t)trial->pairs * EPX_PERF_RECORDER_ROUNDS;
    double off_ms = trial->step_ms[OFF] / (double)count, on_ms = trial->step_ms[ON] / (double)count;
    double beside = (double)(trial->cpu_all - atomic_load(&trial->cpu_of_ranks)) / (double)trial->wall_all;
    show_head(trial, ns, json);
    show_span(json, "wall_ratio", "time that passed", span_of(trial->wall_ratio, count));
    show_span(json, "cpu_ratio", "processor time of the ranks", span_of(trial->cpu_ratio, count));
    if (json == NULL) {
        printf("  %-34s %.2f and %.2f ms\n", "mean step without and with", off_ms, on_ms);
        printf("  %-34s %.3f%% of a core\n", "threads beside the ranks", 100 * beside);
        return EPX_EXIT_OK;
    }
    epx_json_real(json, "step_off_ms", off_ms);
    epx_json_real(json, "step_on_ms", on_ms);
    epx_json_real(json, "watchdog_cores", beside);
    epx_json_close(json);
    return epx_json_end(json) == 0 ? EPX_EXIT_OK : EPX_EXIT_FAILED;
}

static int prepare(trial_t *trial, const epx_perf_settings_t *settings)
{
    if (epx_config_preset("tiny", &trial->train) != EPX_TRAIN_OK)
        return epx_tool_fail(EPX_EXIT_FAILED, "%s", epx_train_error());
    trial->settings = settings;
    trial->ranks = (int32_t)settings->ranks;
    trial->pairs = (int32_t)settings->iterations;
    trial->train.ep = settings->ranks;
    trial->train.replicas = 1;
    trial->train.peak_flops = 1e12; /* not asked for, and measuring it takes its time */
    trial->train.group.transport = settings->transport[0];
    size_t count = (size_t)trial->pairs * EPX_PERF_RECORDER_ROUNDS;
    trial->wall_ratio = epx_tool_alloc(count, sizeof(double));
    trial->cpu_ratio = epx_tool_alloc(count, sizeof(double));
    for (int arm = 0; arm < ARMS; arm++)
        trial->comm[arm] = epx_tool_alloc((size_t)trial->ranks, sizeof(epx_comm_h));
    pthread_barrier_init(&trial->meet, NULL, (unsigned)trial->ranks);
    return epx_config_check(&trial->train) == EPX_TRAIN_OK
               ? EPX_EXIT_OK
               : epx_tool_fail(EPX_EXIT_USAGE, "%s", epx_train_error());
}

int epx_perf_recorder(const epx_perf_settings_t *settings, epx_json_t *json)
{
    trial_t *trial = epx_tool_alloc(1, sizeof *trial);
    char folder[64], command[96];
    double ns[KINDS];
    snprintf(folder, sizeof folder, "/dev/shm/epx-perf-%d", (int)getpid());
    int rc = prepare(trial, settings);
    if (rc == EPX_EXIT_OK)
        rc = time_events(ns, folder);
    for (trial->round = 0; trial->round < EPX_PERF_RECORDER_ROUNDS && rc == EPX_EXIT_OK; trial->round++) {
        epx_progress("round %d of %d", trial->round + 1, EPX_PERF_RECORDER_ROUNDS);
        rc = play_round(trial, folder);
    }
    epx_progress_clear();
    if (rc == EPX_EXIT_OK)
        rc = show(trial, ns, json);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command) != 0 && rc == EPX_EXIT_OK)
        rc = epx_tool_fail(EPX_EXIT_FAILED, "cannot remove %s", folder);
    pthread_barrier_destroy(&trial->meet);
    free(trial->wall_ratio);
    free(trial->cpu_ratio);
    free(trial->comm[OFF]);
    free(trial->comm[ON]);
    free(trial);
    return rc;
}
