/* What a GPU does right now, by NVML: for reports of hangs. SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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
    /* NULL: the library has none */
    int (*processes)(void *handle, unsigned int *count, gpu_process_t *process);
    int (*process_use)(void *handle, gpu_process_use_t *use, unsigned int *count,
                       unsigned long long after_us);
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
    void *more[] = {dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3"),
                    dlsym(library, "nvmlDeviceGetProcessUtilization")};
    memcpy(&nvml.processes, &more[0], sizeof(more[0]));
    memcpy(&nvml.process_use, &more[1], sizeof(more[1]));
    if (nvml.why[0] != '\0')
        return;
    int code = nvml.start();
    if (code != GPU_SUCCESS)
        snprintf(nvml.why, sizeof(nvml.why), "NVML does not start: its code %d", code);
}

enum { PROCESSES = 128, RECENT_US = 2000000 };

/* This process's part. Both answers are in PIDs of the asking process's namespace, and a process that is not
 * in the list is not this one: whose PIDs are others' is not taken for its own. */
static void ask_own(void *handle, epx_health_use_t *use_p)
{
    gpu_process_t process[PROCESSES];
    gpu_process_use_t use[PROCESSES];
    unsigned int count = PROCESSES, own = (unsigned int)getpid(), is_listed = 0;
    if (nvml.processes == NULL || nvml.processes(handle, &count, process) != GPU_SUCCESS)
        return;
    for (unsigned int i = 0; i < count && i < PROCESSES; i++)
        is_listed |= process[i].pid == own;
    if (!is_listed)
        return;
    use_p->processes = (int32_t)count;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    unsigned long long now_us =
        (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000;
    count = PROCESSES;
    int code = nvml.process_use != NULL ? nvml.process_use(handle, use, &count, now_us - RECENT_US)
                                        : GPU_FUNCTION_MISSING;
    if (code != GPU_SUCCESS && code != GPU_NOT_FOUND)
        return;
    use_p->own = 0; /* who has used nothing has no sample */
    for (unsigned int i = 0; code == GPU_SUCCESS && i < count && i < PROCESSES; i++)
        if (use[i].pid == own && (int32_t)use[i].processors > use_p->own)
            use_p->own = (int32_t)use[i].processors;
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
    ask_own(handle, use_p);
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
