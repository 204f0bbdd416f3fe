/*
 * A library that stands in for NVML. SPDX-License-Identifier: Apache-2.0
 *
 * Tells what a text file says (the variable FAKE_NVML names it), read anew at every question:
 *   gpus N                    how many there are
 *   link GPU LINK CODE STATE  answer about a link's state
 *   field GPU ID SCOPE CODE VALUE   answer about a field; a field that is not there answers 3, not supported
 *   errors GPU LINK COUNTER CODE VALUE   answer about a link's counter; likewise
 *   fabric GPU CODE STATE
 *   xid GPU NUMBER            an event, given out once each, in order
 *   process GPU PID           has it; and process-use GPU PID PERCENT, what it used just now
 *   use GPU PERCENT           and power GPU MILLIWATTS, clock GPU MEGAHERTZ; on bus 0000:GPU:00.0
 * Structures are laid out here once more, so that a slip in the reader's own shows.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, UNSUPPORTED = 3, TIMED_OUT = 10 };

struct field {
    unsigned int id, scope;
    long long when, took;
    int kind, code;
    unsigned long long value;
};
struct fabric {
    unsigned char cluster[16];
    int status;
    unsigned int clique;
    unsigned char state;
};
struct event {
    void *device;
    unsigned long long type, data;
    unsigned int instance, compute;
};

extern int fake_nvml_asked[16];
int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetCount_v2(unsigned int *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle);
int nvmlDeviceGetNvLinkState(void *handle, unsigned int link, int *active);
int nvmlDeviceGetNvLinkErrorCounter(void *handle, unsigned int link, int counter, unsigned long long *value);
int nvmlDeviceGetFieldValues(void *handle, int count, struct field *fields);
int nvmlDeviceGetGpuFabricInfo(void *handle, struct fabric *fabric);
struct use {
    unsigned int gpu, memory;
};
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **handle);
int nvmlDeviceGetUtilizationRates(void *handle, struct use *use);
int nvmlDeviceGetPowerUsage(void *handle, unsigned int *milliwatts);
int nvmlDeviceGetClockInfo(void *handle, int kind, unsigned int *megahertz);
struct process {
    unsigned int pid;
    unsigned long long bytes;
    unsigned int instance, compute;
};
struct process_use {
    unsigned int pid;
    unsigned long long when_us;
    unsigned int gpu, memory, encoder, decoder;
};
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned int *count, struct process *process);
int nvmlDeviceGetProcessUtilization(void *handle, struct process_use *use, unsigned int *count,
                                    unsigned long long after_us);
int nvmlEventSetCreate(void **set);
int nvmlDeviceRegisterEvents(void *handle, unsigned long long kinds, void *set);
int nvmlEventSetWait_v2(void *set, struct event *event, unsigned int timeout_ms);
int nvmlEventSetFree(void *set);

int fake_nvml_asked[16]; /* questions about fields, by GPU */
static int started, given;
static char gpus[16], set_of_events;

/* Numbers behind the n-th line that begins with `words`; how many there are, -1: no such line. */
static int find(const char *words, int n, unsigned long long *a, unsigned long long *b)
{
    char line[256];
    const char *path = getenv("FAKE_NVML");
    FILE *file = path != NULL ? fopen(path, "r") : NULL;
    int found = -1;
    while (file != NULL && found < 0 && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, words, strlen(words)) == 0 && line[strlen(words)] == ' ' && n-- == 0)
            found = sscanf(line + strlen(words), "%llu %llu", a, b);
    if (file != NULL)
        fclose(file);
    return found;
}

static int number_of(void *handle) { return (int)((char *)handle - gpus); }

int nvmlInit_v2(void)
{
    started = 1;
    return getenv("FAKE_NVML") != NULL ? OK : 9; /* the driver is not loaded */
}

int nvmlShutdown(void)
{
    started = 0;
    return OK;
}

int nvmlDeviceGetCount_v2(unsigned int *count)
{
    unsigned long long a = 0, b;
    find("gpus", 0, &a, &b);
    *count = (unsigned int)a;
    return started ? OK : 1;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle)
{
    *handle = &gpus[index];
    return OK;
}

int nvmlDeviceGetNvLinkState(void *handle, unsigned int link, int *active)
{
    char words[64];
    unsigned long long code = UNSUPPORTED, state = 0;
    snprintf(words, sizeof words, "link %d %u", number_of(handle), link);
    find(words, 0, &code, &state);
    *active = (int)state;
    return (int)code;
}

int nvmlDeviceGetNvLinkErrorCounter(void *handle, unsigned int link, int counter, unsigned long long *value)
{
    char words[64];
    unsigned long long code = UNSUPPORTED;
    *value = 0xdeadbeef;
    snprintf(words, sizeof words, "errors %d %u %d", number_of(handle), link, counter);
    find(words, 0, &code, value);
    return (int)code;
}

int nvmlDeviceGetFieldValues(void *handle, int count, struct field *fields)
{
    fake_nvml_asked[number_of(handle)]++;
    for (int i = 0; i < count; i++) {
        char words[64];
        unsigned long long code = UNSUPPORTED, value = 0xdeadbeef; /* garbage where the code is not 0 */
        snprintf(words, sizeof words, "field %d %u %u", number_of(handle), fields[i].id, fields[i].scope);
        find(words, 0, &code, &value);
        fields[i].code = (int)code;
        fields[i].kind = 3;
        fields[i].value = value;
    }
    return OK;
}

int nvmlDeviceGetGpuFabricInfo(void *handle, struct fabric *fabric)
{
    char words[64];
    unsigned long long code = UNSUPPORTED, state = 0;
    snprintf(words, sizeof words, "fabric %d", number_of(handle));
    find(words, 0, &code, &state);
    fabric->state = (unsigned char)state;
    return (int)code;
}

/* A bare number about a GPU. */
static int tell(void *handle, const char *what, unsigned int *value)
{
    char words[64];
    unsigned long long told = 0, none;
    snprintf(words, sizeof words, "%s %d", what, number_of(handle));
    if (find(words, 0, &told, &none) < 1)
        return UNSUPPORTED;
    *value = (unsigned int)told;
    return OK;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **handle)
{
    unsigned int index = 0;
    if (sscanf(bus, "0000:%x:00.0", &index) != 1 || index >= 16)
        return 6; /* not found */
    *handle = &gpus[index];
    return OK;
}

int nvmlDeviceGetUtilizationRates(void *handle, struct use *use)
{
    use->memory = 0;
    return tell(handle, "use", &use->gpu);
}

int nvmlDeviceGetPowerUsage(void *handle, unsigned int *milliwatts)
{
    return tell(handle, "power", milliwatts);
}

int nvmlDeviceGetClockInfo(void *handle, int kind, unsigned int *megahertz)
{
    return kind == 1 ? tell(handle, "clock", megahertz) : 2;
}

/* The n-th line about a GPU's processes becomes one element; as many as there is room for. */
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned int *count, struct process *process)
{
    char words[64];
    unsigned int room = *count;
    unsigned long long pid, none;
    snprintf(words, sizeof words, "process %d", number_of(handle));
    for (*count = 0; *count < room && find(words, (int)*count, &pid, &none) >= 1; ++*count)
        process[*count] = (struct process){.pid = (unsigned int)pid, .instance = ~0u, .compute = ~0u};
    return OK;
}

int nvmlDeviceGetProcessUtilization(void *handle, struct process_use *use, unsigned int *count,
                                    unsigned long long after_us)
{
    char words[64];
    unsigned int room = *count;
    unsigned long long pid, percent;
    snprintf(words, sizeof words, "process-use %d", number_of(handle));
    for (*count = 0; *count < room && find(words, (int)*count, &pid, &percent) == 2; ++*count)
        use[*count] = (struct process_use){
            .pid = (unsigned int)pid, .when_us = after_us + 1, .gpu = (unsigned int)percent};
    return *count > 0 ? OK : 6; /* not found */
}

int nvmlEventSetCreate(void **set)
{
    *set = &set_of_events;
    return OK;
}

int nvmlDeviceRegisterEvents(void *handle, unsigned long long kinds, void *set)
{
    return set == &set_of_events && kinds == 8 && number_of(handle) < 16 ? OK : 2;
}

int nvmlEventSetWait_v2(void *set, struct event *event, unsigned int timeout_ms)
{
    unsigned long long gpu = 0, xid = 0;
    if (set != &set_of_events || timeout_ms != 0)
        return 2;
    if (find("xid", given, &gpu, &xid) != 2)
        return TIMED_OUT;
    given++;
    *event = (struct event){.device = &gpus[gpu], .type = 8, .data = xid};
    return OK;
}

int nvmlEventSetFree(void *set) { return set == &set_of_events ? OK : 2; }
