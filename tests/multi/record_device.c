/*
 * What a device writes into the flight record, and verdicts where streams hold ranks up and hosts have gone
 * on: on a simulated device, with ranks that share it (hosts meet, streams wait for events) and ranks that
 * have one each (kernels wait). SPDX-License-Identifier: Apache-2.0
 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <epx/health.h>
#include <epx/record.h>

#include "device/registry.h"
#include "fabric/nccl/api.h"
#include "record/classify.h"
#include "record/recorder.h"
#include "support/guarded.h"
#include "support/guarded_kernels.h"
#include "support/world.h"

TestSuite(record_device, .init = clean_environment);

enum {
    RANKS = 3,
    TOKENS = 8,
    WIDTH = 8,
    TOP_K = 2,
    EXPERTS = 6,
    WAVES = 2,
    STEPS = 12,
    FAULT_STEP = 6,
    HANG_MS = 400
};

/* A step's operations: a route, and dispatch and combine of every wave. */
enum { STEP_OPS = 1 + 2 * WAVES };

static epx_device_ops_t device;
static _Thread_local int32_t number;
static const char *fabric;
static char folder[128], told[160];
static volatile int absent; /* the rank that makes no step from FAULT_STEP on; -1 */
static volatile int busy;   /* 1: rank 1's host computes for two budgets before it makes that step */
static volatile int turned; /* 1: two groups, which rank 1 takes the other way round in that step */

static int32_t current(void) { return number; }

static int32_t bus(int32_t index, char text[EPX_DEVICE_BUS_BYTES])
{
    return snprintf(text, EPX_DEVICE_BUS_BYTES, "0000:%02x:00.0", (unsigned)index) > 0;
}

/* What the library that stands in for NVML says of every GPU: whether another process has it too, and how
 * much of the use is this one's (-1: it has no sample, since it used nothing). HIDDEN: PIDs are another
 * namespace's. */
enum { HIDDEN = 2, MANY = 3 };
static int others, own = -1; /* MANY: two others */

static void use_is(int percent)
{
    FILE *file = fopen(told, "w");
    cr_assert(file != NULL);
    for (int g = 0; g < RANKS; g++)
        fprintf(file, "use %d %d\npower %d 412000\nclock %d 1755\n", g, percent, g, g);
    for (int g = 0; g < RANKS && others; g++)
        fprintf(file, "process %d 1\nprocess %d %d\n", g, g, others == HIDDEN ? 2 : (int)getpid());
    for (int g = 0; g < RANKS && others == MANY; g++)
        fprintf(file, "process %d 3\n", g);
    for (int g = 0; g < RANKS && own >= 0; g++)
        fprintf(file, "process-use %d 1 99\nprocess-use %d %d %d\n", g, g, (int)getpid(), own);
    fclose(file);
}

static void *stub; /* the library that stands in for NCCL */

static void stub_takes(const char *name, const void *value, size_t bytes)
{
    void *place = dlsym(stub, name);
    cr_assert(place != NULL, "the library has no %s", name);
    memcpy(place, value, bytes);
}

/* It works on the device of the tests, and as if no test had been before. */
static void set_stub(const char *library)
{
    stub = dlopen(library, RTLD_NOW);
    cr_assert(stub != NULL, "%s: %s", library, dlerror());
    const int version = 23007, zero = 0;
    epx_status_t (*enqueue)(epx_stream_t, guarded_run_fn, const void *, size_t) = guarded_enqueue;
    void *(*open)(const void *) = guarded_open;
    const struct {
        const char *name;
        const void *value;
        size_t bytes;
    } settings[] = {{"stub_version", &version, sizeof(version)},
                    {"stub_reach", &zero, sizeof(zero)},
                    {"stub_no_window", &zero, sizeof(zero)},
                    {"stub_broken", &zero, sizeof(zero)},
                    {"stub_allocate", &guarded_device.allocate, sizeof(guarded_device.allocate)},
                    {"stub_enqueue", &enqueue, sizeof(enqueue)},
                    {"stub_open", &open, sizeof(open)}};
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        stub_takes(settings[i].name, settings[i].value, settings[i].bytes);
}

static void begin(const char *on, int percent)
{
    static char path[512], library[512]; /* who stands in for NCCL keeps the name */
    const char *build = getenv("TEST_BUILD");
    epx_health_use_t use = EPX_HEALTH_USE_INIT;
    fabric = on;
    absent = -1;
    busy = turned = 0;
    number = 0;
    device = guarded_device;
    device.current = current;
    device.bus = bus;
    epx_device_stand_in("cuda", &device);
    snprintf(folder, sizeof(folder), "/dev/shm/epx-test-device-%d", (int)getpid());
    snprintf(told, sizeof(told), "%s.nvml", folder);
    setenv("EPX_RECORD", folder, 1);
    setenv("EPX_HANG_MS", "400", 1);
    setenv("FAKE_NVML", told, 1);
    use_is(percent);
    snprintf(path, sizeof(path), "%s/tests/plugins/fake_nvml.so", build != NULL ? build : "build");
    cr_assert_eq(epx_health_gpu_use(path, "0000:00:00.0", &use), EPX_OK, "%s", epx_last_error());
    cr_assert_eq(use.percent, percent);
    cr_assert_eq(use.processes, others == 0 || others == HIDDEN ? 0 : others == MANY ? 3 : 2);
    cr_assert_eq(use.own, others == 0 || others == HIDDEN ? -1 : own >= 0 ? own : 0);
    if (strcmp(on, "nccl") != 0)
        return;
    snprintf(library, sizeof(library), "%s/tests/plugins/nccl.so", build != NULL ? build : "build");
    set_stub(library);
    epx_nccl_stand_in(library);
    guarded_apart = 1;
}

static void end(void)
{
    guarded_lawless = 0;
    char command[400];
    snprintf(command, sizeof(command), "rm -rf %s %s", folder, told);
    cr_assert_eq(system(command), 0);
}

/* ---- ranks ------------------------------------------------------------------------------------------------------ */

static _Atomic(epx_recorder_h) recorders[RANKS];
static _Atomic int over;    /* the verdict has come, or will not */
static _Atomic int through; /* ranks that have made all their steps */

typedef struct player {
    rank_t *self;
    epx_stream_t stream;
    epx_group_h group, second;
    epx_plan_h plan, second_plan;
    void *ids, *weights, *x, *y, *out;
    int32_t attention;
    size_t y_bytes;
} player_t;

static void *device_memory(size_t bytes)
{
    void *memory = device.allocate(bytes, 256);
    if (memory == NULL || device.fill(memory, 0, bytes, NULL) != EPX_OK || device.synchronize(NULL) != EPX_OK)
        abort();
    return memory;
}

static int open_player(player_t *p, const char *transport)
{
    epx_group_config_t config = EPX_GROUP_CONFIG_INIT;
    epx_group_info_t info = EPX_GROUP_INFO_INIT;
    int32_t ids[TOKENS * TOP_K];
    number = p->self->rank;
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
    if (turned &&
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
    recorders[p->self->rank] = recorder;
    return device.copy(p->ids, ids, sizeof(ids), p->stream) == EPX_OK &&
           device.synchronize(p->stream) == EPX_OK;
}

static int make_pass(player_t *p, epx_plan_h plan)
{
    epx_routing_t routing = EPX_ROUTING_INIT;
    routing.tokens = TOKENS;
    routing.ids = p->ids;
    routing.weights = p->weights;
    epx_mark(recorders[p->self->rank], p->attention, p->stream);
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

/* A step; 0: a call ended badly. Statuses are looked at by who expects them. */
static int make_step(player_t *p, int step)
{
    int other_first = turned && p->self->rank == 1 && step == FAULT_STEP;
    return make_pass(p, other_first ? p->second_plan : p->plan) &&
           (!turned || make_pass(p, other_first ? p->plan : p->second_plan)) &&
           device.synchronize(p->stream) == EPX_OK && epx_step(p->group) == EPX_OK;
}

static void close_player(player_t *p)
{
    device.synchronize(p->stream);
    epx_plan_destroy(&p->plan);
    epx_plan_destroy(&p->second_plan);
    epx_group_close(&p->group);
    epx_group_close(&p->second);
    device.stream_destroy(p->stream);
}

static const char *transports[] = {"ragged", "pooled_wave"};

static void compute(int64_t ms)
{
    for (int64_t until = now_ms() + ms; now_ms() < until;)
        ;
}

static void play(rank_t *self)
{
    player_t p = {.self = self};
    int steps = 0;
    if (!open_player(&p, self->arg))
        return;
    while (steps < STEPS && !(absent == self->rank && steps == FAULT_STEP)) {
        if (busy && self->rank == 1 && steps == FAULT_STEP)
            compute(2 * HANG_MS);
        if (!make_step(&p, steps))
            break;
        steps++;
    }
    through += steps == STEPS;
    /* Ended groups let streams go on; who is through waits for the judge, who reads the recorders. */
    while (!over)
        sleep_ms(5);
    close_player(&p);
}

static char *reported;

/* What a judge beside the ranks has seen. */
static epx_verdict_t seen;

static void *judge(void *unused)
{
    (void)unused;
    for (int64_t until = now_ms() + 15000;
         now_ms() < until && seen.kind == EPX_VERDICT_NONE && through < RANKS; sleep_ms(5)) {
        epx_verdict_t verdict = EPX_VERDICT_INIT;
        epx_recorder_h recorder = recorders[0];
        if (recorder != NULL && epx_record_verdict(recorder, &verdict) == EPX_OK &&
            verdict.kind != EPX_VERDICT_SLOW)
            seen = verdict;
    }
    over = 1;
    return NULL;
}

/* All ranks with a fault; the watchdog ends them. */
static void run_with(const char *transport, const char *fault)
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
    reported = capture_end();
    pthread_join(thread, NULL);
}

static void expect_verdict(epx_verdict_kind_t kind, int32_t rank, int32_t peer, const char *op)
{
    cr_expect_eq(seen.kind, kind, "%s of rank %d in %s: %s", epx_verdict_name(seen.kind), seen.rank, seen.op,
                 seen.text);
    cr_expect_eq(seen.rank, rank, "rank %d: %s", seen.rank, seen.text);
    cr_expect(peer < 0 || seen.peer == peer, "peer %d: %s", seen.peer, seen.text);
    cr_expect(op == NULL || strcmp(seen.op, op) == 0, "operation %s: %s", seen.op, seen.text);
}

/* ---- without a fault -------------------------------------------------------------------------------------------- */

/* The lane's row of a rank's file, read as another process would. */
static epx_record_lane_row_t row_of(int rank)
{
    char path[256];
    epx_record_head_t head;
    epx_record_lane_row_t row = {0};
    snprintf(path, sizeof(path), "%s/rank%05d.epxr", folder, rank);
    FILE *file = fopen(path, "rb");
    if (file == NULL || fread(&head, sizeof(head), 1, file) != 1 || head.maps_device != 1 ||
        fseek(file, (long)(head.device_at + sizeof(epx_record_device_t)), SEEK_SET) != 0 ||
        fread(&row, sizeof(row), 1, file) != 1)
        row.use = 0;
    if (file != NULL)
        fclose(file);
    return row;
}

static uint32_t kind_of(const uint64_t pair[2]) { return (uint32_t)(pair[1] >> 10 & 7); }

static void play_clean(rank_t *self)
{
    player_t p = {.self = self};
    if (!open_player(&p, self->arg))
        return;
    for (int step = 0; step < STEPS; step++) {
        expect(self, make_step(&p, step), "step %d: %s", step, epx_last_error());
        world_meet(self);
        epx_record_lane_row_t row = row_of(self->rank);
        const epx_progress_words_t *w = &row.words;
        expect(self, row.use != 0, "no lane in the file of rank %d", self->rank);
        expect(self, w->begun[0] != 0, "nothing has begun");
        expect(self, kind_of(w->begun) == EPX_RECORD_COMBINE, "begun kind %u", kind_of(w->begun));
        expect(self, (w->begun[1] & 1023) == WAVES - 1, "begun wave %u", (unsigned)(w->begun[1] & 1023));
        expect(self, (epx_record_call_of(w->begun[0]) >> 16) == (uint64_t)step, "pass %u in step %d",
               (unsigned)(epx_record_call_of(w->begun[0]) >> 16), step);
        if (row.resident) {
            expect(self, w->posted[0] == w->begun[0] && w->seen[0] == w->begun[0],
                   "posted %llx, seen %llx, begun %llx", (unsigned long long)w->posted[0],
                   (unsigned long long)w->seen[0], (unsigned long long)w->begun[0]);
            expect(self, w->posted[1] >= w->begun[1] && w->seen[1] >= w->posted[1], "out of order");
        }
        expect(self, row.asked_call == epx_record_call_of(w->begun[0]), "asked %llx, told %llx",
               (unsigned long long)row.asked_call, (unsigned long long)epx_record_call_of(w->begun[0]));
        expect(self,
               row.asked_step == (w->step_seen[0] > w->step_sent[0] ? w->step_seen[0] : w->step_sent[0]),
               "steps asked %llu, sent %llu", (unsigned long long)row.asked_step,
               (unsigned long long)w->step_sent[0]);
        world_meet(self);
    }
    epx_verdict_t verdict = EPX_VERDICT_INIT;
    epx_record_verdict(recorders[self->rank], &verdict);
    expect(self, verdict.kind == EPX_VERDICT_NONE, "%s: %s", epx_verdict_name(verdict.kind), verdict.text);
    close_player(&p);
}

Test(record_device, words_of_every_call_are_in_the_file)
{
    static const char *fabrics[] = {"local", "nccl"};
    for (int f = 0; f < 2; f++)
        for (int t = 0; t < 2; t++) {
            world_reset();
            begin(fabrics[f], 0);
            world_run(RANKS, play_clean, (void *)(size_t)transports[t]);
            end();
        }
}

/* ---- faults ----------------------------------------------------------------------------------------------------- */

#define SEQ(op) ((op) + FAULT_STEP * STEP_OPS)
#define TEXT_OF(n) #n
#define TEXT(n) TEXT_OF(n)

/* The device of rank 1 executes something of the caller's ahead of a call. */
static void stuck(const char *on, const char *transport, const char *fault, int percent,
                  epx_verdict_kind_t kind, const char *op)
{
    begin(on, percent);
    run_with(transport, fault);
    expect_verdict(kind, 1, -1, op);
    char line[120];
    char shared[64] = "";
    if (others != 0)
        snprintf(shared, sizeof(shared), " (%d%% this process, of %d there)", own >= 0 ? own : 0, 2);
    snprintf(line, sizeof(line), "%d%% busy%s, 412 W, 1755 MHz; median of its domain %d%%", percent, shared,
             percent);
    cr_expect(reported != NULL && strstr(reported, line) != NULL, "no '%s' in: %s", line, reported);
    free(reported);
    end();
}

/* The second operation of the seventh step is its first dispatch, the third that wave's combine. */
#define AHEAD_OF_DISPATCH "rank=1 op=dispatch seq=32 at=begin do=spin:600000"
#define AHEAD_OF_COMBINE "rank=1 op=combine seq=33 at=begin do=spin:600000"
#define AHEAD_OF_ROUTE "rank=1 op=route seq=31 at=begin do=spin:600000"

Test(record_device, a_kernel_ahead_of_a_dispatch_shared)
{
    stuck("local", "ragged", AHEAD_OF_DISPATCH, 99, EPX_VERDICT_STUCK_BEFORE_OP, "dispatch");
    cr_expect_str_eq(seen.marker, "attention");
}

Test(record_device, a_kernel_ahead_of_a_dispatch_apart)
{
    stuck("nccl", "ragged", AHEAD_OF_DISPATCH, 99, EPX_VERDICT_STUCK_BEFORE_OP, "dispatch");
    cr_expect_str_eq(seen.marker, "attention");
}

Test(record_device, a_kernel_ahead_of_a_combine_shared)
{
    stuck("local", "ragged", AHEAD_OF_COMBINE, 99, EPX_VERDICT_STUCK_BEFORE_OP, "combine");
}

Test(record_device, a_kernel_ahead_of_a_combine_apart)
{
    stuck("nccl", "pooled_wave", AHEAD_OF_COMBINE, 99, EPX_VERDICT_STUCK_BEFORE_OP, "combine");
}

Test(record_device, a_kernel_ahead_of_a_route_shared)
{
    stuck("local", "ragged", AHEAD_OF_ROUTE, 99, EPX_VERDICT_STUCK_BEFORE_OP, "route");
}

Test(record_device, a_kernel_ahead_of_a_route_apart)
{
    stuck("nccl", "ragged", AHEAD_OF_ROUTE, 99, EPX_VERDICT_STUCK_BEFORE_OP, "route");
}

Test(record_device, a_stream_that_does_not_go_on_while_the_device_is_idle)
{
    stuck("local", "ragged", AHEAD_OF_DISPATCH, 0, EPX_VERDICT_STREAM_BLOCKED, "dispatch");
}

Test(record_device, a_stream_that_does_not_go_on_while_the_device_is_idle_apart)
{
    stuck("nccl", "ragged", AHEAD_OF_DISPATCH, 0, EPX_VERDICT_STREAM_BLOCKED, "dispatch");
}

/* Another process keeps the GPU busy: what this one does there counts. */
Test(record_device, a_stream_that_does_not_go_on_while_others_have_the_device)
{
    others = 1;
    stuck("nccl", "ragged", AHEAD_OF_DISPATCH, 99, EPX_VERDICT_STREAM_BLOCKED, "dispatch");
}

/* With more of them it may only not have been seen: nobody is named. */
Test(record_device, a_device_that_many_have)
{
    others = MANY;
    begin("nccl", 99);
    run_with("pooled_wave", AHEAD_OF_COMBINE);
    expect_verdict(EPX_VERDICT_UNKNOWN, -1, -1, "combine");
    end();
}

Test(record_device, processes_of_another_namespace_are_not_taken_for_this_one)
{
    others = HIDDEN;
    own = 60;
    begin("nccl", 99); /* looks at what is known */
    end();
}

Test(record_device, a_foreign_kernel_on_a_device_that_others_have_too)
{
    others = 1;
    own = 60;
    stuck("nccl", "ragged", AHEAD_OF_DISPATCH, 99, EPX_VERDICT_STUCK_BEFORE_OP, "dispatch");
}

static void lost(const char *on, const char *transport)
{
    begin(on, 99);
    run_with(transport, "rank=1 op=dispatch seq=32 peer=2 at=signal.pre do=drop");
    expect_verdict(EPX_VERDICT_SIGNAL_LOST, 1, 2, "dispatch");
    end();
}

Test(record_device, a_signal_is_lost_shared) { lost("local", "ragged"); }
Test(record_device, a_signal_is_lost_apart) { lost("nccl", "ragged"); }
Test(record_device, a_signal_is_lost_apart_pooled) { lost("nccl", "pooled_wave"); }

/* The word of two passes ago, once more. */
static void stale(const char *on, const char *transport)
{
    begin(on, 99);
    run_with(transport, "rank=1 op=dispatch seq=32 peer=2 at=signal.pre do=stale");
    expect_verdict(EPX_VERDICT_EPOCH_SKEW, 1, 2, "dispatch");
    end();
}

Test(record_device, a_word_goes_back_apart) { stale("nccl", "ragged"); }
Test(record_device, a_word_goes_back_apart_pooled) { stale("nccl", "pooled_wave"); }

/* The host stands in the call, and others use the device. */
Test(record_device, a_call_that_was_not_given_to_a_busy_device)
{
    begin("local", 99);
    run_with("ragged", "rank=1 op=dispatch seq=32 at=begin do=delay:600000");
    expect_verdict(EPX_VERDICT_STREAM_BLOCKED, 1, -1, "dispatch");
    end();
}

static void leaves(const char *on)
{
    begin(on, 0);
    absent = 1;
    run_with("ragged", NULL);
    expect_verdict(EPX_VERDICT_HOST_ABSENT, 1, -1, "route");
    end();
}

/* Its stream has come to its last mark long after the host has made the calls behind it: that is no mark of
 * work that goes on. */
static void computes(const char *on)
{
    begin(on, 0);
    busy = 1;
    run_with("ragged", NULL);
    cr_expect_eq(through, RANKS, "%d ranks are through: %s", through, seen.text);
    cr_expect_eq(seen.kind, EPX_VERDICT_NONE, "%s: %s", epx_verdict_name(seen.kind), seen.text);
    end();
}

Test(record_device, a_host_computes_for_two_budgets_shared) { computes("local"); }
Test(record_device, a_host_computes_for_two_budgets_apart) { computes("nccl"); }

/* Everything is in one stream: calls of the second group stand behind the first one's wait. */
Test(record_device, two_groups_in_opposite_order_apart)
{
    begin("nccl", 99);
    turned = 1;
    run_with("ragged", NULL);
    expect_verdict(EPX_VERDICT_DEADLOCK, seen.rank, -1, "route");
    end();
}

/* ---- groups that open over NCCL, which says of nobody that it waits -------------------------------------------- */

enum { HELD_MS = 4000 }; /* twenty budgets, which memory and libraries have, are half of it */

static atomic_int turns;
static int held_turn;
static epx_verdict_t told_of_opening;

/* Rank 1 stays where it comes by for the n-th time. */
static void come_by(int rank)
{
    if (rank == 1 && atomic_fetch_add(&turns, 1) == held_turn)
        sleep_ms(HELD_MS);
}

static void *slow_allocate(size_t bytes, size_t alignment)
{
    come_by(number);
    return guarded_device.allocate(bytes, alignment);
}

static void open_slowly(rank_t *self)
{
    player_t p = {.self = self};
    epx_recorder_h recorder = epx_comm_recorder(self->comm);
    number = self->rank;
    epx_phase(recorder, "steady", 0);
    expect(self, open_player(&p, self->arg), "the group did not open");
    epx_verdict_t verdict = EPX_VERDICT_INIT;
    epx_record_verdict(recorder, &verdict);
    if (self->rank == 0)
        told_of_opening = verdict;
    close_player(&p);
}

/* `name` of the library takes `value` at its n-th turn; NULL: EPX_FAULT holds rank 1. */
static void open_held(const char *name, const void *value, int turn)
{
    begin("nccl", 0);
    setenv("EPX_HANG_MS", "100", 1);
    held_turn = turn;
    if (name != NULL)
        stub_takes(name, value, sizeof(void (*)(void)));
    world_may_warn();
    world_run(RANKS, open_slowly, (void *)(size_t)transports[0]);
    seen = told_of_opening;
    end();
}

/* Of what NCCL is given, words come first, and the segment; it meets for the communicator and for each of the
 * two. */
static void memory_held(int turn)
{
    void *(*allocate)(size_t, size_t) = slow_allocate;
    open_held("stub_allocate", &allocate, turn);
    expect_verdict(EPX_VERDICT_STREAM_BLOCKED, 1, -1, "open");
}

Test(record_device, a_rank_that_stays_with_its_words_while_the_others_open) { memory_held(0); }
Test(record_device, a_rank_that_stays_with_its_segment_while_the_others_open) { memory_held(1); }

Test(record_device, a_rank_that_stays_in_front_of_its_registration)
{
    setenv("EPX_FAULT", "rank=1 at=register do=delay:4000", 1);
    open_held(NULL, NULL, 0);
    expect_verdict(EPX_VERDICT_STREAM_BLOCKED, 1, -1, "open");
}

/* All have called it, and nothing is known of what it does: nobody is named, and not before twenty budgets.
 */
static void call_held(int turn)
{
    void (*comes)(int) = come_by;
    open_held("stub_comes", &comes, turn);
    expect_verdict(EPX_VERDICT_UNKNOWN, -1, -1, "open");
    cr_expect(strstr(seen.text, "everybody of its group has made the call") != NULL, "%s", seen.text);
    cr_expect_geq(seen.stuck_ns, (int64_t)1800 * 1000000);
}

Test(record_device, a_rank_that_stays_inside_of_ncclCommInitRank) { call_held(0); }
Test(record_device, a_rank_that_stays_inside_of_ncclCommWindowRegister) { call_held(2); }

Test(record_device, a_rank_never_launches_shared) { leaves("local"); }
Test(record_device, a_rank_never_launches_apart) { leaves("nccl"); }
