/* A monitor beside a flight recorder: what changes in a made-up sysfs tree and in a made-up NVML library is
 * in the record, in order, and nothing else. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <epx/health.h>

#include "base/clock.h"
#include "record/classify.h"
#include "record/recorder.h"
#include "support/folder.h"
#include "support/world.h"

enum { POLL_MS = 5, LIMIT_MS = 20000 };

static char folder[FOLDER_BYTES];
static epx_recorder_h recorder;
static epx_health_follow_h follow;

static void begin(void)
{
    epx_recorder_set_up_t set_up = {
        .folder = "", .job = "job", .ranks = 2, .hang_ms = 5000, .timeout_ms = 60000};
    clean_environment();
    folder_make(folder, "/tmp");
    cr_assert_eq(epx_recorder_open(&set_up, &recorder), EPX_OK);
}

static void end(void)
{
    epx_health_unfollow(&follow);
    cr_expect_null(follow);
    epx_recorder_close(&recorder);
    cr_assert_eq(folder_remove(folder), 0, "%s stays", folder);
}

TestSuite(health_follow, .init = begin, .fini = end, .timeout = 60);

/* A file of the made-up machine, whole at every moment. */
static void put(const char *name, const char *text)
{
    char path[256], before[280];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    snprintf(before, sizeof(before), "%s.new", path);
    FILE *file = fopen(before, "w");
    cr_assert_not_null(file, "%s", before);
    fputs(text, file);
    cr_assert_eq(fclose(file), 0);
    cr_assert_eq(rename(before, path), 0);
}

/* The monitor has seen all that was put before. */
static void until_seen(void)
{
    int64_t looks = epx_health_follow_looks(follow), end_ns = epx_clock_ns() + (int64_t)LIMIT_MS * 1000000;
    while (epx_health_follow_looks(follow) < looks + 2) {
        cr_assert_lt(epx_clock_ns(), end_ns, "the monitor does not look");
        usleep(1000);
    }
}

static void start(const char *sysfs, const char *nvml, const char *links)
{
    epx_health_follow_config_t config = EPX_HEALTH_FOLLOW_CONFIG_INIT;
    config.health.sysfs = sysfs;
    config.health.nvml = nvml;
    config.recorder = recorder;
    config.links = links;
    config.interval_ms = POLL_MS;
    cr_assert_eq(epx_health_follow(&config, &follow), EPX_OK, "%s", epx_last_error());
    until_seen();
}

/* All events so far, as one text: "down mlx5_0/1; ". */
static const char *told(void)
{
    static const char *const words[] = {"?", "error", "down", "up", "recovering"};
    static char text[2048];
    size_t bytes, used = 0;
    const epx_record_head_t *head = epx_recorder_bytes(recorder, &bytes);
    text[0] = '\0';
    uint64_t links = __atomic_load_n(&head->links, __ATOMIC_ACQUIRE);
    for (uint64_t n = 1; n <= links; n++) {
        epx_record_link_row_t row;
        cr_assert(epx_record_link_row(head, n, &row));
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s %s; ", words[row.what], row.name);
    }
    return text;
}

Test(health_follow, a_port_of_sysfs)
{
    char command[160];
    snprintf(command, sizeof(command), "mkdir -p %s/class/infiniband/mlx5_0/ports/1/counters", folder);
    cr_assert_eq(system(command), 0);
#define PORT "class/infiniband/mlx5_0/ports/1/"
    put(PORT "state", "4: ACTIVE\n");
    put(PORT "counters/link_downed", "7\n");
    put(PORT "counters/symbol_error", "0\n");
    put(PORT "counters/link_error_recovery", "2\n");
    start(folder, "", NULL);
    cr_expect_str_eq(told(), "", "what was there before is no event: %s", told());
    put(PORT "counters/symbol_error", "9\n"); /* 90 an hour: to be watched, no more */
    until_seen();
    cr_expect_str_eq(told(), "");
    put(PORT "state", "1: DOWN\n");
    until_seen();
    cr_expect_str_eq(told(), "down mlx5_0/1; ");
    put(PORT "state", "4: ACTIVE\n");
    until_seen();
    cr_expect_str_eq(told(), "down mlx5_0/1; up mlx5_0/1; ");
    until_seen(); /* its flap is history before the counter tells of another one, between two looks */
    put(PORT "counters/link_downed", "8\n");
    until_seen();
    put(PORT "counters/link_error_recovery", "3\n");
    until_seen();
    put(PORT "counters/symbol_error", "900\n");
    until_seen();
    put(PORT "counters/symbol_error", "0\n"); /* a reset is no event */
    until_seen();
    cr_expect_str_eq(told(),
                     "down mlx5_0/1; up mlx5_0/1; down mlx5_0/1 link_downed; up mlx5_0/1 link_downed; "
                     "recovering mlx5_0/1 link_error_recovery; error mlx5_0/1 symbol_error; ");
    size_t bytes;
    const epx_record_head_t *head = epx_recorder_bytes(recorder, &bytes);
    cr_expect_neq(head->links_looked_ns, 0);
}

/* Field 215 is a link's recoveries, 91 the number of links. */
#define NVML_FIRST "gpus 2\nfield 0 91 0 0 1\nfield 1 91 0 0 1\nlink 1 0 0 1\nfield 1 215 0 0 5\n"

Test(health_follow, an_nvlink_of_its_own_gpu_by_nvml)
{
    char library[256], path[64];
    const char *build = getenv("TEST_BUILD");
    snprintf(library, sizeof(library), "%s/tests/plugins/fake_nvml.so", build != NULL ? build : "build");
    snprintf(path, sizeof(path), "%s/nvml", folder);
    setenv("FAKE_NVML", path, 1);
    put("nvml", NVML_FIRST "link 0 0 0 1\nfield 0 215 0 0 5\n");
    start("/nonexistent", library, "GPU0");
    put("nvml", NVML_FIRST "link 0 0 0 1\nfield 0 215 0 0 6\n");
    until_seen();
    put("nvml", NVML_FIRST "link 0 0 0 0\nfield 0 215 0 0 6\n");
    until_seen();
    /* What it corrects is no event; what the driver wants is. */
    put("nvml",
        NVML_FIRST "link 0 0 0 0\nfield 0 215 0 0 6\nxid 0 79\nfield 0 230 0 0 0\nerrors 0 0 4 0 7\n");
    until_seen();
    cr_expect_str_eq(told(), "recovering GPU0/nvlink0 nvlink_recoveries; down GPU0/nvlink0; "
                             "error GPU0 xid_hardware; ");
    put("nvml",
        NVML_FIRST "link 0 0 0 0\nfield 0 215 0 0 6\nxid 0 79\nfield 0 230 0 0 4\nerrors 0 0 4 0 900000\n");
    until_seen();
    cr_expect_str_eq(told(), "recovering GPU0/nvlink0 nvlink_recoveries; down GPU0/nvlink0; "
                             "error GPU0 xid_hardware; error GPU0 gpu_recovery_action; ");
    /* Another rank's GPU, which nobody asks: that takes time. */
    void *nvml = dlopen(library, RTLD_NOW);
    const int *asked = nvml != NULL ? dlsym(nvml, "fake_nvml_asked") : NULL;
    cr_assert_not_null(asked);
    cr_expect_gt(asked[0], 0);
    cr_expect_eq(asked[1], 0);
    dlclose(nvml);
    put("nvml", "gpus 2\nfield 0 91 0 0 1\nfield 1 91 0 0 1\nlink 1 0 0 0\nfield 1 215 0 0 50\nlink 0 0 0 0\n"
                "field 0 215 0 0 6\nxid 0 79\n");
    until_seen();
    cr_expect_str_eq(told(), "recovering GPU0/nvlink0 nvlink_recoveries; down GPU0/nvlink0; "
                             "error GPU0 xid_hardware; error GPU0 gpu_recovery_action; ");
}

Test(health_follow, nothing_to_look_at_is_not_observed)
{
    size_t bytes;
    start("/nonexistent", "", NULL);
    const epx_record_head_t *head = epx_recorder_bytes(recorder, &bytes);
    cr_expect_eq(head->links_looked_ns, 0);
    epx_health_follow_config_t config = {0};
    epx_health_follow_h other = NULL;
    cr_expect_eq(epx_health_follow(&config, &other), EPX_ERR_ARG);
    cr_expect_eq(epx_record_link(recorder, EPX_EVIDENCE_DEVICE_IDLE, "x", 0, 0), EPX_ERR_ARG);
}
