/* InfiniBand and RoCE ports as the kernel shows them. SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "health/health.h"

enum { PATH_BYTES = 1024, NAMES_MOST = 256 };

/* Names of a folder's entries in order; how many, 0 where there is no such folder. */
typedef struct names {
    char name[NAMES_MOST][64];
    int32_t count;
} names_t;

static int by_text(const void *a, const void *b) { return strcmp(a, b); }

static void list(const char *folder, names_t *names)
{
    names->count = 0;
    DIR *dir = opendir(folder);
    if (dir == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL && names->count < NAMES_MOST;) {
        if (entry->d_name[0] == '.' || strlen(entry->d_name) >= sizeof(names->name[0]))
            continue;
        snprintf(names->name[names->count++], sizeof(names->name[0]), "%.63s", entry->d_name);
    }
    closedir(dir);
    qsort(names->name, (size_t)names->count, sizeof(names->name[0]), by_text);
}

/* The number at the beginning of a file, "4: ACTIVE" too. 0, or errno. */
static int32_t read_number(const char *folder, const char *name, uint64_t *value_p)
{
    char path[PATH_BYTES + 80], text[64], *end;
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    errno = 0;
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return errno != 0 ? errno : EIO;
    errno = 0;
    const char *got = fgets(text, sizeof(text), file);
    int32_t code = got == NULL ? (errno != 0 ? errno : ENODATA) : 0;
    fclose(file);
    if (code != 0)
        return code;
    *value_p = strtoull(text, &end, 10);
    return end != text ? 0 : EINVAL;
}

static void sample_folder(const char *port, const char *sub, const char *link, names_t *names,
                          epx_health_fn fn, void *context)
{
    char folder[PATH_BYTES];
    snprintf(folder, sizeof(folder), "%.900s/%s", port, sub);
    list(folder, names); /* either folder may be absent: soft-RoCE has no counters/ */
    for (int32_t i = 0; i < names->count; i++) {
        uint64_t value = 0;
        if (strcmp(names->name[i], "lifespan") == 0) /* a setting, not a counter */
            continue;
        int32_t code = read_number(folder, names->name[i], &value);
        epx_health_pass(fn, context, link, names->name[i], code, value);
    }
}

static void sample_port(const char *device_folder, const char *device, const char *port, names_t *room,
                        epx_health_fn fn, void *context)
{
    char folder[PATH_BYTES], link[EPX_HEALTH_NAME];
    uint64_t value = 0;
    snprintf(folder, sizeof(folder), "%.800s/ports/%s", device_folder, port);
    snprintf(link, sizeof(link), "%.36s/%.8s", device, port);
    int32_t code = read_number(folder, "state", &value);
    epx_health_pass(fn, context, link, "state", code, value);
    sample_folder(folder, "counters", link, room, fn, context);
    sample_folder(folder, "hw_counters", link, room, fn, context);
}

int32_t epx_health_sample_ports(const char *sysfs, epx_health_fn fn, void *context)
{
    char folder[PATH_BYTES];
    int32_t ports = 0;
    names_t *devices = malloc(3 * sizeof(names_t));
    if (devices == NULL)
        return 0;
    names_t *numbers = devices + 1, *room = devices + 2;
    snprintf(folder, sizeof(folder), "%.600s/class/infiniband", sysfs);
    list(folder, devices);
    for (int32_t d = 0; d < devices->count; d++) {
        char device[PATH_BYTES], below[PATH_BYTES];
        snprintf(device, sizeof(device), "%.640s/%s", folder, devices->name[d]);
        snprintf(below, sizeof(below), "%.900s/ports", device);
        list(below, numbers);
        for (int32_t p = 0; p < numbers->count; p++, ports++)
            sample_port(device, devices->name[d], numbers->name[p], room, fn, context);
    }
    free(devices);
    return ports;
}
