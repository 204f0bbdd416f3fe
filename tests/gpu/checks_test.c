/* Poison and checksums. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <time.h>

#include <epx/kernels_words.h>

#include "device/cuda/cuda.h"
#include "gpu/check.h"
#include "kernels/cuda/table.h"
#include "kernels/host/table.h"

static int64_t *longs(const twin_t *twin) { return (int64_t *)(void *)twin->host; }

static void poison_rows(void)
{
    for (dice_t dice; gpu_round(&dice, 40);) {
        int64_t offset = dice_range(&dice, 0, 18),
                bytes = dice_range(&dice, 0, dice_range(&dice, 0, 1) ? 40 : 18000);
        twin_t rows = twin_make((size_t)(offset + bytes) + 40);
        twin_send(&rows);
        for (int device = 0; device <= 1; device++) {
            epx_k_poison_t args = {.rows = (char *)side_of(&rows, device) + offset, .bytes = bytes};
            CHECK((device ? epx_cuda_poison : epx_host_poison)(&args, NULL) == EPX_OK, "%s",
                  epx_last_error());
        }
        twin_same(&rows, "rows");
    }
}

/* A batch of experts, some empty; returns its rows with gaps. */
static int64_t make_batch(const twin_t *start, const twin_t *count, int32_t experts, dice_t *dice)
{
    int64_t rows = 0;
    for (int32_t e = 0; e < experts; e++) {
        longs(start)[e] = rows += dice_range(dice, 0, 2);
        rows += longs(count)[e] = dice_range(dice, 0, 4);
    }
    return rows;
}

static int32_t some_experts(dice_t *dice)
{
    return (int32_t)(dice_range(dice, 0, 7) == 0 ? dice_range(dice, 1000, 3000) : dice_range(dice, 1, 50));
}

static void find_poison(void)
{
    for (dice_t dice; gpu_round(&dice, 60);) {
        int32_t experts = some_experts(&dice);
        int64_t bytes =
            2 * dice_range(&dice, 0, 1) * dice_range(&dice, 0, 700) + 16 * dice_range(&dice, 0, 9);
        int64_t stride = bytes + 16 * dice_range(&dice, 0, 1);
        twin_t start = twin_make((size_t)experts * 8), count = twin_make((size_t)experts * 8),
               bad = twin_make(16);
        int64_t rows = make_batch(&start, &count, experts, &dice);
        int with_index = dice_range(&dice, 0, 1) != 0;
        twin_t index = twin_make(with_index ? (size_t)rows * 4 + 4 : 0),
               source = twin_make((size_t)(rows * stride) + 16);
        for (int64_t i = 0; i + 1 < rows * stride; i += 2)
            memcpy(source.host + i, "\xff\x7f", 2);
        for (int64_t g = 0; g < rows; g++) {
            int64_t row = with_index ? rows - 1 - g : g;
            if (with_index)
                ((int32_t *)(void *)index.host)[g] = (int32_t)row;
            if (bytes > 0 && dice_range(&dice, 0, 50) > 0)
                source.host[row * stride + dice_range(&dice, 0, bytes - 1)] ^= 4;
        }
        twin_send(&start), twin_send(&count), twin_send(&index), twin_send(&source), twin_send(&bad);
        for (int device = 0; device <= 1; device++) {
            epx_k_find_poison_t args = {.rows = {side_of(&start, device), side_of(&count, device), experts},
                                        .index = side_or_null(&index, device),
                                        .src = side_of(&source, device),
                                        .stride = stride,
                                        .bytes = bytes,
                                        .bad = side_of(&bad, device)};
            CHECK((device ? epx_cuda_find_poison : epx_host_find_poison)(&args, NULL) == EPX_OK, "%s",
                  epx_last_error());
        }
        twin_same(&bad, "bad");
    }
}

static void checksums(void)
{
    for (dice_t dice; gpu_round(&dice, 40);) {
        int32_t experts = some_experts(&dice);
        int64_t bytes = dice_range(&dice, 0, 1) ? 16 * dice_range(&dice, 0, 60) : dice_range(&dice, 0, 700);
        int64_t stride = bytes + dice_range(&dice, 0, 1) * dice_range(&dice, 0, 20);
        twin_t start = twin_make((size_t)experts * 8), count = twin_make((size_t)experts * 8),
               bad = twin_make(16);
        int64_t rows = make_batch(&start, &count, experts, &dice);
        twin_t source = twin_make((size_t)(rows * stride) + 16), sum = twin_make((size_t)rows * 4 + 4);
        twin_send(&source), twin_send(&start), twin_send(&count), twin_send(&sum), twin_send(&bad);
        for (int device = 0; device <= 1; device++) {
            epx_k_checksum_t args = {.src = side_of(&source, device),
                                     .stride = stride,
                                     .bytes = bytes,
                                     .n = rows,
                                     .sum = side_of(&sum, device)};
            CHECK((device ? epx_cuda_checksum : epx_host_checksum)(&args, NULL) == EPX_OK, "%s",
                  epx_last_error());
        }
        twin_same(&sum, "sum");
        for (int64_t g = 0; g < rows; g++)
            if (dice_range(&dice, 0, 60) == 0)
                ((uint32_t *)(void *)sum.host)[g] ^= 1;
        twin_send(&sum);
        for (int device = 0; device <= 1; device++) {
            epx_k_verify_t args = {.rows = {side_of(&start, device), side_of(&count, device), experts},
                                   .src = side_of(&source, device),
                                   .stride = stride,
                                   .bytes = bytes,
                                   .sum = side_of(&sum, device),
                                   .bad = side_of(&bad, device)};
            CHECK((device ? epx_cuda_verify : epx_host_verify)(&args, NULL) == EPX_OK, "%s",
                  epx_last_error());
        }
        twin_same(&bad, "bad");
    }
}

/* Words that the host watches: counted by the device, with a time of now. */
static void stamps(void)
{
    for (dice_t dice; gpu_round(&dice, 20);) {
        int pair = dice_range(&dice, 0, 1) != 0, timed = dice_range(&dice, 0, 3) != 0;
        int64_t times = dice_range(&dice, 1, 5), first = dice_range(&dice, 0, 1000);
        twin_t count = twin_make(8), base = twin_make(8);
        *(uint64_t *)(void *)count.host = (uint64_t)first;
        *(uint64_t *)(void *)base.host = 70;
        twin_send(&count), twin_send(&base);
        uint64_t *shared = epx_device_cuda.allocate_shared(64);
        epx_k_stamp_t args = {.time_ns = timed ? (int64_t *)(void *)(shared + (pair ? 1 : 3)) : NULL,
                              .word = shared,
                              .value = {.base = (uint64_t *)(void *)base.device, .add = 7},
                              .count = (uint64_t *)(void *)count.device,
                              .shift = 32};
        struct timespec before, after;
        clock_gettime(CLOCK_REALTIME, &before);
        for (int64_t i = 0; i < times; i++)
            CHECK(epx_cuda_stamp(&args, NULL) == EPX_OK, "%s", epx_last_error());
        gpu_finish();
        clock_gettime(CLOCK_REALTIME, &after);
        CHECK(shared[0] == ((uint64_t)(first + times) << 32 | 77), "word %llx behind %lld stamps",
              (unsigned long long)shared[0], (long long)(first + times));
        int64_t at = timed ? *args.time_ns : 0;
        /* The two clocks agree within a second. */
        CHECK(!timed || (at > (int64_t)(before.tv_sec - 1) * 1000000000 &&
                         at < (int64_t)(after.tv_sec + 2) * 1000000000),
              "time %lld", (long long)at);
        CHECK(shared[2] == 0, "something else was written");
        epx_device_cuda.release_shared(shared, 64);
    }
}

const gpu_test_t gpu_check_tests[] = {{"poison", poison_rows},
                                      {"find_poison", find_poison},
                                      {"checksums", checksums},
                                      {"stamps", stamps},
                                      {NULL, NULL}};
