/* GPUs and their NVLinks by NVML, opened at run time. SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "health/health.h"
#include "health/nvml_types.h"

typedef void *gpu_h;

/* One GPU, and what its events said so far. */
typedef struct gpu {
    gpu_h handle;
    int corrects; /* its links are of a generation that corrects errors: NVLink 4 on */
    uint64_t xids_hardware, xids_other;
    int events_code; /* of registering for events: 0, they are counted */
} gpu_t;

struct epx_health_gpus {
    void *library;
    int (*start)(void);
    int (*end)(void);
    int (*count)(unsigned int *count);
    int (*at)(unsigned int index, gpu_h *handle);
    int (*link_state)(gpu_h handle, unsigned int link, int *active);
    int (*link_errors)(gpu_h handle, unsigned int link, int counter, unsigned long long *value);
    int (*fields)(gpu_h handle, int count, gpu_field_t *fields);
    int (*fabric)(gpu_h handle, gpu_fabric_t *fabric);
    int (*make_events)(void **set);
    int (*register_events)(gpu_h handle, unsigned long long kinds, void *set);
    int (*next_event)(void *set, gpu_event_t *event, unsigned int timeout_ms);
    int (*free_events)(void *set);
    void *set; /* NULL: no events */
    unsigned int gpus;
    gpu_t *gpu;
};

/* Functions by name, and whether nothing works without them. */
static const struct {
    const char *name;
    size_t offset;
    int needed;
} functions[] = {
    {"nvmlInit_v2", offsetof(struct epx_health_gpus, start), 1},
    {"nvmlShutdown", offsetof(struct epx_health_gpus, end), 1},
    {"nvmlDeviceGetCount_v2", offsetof(struct epx_health_gpus, count), 1},
    {"nvmlDeviceGetHandleByIndex_v2", offsetof(struct epx_health_gpus, at), 1},
    {"nvmlDeviceGetFieldValues", offsetof(struct epx_health_gpus, fields), 1},
    {"nvmlDeviceGetNvLinkState", offsetof(struct epx_health_gpus, link_state), 0},
    {"nvmlDeviceGetNvLinkErrorCounter", offsetof(struct epx_health_gpus, link_errors), 0},
    {"nvmlDeviceGetGpuFabricInfo", offsetof(struct epx_health_gpus, fabric), 0},
    {"nvmlEventSetCreate", offsetof(struct epx_health_gpus, make_events), 0},
    {"nvmlDeviceRegisterEvents", offsetof(struct epx_health_gpus, register_events), 0},
    {"nvmlEventSetWait_v2", offsetof(struct epx_health_gpus, next_event), 0},
    {"nvmlEventSetFree", offsetof(struct epx_health_gpus, free_events), 0},
};

/* What is read of a GPU as a whole. */
static const struct {
    unsigned int id;
    const char *name;
} gpu_fields[] = {
    {GPU_FIELD_RECOVERY_TOTAL, "nvlink_recoveries"},
    {GPU_FIELD_REPLAY_TOTAL, "nvlink_replays"},
    {GPU_FIELD_CRC_FLIT_TOTAL, "nvlink_crc_flit_errors"},
    {GPU_FIELD_CRC_DATA_TOTAL, "nvlink_crc_data_errors"},
};

/* And of each of its links: generations of NVLink tell the same by other fields, and up to the fourth by a
 * function; the first that answers counts. id 0: none. */
enum { LINK_WAYS = 2 };
static const struct {
    const char *name;
    unsigned int id[LINK_WAYS];
    gpu_link_counter_t counter;
    const char *corrected; /* its name where links correct errors; NULL: the same */
} link_values[] = {
    {"nvlink_recoveries", {GPU_FIELD_RECOVERIES, GPU_FIELD_DL_RECOVERIES}, GPU_LINK_RECOVERIES, NULL},
    {"nvlink_recoveries_failed", {GPU_FIELD_RECOVERIES_FAILED}, GPU_LINK_NO_COUNTER, NULL},
    {"nvlink_replays", {GPU_FIELD_DL_REPLAYS}, GPU_LINK_REPLAYS, NULL},
    {"nvlink_crc_flit_errors", {GPU_FIELD_DL_CRC_ERRORS}, GPU_LINK_CRC_FLIT_ERRORS, NULL},
    /* Counted lane by lane before correction: on an H200 it rises while nothing is sent again. */
    {"nvlink_crc_data_errors", {0}, GPU_LINK_CRC_DATA_ERRORS, "nvlink_crc_lane_errors"},
    {"nvlink_ecc_errors", {0}, GPU_LINK_ECC_ERRORS, NULL},
    {"nvlink_rcv_errors", {GPU_FIELD_RCV_ERRORS}, GPU_LINK_NO_COUNTER, NULL},
    {"nvlink_integrity_errors", {GPU_FIELD_INTEGRITY_ERRORS}, GPU_LINK_NO_COUNTER, NULL},
    {"nvlink_effective_errors", {GPU_FIELD_EFFECTIVE_ERRORS}, GPU_LINK_NO_COUNTER, NULL},
    {"nvlink_effective_ber_code", {GPU_FIELD_EFFECTIVE_BER}, GPU_LINK_NO_COUNTER, NULL},
    {"nvlink_symbol_ber_code", {GPU_FIELD_SYMBOL_BER}, GPU_LINK_NO_COUNTER, NULL},
    {"nvlink_version_code", {GPU_FIELD_LINK_VERSION}, GPU_LINK_NO_COUNTER, NULL},
    {"nvlink_mbytes_per_s", {GPU_FIELD_LINK_SPEED}, GPU_LINK_NO_COUNTER, NULL},
};
enum {
    GPU_FIELDS = sizeof(gpu_fields) / sizeof(gpu_fields[0]),
    LINK_VALUES = sizeof(link_values) / sizeof(link_values[0])
};

/* Xids that speak of the board or its links; the others are as a rule the program's own. */
static int is_hardware(unsigned long long xid)
{
    static const unsigned short known[] = {48,  62,  64,  74,  79,  92,  95,  119, 120,
                                           140, 144, 145, 146, 147, 148, 149, 150};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (known[i] == xid)
            return 1;
    return 0;
}

/* ---- opening ------------------------------------------------------------------------------------------------------ */

static int resolve(epx_health_gpus_t *gpus, const char *library, char *blind, size_t bytes)
{
    gpus->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (gpus->library == NULL) {
        snprintf(blind, bytes, "%s", dlerror());
        return -1;
    }
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *found = dlsym(gpus->library, functions[i].name);
        if (found == NULL && functions[i].needed) {
            snprintf(blind, bytes, "%s has no function %s", library, functions[i].name);
            return -1;
        }
        memcpy((char *)gpus + functions[i].offset, &found, sizeof(found));
    }
    return 0;
}

static void watch_events(epx_health_gpus_t *gpus)
{
    int can = gpus->make_events != NULL && gpus->register_events != NULL && gpus->next_event != NULL;
    int code = can ? gpus->make_events(&gpus->set) : GPU_FUNCTION_MISSING;
    if (code != GPU_SUCCESS)
        gpus->set = NULL;
    for (unsigned int g = 0; g < gpus->gpus; g++)
        gpus->gpu[g].events_code =
            gpus->set != NULL ? gpus->register_events(gpus->gpu[g].handle, GPU_XID_EVENT, gpus->set) : code;
}

epx_health_gpus_t *epx_health_gpus_open(const char *library, int *is_nvml_p, char *blind, size_t bytes)
{
    *is_nvml_p = 1;
    epx_health_gpus_t *gpus = calloc(1, sizeof(*gpus));
    if (gpus == NULL)
        return NULL;
    *is_nvml_p = resolve(gpus, library, blind, bytes) == 0;
    if (!*is_nvml_p)
        goto close_library;
    int code = gpus->start();
    if (code != GPU_SUCCESS) {
        snprintf(blind, bytes, "NVML does not start: its code %d", code);
        goto close_library;
    }
    code = gpus->count(&gpus->gpus);
    gpus->gpu = calloc((size_t)gpus->gpus + 1, sizeof(*gpus->gpu));
    for (unsigned int g = 0; code == GPU_SUCCESS && gpus->gpu != NULL && g < gpus->gpus; g++)
        code = gpus->at(g, &gpus->gpu[g].handle);
    if (code != GPU_SUCCESS || gpus->gpu == NULL || gpus->gpus == 0) {
        snprintf(blind, bytes, "NVML shows no GPU: its code %d", code);
        goto shut_down;
    }
    watch_events(gpus);
    return gpus;
shut_down:
    gpus->end();
    free(gpus->gpu);
close_library:
    if (gpus->library != NULL)
        dlclose(gpus->library);
    free(gpus);
    return NULL;
}

void epx_health_gpus_close(epx_health_gpus_t *gpus)
{
    if (gpus->set != NULL && gpus->free_events != NULL)
        gpus->free_events(gpus->set);
    gpus->end();
    dlclose(gpus->library);
    free(gpus->gpu);
    free(gpus);
}

/* ---- reading ------------------------------------------------------------------------------------------------------ */

static uint64_t whole_of(const gpu_field_t *field)
{
    switch (field->kind) {
    case GPU_DOUBLE: return field->value.real > 0 ? (uint64_t)field->value.real : 0;
    case GPU_UNSIGNED_INT: return field->value.natural;
    case GPU_UNSIGNED_LONG: return field->value.long_natural;
    case GPU_SIGNED_INT: return (uint64_t)(field->value.whole > 0 ? field->value.whole : 0);
    case GPU_UNSIGNED_SHORT: return field->value.short_natural;
    case GPU_SIGNED_LONG_LONG:
        return (uint64_t)(field->value.longest_whole > 0 ? field->value.longest_whole : 0);
    case GPU_UNSIGNED_LONG_LONG: break;
    }
    return field->value.longest_natural;
}

/* Each field has a return code of its own; the call's counts for all where it fails. */
static void ask(const epx_health_gpus_t *gpus, gpu_h handle, gpu_field_t *fields, int count)
{
    int code = gpus->fields(handle, count, fields);
    for (int i = 0; code != GPU_SUCCESS && i < count; i++)
        fields[i].code = code;
}

/* One value of a link, by the first way that answers; else the first way's code. */
static void pass_link_value(const epx_health_gpus_t *gpus, unsigned int g, unsigned int l, const char *link,
                            int v, const gpu_field_t *fields, epx_health_fn fn, void *context)
{
    gpu_h handle = gpus->gpu[g].handle;
    int code = GPU_NOT_SUPPORTED, is_first = 1;
    uint64_t value = 0;
    for (int w = 0; w < LINK_WAYS && link_values[v].id[w] != 0 && code != GPU_SUCCESS; w++) {
        const gpu_field_t *field = &fields[v * LINK_WAYS + w];
        if (field->code == GPU_SUCCESS || is_first)
            code = field->code;
        value = whole_of(field);
        is_first = 0;
    }
    if (code != GPU_SUCCESS && link_values[v].counter != GPU_LINK_NO_COUNTER && gpus->link_errors != NULL) {
        unsigned long long counted = 0;
        int other = gpus->link_errors(handle, l, (int)link_values[v].counter, &counted);
        if (other == GPU_SUCCESS || is_first)
            code = other;
        value = counted;
    }
    const char *name = gpus->gpu[g].corrects && link_values[v].corrected != NULL ? link_values[v].corrected
                                                                                 : link_values[v].name;
    epx_health_pass(fn, context, link, name, code, value);
}

/* Links of a GPU are of one generation, and one that is down may not tell it: who has told speaks for all,
 * and what its counters are called does not change when it goes down. */
static void find_generation(epx_health_gpus_t *gpus, unsigned int g, unsigned int links)
{
    for (unsigned int l = 0; l < links && l < GPU_LINKS_MOST && !gpus->gpu[g].corrects; l++) {
        gpu_field_t field = {.id = GPU_FIELD_LINK_VERSION, .scope = l};
        ask(gpus, gpus->gpu[g].handle, &field, 1);
        gpus->gpu[g].corrects = field.code == GPU_SUCCESS && whole_of(&field) >= GPU_LINK_VERSION_4;
    }
}

static void sample_links(const epx_health_gpus_t *gpus, unsigned int g, unsigned int links, epx_health_fn fn,
                         void *context)
{
    gpu_h handle = gpus->gpu[g].handle;
    for (unsigned int l = 0; l < links && l < GPU_LINKS_MOST; l++) {
        char link[EPX_HEALTH_NAME];
        gpu_field_t fields[LINK_VALUES * LINK_WAYS] = {{0}};
        int active = 0;
        int code = gpus->link_state != NULL ? gpus->link_state(handle, l, &active) : GPU_FUNCTION_MISSING;
        snprintf(link, sizeof(link), "GPU%u/nvlink%u", g, l);
        epx_health_pass(fn, context, link, "nvlink_state", code, (uint64_t)active);
        /* One at a time: a driver that does not know one id may refuse the whole question. */
        for (int v = 0; v < LINK_VALUES; v++) {
            for (int w = 0; w < LINK_WAYS && link_values[v].id[w] != 0; w++) {
                gpu_field_t *field = &fields[v * LINK_WAYS + w];
                field->id = link_values[v].id[w];
                field->scope = l;
                ask(gpus, handle, field, 1);
            }
            pass_link_value(gpus, g, l, link, v, fields, fn, context);
        }
    }
}

static void sample_gpu(epx_health_gpus_t *gpus, unsigned int g, epx_health_fn fn, void *context)
{
    const gpu_t *gpu = &gpus->gpu[g];
    char name[EPX_HEALTH_NAME];
    gpu_field_t fields[GPU_FIELDS + 1] = {{0}};
    gpu_field_t action = {.id = GPU_FIELD_RECOVERY_ACTION};
    gpu_fabric_t fabric = {.state = 0};
    snprintf(name, sizeof(name), "GPU%u", g);
    for (int i = 0; i < GPU_FIELDS; i++)
        fields[i].id = gpu_fields[i].id;
    fields[GPU_FIELDS].id = GPU_FIELD_LINK_COUNT;
    ask(gpus, gpu->handle, fields, GPU_FIELDS + 1);
    for (int i = 0; i < GPU_FIELDS; i++)
        epx_health_pass(fn, context, name, gpu_fields[i].name, fields[i].code, whole_of(&fields[i]));
    ask(gpus, gpu->handle, &action, 1); /* by itself: drivers before 570 do not know it */
    epx_health_pass(fn, context, name, "gpu_recovery_action", action.code, whole_of(&action));
    int code = gpus->fabric != NULL ? gpus->fabric(gpu->handle, &fabric) : GPU_FUNCTION_MISSING;
    if (code == GPU_SUCCESS && fabric.state == 0)
        code = GPU_NOT_SUPPORTED;
    epx_health_pass(fn, context, name, "fabric_state", code, fabric.state);
    epx_health_pass(fn, context, name, "xid_hardware", gpu->events_code, gpu->xids_hardware);
    epx_health_pass(fn, context, name, "xid_other", gpu->events_code, gpu->xids_other);
    if (fields[GPU_FIELDS].code == GPU_SUCCESS) {
        find_generation(gpus, g, (unsigned int)whole_of(&fields[GPU_FIELDS]));
        sample_links(gpus, g, (unsigned int)whole_of(&fields[GPU_FIELDS]), fn, context);
    }
}

static void take_events(epx_health_gpus_t *gpus)
{
    gpu_event_t event;
    while (gpus->set != NULL && gpus->next_event(gpus->set, &event, 0) == GPU_SUCCESS)
        for (unsigned int g = 0; g < gpus->gpus; g++)
            if (gpus->gpu[g].handle == event.device && event.type == GPU_XID_EVENT) {
                gpus->gpu[g].xids_hardware += (uint64_t)is_hardware(event.data);
                gpus->gpu[g].xids_other += (uint64_t)!is_hardware(event.data);
            }
}

/* "GPU3" and "GPU3/nvlink2" are of GPU 3. */
static int has_links(unsigned int g, const char *links)
{
    char name[EPX_HEALTH_NAME];
    int length = snprintf(name, sizeof(name), "GPU%u/", g);
    size_t most = strlen(links) < (size_t)length ? strlen(links) : (size_t)length;
    return strncmp(name, links, most) == 0;
}

void epx_health_gpus_sample(epx_health_gpus_t *gpus, const char *links, epx_health_fn fn, void *context)
{
    take_events(gpus);
    for (unsigned int g = 0; g < gpus->gpus; g++)
        if (has_links(g, links))
            sample_gpu(gpus, g, fn, context);
}
