/*
 * Tests of the GPU's kernels against the host's. SPDX-License-Identifier: Apache-2.0
 *
 *   gpu [--small] [--rounds N] [--most N] [--seed N] [--list] [--undisturbed] [PART OF A NAME]...
 *
 * --undisturbed: only those that need a GPU which no other program uses; without it they are left out.
 */
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda/cuda.h"
#include "gpu/check.h"

extern const gpu_test_t gpu_load_tests[], gpu_move_tests[], gpu_sum_tests[], gpu_check_tests[],
    gpu_ids_tests[], gpu_ragged_tests[], gpu_flow_tests[], gpu_home_tests[], gpu_pooled_tests[],
    gpu_ring_tests[], gpu_words_tests[], gpu_budget_tests[];

static const gpu_test_t *const tables[] = {
    gpu_load_tests, gpu_move_tests, gpu_sum_tests,    gpu_check_tests, gpu_ids_tests,   gpu_ragged_tests,
    gpu_flow_tests, gpu_home_tests, gpu_pooled_tests, gpu_ring_tests,  gpu_words_tests, NULL};
static const gpu_test_t *const undisturbed_tables[] = {gpu_budget_tests, NULL};

enum { TWINS_MAX = 128, FAILURES_MAX = 5 };

static int small, only_list, undisturbed, factor = 1, most = INT_MAX;
static uint64_t first_seed = 1, seed;
static int failures;     /* of this test */
static int rounds_begun; /* of this loop */
static twin_t twins[TWINS_MAX];
static int twin_count;

void gpu_failed(const char *file, int line, const char *format, ...)
{
    va_list list;
    failures++;
    printf("  %s:%d: seed %llu: ", file, line, (unsigned long long)seed);
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    printf("\n");
}

static void free_twins(void)
{
    for (int i = 0; i < twin_count; i++) {
        free(twins[i].host);
        epx_device_cuda.release(twins[i].device, twins[i].bytes);
    }
    twin_count = 0;
}

int gpu_round(dice_t *dice, int rounds)
{
    int all = small ? (rounds + 9) / 10 : rounds * factor;
    all = all < most ? all : most;
    free_twins();
    if (rounds_begun == all || failures >= FAILURES_MAX) {
        rounds_begun = 0;
        return 0;
    }
    seed = first_seed + (uint64_t)rounds_begun++;
    dice->state = seed * 0x9e3779b97f4a7c15u;
    return 1;
}

int gpu_small(void) { return small; }

static void give_up(const char *what)
{
    printf("  %s: %s\n", what, epx_last_error());
    exit(1);
}

void gpu_finish(void)
{
    if (epx_device_cuda.synchronize(NULL) != EPX_OK)
        give_up("the device failed");
}

twin_t twin_make(size_t bytes)
{
    twin_t twin = {.bytes = bytes};
    if (twin_count == TWINS_MAX)
        give_up("too many twins");
    twin.host = aligned_alloc(256, (bytes + 255) / 256 * 256 + 256);
    twin.device = epx_device_cuda.allocate(bytes + 256, 256);
    if (twin.host == NULL || twin.device == NULL)
        give_up("no memory");
    for (size_t i = 0; i < bytes; i++)
        twin.host[i] = (unsigned char)(0xa5 ^ i);
    return twins[twin_count++] = twin;
}

void twin_send(const twin_t *twin)
{
    if (epx_device_cuda.copy(twin->device, twin->host, twin->bytes, NULL) != EPX_OK)
        give_up("a copy failed");
}

void twin_fetch(const twin_t *twin, void *to)
{
    if (epx_device_cuda.copy(to, twin->device, twin->bytes, NULL) != EPX_OK)
        give_up("a copy failed");
    gpu_finish();
}

void twin_same(const twin_t *twin, const char *what)
{
    unsigned char *got = malloc(twin->bytes + 1);
    twin_fetch(twin, got);
    size_t i = 0;
    while (i < twin->bytes && got[i] == twin->host[i])
        i++;
    if (i < twin->bytes) {
        size_t word = i / 4 * 4;
        int32_t a = 0, b = 0;
        memcpy(&a, twin->host + word, twin->bytes - word < 4 ? twin->bytes - word : 4);
        memcpy(&b, got + word, twin->bytes - word < 4 ? twin->bytes - word : 4);
        CHECK(0, "%s differs at byte %zu of %zu: host %d (%#x), device %d (%#x)", what, i, twin->bytes, a,
              (unsigned)a, b, (unsigned)b);
    }
    free(got);
}

void twin_same_numbers(const twin_t *twin, epx_type_t type, const char *what)
{
    unsigned char *got = malloc(twin->bytes + 1);
    size_t n = twin->bytes / type_size(type), i = 0;
    twin_fetch(twin, got);
    while (i < n && same_number(row_get(twin->host, type, i), row_get(got, type, i)))
        i++;
    if (i < n)
        CHECK(0, "%s[%zu] of %zu: host %a, device %a", what, i, n, (double)row_get(twin->host, type, i),
              (double)row_get(got, type, i));
    free(got);
}

void twin_fill_numbers(const twin_t *twin, epx_type_t type, dice_t *dice)
{
    static const float special[] = {0.0f,  -0.0f,  1e-40f,      -3e-8f,      65504.0f,
                                    3e38f, -3e38f, 1.0f / 0.0f, -1.0f / 0.0f};
    size_t n = twin->bytes / type_size(type);
    int with_special = dice_range(dice, 0, 2) == 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = dice_bits(dice);
        float value = (float)((double)(bits >> 40) / (1 << 23) - 1.0);
        if (with_special && bits % 64 == 0)
            value = special[bits / 64 % (sizeof(special) / sizeof(special[0]))];
        row_set(twin->host, type, i, value);
    }
}

static int wanted(const char *name, int argc, char **argv)
{
    int any = 0;
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) == 0) {
            i += strcmp(argv[i], "--small") != 0 && strcmp(argv[i], "--list") != 0 &&
                 strcmp(argv[i], "--undisturbed") != 0;
            continue;
        }
        any = 1;
        if (strstr(name, argv[i]) != NULL)
            return 1;
    }
    return !any;
}

static void read_options(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--small") == 0)
            small = 1;
        else if (strcmp(argv[i], "--list") == 0)
            only_list = 1;
        else if (strcmp(argv[i], "--undisturbed") == 0)
            undisturbed = 1;
        else if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc)
            factor = atoi(argv[++i]);
        else if (strcmp(argv[i], "--most") == 0 && i + 1 < argc)
            most = atoi(argv[++i]);
        else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            first_seed = strtoull(argv[++i], NULL, 0);
    }
}

int main(int argc, char **argv)
{
    char reason[256];
    int passed = 0, failed = 0;
    read_options(argc, argv);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!only_list && epx_device_cuda.probe(reason, sizeof(reason)) <= 0) {
        printf("gpu: skipped: %s\n", reason);
        return 3;
    }
    for (const gpu_test_t *const *table = undisturbed ? undisturbed_tables : tables; *table != NULL;
         table++) {
        for (const gpu_test_t *test = *table; test->name != NULL; test++) {
            if (!wanted(test->name, argc, argv))
                continue;
            if (only_list) {
                printf("%s\n", test->name);
                continue;
            }
            failures = rounds_begun = 0;
            test->run();
            printf("%s %s\n", failures == 0 ? "ok    " : "FAILED", test->name);
            passed += failures == 0;
            failed += failures != 0;
        }
    }
    if (!only_list)
        printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
