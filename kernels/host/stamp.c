/* stamp: a word that others watch, with its time. SPDX-License-Identifier: Apache-2.0 */
#include <epx/kernels_words.h>

#include <time.h>

#include "kernels/host/progress.h"
#include "kernels/host/table.h"

epx_status_t epx_host_stamp(const epx_k_stamp_t *args, epx_stream_t stream)
{
    (void)stream;
    uint64_t value = args->value.add;
    if (args->value.base != NULL)
        value += __atomic_load_n(args->value.base, __ATOMIC_ACQUIRE);
    if (args->count != NULL)
        value += ++*args->count << args->shift;
    if (args->time_ns != NULL) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        int64_t ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
        if (args->name != 0)
            ns = (int64_t)epx_host_progress_time(args->name);
        __atomic_store_n(args->time_ns, ns, __ATOMIC_RELAXED);
    }
    __atomic_store_n(args->word, value, __ATOMIC_RELEASE);
    return EPX_OK;
}
