/* Memory that is left. SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/room.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The number behind a word at the begin of a line ("": the file's first); 0: there is none. */
static int read_number(const char *path, const char *word, int64_t *value_p)
{
    char line[512];
    int found = 0;
    FILE *file = fopen(path, "re");
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL)
        found =
            strncmp(line, word, strlen(word)) == 0 && sscanf(line + strlen(word), " %" SCNd64, value_p) == 1;
    if (file != NULL)
        fclose(file);
    return found;
}

static int64_t of_machine(const char *root)
{
    char path[4200];
    int64_t kib = 0, swap_kib = 0;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    if (!read_number(path, "MemAvailable:", &kib))
        return INT64_MAX;
    (void)read_number(path, "SwapFree:", &swap_kib);
    return (kib + swap_kib) << 10;
}

typedef struct version {
    const char *folder, *limit, *used, *cache[2]; /* the last two in memory.stat */
} version_t;

static const version_t versions[] = {
    {"/sys/fs/cgroup", "memory.max", "memory.current", {"inactive_file ", "active_file "}},
    {"/sys/fs/cgroup/memory",
     "memory.limit_in_bytes",
     "memory.usage_in_bytes",
     {"total_inactive_file ", "total_active_file "}}};

/* Of one group alone. A limit that is none ("max", or beyond all memory) leaves room enough. */
static int64_t of_group(const char *root, const version_t *v, const char *group)
{
    char path[4200];
    int64_t limit, used = 0, cache[2] = {0, 0};
    snprintf(path, sizeof path, "%s%s%s/%s", root, v->folder, group, v->limit);
    if (!read_number(path, "", &limit))
        return INT64_MAX;
    snprintf(path, sizeof path, "%s%s%s/%s", root, v->folder, group, v->used);
    (void)read_number(path, "", &used);
    snprintf(path, sizeof path, "%s%s%s/memory.stat", root, v->folder, group);
    for (int i = 0; i < 2; i++)
        (void)read_number(path, v->cache[i], &cache[i]);
    int64_t left = limit - used + cache[0] + cache[1];
    return left > 0 ? left : 0;
}

/* Of the group and of all above it. In a container the name may be that of outside, where it is not found,
 * and the container's own limits stand at the top. */
static int64_t of_groups(const char *root, const version_t *v, char *group)
{
    int64_t least = INT64_MAX;
    for (;;) {
        int64_t left = of_group(root, v, strcmp(group, "/") == 0 ? "" : group);
        least = left < least ? left : least;
        char *slash = strrchr(group, '/');
        if (slash == NULL)
            return least;
        *slash = '\0';
    }
}

int64_t epx_room_below(const char *root, const char **whose_p)
{
    char path[4200], line[4096];
    int64_t least = of_machine(root);
    *whose_p = "this machine";
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        char *kind = strchr(line, ':'), *group = kind != NULL ? strchr(kind + 1, ':') : NULL;
        if (group == NULL)
            continue;
        *group++ = '\0';
        group[strcspn(group, "\n")] = '\0';
        int is_second = kind[1] == '\0';
        if (!is_second && strcmp(kind + 1, "memory") != 0)
            continue;
        int64_t left = of_groups(root, &versions[!is_second], group);
        if (left < least) {
            least = left;
            *whose_p = "this control group";
        }
    }
    if (file != NULL)
        fclose(file);
    return least;
}

int64_t epx_room_bytes(const char **whose_p) { return epx_room_below("", whose_p); }
