/* The order of runs. SPDX-License-Identifier: Apache-2.0 */
#include "bench/ab/schedule.h"

int32_t epx_ab_schedule_twins(int32_t arms, epx_ab_item_t *items)
{
    items[0] = (epx_ab_item_t){-1, EPX_AB_REFERENCE, 0};
    for (int32_t a = 0; a < arms; a++)
        items[a + 1] = (epx_ab_item_t){a, EPX_AB_TWIN, 0};
    return arms + 1;
}

static int32_t forward_round(int32_t arms, int32_t round, const int32_t *drops, const int32_t *memory,
                             epx_ab_item_t *items)
{
    int32_t count = 0;
    for (int32_t a = 0; a < arms; a++) {
        items[count++] = (epx_ab_item_t){a, EPX_AB_PLAIN, round};
        if (round % arms == a)
            items[count++] = (epx_ab_item_t){a, EPX_AB_AGAIN, round};
        if (drops[a])
            items[count++] = (epx_ab_item_t){a, EPX_AB_EQUAL_DROPS, round};
        if (memory[a])
            items[count++] = (epx_ab_item_t){a, EPX_AB_EQUAL_MEMORY, round};
    }
    return count;
}

int32_t epx_ab_schedule_rounds(int32_t arms, int32_t pairs, const int32_t *drops, const int32_t *memory,
                               epx_ab_item_t *items)
{
    int32_t count = 0;
    for (int32_t round = 0; round < pairs; round++) {
        if (round > 0) /* round 0 had its reference with the twins */
            items[count++] = (epx_ab_item_t){-1, EPX_AB_REFERENCE, round};
        int32_t first = count;
        count += forward_round(arms, round, drops, memory, items + count);
        for (int32_t i = first, j = count - 1; round % 2 == 1 && i < j; i++, j--) {
            epx_ab_item_t item = items[i];
            items[i] = items[j];
            items[j] = item;
        }
    }
    return count;
}
