/* The parts of a monitor. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_HEALTH_HEALTH_H
#define EPX_HEALTH_HEALTH_H

#include <epx/health.h>

enum { EPX_HEALTH_BLIND = 1024 };

/* What kind of value a name is. */
typedef enum epx_health_kind {
    EPX_HEALTH_NOBODY_JUDGES = -1,
    EPX_HEALTH_STATE = 0, /* must be `good`; a change away and back is a flap */
    EPX_HEALTH_FLAP,      /* counts that a link went down */
    EPX_HEALTH_RECOVERY,  /* counts that a link had to be brought up again: rising still is worse than having
                             risen */
    EPX_HEALTH_ERRORS,    /* judged by rate */
    EPX_HEALTH_CORRECTED, /* errors that the link mends on the way: good links have them all the time */
    EPX_HEALTH_SPEED,     /* of a link that is up */
    EPX_HEALTH_DEMAND,    /* what a driver wants done, 0 nothing */
    EPX_HEALTH_FATAL      /* any is one too many */
} epx_health_kind_t;
/* *good_p: of a STATE. */
epx_health_kind_t epx_health_kind_of(const char *name, uint64_t *good_p);

/* Calls fn with a reading. */
static inline void epx_health_pass(epx_health_fn fn, void *context, const char *link, const char *name,
                                   int32_t code, uint64_t value)
{
    epx_health_reading_t reading = {
        .link = link, .name = name, .known = code == 0, .code = code, .value = code == 0 ? value : 0};
    fn(context, &reading);
}

/* From now on only GPUs are asked that have links whose names begin so; "": all. A look at a GPU takes some
 * 50 ms of its driver's time. */
void epx_health_only(epx_health_h health, const char *links);

/* ---- ports by sysfs ---- */
/* Returns how many ports there are. */
int32_t epx_health_sample_ports(const char *sysfs, epx_health_fn fn, void *context);

/* ---- asynchronous events by libibverbs ---- */
typedef struct epx_health_events epx_health_events_t;
/* NULL where nothing can be read: blind [bytes] says why. */
epx_health_events_t *epx_health_events_open(char *blind, size_t bytes);
void epx_health_events_sample(epx_health_events_t *events, epx_health_fn fn, void *context);
void epx_health_events_close(epx_health_events_t *events);

/* ---- GPUs by NVML ---- */
typedef struct epx_health_gpus epx_health_gpus_t;
epx_health_gpus_t *epx_health_gpus_open(const char *library, int *is_nvml_p, char *blind, size_t bytes);
void epx_health_gpus_sample(epx_health_gpus_t *gpus, const char *links, epx_health_fn fn, void *context);
void epx_health_gpus_close(epx_health_gpus_t *gpus);

#endif
