/*
 * Which libnccl is used and which is refused, with a library of our own in its place.
 * SPDX-License-Identifier: Apache-2.0
 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "fabric/nccl/nccl.h"
#include "fabric/nccl/setup.h"
#include "support/guarded.h"

static void *stub;
static char path[512];

/* The library of that name from now on, which says that it is `version`. */
static void take(const char *name, int version)
{
    const char *build = getenv("TEST_BUILD");
    snprintf(path, sizeof(path), "%s/tests/plugins/%s", build != NULL ? build : "build", name);
    stub = dlopen(path, RTLD_NOW);
    cr_assert(stub != NULL, "%s", dlerror());
    int *said = dlsym(stub, "stub_version");
    cr_assert(said != NULL);
    *said = version;
    void *allocate = dlsym(stub, "stub_allocate");
    cr_assert(allocate != NULL);
    memcpy(allocate, &guarded_device.allocate, sizeof(guarded_device.allocate));
    epx_nccl_stand_in(path);
}

static epx_status_t ask(const char **why)
{
    const nccl_api_t *api;
    return epx_nccl_api(&api, why);
}

static void expect_words(const char *text, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        cr_expect(strstr(text, words[i]) != NULL, "'%s' is not in: %s", words[i], text);
}

Test(nccl, a_version_without_a_set_up_kernel_is_refused_with_both_versions_and_its_path)
{
    const char *why = "";
    char compiled[32] = "no NCCL";
    take("nccl_old.so", 29905);
    if (epx_nccl_setup_count > 0)
        epx_nccl_version_text(epx_nccl_setups[0]->version, compiled, sizeof(compiled));
    cr_expect_eq(ask(&why), EPX_ERR_UNSUPPORTED);
    expect_words(why, (const char *[]){"2.99.5", compiled, path}, 3);
}

Test(nccl, a_version_that_gives_addresses_itself_needs_no_set_up_kernel)
{
    const char *why = "";
    take("nccl.so", 29905);
    cr_expect_eq(ask(&why), EPX_OK, "%s", why);
}

Test(nccl, a_version_before_windows_is_refused)
{
    const char *why = "";
    take("nccl.so", 22703);
    cr_expect_eq(ask(&why), EPX_ERR_UNSUPPORTED);
    expect_words(why, (const char *[]){"2.27.3", "2.28", path}, 3);
}

Test(nccl, no_library_is_a_reason)
{
    const char *why = "";
    char reason[512] = "";
    epx_nccl_stand_in("/nowhere/libnccl.so.2");
    cr_expect_eq(ask(&why), EPX_ERR_UNSUPPORTED);
    expect_words(why, (const char *[]){"/nowhere/libnccl.so.2", "install NCCL"}, 2);
    cr_expect_eq(epx_fabric_nccl.probe(&guarded_device, reason, sizeof(reason)), 0);
    expect_words(reason, (const char *[]){"/nowhere/libnccl.so.2"}, 1);
}

/* ---- registrations ------------------------------------------------------------------------------------------ */

static void *allocate(void *context, size_t bytes, size_t alignment, int device_memory)
{
    (void)context;
    return device_memory ? guarded_device.allocate(bytes, alignment)
                         : aligned_alloc(256, (bytes + 255) / 256 * 256);
}

static void release(void *context, void *memory, size_t bytes, int device_memory)
{
    (void)context;
    if (device_memory)
        guarded_device.release(memory, bytes);
    else
        free(memory);
}

static int alone(void *context, const void *send, void *receive, size_t bytes)
{
    (void)context;
    memcpy(receive, send, bytes);
    return 0;
}

static epx_fabric_t *open_alone(const char *name)
{
    static const epx_allocator_t allocator = {.allocate = allocate, .release = release};
    epx_fabric_config_t config = {
        .name = name,
        .bootstrap = {.size_of_struct = sizeof(epx_bootstrap_t), .size = 1, .allgather = alone},
        .device = &guarded_device,
        .channels = 4,
        .failure_channels = 2,
        .exchange_channels = 1,
        .exchange_bytes = 64,
        .segments_max = 2,
        .allocator = &allocator};
    epx_fabric_t *fabric = NULL;
    cr_assert_eq(epx_fabric_nccl.open(&config, &fabric), EPX_OK, "%s", epx_last_error());
    return fabric;
}

Test(nccl, what_overlaps_is_refused_with_both_names_whichever_group_had_it_first)
{
    epx_segment_t segment;
    const size_t bytes = 65536;
    take("nccl.so", 23007);
    int *live = dlsym(stub, "stub_live");
    epx_fabric_t *first = open_alone("first"), *second = open_alone("second");
    char *memory = epx_fabric_nccl.segment_allocate(first, bytes);
    cr_assert(memory != NULL);
    cr_expect_eq(epx_fabric_nccl.segment_open(first, memory, bytes, &segment), EPX_OK, "%s",
                 epx_last_error());
    cr_expect_eq(segment.base, memory);
    /* The last page, by another group. */
    cr_expect_eq(epx_fabric_nccl.segment_open(second, memory + bytes - 4096, 4096, &segment), EPX_ERR_ARG);
    expect_words(epx_last_error(),
                 (const char *[]){"second's segment 0", "first's segment 0", "65536 bytes", "4096"}, 4);
    /* Just behind it is nobody's. */
    char *other = epx_fabric_nccl.segment_allocate(second, bytes);
    cr_expect_eq(epx_fabric_nccl.segment_open(second, other, bytes, &segment), EPX_OK, "%s",
                 epx_last_error());
    epx_fabric_nccl.close(&first);
    epx_fabric_nccl.close(&second);
    cr_expect_eq(*live, 0, "%d of NCCL's things are left", *live);
}
