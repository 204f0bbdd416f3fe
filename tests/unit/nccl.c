/*
 * Which libnccl is used and which is refused, with a library of our own in its place.
 * SPDX-License-Identifier: Apache-2.0
 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "fabric/nccl/far.h"
#include "fabric/nccl/library.h"
#include "fabric/nccl/setup.h"
#include "support/guarded.h"

static void *fake;
static char path[512];

static void give(const char *name, const void *value, size_t bytes)
{
    void *at = dlsym(fake, name);
    cr_assert(at != NULL, "%s", name);
    memcpy(at, value, bytes);
}

/* The library of that name from now on, which says that it is `version`. */
static void take(const char *name, int version)
{
    const char *build = getenv("TEST_BUILD");
    snprintf(path, sizeof(path), "%s/tests/plugins/%s", build != NULL ? build : "build", name);
    fake = dlopen(path, RTLD_NOW);
    cr_assert(fake != NULL, "%s", dlerror());
    give("fake_version", &version, sizeof(version));
    const int zero = 0; /* what another test in this process has set */
    give("fake_reach", &zero, sizeof(zero));
    give("fake_no_window", &zero, sizeof(zero));
    give("fake_broken", &zero, sizeof(zero));
    epx_status_t (*enqueue)(epx_stream_t, guarded_run_fn, const void *, size_t) = guarded_enqueue;
    void *(*open)(const void *) = guarded_open;
    give("fake_allocate", &guarded_device.allocate, sizeof(guarded_device.allocate));
    give("fake_enqueue", &enqueue, sizeof(enqueue));
    give("fake_open", &open, sizeof(open));
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
    take("nccl_old.so", 29905);
    cr_expect_eq(ask(&why), EPX_ERR_UNSUPPORTED);
    expect_words(why, (const char *[]){"2.99.5", path}, 2);
    if (epx_nccl_setup_count == 0)
        expect_words(why, (const char *[]){"no NCCL"}, 1);
    for (int i = 0; i < epx_nccl_setup_count; i++) {
        char compiled[32];
        epx_nccl_version_text(epx_nccl_setups[i]->version, compiled, sizeof(compiled));
        expect_words(why, (const char *[]){compiled}, 1);
    }
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

static epx_fabric_t *open_alone_as(const char *name, uint32_t caps)
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
        .caps = caps,
        .allocator = &allocator};
    epx_fabric_t *fabric = NULL;
    cr_assert_eq(epx_fabric_nccl.open(&config, &fabric), EPX_OK, "%s", epx_last_error());
    return fabric;
}

static epx_fabric_t *open_alone(const char *name) { return open_alone_as(name, epx_fabric_nccl.caps); }

Test(nccl, what_overlaps_is_refused_with_both_names_whichever_group_had_it_first)
{
    epx_segment_t segment;
    const size_t bytes = 65536;
    take("nccl.so", 23007);
    int *live = dlsym(fake, "fake_live");
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

/* ---- one rank alone ----------------------------------------------------------------------------------------- */

Test(nccl, one_rank_needs_no_window)
{
    const int yes = 1;
    epx_segment_t segment;
    take("nccl.so", 22907);
    give("fake_no_window", &yes, sizeof(yes));
    int *live = dlsym(fake, "fake_live");
    epx_fabric_t *fabric = open_alone("alone");
    char *memory = epx_fabric_nccl.segment_allocate(fabric, 4096);
    cr_assert_eq(epx_fabric_nccl.segment_open(fabric, memory, 4096, &segment), EPX_OK, "%s",
                 epx_last_error());
    cr_expect_eq(segment.base, memory);
    void *const *table = guarded_open(segment.peer_ptr);
    cr_expect_eq(table[0], memory, "the table has %p for %p", table[0], (void *)memory);
    epx_fabric_nccl.close(&fabric);
    cr_expect_eq(*live, 0, "%d of NCCL's things are left", *live);
}

Test(nccl, a_version_that_is_bad_on_a_processor_is_known)
{
    cr_expect(epx_nccl_known_bad(22902, 1) != NULL);
    cr_expect(epx_nccl_known_bad(22803, 1) != NULL);
    cr_expect(epx_nccl_known_bad(22903, 1) == NULL);
    cr_expect(epx_nccl_known_bad(23007, 1) == NULL);
    cr_expect(epx_nccl_known_bad(22803, 0) == NULL);
}

/* ---- two ranks ---------------------------------------------------------------------------------------------- */

enum { RANKS = 2 };

/* Two threads that meet by an all-gather of their own. */
static struct {
    pthread_barrier_t barrier;
    char card[RANKS][512];
} meeting;

static int gather(void *context, const void *send, void *receive, size_t bytes)
{
    int32_t rank = *(const int32_t *)context;
    cr_assert(bytes <= sizeof(meeting.card[0]));
    memcpy(meeting.card[rank], send, bytes);
    pthread_barrier_wait(&meeting.barrier);
    for (size_t r = 0; r < RANKS; r++)
        memcpy((char *)receive + r * bytes, meeting.card[r], bytes);
    pthread_barrier_wait(&meeting.barrier);
    return 0;
}

typedef struct pair {
    int32_t rank;
    uint32_t caps;
    size_t bytes;
    epx_status_t opened, segment, waited;
    char text[512];
    epx_wait_result_t result;
} pair_t;

/* Opens, registers, posts nothing, and waits for the other's word. */
static void *play(void *arg)
{
    static const epx_allocator_t allocator = {.allocate = allocate, .release = release};
    pair_t *pair = arg;
    epx_fabric_config_t config = {.name = "pair",
                                  .bootstrap = {.size_of_struct = sizeof(epx_bootstrap_t),
                                                .context = &pair->rank,
                                                .rank = pair->rank,
                                                .size = RANKS,
                                                .allgather = gather},
                                  .device = &guarded_device,
                                  .channels = 4,
                                  .failure_channels = 2,
                                  .exchange_channels = 1,
                                  .exchange_bytes = 64,
                                  .segments_max = 1,
                                  .caps = pair->caps,
                                  .allocator = &allocator};
    epx_fabric_t *fabric = NULL;
    epx_segment_t segment;
    epx_wait_t wait = {.channel = 1, .epoch = {.add = 7}, .peer = 1 - pair->rank, .timeout_ms = 60000};
    pair->opened = epx_fabric_nccl.open(&config, &fabric);
    if (pair->opened == EPX_OK) {
        char *memory = epx_fabric_nccl.segment_allocate(fabric, pair->bytes);
        pair->segment = fabric->ops->segment_open(fabric, memory, pair->bytes, &segment);
    }
    if (pair->opened == EPX_OK && pair->segment == EPX_OK && (pair->caps & EPX_FABRIC_LOADSTORE) == 0)
        pair->waited = fabric->ops->wait(fabric, &wait, &pair->result, NULL);
    snprintf(pair->text, sizeof(pair->text), "%s", epx_last_error());
    if (fabric != NULL)
        fabric->ops->close(&fabric);
    return NULL;
}

static void play_pair(pair_t pair[RANKS])
{
    pthread_t thread[RANKS];
    pthread_barrier_init(&meeting.barrier, NULL, RANKS);
    for (int r = 0; r < RANKS; r++)
        pthread_create(&thread[r], NULL, play, &pair[r]);
    for (int r = 0; r < RANKS; r++)
        pthread_join(thread[r], NULL);
    pthread_barrier_destroy(&meeting.barrier);
    int *live = dlsym(fake, "fake_live");
    cr_expect_eq(*live, 0, "%d of NCCL's things are left", *live);
}

Test(nccl, ranks_that_register_different_sizes_are_all_told)
{
    take("nccl.so", 23007);
    pair_t pair[RANKS] = {{.rank = 0, .caps = epx_fabric_nccl.caps, .bytes = 4096},
                          {.rank = 1, .caps = epx_fabric_nccl.caps, .bytes = 8192}};
    play_pair(pair);
    for (int r = 0; r < RANKS; r++) {
        cr_expect_eq(pair[r].segment, EPX_ERR_MISMATCH, "rank %d: %s", r, pair[r].text);
        expect_words(pair[r].text, (const char *[]){"segment 0", "4096", "8192"}, 3);
    }
}

Test(nccl, ranks_that_move_rows_differently_are_all_told)
{
    take("nccl.so", 23007);
    pair_t pair[RANKS] = {{.rank = 0, .caps = epx_fabric_nccl.caps, .bytes = 4096},
                          {.rank = 1, .caps = epx_fabric_nccl.caps_apart, .bytes = 4096}};
    play_pair(pair);
    for (int r = 0; r < RANKS; r++) {
        cr_expect_eq(pair[r].opened, EPX_ERR_MISMATCH, "rank %d: %s", r, pair[r].text);
        expect_words(pair[r].text, (const char *[]){"EPX_NCCL_PATH", "windows", "sends and receives"}, 3);
    }
}

Test(nccl, ranks_out_of_reach_learn_of_the_other_way)
{
    const int one = 1;
    take("nccl.so", 23007);
    give("fake_reach", &one, sizeof(one));
    pair_t pair[RANKS] = {{.rank = 0, .caps = epx_fabric_nccl.caps, .bytes = 4096},
                          {.rank = 1, .caps = epx_fabric_nccl.caps, .bytes = 4096}};
    play_pair(pair);
    for (int r = 0; r < RANKS; r++) {
        cr_expect_eq(pair[r].opened, EPX_ERR_UNSUPPORTED, "rank %d: %s", r, pair[r].text);
        expect_words(pair[r].text, (const char *[]){"1 of 2 ranks", "EPX_NCCL_PATH=sendrecv"}, 2);
    }
}

/* The waits would last a minute; an emulated processor needs a quarter of it. */
Test(nccl, a_communicator_that_breaks_ends_waits, .timeout = 45)
{
    const int yes = 1;
    take("nccl.so", 23007);
    pair_t pair[RANKS] = {{.rank = 0, .caps = epx_fabric_nccl.caps_apart, .bytes = 4096},
                          {.rank = 1, .caps = epx_fabric_nccl.caps_apart, .bytes = 4096}};
    give("fake_broken", &yes, sizeof(yes));
    play_pair(pair);
    for (int r = 0; r < RANKS; r++) {
        cr_expect_eq(pair[r].opened, EPX_OK, "rank %d: %s", r, pair[r].text);
        cr_expect_eq(pair[r].waited, EPX_ERR_FABRIC, "rank %d: %s", r, epx_status_name(pair[r].waited));
        cr_expect_eq(pair[r].result.peer, 1 - r);
    }
}

Test(nccl, calls_that_are_captured_are_refused)
{
    uint64_t all = 0;
    epx_wait_result_t result;
    epx_post_t post = {.channel = 0, .epoch = {.add = 1}, .peer = EPX_ALL_PEERS};
    epx_wait_t wait = {.channel = 0, .epoch = {.add = 1}, .peer = EPX_ALL_PEERS, .timeout_ms = 1000};
    epx_exchange_t exchange = {
        .on_host = 1, .send = &all, .receive = &all, .bytes = sizeof(all), .timeout_ms = 1000};
    take("nccl.so", 23007);
    epx_fabric_t *fabric = open_alone_as("alone", epx_fabric_nccl.caps_apart);
    guarded_captures = 1;
    cr_expect_eq(fabric->ops->post(fabric, &post, NULL), EPX_ERR_UNSUPPORTED);
    expect_words(epx_last_error(), (const char *[]){"alone", "CUDA graph"}, 2);
    cr_expect_eq(fabric->ops->wait(fabric, &wait, &result, NULL), EPX_ERR_UNSUPPORTED);
    cr_expect_eq(fabric->ops->exchange(fabric, &exchange, &result, NULL), EPX_ERR_UNSUPPORTED);
    guarded_captures = 0;
    cr_expect_eq(fabric->ops->post(fabric, &post, NULL), EPX_OK);
    cr_expect_eq(fabric->ops->wait(fabric, &wait, &result, NULL), EPX_OK);
    cr_expect_eq(fabric->ops->exchange(fabric, &exchange, &result, NULL), EPX_OK);
    fabric->ops->close(&fabric);
}
