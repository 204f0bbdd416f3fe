/* What acts are made of. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <time.h>

#include "tools/common/program.h"
#include "tools/repro/repro.h"

void repro_nap_ms(int64_t ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

void actor_sleep(const actor_t *actor, int64_t ms)
{
    int64_t end = epx_now_ns() + ms * 1000000;
    while (!atomic_load(&actor->play->stop) && epx_now_ns() < end)
        repro_nap_ms(2);
}

void actor_acts(actor_t *actor)
{
    int64_t never = 0;
    atomic_compare_exchange_strong(&actor->play->acted_ns, &never, epx_now_ns());
}

int actor_is_culprit(const actor_t *actor) { return actor->rank == actor->play->culprit; }

int actor_check(actor_t *actor, epx_status_t status)
{
    if (status == EPX_OK)
        return 1;
    if (!actor->failed)
        snprintf(actor->error, sizeof(actor->error), "%s (%s)", epx_last_error(), epx_status_name(status));
    actor->failed = 1;
    actor->status = status;
    return 0;
}
