/* A monitor: ports, their events, GPUs. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "health/health.h"

struct epx_health {
    char sysfs[512];
    epx_health_events_t *events;
    epx_health_gpus_t *gpus;
    int32_t ports; /* at the last sample */
    char links[EPX_HEALTH_NAME];
    char events_blind[EPX_HEALTH_BLIND], gpus_blind[EPX_HEALTH_BLIND], all[2 * EPX_HEALTH_BLIND + 256];
};

epx_status_t epx_health_open(const epx_health_config_t *config, epx_health_h *health_p)
{
    if (config == NULL || config->size != sizeof(*config) || health_p == NULL)
        return epx_fail(EPX_ERR_ARG,
                        "epx_health_open: give a configuration begun with EPX_HEALTH_CONFIG_INIT, "
                        "and health_p");
    struct epx_health *health = calloc(1, sizeof(*health));
    if (health == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "epx_health_open: no memory");
    snprintf(health->sysfs, sizeof(health->sysfs), "%s", config->sysfs != NULL ? config->sysfs : "/sys");
    if (config->sysfs == NULL)
        health->events = epx_health_events_open(health->events_blind, sizeof(health->events_blind));
    else
        snprintf(health->events_blind, sizeof(health->events_blind), "not read with another root of sysfs");
    const char *library = config->nvml != NULL ? config->nvml : "libnvidia-ml.so.1";
    int is_nvml = 1;
    if (library[0] != '\0')
        health->gpus =
            epx_health_gpus_open(library, &is_nvml, health->gpus_blind, sizeof(health->gpus_blind));
    else
        snprintf(health->gpus_blind, sizeof(health->gpus_blind), "not asked for");
    if (!is_nvml && config->nvml != NULL) {
        epx_status_t status =
            epx_fail(EPX_ERR_ARG, "NVML: %s; name a library of NVML, or none", health->gpus_blind);
        epx_health_close(&health);
        return status;
    }
    *health_p = health;
    return EPX_OK;
}

void epx_health_only(epx_health_h health, const char *links)
{
    snprintf(health->links, sizeof(health->links), "%s", links);
}

epx_status_t epx_health_sample(epx_health_h health, epx_health_fn fn, void *context)
{
    if (health == NULL || fn == NULL)
        return epx_fail(EPX_ERR_ARG, "epx_health_sample: give a monitor and a function");
    health->ports = epx_health_sample_ports(health->sysfs, fn, context);
    if (health->events != NULL)
        epx_health_events_sample(health->events, fn, context);
    if (health->gpus != NULL)
        epx_health_gpus_sample(health->gpus, health->links, fn, context);
    return EPX_OK;
}

const char *epx_health_blind_spots(epx_health_h health)
{
    if (health == NULL)
        return "";
    size_t at = 0;
    health->all[0] = '\0';
    if (health->ports == 0)
        at += (size_t)snprintf(health->all, sizeof(health->all), "ports: none in %s/class/infiniband\n",
                               health->sysfs);
    if (health->events_blind[0] != '\0')
        at += (size_t)snprintf(health->all + at, sizeof(health->all) - at, "events of ports: %s\n",
                               health->events_blind);
    if (health->gpus_blind[0] != '\0')
        snprintf(health->all + at, sizeof(health->all) - at, "GPUs: %s\n", health->gpus_blind);
    return health->all;
}

void epx_health_close(epx_health_h *health_p)
{
    if (health_p == NULL || *health_p == NULL)
        return;
    if ((*health_p)->events != NULL)
        epx_health_events_close((*health_p)->events);
    if ((*health_p)->gpus != NULL)
        epx_health_gpus_close((*health_p)->gpus);
    free(*health_p);
    *health_p = NULL;
}
