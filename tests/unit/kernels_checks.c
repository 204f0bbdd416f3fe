/* Poison and checksums. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <math.h>
#include <string.h>

#include "kernels/host/table.h"
#include "support/number.h"

Test(kernels_checks, poison_is_a_nan_in_every_row_type)
{
    static unsigned char memory[1100];
    for (int64_t bytes = 0; bytes <= 1000; bytes++) {
        memset(memory, 0, sizeof(memory));
        int64_t from = bytes % 3 ? 8 : 9;
        epx_k_poison_t args = {.rows = memory + from, .bytes = bytes};
        cr_assert_eq(epx_host_poison(&args, NULL), EPX_OK);
        for (int64_t i = 0; i < 1100; i++)
            cr_assert_eq(memory[i], i < from || i >= from + bytes ? 0 : (i - from) % 2 ? 0x7f : 0xff);
    }
    epx_k_poison_t args = {.rows = memory, .bytes = 64};
    epx_host_poison(&args, NULL);
    for (size_t i = 0; i < 16; i++)
        cr_assert(isnan(row_get(memory, EPX_FP32, i)) && isnan(row_get(memory, EPX_BF16, i)) &&
                  isnan(row_get(memory, EPX_FP16, i)));
}

Test(kernels_checks, find_poison_names_the_first_row_and_its_expert)
{
    static unsigned char rows[20][50];
    for (int64_t bytes = 2; bytes <= 48; bytes += 2) {
        int64_t start[] = {1, 6, 9}, count[] = {4, 0, 5}, bad[2];
        int32_t index[20];
        epx_k_find_poison_t args = {
            .rows = {start, count, 3}, .src = rows, .stride = 50, .bytes = bytes, .bad = bad};
        memset(rows, 0, sizeof(rows));
        poison(rows[0], 50); /* outside of the batch */
        poison(rows[5], 50);
        poison(rows[14], 50);
        epx_host_find_poison(&args, NULL);
        cr_assert(bad[0] == -1 && bad[1] == -1);
        poison(rows[11], (size_t)bytes);
        poison(rows[13], (size_t)bytes);
        epx_host_find_poison(&args, NULL);
        cr_assert(bad[0] == 11 && bad[1] == 2, "%d bytes", (int)bytes);
        for (int64_t i = 0; i < bytes; i++) { /* one other byte anywhere makes it a row */
            rows[11][i] ^= 1;
            epx_host_find_poison(&args, NULL);
            cr_assert_eq(bad[0], 13, "%d bytes, byte %d", (int)bytes, (int)i);
            rows[11][i] ^= 1;
        }
        for (int32_t g = 0; g < 20; g++)
            index[g] = 19 - g;
        args.index = index; /* rows 19-1 .. 19-4 and 19-9 .. 19-13: 18 17 16 15, 10 9 8 7 6 */
        epx_host_find_poison(&args, NULL);
        cr_assert(bad[0] == -1);
        poison(rows[16], (size_t)bytes);
        epx_host_find_poison(&args, NULL);
        cr_assert(bad[0] == 3 && bad[1] == 0);
    }
}

/* Published test vectors of 32-bit FNV-1a. */
Test(kernels_checks, checksums)
{
    const char *text[] = {"", "a", "b", "foobar"};
    uint32_t known[] = {0x811c9dc5, 0xe40c292c, 0xe70c2de5, 0xbf9cf968};
    for (int32_t i = 0; i < 4; i++) {
        uint32_t sum[2] = {0, 0x77};
        epx_k_checksum_t args = {
            .src = text[i], .stride = 99, .bytes = (int64_t)strlen(text[i]), .n = 1, .sum = sum};
        epx_host_checksum(&args, NULL);
        cr_assert_eq(sum[0], known[i]);
        cr_assert_eq(sum[1], 0x77);
    }
    uint32_t sums[2];
    epx_k_checksum_t args = {.src = "a-b-", .stride = 2, .bytes = 1, .n = 2, .sum = sums};
    epx_host_checksum(&args, NULL);
    cr_assert(sums[0] == known[1] && sums[1] == known[2]);
}
