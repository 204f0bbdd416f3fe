/* epx-perf on a device whose memory the host must not touch: a simulated one, which faults where it does.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common/machine.h"
#include "bench/perf/calibrate.h"
#include "bench/perf/case.h"
#include "bench/perf/report.h"
#include "device/registry.h"
#include "fabric/nccl/library.h"
#include "support/guarded.h"
#include "support/world.h"
#include "tools/common/program.h"

TestSuite(perf_device, .init = clean_environment);

enum { ARGS_MAX = 40 };

/* The report of one case by these arguments, as JSON. The caller frees it. */
static char *report_of(const char **args)
{
    static const char *common[] = {"epx-perf", "--device", "cuda",      "--tokens", "24",
                                   "--width",  "20",       "--experts", "7",        "--top-k",
                                   "3",        "-i",       "2",         "--warmup", "1"};
    enum { COMMON = sizeof common / sizeof *common };
    const char *all[COMMON + ARGS_MAX];
    int count = COMMON;
    char *text = NULL;
    size_t bytes = 0;
    epx_perf_settings_t settings;
    for (int i = 0; i < COMMON; i++)
        all[i] = common[i];
    for (int i = 0; args[i] != NULL; i++)
        all[count++] = args[i];
    epx_device_stand_in("cuda", &guarded_device);
    cr_assert_eq(epx_perf_settings_read(&settings, count, (char **)(void *)all), EPX_GO_ON);
    FILE *file = open_memstream(&text, &bytes);
    epx_json_t json = epx_json_begin(file, 0);
    epx_perf_report_begin(&settings, &json);
    for (int32_t i = 0; i < settings.budget_count; i++) {
        epx_perf_case_t shared;
        cr_assert_eq(epx_perf_case_run(&shared, &settings, settings.transport[0], settings.size[0],
                                       settings.budget[i]),
                     EPX_EXIT_OK);
        epx_perf_report_case(&shared, &json);
        epx_perf_case_free(&shared);
    }
    cr_assert_eq(epx_perf_report_end(&json), 0);
    epx_perf_settings_free(&settings);
    fclose(file);
    return text;
}

static void expect_in(const char *text, const char *wanted)
{
    cr_expect(strstr(text, wanted) != NULL, "%s is not in %s", wanted, text);
}

Test(perf_device, every_transport_is_checked_and_timed)
{
    static const char *transports[] = {"pooled_wave", "ragged", "ring"};
    for (int t = 0; t < 3; t++) {
        char *text =
            report_of((const char *[]){"--transport", transports[t], "--op", "all", "--ranks", "3", NULL});
        expect_in(text, "\"device\": \"cuda\"");
        expect_in(text, "\"checked\": true");
        for (const char *const *op = (const char *const[]){"row_copy", "device_copy", "dispatch", "combine",
                                                           "combine_backward", "dispatch_backward", NULL};
             *op != NULL; op++)
            expect_in(text, *op);
        expect_in(text, "share_of_device_copy");
        free(text);
    }
}

Test(perf_device, forms_of_batches)
{
    free(report_of((const char *[]){"--transport", "ragged", "--wire", "rank", "--batch", "indexed", NULL}));
    free(report_of((const char *[]){"--transport", "ragged", "--skew", "one-expert", "--cold", "-i", "1",
                                    "--warmup", "0", "--waves", "1", NULL}));
    free(report_of((const char *[]){"--transport", "ring", "--no-check", "--ranks", "1", NULL}));
    free(report_of((const char *[]){"--transport", "pooled_wave", "--overflow", "extra_wave", NULL}));
}

Test(perf_device, latency_and_budgets)
{
    char *text =
        report_of((const char *[]){"--latency", "--sm-budget", "4,0", "--transport", "ragged", NULL});
    expect_in(text, "\"p99\"");
    expect_in(text, "\"sm_budget\": 4");
    expect_in(text, "\"sm_budget\": 0");
    free(text);
}

static void give(void *fake, const char *name, const void *value, size_t bytes)
{
    void *at = fake != NULL ? dlsym(fake, name) : NULL;
    cr_assert(at != NULL, "%s: %s", name, dlerror());
    memcpy(at, value, bytes);
}

/* Ranks with a GPU each, over a library that stands in for NCCL. */
static void a_gpu_each(void)
{
    epx_status_t (*enqueue)(epx_stream_t, guarded_run_fn, const void *, size_t) = guarded_enqueue;
    void *(*open)(const void *) = guarded_open;
    static char path[512]; /* is kept */
    const char *build = getenv("TEST_BUILD");
    snprintf(path, sizeof(path), "%s/tests/plugins/nccl.so", build != NULL ? build : "build");
    void *fake = dlopen(path, RTLD_NOW);
    give(fake, "fake_allocate", &guarded_device.allocate, sizeof(guarded_device.allocate));
    give(fake, "fake_enqueue", &enqueue, sizeof(enqueue));
    give(fake, "fake_open", &open, sizeof(open));
    epx_nccl_stand_in(path);
    guarded_apart = 1;
}

/* What the link does alone is beside. */
Test(perf_device, ranks_with_a_gpu_each)
{
    a_gpu_each();
    char *text =
        report_of((const char *[]){"--fabric", "nccl", "--transport", "ragged", "--ranks", "3", NULL});
    expect_in(text, "\"fabric\": \"nccl\"");
    expect_in(text, "\"peer_stores_s\"");
    expect_in(text, "\"copy_engine_s\"");
    expect_in(text, "\"nccl_all_to_all_s\"");
    free(text);
}

/* ---- the constants of the cost model ---------------------------------------------------------------------------- */

static epx_status_t known_device(epx_device_properties_t *properties_p)
{
    *properties_p = (epx_device_properties_t){.name = "a GPU of 1 GiB", .units = 4};
    properties_p->memory_bytes = 1 << 30;
    properties_p->peak_flops = 1e12;
    return EPX_OK;
}

Test(perf_device, every_constant_is_measured_or_says_so)
{
    static epx_device_ops_t known;
    const char *args[] = {"epx-perf", "--device", "cuda", "--width", "64", "--calibrate", "unused"};
    epx_perf_settings_t settings;
    epx_machine_t machine = {.name = ""};
    known = guarded_device;
    known.properties = known_device;
    epx_device_stand_in("cuda", &known);
    cr_assert_eq(epx_perf_settings_read(&settings, 7, (char **)(void *)args), EPX_GO_ON);
    cr_assert_eq(epx_perf_calibrate_device(&settings, &machine), EPX_EXIT_OK);
    epx_perf_settings_free(&settings);
    for (int i = 0; i < EPX_CONSTANTS; i++) {
        const epx_constant_row_t *row = epx_constant_row((epx_constant_t)i);
        cr_expect(machine.value[i] >= row->lo && machine.value[i] <= row->hi, "%s is %g", row->name,
                  machine.value[i]);
        cr_expect(strncmp(machine.source[i], "measured", 8) == 0 ||
                      strncmp(machine.source[i], "assumed", 7) == 0 || i == EPX_PEAK_FLOPS,
                  "%s: %s", row->name, machine.source[i]);
    }
    cr_expect_eq(machine.value[EPX_PEAK_FLOPS], 1e12);
}

Test(perf_device, a_link_is_measured_between_gpus)
{
    static epx_device_ops_t known;
    const char *args[] = {"epx-perf", "--device", "cuda", "--fabric",    "nccl",  "--ranks",
                          "3",        "--width",  "64",   "--calibrate", "unused"};
    epx_perf_settings_t settings;
    epx_machine_t machine = {.name = ""};
    a_gpu_each();
    known = guarded_device;
    known.properties = known_device;
    epx_device_stand_in("cuda", &known);
    cr_assert_eq(epx_perf_settings_read(&settings, sizeof(args) / sizeof(args[0]), (char **)(void *)args),
                 EPX_GO_ON);
    cr_assert_eq(epx_perf_calibrate_device(&settings, &machine), EPX_EXIT_OK);
    epx_perf_settings_free(&settings);
    cr_expect_gt(machine.value[EPX_LINK_BYTES], 0);
    cr_expect(machine.value[EPX_LINK_SHARE] > 0 && machine.value[EPX_LINK_SHARE] <= 1);
    cr_expect(strstr(machine.source[EPX_LINK_BYTES], "copy engine") != NULL, "%s",
              machine.source[EPX_LINK_BYTES]);
    cr_expect(strncmp(machine.source[EPX_PEER_S], "assumed", 7) == 0, "%s", machine.source[EPX_PEER_S]);
}
