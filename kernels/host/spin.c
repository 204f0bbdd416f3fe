/* spin: stands for a foreign kernel that does not end. SPDX-License-Identifier: Apache-2.0 */
#include <epx/kernels_words.h>

#include <time.h>

#include "kernels/host/table.h"

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

epx_status_t epx_host_spin(const epx_k_spin_t *args, epx_stream_t stream)
{
    (void)stream;
    for (int64_t end = now_ns() + args->ns; now_ns() < end;)
        if (args->stop != NULL && __atomic_load_n(args->stop, __ATOMIC_ACQUIRE) != 0)
            break;
    return EPX_OK;
}
