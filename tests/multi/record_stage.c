/* The stage of record_device.c and record_open.c. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <epx/health.h>

#include "device/registry.h"
#include "fabric/nccl/library.h"
#include "multi/record_stage.h"
#include "record/recorder.h"
#include "support/guarded.h"

static epx_device_ops_t device;
_Thread_local int32_t stage_number;
static const char *fabric;
char stage_folder[128];
static char told[160];
volatile int stage_absent, stage_busy, stage_turned;

static int32_t current(void) { return stage_number; }

static int32_t bus(int32_t index, char text[EPX_DEVICE_BUS_BYTES])
{
    return snprintf(text, EPX_DEVICE_BUS_BYTES, "0000:%02x:00.0", (unsigned)index) > 0;
}

int stage_others, stage_own = -1;

static void use_is(int percent)
{
    FILE *file = fopen(told, "w");
    cr_assert(file != NULL);
    for (int g = 0; g < RANKS; g++)
        fprintf(file, "use %d %d\npower %d 412000\nclock %d 1755\n", g, percent, g, g);
    for (int g = 0; g < RANKS && stage_others; g++)
        fprintf(file, "process %d 1\nprocess %d %d\n", g, g, stage_others == HIDDEN ? 2 : (int)getpid());
    for (int g = 0; g < RANKS && stage_others == MANY; g++)
        fprintf(file, "process %d 3\n", g);
    for (int g = 0; g < RANKS && stage_own >= 0; g++)
        fprintf(file, "process-use %d 1 99\nprocess-use %d %d %d\n", g, g, (int)getpid(), stage_own);
    fclose(file);
}

static void *fake; /* the library that stands in for NCCL */

void stage_fake_takes(const char *name, const void *value, size_t bytes)
{
    void *place = dlsym(fake, name);
    cr_assert(place != NULL, "the library has no %s", name);
    memcpy(place, value, bytes);
}

/* The library works on the device of the tests, and as if no test had been before. */
static void set_fake(const char *library)
{
    fake = dlopen(library, RTLD_NOW);
    cr_assert(fake != NULL, "%s: %s", library, dlerror());
    const int version = 23007, zero = 0;
    epx_status_t (*enqueue)(epx_stream_t, guarded_run_fn, const void *, size_t) = guarded_enqueue;
    void *(*open)(const void *) = guarded_open;
    const struct {
        const char *name;
        const void *value;
        size_t bytes;
    } settings[] = {{"fake_version", &version, sizeof(version)},
                    {"fake_reach", &zero, sizeof(zero)},
                    {"fake_no_window", &zero, sizeof(zero)},
                    {"fake_broken", &zero, sizeof(zero)},
                    {"fake_allocate", &guarded_device.allocate, sizeof(guarded_device.allocate)},
                    {"fake_enqueue", &enqueue, sizeof(enqueue)},
                    {"fake_open", &open, sizeof(open)}};
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        stage_fake_takes(settings[i].name, settings[i].value, settings[i].bytes);
}

void stage_begin(const char *on, int percent)
{
    static char path[512], library[512]; /* who stands in for NCCL keeps the name */
    const char *build = getenv("TEST_BUILD");
    epx_health_use_t use = EPX_HEALTH_USE_INIT;
    fabric = on;
    stage_absent = -1;
    stage_busy = stage_turned = 0;
    stage_number = 0;
    device = guarded_device;
    device.current = current;
    device.bus = bus;
    epx_device_stand_in("cuda", &device);
    snprintf(stage_folder, sizeof(stage_folder), "/dev/shm/epx-test-device-%d", (int)getpid());
    snprintf(told, sizeof(told), "%s.nvml", stage_folder);
    setenv("EPX_RECORD", stage_folder, 1);
    setenv("EPX_HANG_MS", "400", 1);
    setenv("FAKE_NVML", told, 1);
    use_is(percent);
    snprintf(path, sizeof(path), "%s/tests/plugins/fake_nvml.so", build != NULL ? build : "build");
    cr_assert_eq(epx_health_gpu_use(path, "0000:00:00.0", &use), EPX_OK, "%s", epx_last_error());
    cr_assert_eq(use.percent, percent);
    cr_assert_eq(use.processes, stage_others == 0 || stage_others == HIDDEN ? 0
                                : stage_others == MANY                      ? 3
                                                                            : 2);
    cr_assert_eq(use.own, stage_others == 0 || stage_others == HIDDEN ? -1 : stage_own >= 0 ? stage_own : 0);
    if (strcmp(on, "nccl") != 0)
        return;
    snprintf(library, sizeof(library), "%s/tests/plugins/nccl.so", build != NULL ? build : "build");
    set_fake(library);
    epx_nccl_stand_in(library);
    guarded_apart = 1;
}

void stage_end(void)
{
    guarded_lawless = 0;
    char command[400];
    snprintf(command, sizeof(command), "rm -rf %s %s", stage_folder, told);
    cr_assert_eq(system(command), 0);
}

/* ---- ranks ------------------------------------------------------------------------------------------------------ */

_Atomic(epx_recorder_h) stage_recorders[RANKS];
static _Atomic int over; /* the verdict has come, or will not */
_Atomic int stage_through;

static void *device_memory(size_t bytes)
{
    void *memory = device.allocate(bytes, 256);
    if (memory == NULL || device.fill(memory, 0, bytes, NULL) != EPX_OK || device.synchronize(NULL) != EPX_OK)
        abort();
    return memory;
}

int stage_open(stage_player_t *p, const char *transport)
{
    epx_group_config_t config = EPX_GROUP_CONFIG_INIT;
    epx_group_info_t info = EPX_GROUP_INFO_INIT;
    int32_t ids[TOKENS * TOP_K];
    stage_number = p->self->rank;
    config.name = "experts";
    config.experts = EXPERTS;
    config.top_k = TOP_K;
    config.width = WIDTH;
    config.tokens_max = TOKENS;
    config.row_type = EPX_FP32;
    config.device = "cuda";
    config.fabric = fabric;
    config.transport = transport;
    config.waves = WAVES;
    device.stream_create(&p->stream);
    epx_comm_set_timeout(p->self->comm, 20000);
    if (!expect_came(p->self, "open", epx_group_open(p->self->comm, &config, &p->group), EPX_OK) ||
        !expect_came(p->self, "plan", epx_plan_create(p->group, 0, NULL, &p->plan), EPX_OK) ||
        !expect_came(p->self, "info", epx_group_info(p->group, &info), EPX_OK))
        return 0;
    config.name = "others";
    if (stage_turned &&
        (!expect_came(p->self, "open", epx_group_open(p->self->comm, &config, &p->second), EPX_OK) ||
         !expect_came(p->self, "plan", epx_plan_create(p->second, 0, NULL, &p->second_plan), EPX_OK)))
        return 0;
    for (int i = 0; i < TOKENS * TOP_K; i++)
        ids[i] = (p->self->rank + i) % EXPERTS;
    p->y_bytes = (size_t)info.batch_rows_max * WIDTH * sizeof(float);
    p->ids = device_memory(sizeof(ids));
    p->weights = device_memory(TOKENS * TOP_K * sizeof(float));
    p->x = device_memory(TOKENS * WIDTH * sizeof(float));
    p->out = device_memory(TOKENS * WIDTH * sizeof(float));
    p->y = device_memory(p->y_bytes + 1);
    epx_recorder_h recorder = epx_comm_recorder(p->self->comm);
    p->attention = epx_record_text(recorder, "attention");
    stage_recorders[p->self->rank] = recorder;
    return device.copy(p->ids, ids, sizeof(ids), p->stream) == EPX_OK &&
           device.synchronize(p->stream) == EPX_OK;
}

static int make_pass(stage_player_t *p, epx_plan_h plan)
{
    epx_routing_t routing = EPX_ROUTING_INIT;
    routing.tokens = TOKENS;
    routing.ids = p->ids;
    routing.weights = p->weights;
    epx_mark(stage_recorders[p->self->rank], p->attention, p->stream);
    if (epx_plan_route(plan, &routing, p->stream) != EPX_OK)
        return 0;
    for (int32_t wave = 0; wave < WAVES; wave++) {
        epx_batch_t batch = EPX_BATCH_INIT;
        if (epx_dispatch(plan, wave, p->x, &batch, p->stream) != EPX_OK ||
            device.copy(p->y, batch.rows, p->y_bytes, p->stream) != EPX_OK ||
            epx_combine(plan, wave, p->y, p->out, p->stream) != EPX_OK)
            return 0;
    }
    return 1;
}

int stage_step(stage_player_t *p, int step)
{
    int other_first = stage_turned && p->self->rank == 1 && step == FAULT_STEP;
    return make_pass(p, other_first ? p->second_plan : p->plan) &&
           (!stage_turned || make_pass(p, other_first ? p->plan : p->second_plan)) &&
           device.synchronize(p->stream) == EPX_OK && epx_step(p->group) == EPX_OK;
}

void stage_close(stage_player_t *p)
{
    device.synchronize(p->stream);
    epx_plan_destroy(&p->plan);
    epx_plan_destroy(&p->second_plan);
    epx_group_close(&p->group);
    epx_group_close(&p->second);
    device.stream_destroy(p->stream);
}

const char *const stage_transports[] = {"ragged", "pooled_wave"};

static void compute(int64_t ms)
{
    for (int64_t until = now_ms() + ms; now_ms() < until;)
        ;
}

static void play(rank_t *self)
{
    stage_player_t p = {.self = self};
    int steps = 0;
    if (!stage_open(&p, self->arg))
        return;
    while (steps < STEPS && !(stage_absent == self->rank && steps == FAULT_STEP)) {
        if (stage_busy && self->rank == 1 && steps == FAULT_STEP)
            compute(2 * HANG_MS);
        if (!stage_step(&p, steps))
            break;
        steps++;
    }
    stage_through += steps == STEPS;
    /* Ended groups let streams go on; who is through waits for the judge, who reads the recorders. */
    while (!over)
        sleep_ms(5);
    stage_close(&p);
}

char *stage_reported;

epx_verdict_t stage_seen;

static void *judge(void *unused)
{
    (void)unused;
    for (int64_t until = now_ms() + 15000;
         now_ms() < until && stage_seen.kind == EPX_VERDICT_NONE && stage_through < RANKS; sleep_ms(5)) {
        epx_verdict_t verdict = EPX_VERDICT_INIT;
        epx_recorder_h recorder = stage_recorders[0];
        if (recorder != NULL && epx_record_verdict(recorder, &verdict) == EPX_OK &&
            verdict.kind != EPX_VERDICT_SLOW)
            stage_seen = verdict;
    }
    over = 1;
    return NULL;
}

void stage_run(const char *transport, const char *fault)
{
    pthread_t thread;
    setenv("EPX_ON_HANG", "abort", 1);
    if (fault != NULL)
        setenv("EPX_FAULT", fault, 1);
    guarded_lawless = fault != NULL;
    world_may_warn();
    pthread_create(&thread, NULL, judge, NULL);
    capture_begin();
    world_run(RANKS, play, (void *)(size_t)transport);
    stage_reported = capture_end();
    pthread_join(thread, NULL);
}

void stage_expect(epx_verdict_kind_t kind, int32_t rank, int32_t peer, const char *op)
{
    cr_expect_eq(stage_seen.kind, kind, "%s of rank %d in %s: %s", epx_verdict_name(stage_seen.kind),
                 stage_seen.rank, stage_seen.op, stage_seen.text);
    cr_expect_eq(stage_seen.rank, rank, "rank %d: %s", stage_seen.rank, stage_seen.text);
    cr_expect(peer < 0 || stage_seen.peer == peer, "peer %d: %s", stage_seen.peer, stage_seen.text);
    cr_expect(op == NULL || strcmp(stage_seen.op, op) == 0, "operation %s: %s", stage_seen.op,
              stage_seen.text);
}
