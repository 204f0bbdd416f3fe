/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/repro/records.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/common/program.h"

static const void *map(const char *path, size_t *bytes_p)
{
    struct stat info;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    void *memory = MAP_FAILED;
    if (file >= 0 && fstat(file, &info) == 0 && info.st_size > 0)
        memory = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, file, 0);
    *bytes_p = memory != MAP_FAILED ? (size_t)info.st_size : 0;
    if (file >= 0)
        close(file);
    return memory != MAP_FAILED ? memory : NULL;
}

static void take(records_t *records, const char *path)
{
    size_t bytes;
    const char *why;
    const void *record = map(path, &bytes);
    if (!epx_record_is_one(record, bytes, &why)) {
        epx_tool_note("%s is left out: %s", path, why);
        return;
    }
    const epx_record_head_t *head = record;
    if (records->record == NULL) {
        records->ranks = head->ranks;
        records->record = epx_tool_alloc((size_t)head->ranks, sizeof(*records->record));
    }
    if (head->ranks != records->ranks || records->record[head->rank] != NULL)
        epx_tool_note("%s is left out: it is of another job than the others", path);
    else {
        records->record[head->rank] = record;
        records->found++;
    }
}

int records_open(const char *folder, records_t *records_p)
{
    char path[1024];
    size_t suffix = strlen(EPX_RECORD_SUFFIX);
    *records_p = (records_t){0};
    DIR *list = opendir(folder);
    if (list == NULL)
        return epx_tool_fail(EPX_EXIT_USAGE, "%s cannot be read: name a folder with flight records", folder);
    for (struct dirent *entry = readdir(list); entry != NULL; entry = readdir(list)) {
        size_t length = strlen(entry->d_name);
        if (length <= suffix || strcmp(entry->d_name + length - suffix, EPX_RECORD_SUFFIX) != 0)
            continue;
        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        take(records_p, path);
    }
    closedir(list);
    if (records_p->found == 0)
        return epx_tool_fail(EPX_EXIT_USAGE, "%s has no flight records (*%s)", folder, EPX_RECORD_SUFFIX);
    return EPX_EXIT_OK;
}

uint64_t records_oldest(const epx_record_head_t *head)
{
    uint64_t newest = __atomic_load_n(&head->operations, __ATOMIC_ACQUIRE);
    return newest > head->ops_max ? newest - head->ops_max + 1 : 1;
}
