/* Poison and checksums. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "gpu/check.h"
#include "kernels/cuda/table.h"
#include "kernels/host/table.h"

static int64_t *longs(const twin_t *twin) { return (int64_t *)(void *)twin->host; }

static void poison_rows(void)
{
    for (dice_t dice; gpu_round(&dice, 40);) {
        int64_t offset = 2 * dice_range(&dice, 0, 9),
                bytes = 2 * dice_range(&dice, 0, dice_range(&dice, 0, 1) ? 20 : 9000);
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

const gpu_test_t gpu_check_tests[] = {
    {"poison", poison_rows}, {"find_poison", find_poison}, {"checksums", checksums}, {NULL, NULL}};
