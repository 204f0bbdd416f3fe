/* Progress words. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/host/progress.h"

#include <time.h>

#include "kernels/host/lane.h"

uint64_t epx_host_progress_time(uint32_t name)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    return ns >> EPX_PROGRESS_TIME_SHIFT << EPX_PROGRESS_NAME_BITS | name;
}

void epx_host_progress(uint64_t *pair, uint64_t value, uint32_t name)
{
    __atomic_store_n(&pair[1], epx_host_progress_time(name), __ATOMIC_RELAXED);
    __atomic_store_n(&pair[0], value, __ATOMIC_RELEASE);
}

void epx_host_begun(const epx_k_begun_t *begun)
{
    if (begun->word == NULL)
        return;
    epx_lane_begin_of_t of = {.words = (epx_lane_words_t *)(uintptr_t)begun->lane,
                              .head = begun->head,
                              .generation = begun->generation};
    uint64_t base = begun->lane != NULL ? epx_host_lane_base(&of) : 0;
    epx_host_progress(begun->word, base + begun->add, begun->name);
}
