/* What a GPU does right now, by NVML: for reports of hangs. SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "health/health.h"
#include "health/nvml_types.h"

#include "base/fail.h"

/* NVML is opened once in a process and stays: a watchdog asks again and again, and may ask while the process
 * ends. */
static struct {
    pthread_mutex_t lock;
    int tried;
    char why[256]; /* nothing can be asked */
    int (*start)(void);
    int (*by_bus)(const char *bus, void **handle);
    int (*use)(void *handle, gpu_use_t *use);
    int (*power)(void *handle, unsigned int *milliwatts);
    int (*clock)(void *handle, int kind, unsigned int *megahertz);
} nvml = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *function(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL && nvml.why[0] == '\0')
        snprintf(nvml.why, sizeof(nvml.why), "NVML has no function %s", name);
    return found;
}

static void open_once(const char *library_name)
{
    if (nvml.tried)
        return;
    nvml.tried = 1;
    void *library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(nvml.why, sizeof(nvml.why), "%.250s", dlerror());
        return;
    }
    void *found[] = {function(library, "nvmlInit_v2"), function(library, "nvmlDeviceGetHandleByPciBusId_v2"),
                     function(library, "nvmlDeviceGetUtilizationRates"),
                     function(library, "nvmlDeviceGetPowerUsage"),
                     function(library, "nvmlDeviceGetClockInfo")};
    memcpy(&nvml.start, &found[0], sizeof(found[0]));
    memcpy(&nvml.by_bus, &found[1], sizeof(found[1]));
    memcpy(&nvml.use, &found[2], sizeof(found[2]));
    memcpy(&nvml.power, &found[3], sizeof(found[3]));
    memcpy(&nvml.clock, &found[4], sizeof(found[4]));
    if (nvml.why[0] != '\0')
        return;
    int code = nvml.start();
    if (code != GPU_SUCCESS)
        snprintf(nvml.why, sizeof(nvml.why), "NVML does not start: its code %d", code);
}

static epx_status_t ask(const char *bus, epx_health_use_t *use_p)
{
    void *handle = NULL;
    unsigned int milliwatts = 0, megahertz = 0;
    gpu_use_t use = {0};
    int code = nvml.by_bus(bus, &handle);
    if (code != GPU_SUCCESS)
        return epx_fail(EPX_ERR_UNSUPPORTED, "NVML knows no GPU %s: its code %d", bus, code);
    if (nvml.use(handle, &use) == GPU_SUCCESS)
        use_p->percent = (int32_t)use.processors;
    if (nvml.power(handle, &milliwatts) == GPU_SUCCESS)
        use_p->milliwatts = (int32_t)milliwatts;
    if (nvml.clock(handle, GPU_CLOCK_PROCESSORS, &megahertz) == GPU_SUCCESS)
        use_p->megahertz = (int32_t)megahertz;
    return EPX_OK;
}

epx_status_t epx_health_gpu_use(const char *library, const char *bus, epx_health_use_t *use_p)
{
    if (bus == NULL || use_p == NULL || use_p->size != sizeof(*use_p))
        return epx_fail(EPX_ERR_ARG, "epx_health_gpu_use: give a PCI bus id and EPX_HEALTH_USE_INIT");
    *use_p = (epx_health_use_t)EPX_HEALTH_USE_INIT;
    pthread_mutex_lock(&nvml.lock);
    open_once(library != NULL ? library : "libnvidia-ml.so.1");
    epx_status_t status = nvml.why[0] != '\0'
                              ? epx_fail(EPX_ERR_UNSUPPORTED, "GPUs cannot be asked: %s", nvml.why)
                              : ask(bus, use_p);
    pthread_mutex_unlock(&nvml.lock);
    return status;
}
