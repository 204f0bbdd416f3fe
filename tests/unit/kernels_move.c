/* push and gather: bytes, strides, holes, peers, far offsets. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/host/table.h"
#include "support/number.h"

#define GUARD 0xa5

static unsigned char source[1 << 16], target[3][1 << 16], wanted[3][1 << 16];

static void fill_all(void)
{
    for (size_t i = 0; i < sizeof(source); i++)
        source[i] = (unsigned char)(i * 7 + i / 251);
    memset(target, GUARD, sizeof(target));
    memset(wanted, GUARD, sizeof(wanted));
}

static uint32_t fnv(const unsigned char *byte, int64_t bytes)
{
    uint32_t sum = 0x811c9dc5;
    for (; bytes > 0; bytes--, byte++) {
        sum ^= *byte;
        sum = (uint32_t)(sum * (uint64_t)0x01000193);
    }
    return sum;
}

/* Runs of entries 0..29 of a list with holes, to three peers, several parts: what arrives is built entry by
 * entry. */
Test(kernels_push, every_part_of_every_entry_arrives)
{
    static const int64_t sizes[] = {1, 2, 3, 4, 8, 17, 64, 200};
    void *dst[3] = {target[0], target[1], target[2]};
    for (uint64_t seed = 0; seed < 80; seed++) {
        dice_t dice = {seed};
        int64_t bytes = sizes[seed % 8], stride = bytes + dice_range(&dice, 0, 5);
        int32_t index[30], divide = (int32_t)dice_range(&dice, 1, 4),
                           columns = (int32_t)dice_range(&dice, 1, 5);
        int with_index = seed % 5 != 0;
        for (int32_t i = 0; i < 30; i++)
            index[i] = (int32_t)dice_range(&dice, -8, 60) < 0 ? -1 : (int32_t)dice_range(&dice, 0, 60);
        epx_run_t runs[] = {{0, 5, 1, 10}, {10, 0, 0, 0}, {10, 3, 2, 1}, {11, 16, 1, 9}, {20, 0, 0, 10}};
        epx_k_push_t args = {.dst = dst,
                             .index = with_index ? index : NULL,
                             .runs = runs,
                             .run_count = 5,
                             .parts = 4,
                             .rank = 6,
                             .columns = columns};
        int64_t dst_stride = bytes + dice_range(&dice, 0, 3);
        args.part[0] = (epx_part_t){EPX_PART_COPY, source, stride, divide, 100, dst_stride, bytes, 0};
        args.part[1] =
            (epx_part_t){.kind = EPX_PART_ORIGIN, .divide = 1, .dst_offset = 20000, .dst_stride = 12};
        args.part[2] = (epx_part_t){EPX_PART_COPY, source + 40000, 4, 1, 30000, 4, 4, 0};
        args.part[3] = (epx_part_t){EPX_PART_CHECKSUM, source, stride, divide, 40000, 4, bytes, 0};
        fill_all();
        for (int32_t r = 0; r < 5; r++) {
            for (int32_t j = 0; j < runs[r].rows; j++) {
                int64_t entry = runs[r].first + j, s = with_index ? index[entry] : entry,
                        row = runs[r].row + j;
                unsigned char *to = wanted[runs[r].peer];
                if (s < 0)
                    continue;
                for (int64_t i = 0; i < bytes; i++)
                    to[100 + row * dst_stride + i] = source[s / divide * stride + i];
                int32_t origin[] = {6, (int32_t)s / columns, (int32_t)s % columns};
                memcpy(to + 20000 + row * 12, origin, 12);
                for (int64_t i = 0; i < 4; i++)
                    to[30000 + row * 4 + i] = source[40000 + s * 4 + i];
                uint32_t sum = fnv(source + s / divide * stride, bytes);
                memcpy(to + 40000 + row * 4, &sum, 4);
            }
        }
        cr_assert_eq(epx_host_push(&args, NULL), EPX_OK);
        cr_assert_eq(memcmp(target, wanted, sizeof(wanted)), 0, "seed %d, %d bytes", (int)seed, (int)bytes);
    }
}

Test(kernels_push, packed_rows)
{
    fill_all();
    void *dst[1] = {target[0]};
    epx_run_t run = {3, 2, 0, 5};
    epx_k_push_t args = {.dst = dst, .runs = &run, .run_count = 1, .parts = 1};
    args.part[0] = (epx_part_t){EPX_PART_COPY, source, 48, 1, 8, 48, 48, 0};
    memcpy(wanted[0] + 8 + 2 * 48, source + 3 * 48, 5 * 48);
    epx_host_push(&args, NULL);
    cr_assert_eq(memcmp(target, wanted, sizeof(wanted)), 0);
}

/* Entries 3 and 4 stay at rank 1: entry 3 has the places 6 and 0, entry 4 the place 2, what stands beside
 * goes on. */
Test(kernels_push, what_stays_goes_to_all_its_places)
{
    fill_all();
    void *dst[2] = {target[0], target[1]};
    epx_run_t run[] = {{1, 0, 0, 2}, {3, 5, 1, 2}};
    int32_t first[] = {0, 0, 0, 7, 9}, count[] = {0, 0, 0, 2, 1}, list[] = {-1, -1, 6, 0, 2};
    int64_t start = 20, base = 25;
    epx_k_push_t args = {.dst = dst,
                         .rank = 1,
                         .runs = run,
                         .run_count = 2,
                         .parts = 2,
                         .own = {target[1] + 4000, 40, first, count, list, &start, &base}};
    args.part[0] = (epx_part_t){EPX_PART_COPY, source, 32, 1, 0, 32, 32, 1};
    args.part[1] = (epx_part_t){EPX_PART_COPY, source + 900, 4, 1, 2000, 4, 4, 0};
    memcpy(wanted[0], source + 32, 2 * 32);
    memcpy(wanted[0] + 2000, source + 904, 2 * 4);
    memcpy(wanted[1] + 4000 + 6 * 40, source + 3 * 32, 32);
    memcpy(wanted[1] + 4000, source + 3 * 32, 32);
    memcpy(wanted[1] + 4000 + 2 * 40, source + 4 * 32, 32);
    memcpy(wanted[1] + 2000 + 5 * 4, source + 900 + 3 * 4, 2 * 4);
    cr_assert_eq(epx_host_push(&args, NULL), EPX_OK);
    cr_assert_eq(memcmp(target, wanted, sizeof(wanted)), 0);
}

Test(kernels_gather, rows_of_each_expert)
{
    for (int32_t with_index = 0; with_index <= 1; with_index++) {
        for (int64_t bytes = 1; bytes <= 70; bytes++) {
            int64_t start[] = {2, 10, 12}, count[] = {3, 0, 7};
            int32_t index[20];
            for (int32_t g = 0; g < 20; g++)
                index[g] = (g * 13 + 5) % 17;
            int64_t src_stride = bytes + bytes % 3, dst_stride = bytes + bytes % 2;
            epx_k_gather_t args = {.rows = {start, count, 3},
                                   .index = with_index ? index : NULL,
                                   .src = source,
                                   .dst = target[1],
                                   .src_stride = src_stride,
                                   .dst_stride = dst_stride,
                                   .bytes = bytes};
            fill_all();
            for (int64_t g = 2; g < 19; g++)
                for (int64_t i = 0; i < bytes && (g < 5 || g >= 12); i++)
                    wanted[1][g * dst_stride + i] = source[(with_index ? index[g] : g) * src_stride + i];
            cr_assert_eq(epx_host_gather(&args, NULL), EPX_OK);
            cr_assert_eq(memcmp(target, wanted, sizeof(wanted)), 0, "%d bytes", (int)bytes);
        }
    }
}

/* Indices 4 to 6 stand for rows of another place, by a list of their own. */
Test(kernels_gather, own_rows_come_by_their_list)
{
    int64_t start[] = {1}, count[] = {6};
    int32_t index[] = {-1, 3, 4, 5, 6, 7, 4}, own[] = {9, 2, 5};
    epx_k_gather_t args = {.rows = {start, count, 1},
                           .index = index,
                           .src = source,
                           .dst = target[0],
                           .src_stride = 8,
                           .dst_stride = 8,
                           .bytes = 8,
                           .own = own,
                           .own_src = source + 200,
                           .own_first = 4,
                           .own_count = 3,
                           .own_divide = 2};
    fill_all();
    const int32_t from[] = {3 * 8, 200 + 4 * 8, 200 + 1 * 8, 200 + 2 * 8, 7 * 8, 200 + 4 * 8};
    for (int g = 0; g < 6; g++)
        memcpy(wanted[0] + (g + 1) * 8, source + from[g], 8);
    cr_assert_eq(epx_host_gather(&args, NULL), EPX_OK);
    cr_assert_eq(memcmp(target, wanted, sizeof(wanted)), 0);
}

/* Rows that lie more than 2^32 bytes apart: address space that is reserved, with a few pages in use. */
Test(kernels_push, offsets_past_32_bits)
{
    int64_t stride = ((int64_t)1 << 31) + 64;
    size_t bytes = (size_t)stride * 3 + 64;
    unsigned char *far =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (far == MAP_FAILED)
        cr_skip_test("no 6 GiB of address space here");
    memset(far + stride * 3, 0x11, 32);
    unsigned char near[64] = {0};
    void *dst[1] = {far};
    int32_t index[] = {0, 7};
    epx_run_t run = {1, 2, 0, 1};
    epx_k_push_t push = {.dst = dst, .index = index, .runs = &run, .run_count = 1, .parts = 1};
    push.part[0] = (epx_part_t){EPX_PART_COPY, far, stride, 2, 16, stride, 32, 0};
    epx_host_push(&push, NULL); /* entry 1, index 7, row 3 -> row 2 */
    cr_assert_eq(memcmp(far + stride * 2 + 16, far + stride * 3, 32), 0);

    int64_t start[] = {0}, count[] = {1};
    int32_t third[] = {3};
    epx_k_gather_t gather = {.rows = {start, count, 1},
                             .index = third,
                             .src = far,
                             .dst = near,
                             .src_stride = stride,
                             .dst_stride = 32,
                             .bytes = 32};
    epx_host_gather(&gather, NULL);
    cr_assert_eq(memcmp(near, far + stride * 3, 32), 0);
    munmap(far, bytes);
}
