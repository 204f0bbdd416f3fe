/* EPX_CORE_DUMP: who is dumped, when, and that nothing waits for a dump that cannot be. The driver's end of
 * the pipe is played here. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <epx/record.h>

#include "core/core_dump.h"
#include "record/recorder.h"
#include "support/folder.h"
#include "support/world.h"

enum { RANKS = 2, HANG_MS = 300, WHOLE = 2000 };

static char folder[FOLDER_BYTES], pipe_name[128], file_name[128];

static void unset_drivers(void)
{
    unsetenv("CUDA_ENABLE_USER_TRIGGERED_COREDUMP");
    unsetenv("CUDA_ENABLE_LIGHTWEIGHT_COREDUMP");
    unsetenv("CUDA_COREDUMP_GENERATION_FLAGS");
    unsetenv("CUDA_COREDUMP_PIPE");
    unsetenv("CUDA_COREDUMP_FILE");
}

static void begin(void)
{
    clean_environment();
    unset_drivers();
    folder_make(folder, "/tmp");
    snprintf(pipe_name, sizeof(pipe_name), "%s/pipe.%d", folder, (int)getpid());
    snprintf(file_name, sizeof(file_name), "%s/core.%d", folder, (int)getpid());
}

static void end(void) { cr_assert_eq(folder_remove(folder), 0, "%s stays", folder); }

TestSuite(core_dump, .init = begin, .fini = end, .timeout = 60);

/* What the environment asks of the driver, and where nothing is asked. */
Test(core_dump, the_drivers_variables_are_set_once_and_only_where_dumps_are_asked_for)
{
    char pipe[256] = "x", file[256] = "x", wanted[256], host[65] = "";
    epx_core_dump_paths(pipe, sizeof(pipe), file, sizeof(file));
    cr_expect_str_eq(pipe, "");
    cr_expect_str_eq(file, "");
    cr_expect_null(getenv("CUDA_ENABLE_USER_TRIGGERED_COREDUMP"));
    setenv("EPX_CORE_DUMP", "culprit", 1);
    setenv("EPX_RECORD", folder, 1);
    gethostname(host, sizeof(host) - 1);
    epx_core_dump_paths(pipe, sizeof(pipe), file, sizeof(file));
    cr_expect_str_eq(getenv("CUDA_ENABLE_USER_TRIGGERED_COREDUMP"), "1");
    cr_expect_str_eq(getenv("CUDA_ENABLE_LIGHTWEIGHT_COREDUMP"), "1");
    cr_expect_str_eq(getenv("CUDA_COREDUMP_GENERATION_FLAGS"),
                     "skip_abort,skip_global_memory,skip_shared_memory,skip_local_memory");
    snprintf(wanted, sizeof(wanted), "/tmp/epx-gpu-core-pipe.%s.%d", host, (int)getpid());
    cr_expect_str_eq(pipe, wanted);
    snprintf(wanted, sizeof(wanted), "%s/gpu-core.%s.%d", folder, host, (int)getpid());
    cr_expect_str_eq(file, wanted);
    /* The program's own wins; a time in it cannot be known beforehand. */
    setenv("CUDA_COREDUMP_PIPE", "/tmp/mine.%p", 1);
    setenv("CUDA_COREDUMP_FILE", "/tmp/core.%t", 1);
    epx_core_dump_paths(pipe, sizeof(pipe), file, sizeof(file));
    snprintf(wanted, sizeof(wanted), "/tmp/mine.%d", (int)getpid());
    cr_expect_str_eq(pipe, wanted);
    cr_expect_str_eq(file, "");
}

/* ---- the watchdog ----------------------------------------------------------------------------------------------- */

static struct {
    int asked;    /* bytes that came through the pipe */
    int ended;    /* waits that were ended */
    int64_t size; /* of the file when the first of them was */
    int stop;
} seen;

static void note_end(void *context, const char *reason)
{
    struct stat info;
    (void)context, (void)reason;
    if (__atomic_add_fetch(&seen.ended, 1, __ATOMIC_SEQ_CST) == 1)
        seen.size = stat(file_name, &info) == 0 ? (int64_t)info.st_size : -1;
}

/* A dump takes its time. */
static void write_core(void)
{
    static const char half[WHOLE / 2];
    for (int i = 0; i < 2; i++) {
        FILE *file = fopen(file_name, "a");
        cr_assert_not_null(file);
        fwrite(half, 1, sizeof(half), file);
        fclose(file);
        sleep_ms(i == 0 ? 400 : 0);
    }
}

static void *driver(void *unused)
{
    char byte;
    int pipe = open(pipe_name, O_RDWR | O_NONBLOCK);
    (void)unused;
    for (; !__atomic_load_n(&seen.stop, __ATOMIC_SEQ_CST); sleep_ms(5))
        if (read(pipe, &byte, 1) == 1 && __atomic_add_fetch(&seen.asked, 1, __ATOMIC_SEQ_CST) == 1)
            write_core();
    close(pipe);
    return NULL;
}

/* Rank 1 never comes; returns the milliseconds from the verdict to the end of the waits, or `most`. */
static int hang(epx_on_hang_t on_hang, const char *failover, int most)
{
    epx_recorder_h rank[RANKS];
    epx_record_op_t op = EPX_RECORD_OP_INIT;
    epx_verdict_t verdict = EPX_VERDICT_INIT;
    setenv("EPX_CORE_DUMP", "culprit", 1);
    setenv("CUDA_COREDUMP_PIPE", pipe_name, 1);
    setenv("CUDA_COREDUMP_FILE", file_name, 1);
    for (int32_t r = 0; r < RANKS; r++) {
        epx_recorder_config_t config = EPX_RECORDER_CONFIG_INIT;
        epx_record_group_t group = EPX_RECORD_GROUP_INIT;
        config.folder = folder, config.job = "test", config.rank = r, config.ranks = RANKS;
        config.hang_ms = HANG_MS, config.on_hang = on_hang, config.failover = failover;
        cr_assert_eq(epx_record_open(&config, &rank[r]), EPX_OK, "%s", epx_last_error());
        group.name = "theirs", group.rank = r;
        op.group_id = epx_record_group(rank[r], &group);
        epx_recorder_on_end(rank[r], note_end, NULL, 0);
        epx_record_step(rank[r]);
    }
    op.text_id = epx_record_text(rank[0], "all_reduce");
    uint64_t handle = epx_record_enqueue(rank[0], &op);
    epx_record_begin(rank[0], handle);
    epx_record_waits(rank[0], handle, 1);
    for (int64_t until = now_ms() + 20000; now_ms() < until; sleep_ms(2)) {
        epx_record_verdict(rank[0], &verdict);
        if (verdict.kind != EPX_VERDICT_NONE && verdict.kind != EPX_VERDICT_SLOW)
            break;
    }
    cr_expect_eq(verdict.kind, EPX_VERDICT_HOST_ABSENT, "%s", epx_verdict_name(verdict.kind));
    cr_expect_eq(verdict.rank, 1);
    int64_t found = now_ms();
    while (now_ms() - found < most && __atomic_load_n(&seen.ended, __ATOMIC_SEQ_CST) < RANKS)
        sleep_ms(2);
    int took = (int)(now_ms() - found);
    for (int32_t r = 0; r < RANKS; r++)
        epx_record_close(&rank[r]);
    return took;
}

static int hang_with_driver(epx_on_hang_t on_hang, int most)
{
    pthread_t thread;
    cr_assert_eq(mkfifo(pipe_name, 0600), 0);
    pthread_create(&thread, NULL, driver, NULL);
    int took = hang(on_hang, NULL, most);
    __atomic_store_n(&seen.stop, 1, __ATOMIC_SEQ_CST);
    pthread_join(thread, NULL);
    return took;
}

Test(core_dump, the_culprit_is_dumped_once_and_whole_before_waits_are_ended)
{
    int took = hang_with_driver(EPX_ON_HANG_ABORT, 20000);
    cr_expect_eq(seen.ended, RANKS);
    cr_expect_eq(seen.asked, 1, "the driver was asked %d times", seen.asked);
    cr_expect_eq(seen.size, WHOLE, "waits were ended with %d bytes written", (int)seen.size);
    cr_expect_gt(took, 400);
}

Test(core_dump, where_nothing_is_ended_nothing_is_dumped)
{
    hang_with_driver(EPX_ON_HANG_REPORT, 600);
    cr_expect_eq(seen.ended, 0);
    cr_expect_eq(seen.asked, 0);
}

Test(core_dump, without_the_drivers_pipe_it_is_said_and_not_waited_for)
{
    capture_begin();
    int took = hang(EPX_ON_HANG_ABORT, NULL, 10000);
    char *said = capture_end();
    cr_expect_eq(seen.ended, RANKS);
    cr_expect_lt(took, 2500, "waits were ended after %d ms", took);
    cr_expect(strstr(said, pipe_name) != NULL && strstr(said, "CUDA_ENABLE_USER_TRIGGERED_COREDUMP") != NULL,
              "%s", said);
    free(said);
}
