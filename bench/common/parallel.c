/* Items over threads. SPDX-License-Identifier: Apache-2.0 */
#include "bench/common/parallel.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "tools/common/program.h"

typedef struct work {
    epx_item_fn fn;
    void *context;
    int32_t items;
    size_t scratch_bytes;
    atomic_int next;
} work_t;

static void *run_items(void *argument)
{
    work_t *work = argument;
    void *scratch = epx_tool_alloc(work->scratch_bytes, 1);
    for (int32_t i = atomic_fetch_add(&work->next, 1); i < work->items; i = atomic_fetch_add(&work->next, 1))
        work->fn(work->context, i, scratch);
    free(scratch);
    return NULL;
}

void epx_parallel(int32_t threads, int32_t items, epx_item_fn fn, void *context, size_t scratch_bytes)
{
    work_t work = {.fn = fn, .context = context, .items = items, .scratch_bytes = scratch_bytes};
    int32_t more = (threads < items ? threads : items) - 1, started = 0;
    pthread_t *thread = epx_tool_alloc((size_t)(more > 0 ? more : 1), sizeof *thread);
    while (started < more && pthread_create(&thread[started], NULL, run_items, &work) == 0)
        started++;
    run_items(&work);
    for (int32_t i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
    free(thread);
}

int32_t epx_processors(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}
