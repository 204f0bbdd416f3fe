/* A build without libibverbs reads no events. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/features.h"
#include "health/health.h"

epx_health_events_t *epx_health_events_open(char *blind, size_t bytes)
{
    const char *reason = "this version lacks it";
    for (const epx_feature_t *feature = epx_features; feature->name != NULL; feature++)
        if (strcmp(feature->name, "verbs") == 0)
            reason = feature->reason;
    snprintf(blind, bytes, "this build has no libibverbs (%s); counters and states are read without it",
             reason);
    return NULL;
}

void epx_health_events_sample(epx_health_events_t *events, epx_health_fn fn, void *context)
{
    (void)events;
    (void)fn;
    (void)context;
}

void epx_health_events_close(epx_health_events_t *events) { (void)events; }
