/* Which versions of what carries rows a process has loaded. SPDX-License-Identifier: Apache-2.0 */
#include "record/versions.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "record/system.h"

/*
 * Libraries are asked through the copy that is loaded already, whoever has loaded it: nothing is loaded here,
 * and no header of theirs is needed for these two functions, which have been what they are since the first
 * versions.
 */

enum { FILE_BYTES = 512 };

static int is_known(const char *text) { return text[0] != '\0' && strcmp(text, EPX_VERSIONS_NONE) != 0; }

/* 2.9 and later count 10,000 for a major version. */
static void nccl_version(void *function, char *text, size_t bytes)
{
    int (*get)(int *);
    int version = 0;
    memcpy(&get, &function, sizeof(get));
    if (get(&version) == 0 && version >= 20900)
        snprintf(text, bytes, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    else
        snprintf(text, bytes, "number %d", version);
}

static void ucx_version(void *function, char *text, size_t bytes)
{
    void (*get)(unsigned *, unsigned *, unsigned *);
    unsigned major = 0, minor = 0, release = 0;
    memcpy(&get, &function, sizeof(get));
    get(&major, &minor, &release);
    snprintf(text, bytes, "%u.%u.%u", major, minor, release);
}

static void find(const char *name, const char *function, void (*version)(void *, char *, size_t), char *text,
                 size_t bytes)
{
    char path[FILE_BYTES], number[32] = "?";
    if (is_known(text))
        return;
    epx_system_library(name, path, sizeof(path));
    void *library = path[0] != '\0' ? dlopen(path, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    void *found = library != NULL ? dlsym(library, function) : NULL;
    if (found != NULL)
        version(found, number, sizeof(number));
    if (library != NULL)
        dlclose(library);
    if (path[0] == '\0')
        snprintf(text, bytes, "%s", EPX_VERSIONS_NONE);
    else
        snprintf(text, bytes, "%s (%.*s)", number, (int)bytes - 40, path);
}

int epx_versions_driver(const char *line, char *text, size_t bytes)
{
    const char *at = strstr(line, "Module");
    for (; at != NULL && *at != '\0'; at++) {
        size_t length = strspn(at, "0123456789.");
        if (at[-1] == ' ' && length > 2 && memchr(at, '.', length) != NULL) {
            snprintf(text, bytes, "%.*s", (int)length, at);
            return 1;
        }
    }
    return 0;
}

/* What the kernel's module says of itself. */
static void find_driver(char *text, size_t bytes)
{
    char line[FILE_BYTES];
    if (is_known(text))
        return;
    FILE *file = fopen("/proc/driver/nvidia/version", "r");
    if (file == NULL || fgets(line, sizeof(line), file) == NULL || !epx_versions_driver(line, text, bytes))
        snprintf(text, bytes, "%s", EPX_VERSIONS_NONE);
    if (file != NULL)
        fclose(file);
}

void epx_versions_find(epx_record_head_t *head)
{
    find("libnccl.so", "ncclGetVersion", nccl_version, head->nccl, sizeof(head->nccl));
    find("libucp.so", "ucp_get_version", ucx_version, head->ucx, sizeof(head->ucx));
    find_driver(head->driver, sizeof(head->driver));
}

static const char *or_missing(const char *text) { return text[0] != '\0' ? text : "not recorded"; }

void epx_versions_text(const epx_record_head_t *head, char *text, size_t bytes)
{
    char compiled[64] = "";
    if (strncmp(head->compiled, head->loaded, sizeof(head->loaded)) != 0)
        snprintf(compiled, sizeof(compiled), " (compiled for %.31s)", or_missing(head->compiled));
    snprintf(text, bytes, "epx %.31s%s, NCCL %.127s, UCX %.127s, driver %.63s", or_missing(head->loaded),
             compiled, or_missing(head->nccl), or_missing(head->ucx), or_missing(head->driver));
}

static int agree(const char *a, const char *b, size_t bytes)
{
    return a[0] == '\0' || b[0] == '\0' || strncmp(a, b, bytes) == 0;
}

int epx_versions_equal(const epx_record_head_t *a, const epx_record_head_t *b)
{
    return agree(a->loaded, b->loaded, sizeof(a->loaded)) && agree(a->nccl, b->nccl, sizeof(a->nccl)) &&
           agree(a->ucx, b->ucx, sizeof(a->ucx)) && agree(a->driver, b->driver, sizeof(a->driver));
}
