/* The recorder's files: after SIGKILL, around foreign operations, in the default folder, refusals, cost.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <epx/record.h>

#include "base/clock.h"
#include "record/recorder.h"
#include "record/system.h"
#include "record/versions.h"
#include "support/folder.h"
#include "support/world.h"

static char folder[FOLDER_BYTES];

static void begin(void)
{
    clean_environment();
    folder_make(folder, "/tmp");
}

static void end(void) { cr_assert_eq(folder_remove(folder), 0, "%s stays", folder); }

TestSuite(record_files, .init = begin, .fini = end, .timeout = 60);

static epx_recorder_h open_rank(int32_t rank, int32_t ranks, int32_t no_watchdog)
{
    epx_recorder_config_t config = EPX_RECORDER_CONFIG_INIT;
    epx_recorder_h recorder = NULL;
    config.folder = folder;
    config.job = "test";
    config.rank = rank;
    config.ranks = ranks;
    config.hang_ms = 400;
    config.no_watchdog = no_watchdog;
    cr_assert_eq(epx_record_open(&config, &recorder), EPX_OK, "%s", epx_last_error());
    cr_assert_not_null(recorder);
    return recorder;
}

static epx_verdict_t verdict_of_files(void)
{
    epx_verdict_t verdict = EPX_VERDICT_INIT;
    epx_records_h records = NULL;
    cr_assert_eq(epx_records_open(folder, &records), EPX_OK, "%s", epx_last_error());
    epx_records_verdict(records, &verdict);
    epx_records_close(&records);
    return verdict;
}

/* ---- SIGKILL ---------------------------------------------------------------------------------------------------- */

/* Makes operations until it is killed; `made` counts those whose stamps are through. */
static void make_operations(int32_t rank, volatile uint64_t *made)
{
    epx_recorder_h recorder = open_rank(rank, 2, 1);
    epx_record_group_t group = EPX_RECORD_GROUP_INIT;
    epx_record_op_t op = EPX_RECORD_OP_INIT;
    group.name = "theirs";
    op.group_id = epx_record_group(recorder, &group);
    op.text_id = epx_record_text(recorder, "all_to_all");
    for (;;) {
        uint64_t handle = epx_record_enqueue(recorder, &op);
        epx_record_begin(recorder, handle);
        epx_record_end(recorder, handle, EPX_OK);
        ++*made;
    }
}

Test(record_files, a_killed_rank_is_at_most_one_operation_stale)
{
    for (int round = 0; round < 5; round++) {
        volatile uint64_t *made = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        cr_assert_neq((void *)made, MAP_FAILED);
        pid_t child = fork();
        if (child == 0)
            make_operations(0, made);
        cr_assert_gt(child, 0);
        for (int64_t until = now_ms() + 20000; *made < 20000 + 1000 * (uint64_t)round && now_ms() < until;)
            sleep_ms(1);
        kill(child, SIGKILL);
        cr_assert_eq(waitpid(child, NULL, 0), child);
        epx_records_h records = NULL;
        epx_rank_now_t now = EPX_RANK_NOW_INIT;
        cr_assert_eq(epx_records_open(folder, &records), EPX_OK, "%s", epx_last_error());
        cr_expect_eq(epx_records_ranks(records), 2);
        cr_assert_eq(epx_records_rank(records, 0, &now), EPX_OK);
        cr_expect(now.has_record);
        cr_expect_gt(*made, 0);
        cr_expect(now.operations >= *made && now.operations <= *made + 1,
                  "%lu operations are in the file, %lu were made", (unsigned long)now.operations,
                  (unsigned long)*made);
        cr_expect_str_eq(now.op, "all_to_all");
        cr_expect_str_eq(now.group, "theirs");
        /* The ring holds whole rows only, and the last of them. */
        cr_expect(now.sequence + 1 >= *made, "the last whole row is number %lu of %lu",
                  (unsigned long)now.sequence, (unsigned long)*made);
        epx_records_close(&records);
        munmap((void *)(uintptr_t)made, 4096);
    }
}

Test(record_files, damaged_files_are_refused_and_named)
{
    epx_recorder_h recorder = open_rank(0, 1, 1);
    epx_record_close(&recorder);
    char path[64];
    snprintf(path, sizeof(path), "%s/rank00000.epxr", folder);
    epx_records_h records = NULL;
    cr_assert_eq(epx_records_open(folder, &records), EPX_OK);
    epx_records_close(&records);
    cr_assert_eq(truncate(path, 100), 0);
    cr_expect_eq(epx_records_open(folder, &records), EPX_ERR_ARG);
    cr_expect(strstr(epx_last_error(), "cut short") != NULL, "%s", epx_last_error());
    cr_assert_eq(truncate(path, 200000), 0);
    cr_expect_eq(epx_records_open(folder, &records), EPX_ERR_ARG);
    cr_expect_eq(epx_records_open("/nonexistent", &records), EPX_ERR_ARG);
}

/* ---- foreign operations ----------------------------------------------------------------------------------------- */

/* Two ranks, one thread, somebody else's collective: rank 1 never comes, and its last marker says where it
 * is. */
Test(record_files, foreign_operations_give_the_same_verdicts)
{
    epx_recorder_h rank[2] = {open_rank(0, 2, 0), open_rank(1, 2, 0)};
    epx_record_op_t op = EPX_RECORD_OP_INIT;
    uint64_t handle = 0;
    for (int r = 0; r < 2; r++) {
        epx_record_group_t group = EPX_RECORD_GROUP_INIT;
        group.name = "data parallel";
        op.group_id = epx_record_group(rank[r], &group);
        op.text_id = epx_record_text(rank[r], "reduce_scatter");
        for (int i = 0; i < 3; i++) {
            handle = epx_record_enqueue(rank[r], &op);
            epx_record_begin(rank[r], handle);
            epx_record_seen(rank[r], handle);
            epx_record_end(rank[r], handle, EPX_OK);
        }
        epx_record_step(rank[r]);
    }
    capture_begin();
    epx_mark(rank[1], epx_record_text(rank[1], "loading the next shard"), NULL);
    op.group_id = 1;
    op.text_id = epx_record_text(rank[0], "reduce_scatter");
    handle = epx_record_enqueue(rank[0], &op);
    epx_record_begin(rank[0], handle);
    epx_verdict_t verdict = EPX_VERDICT_INIT;
    /* A thread that has just been woken where others have the processor is late, for the time being. */
    for (int64_t until = now_ms() + 20000;
         (verdict.kind == EPX_VERDICT_NONE || verdict.kind == EPX_VERDICT_SLOW) && now_ms() < until;
         sleep_ms(10))
        epx_record_verdict(rank[0], &verdict);
    cr_expect_eq(verdict.kind, EPX_VERDICT_HOST_ABSENT, "%s: %s", epx_verdict_name(verdict.kind),
                 verdict.text);
    cr_expect_eq(verdict.rank, 1);
    cr_expect_str_eq(verdict.op, "reduce_scatter");
    cr_expect_eq(verdict.sequence, 4);
    cr_expect_str_eq(verdict.marker, "loading the next shard");
    /* The files alone say the same. */
    epx_verdict_t read = verdict_of_files();
    cr_expect_eq(read.rank, 1, "%s: %s", epx_verdict_name(read.kind), read.text);
    char *text = NULL;
    for (int64_t until = now_ms() + 5000; now_ms() < until && text == NULL; sleep_ms(10)) {
        char path[64];
        struct stat info;
        snprintf(path, sizeof(path), "%s/verdict.json", folder);
        if (stat(path, &info) == 0)
            text = capture_end();
    }
    cr_assert_not_null(text, "no verdict.json");
    cr_expect(strstr(text, "is stuck: HOST_ABSENT(rank 1)") != NULL, "%s", text);
    int lines = 0;
    for (const char *c = text; *c != '\0'; c++)
        lines += *c == '\n';
    cr_expect(lines > 5 && lines <= 25, "the report has %d lines:\n%s", lines, text);
    free(text);
    epx_record_end(rank[0], handle, EPX_ERR_TIMEOUT);
    for (int r = 0; r < 2; r++)
        epx_record_close(&rank[r]);
}

/* ---- waits that go on ------------------------------------------------------------------------------------------- */

/* A rank that has announced a pause is waited for beyond the time-out; nobody is called stuck. */
static void late_rank(rank_t *self)
{
    epx_comm_set_timeout(self->comm, 300);
    epx_recorder_h recorder = epx_comm_recorder(self->comm);
    expect_status(self, "epx_comm_barrier", epx_comm_barrier(self->comm), EPX_OK);
    epx_record_step(recorder);
    if (self->rank == 1) {
        epx_phase(recorder, "checkpoint", 20000);
        sleep_ms(1500);
        epx_phase(recorder, "steady", 0);
    }
    expect_status(self, "epx_comm_barrier", epx_comm_barrier(self->comm), EPX_OK);
    epx_verdict_t verdict = EPX_VERDICT_INIT;
    epx_record_verdict(recorder, &verdict);
    expect(self, verdict.kind == EPX_VERDICT_NONE, "the verdict is %s", epx_verdict_name(verdict.kind));
}

Test(record_files, an_announced_pause_outlasts_budget_and_time_out)
{
    setenv("EPX_HANG_MS", "200", 1);
    setenv("EPX_RECORD", folder, 1);
    world_run(3, late_rank, NULL);
}

/* ---- set-up ----------------------------------------------------------------------------------------------------- */

static void barrier_only(rank_t *self)
{
    expect_status(self, "epx_comm_barrier", epx_comm_barrier(self->comm), EPX_OK);
    const char *where = epx_record_folder(epx_comm_recorder(self->comm));
    if (self->rank == 0)
        snprintf(self->arg, 256, "%s", where);
}

Test(record_files, the_default_folder_is_under_dev_shm_and_nothing_stays)
{
    char where[256] = "";
    struct stat info;
    world_run(2, barrier_only, where);
    cr_expect_eq(strncmp(where, "/dev/shm/epx-", 13), 0, "the folder is \"%s\"", where);
    cr_expect(stat(where, &info) != 0 && errno == ENOENT, "%s is still there", where);
}

Test(record_files, off_means_off)
{
    char where[256] = "x";
    setenv("EPX_RECORD", "off", 1);
    world_run(2, barrier_only, where);
    cr_expect_str_eq(where, "");
}

Test(record_files, overlapping_registrations_are_refused_with_both)
{
    epx_recorder_h recorder = open_rank(0, 1, 1);
    char *memory = malloc(4096);
    cr_expect_eq(epx_record_segment(recorder, "window", memory, 2048), EPX_OK);
    cr_expect_eq(epx_record_segment(recorder, "window", memory + 2048, 1024), EPX_OK);
    cr_expect_eq(epx_record_segment(recorder, "window", memory + 1024, 2048), EPX_ERR_ARG);
    char first[32], second[32];
    snprintf(first, sizeof(first), "%#lx", (unsigned long)(uintptr_t)memory);
    snprintf(second, sizeof(second), "%#lx", (unsigned long)(uintptr_t)(memory + 1024));
    cr_expect(strstr(epx_last_error(), second) != NULL, "%s", epx_last_error());
    epx_record_segment_end(recorder, "window", memory);
    epx_record_segment_end(recorder, "window", memory + 2048);
    cr_expect_eq(epx_record_segment(recorder, "window", memory + 1024, 2048), EPX_OK);
    free(memory);
    epx_record_close(&recorder);
}

Test(record_files, texts_are_kept_once_and_cut)
{
    epx_recorder_h recorder = open_rank(0, 1, 1);
    int32_t a = epx_record_text(recorder, "a"), b = epx_record_text(recorder, "b");
    cr_expect(a > 0 && b > 0 && a != b);
    cr_expect_eq(epx_record_text(recorder, "a"), a);
    cr_expect_eq(epx_mark(recorder, b + 1, NULL), EPX_ERR_ARG);
    cr_expect_eq(epx_mark(recorder, b, NULL), EPX_OK);
    cr_expect_eq(epx_mark(NULL, 77, NULL), EPX_OK);
    for (int i = 0; i < 600; i++) {
        char text[80];
        snprintf(text, sizeof(text), "%070d", i); /* alike in the first 55 characters */
        epx_record_text(recorder, text);
    }
    cr_expect_eq(epx_record_text(recorder, "c"), b + 2);
    epx_record_close(&recorder);
}

/* Somebody else's kernel, of whose blocks the device of rank 0 has room for some; rank 1 waits for it. */
Test(record_files, blocks_that_have_not_come_are_counted)
{
    epx_recorder_h rank[2] = {open_rank(0, 2, 0), open_rank(1, 2, 0)};
    epx_verdict_t verdict = EPX_VERDICT_INIT;
    uint64_t handle[2];
    for (int r = 0; r < 2; r++) {
        epx_record_group_t group = EPX_RECORD_GROUP_INIT;
        epx_record_op_t op = EPX_RECORD_OP_INIT;
        group.name = "theirs", group.rank = r;
        op.group_id = epx_record_group(rank[r], &group);
        op.text_id = epx_record_text(rank[r], "fused kernel");
        epx_record_step(rank[r]);
        handle[r] = epx_record_enqueue(rank[r], &op);
        epx_record_begin(rank[r], handle[r]);
    }
    epx_record_blocks(rank[1], handle[1], 132, 132);
    epx_record_waits(rank[1], handle[1], 0);
    for (int64_t until = now_ms() + 20000;
         (verdict.kind == EPX_VERDICT_NONE || verdict.kind == EPX_VERDICT_SLOW) && now_ms() < until;
         sleep_ms(10)) {
        epx_record_blocks(rank[0], handle[0], 132, 119);
        epx_record_verdict(rank[0], &verdict);
    }
    cr_expect_eq(verdict.kind, EPX_VERDICT_NOT_RESIDENT, "%s: %s", epx_verdict_name(verdict.kind),
                 verdict.text);
    cr_expect_eq(verdict.rank, 0);
    cr_expect_str_eq(verdict.field, "119 of 132");
    cr_expect_eq(verdict.action, EPX_ACTION_RECOVER);
    for (int r = 0; r < 2; r++) {
        epx_record_end(rank[r], handle[r], EPX_OK);
        epx_record_close(&rank[r]);
    }
}

/* ---- a watchdog that comes late ---------------------------------------------------------------------------------- */

static void count_end(void *context, const char *reason)
{
    (void)reason;
    __atomic_add_fetch((int *)context, 1, __ATOMIC_SEQ_CST);
}

/* The process of the lowest rank speaks first, and others wait some seconds for it. What has been mended by
 * then is not ended once more: it is the next group's life by now. */
Test(record_files, what_was_mended_is_not_ended_late)
{
    static int ended;
    epx_recorder_config_t config = EPX_RECORDER_CONFIG_INIT;
    epx_record_op_t op = EPX_RECORD_OP_INIT;
    epx_record_group_t group = EPX_RECORD_GROUP_INIT;
    epx_verdict_t verdict = EPX_VERDICT_INIT;
    epx_recorder_h recorder = NULL;
    pid_t first = fork();
    if (first == 0) { /* makes no call, and no watchdog of its own speaks */
        epx_record_step(open_rank(0, 2, 1));
        for (;;)
            pause();
    }
    char path[64];
    snprintf(path, sizeof(path), "%s/rank00000.epxr", folder);
    for (int64_t until = now_ms() + 20000; access(path, F_OK) != 0 && now_ms() < until;)
        sleep_ms(5);
    config.folder = folder, config.job = "test", config.rank = 1, config.ranks = 2, config.hang_ms = 400;
    config.on_hang = EPX_ON_HANG_ABORT;
    cr_assert_eq(epx_record_open(&config, &recorder), EPX_OK, "%s", epx_last_error());
    group.name = "theirs", group.rank = 1;
    op.group_id = epx_record_group(recorder, &group);
    op.text_id = epx_record_text(recorder, "all_reduce");
    epx_record_step(recorder);
    epx_recorder_on_end(recorder, count_end, &ended, 0);
    uint64_t handle = epx_record_enqueue(recorder, &op);
    epx_record_begin(recorder, handle);
    epx_record_waits(recorder, handle, 0);
    for (int64_t until = now_ms() + 20000; now_ms() < until && verdict.kind == EPX_VERDICT_NONE; sleep_ms(5))
        epx_record_verdict(recorder, &verdict);
    cr_expect_eq(verdict.kind, EPX_VERDICT_HOST_ABSENT, "%s", epx_verdict_name(verdict.kind));
    cr_expect_eq(ended, 0, "the first rank lives, and was not waited for");
    epx_record_end(recorder, handle, EPX_ERR_PEER);
    epx_record_verdict_clear(recorder);
    sleep_ms(2700);
    cr_expect_eq(ended, 0, "the watchdog has ended what was mended");
    epx_record_close(&recorder);
    kill(first, SIGKILL);
    waitpid(first, NULL, 0);
}

Test(record_files, a_folder_without_a_name_is_refused)
{
    epx_recorder_config_t config = EPX_RECORDER_CONFIG_INIT;
    epx_recorder_h recorder = NULL;
    config.folder = "", config.ranks = 1;
    cr_expect_eq(epx_record_open(&config, &recorder), EPX_ERR_ARG);
    cr_expect_not_null(strstr(epx_last_error(), "the folder is \"\""), "%s", epx_last_error());
    setenv("EPX_RECORD", "", 1);
    config.folder = folder;
    cr_expect_eq(epx_record_open(&config, &recorder), EPX_ERR_ARG);
    cr_expect_not_null(strstr(epx_last_error(), "EPX_RECORD= is not one of"), "%s", epx_last_error());
    cr_expect_null(recorder);
}

/* ---- size and cost ---------------------------------------------------------------------------------------------- */

Test(record_files, under_four_mebibytes_for_any_number_of_ranks)
{
    static const int32_t ranks[] = {1, 4, 704, 4096, 100000};
    for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++) {
        epx_recorder_h recorder = open_rank(0, ranks[i], 1);
        char path[64];
        struct stat info;
        snprintf(path, sizeof(path), "%s/rank00000.epxr", folder);
        cr_assert_eq(stat(path, &info), 0);
        cr_expect_lt(info.st_size, 4 << 20, "%ld bytes for %d ranks", (long)info.st_size, ranks[i]);
        epx_record_close(&recorder);
    }
}

/* Whatever this build links: a whole path, or nothing. */
Test(record_files, libraries_that_are_loaded_are_in_the_head)
{
    char path[256];
    epx_system_library("libc.so", path, sizeof(path));
    cr_expect(path[0] == '/' && strstr(path, "libc.so") != NULL, "'%s'", path);
    epx_system_library("libnobody.so", path, sizeof(path));
    cr_expect_str_eq(path, "");
}

/* The stand-in for NCCL under the name of a real one. */
static void *load_nccl(const char *path, int version)
{
    char command[700];
    const char *build = getenv("TEST_BUILD");
    snprintf(command, sizeof(command), "cp %s/tests/plugins/nccl.so %s", build != NULL ? build : "build",
             path);
    cr_assert_eq(system(command), 0);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    cr_assert_not_null(library, "%s", dlerror());
    int *fake_version = dlsym(library, "fake_version");
    cr_assert_not_null(fake_version);
    *fake_version = version;
    return library;
}

Test(record_files, versions_are_of_what_is_loaded_and_older_records_lack_them)
{
    char path[64], text[512], wanted[160], ucx_path[256];
    epx_records_h records = NULL;
    epx_recorder_h recorder = open_rank(0, 2, 1);
    snprintf(path, sizeof(path), "%s/libnccl.so.2", folder);
    void *library = load_nccl(path, 22809);
    epx_record_group_t group = EPX_RECORD_GROUP_INIT; /* a group asks again: libraries come late */
    group.name = "theirs";
    epx_record_group(recorder, &group);
    cr_assert_eq(epx_records_open(folder, &records), EPX_OK, "%s", epx_last_error());
    cr_assert_eq(epx_records_versions(records, 0, text, sizeof(text)), EPX_OK);
    snprintf(wanted, sizeof(wanted), "NCCL 2.28.9 (%s)", path);
    cr_expect_not_null(strstr(text, wanted), "%s", text);
    snprintf(wanted, sizeof(wanted), "epx %s,", epx_version());
    cr_expect_eq(strncmp(text, wanted, strlen(wanted)), 0, "%s", text);
    epx_system_library("libucp.so", ucx_path, sizeof(ucx_path));
    cr_expect_eq(strstr(text, "UCX none loaded") != NULL, ucx_path[0] == '\0', "%s", text);
    cr_expect_not_null(strstr(text, ", driver "), "%s", text);
    cr_expect_eq(epx_records_versions(records, 1, text, sizeof(text)), EPX_OK);
    cr_expect_str_eq(text, "");
    cr_expect_eq(epx_records_versions(records, 2, text, sizeof(text)), EPX_ERR_ARG);
    epx_records_close(&records);

    /* As an earlier version left it: no driver, no UCX, a path alone. */
    size_t bytes;
    epx_record_head_t *head = (epx_record_head_t *)(uintptr_t)epx_recorder_bytes(recorder, &bytes);
    head->driver[0] = head->ucx[0] = '\0';
    snprintf(head->nccl, sizeof(head->nccl), "/usr/lib/libnccl.so.2.20.5");
    cr_assert_eq(epx_records_open(folder, &records), EPX_OK, "%s", epx_last_error());
    epx_records_versions(records, 0, text, sizeof(text));
    cr_expect_not_null(strstr(text, "NCCL /usr/lib/libnccl.so.2.20.5, UCX not recorded, driver not recorded"),
                       "%s", text);
    epx_records_close(&records);
    epx_record_close(&recorder);
    dlclose(library);
}

Test(record_files, the_driver_is_read_from_its_module)
{
    char text[64] = "";
    cr_expect(epx_versions_driver("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\n",
                                  text, sizeof(text)));
    cr_expect_str_eq(text, "535.104.05");
    cr_expect(epx_versions_driver(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (r@b)\n", text,
        sizeof(text)));
    cr_expect_str_eq(text, "580.95.05");
    cr_expect_not(epx_versions_driver("NVRM version: unknown\n", text, sizeof(text)));
}

/* Bounded loosely here, where other tests run beside it and sanitizers slow it down. */
Test(record_files, stamps_are_cheap)
{
    enum { BATCHES = 400, ROUNDS = 100 };
    epx_recorder_h recorder = open_rank(0, 64, 1);
    epx_record_group_t group = EPX_RECORD_GROUP_INIT;
    epx_record_op_t op = EPX_RECORD_OP_INIT;
    group.name = "g";
    op.group_id = epx_record_group(recorder, &group);
    int32_t mark = epx_record_text(recorder, "mark");
    double best = 1e9;
    for (int i = 0; i < BATCHES; i++) {
        int64_t since = epx_clock_ns();
        for (int k = 0; k < ROUNDS; k++) {
            epx_mark(recorder, mark, NULL);
            uint64_t handle = epx_record_enqueue(recorder, &op);
            epx_record_begin(recorder, handle);
            epx_record_seen(recorder, handle);
            epx_record_end(recorder, handle, EPX_OK);
        }
        double each = (double)(epx_clock_ns() - since) / (5.0 * ROUNDS);
        best = each < best ? each : best;
    }
    printf("recorder: %.0f ns per event\n", best);
    /* A sanitizer's bookkeeping is not the recorder's cost. */
    const char *sanitizer = getenv("SANITIZE");
    if (sanitizer == NULL || sanitizer[0] == '\0')
        cr_expect_lt(best, 1000, "%.0f ns per event", best);
    epx_record_close(&recorder);
}
