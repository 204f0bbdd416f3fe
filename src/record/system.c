/* What the system says of threads and processes. SPDX-License-Identifier: Apache-2.0 */
#include "record/system.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Grows in the child of a fork, whose thread has another number. */
static int forks;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void count_fork(void) { forks++; }

static void watch_forks(void) { pthread_atfork(NULL, NULL, count_fork); }

int32_t epx_system_thread(void)
{
    static _Thread_local int32_t known;
    static _Thread_local int known_forks;
    if (known == 0 || known_forks != forks) {
        pthread_once(&once, watch_forks);
        known = (int32_t)syscall(SYS_gettid);
        known_forks = forks;
    }
    return known;
}

int epx_system_make_folder(const char *path)
{
    char part[PATH_MAX];
    snprintf(part, sizeof(part), "%s", path);
    for (char *c = part + 1; *c != '\0'; c++) {
        if (*c != '/')
            continue;
        *c = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return errno;
        *c = '/';
    }
    return mkdir(part, 0777) != 0 && errno != EEXIST ? errno : 0;
}

uint64_t epx_system_pid_space(void)
{
    struct stat info;
    return stat("/proc/self/ns/pid", &info) == 0 ? (uint64_t)info.st_ino : 0;
}

/* Reads a small file as text; 0 bytes: it is not there. */
static size_t read_file(const char *path, char *text, size_t bytes)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t got = read(file, text, bytes - 1);
    close(file);
    text[got > 0 ? got : 0] = '\0';
    return got > 0 ? (size_t)got : 0;
}

uint64_t epx_system_boot(void)
{
    char text[64];
    struct stat info;
    uint64_t hash = 1469598103934665603u;
    size_t bytes = read_file("/proc/sys/kernel/random/boot_id", text, sizeof(text));
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ (uint8_t)text[i]) * 1099511628211u;
    /* A container may have a monotonic clock of its own. */
    if (stat("/proc/self/ns/time", &info) == 0)
        hash = (hash ^ (uint64_t)info.st_ino) * 1099511628211u;
    return bytes > 0 ? hash : 0;
}

/* Whether a child of any thread of the process is running now. */
static int has_running_child(int32_t pid)
{
    char path[96], text[1024], stat_text[512];
    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", pid, pid);
    if (read_file(path, text, sizeof(text)) == 0)
        return 0;
    for (char *at = text, *end; *at != '\0'; at = end) {
        long child = strtol(at, &end, 10);
        if (end == at)
            return 0;
        snprintf(path, sizeof(path), "/proc/%ld/stat", child);
        const char *state =
            read_file(path, stat_text, sizeof(stat_text)) > 0 ? strrchr(stat_text, ')') : NULL;
        if (state != NULL && (state[2] == 'R' || state[2] == 'D'))
            return 1;
    }
    return 0;
}

/* Whether a thread is on its way out, from the flags in its line of numbers (PF_EXITING): its sockets close
 * before the kernel calls it a zombie, so peers may know of a death that its state does not show yet. */
static int is_exiting(int32_t pid, int32_t thread)
{
    enum { EXITING = 0x4 };
    char path[96], text[1024];
    unsigned flags = 0;
    snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", pid, thread);
    const char *rest = read_file(path, text, sizeof(text)) > 0 ? strrchr(text, ')') : NULL;
    return rest != NULL && rest[1] != '\0' && sscanf(rest + 4, "%*d %*d %*d %*d %*d %u", &flags) == 1 &&
           (flags & EXITING) != 0;
}

void epx_system_look(int32_t pid, int32_t thread, epx_system_thread_info_t *info_p)
{
    char path[96], text[1024];
    unsigned long minor = 0, major = 0, user = 0, system = 0;
    *info_p = (epx_system_thread_info_t){0};
    snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", pid, thread);
    if (read_file(path, text, sizeof(text)) == 0)
        return;
    /* The program's name may hold anything; what follows its last parenthesis is numbers. */
    const char *rest = strrchr(text, ')');
    if (rest == NULL || rest[1] == '\0' ||
        sscanf(rest + 4, "%*d %*d %*d %*d %*d %*u %lu %*u %lu %*u %lu %lu", &minor, &major, &user, &system) !=
            4)
        return;
    info_p->state = is_exiting(pid, thread) && is_exiting(pid, pid) ? 'X' : rest[2];
    info_p->works = minor + major;
    info_p->cpu_ns = (user + system) * (uint64_t)(1000000000 / sysconf(_SC_CLK_TCK));
    /* Finer than clock ticks, where the kernel keeps it. */
    unsigned long long exact = 0;
    snprintf(path, sizeof(path), "/proc/%d/task/%d/schedstat", pid, thread);
    if (read_file(path, text, sizeof(text)) > 0 && sscanf(text, "%llu", &exact) == 1 && exact > 0)
        info_p->cpu_ns = exact;
    static const char naps[] = "\nvoluntary_ctxt_switches:";
    char status[4096];
    snprintf(path, sizeof(path), "/proc/%d/task/%d/status", pid, thread);
    const char *found = read_file(path, status, sizeof(status)) > 0 ? strstr(status, naps) : NULL;
    if (found != NULL)
        info_p->naps = strtoull(found + sizeof(naps) - 1, NULL, 10);
    info_p->children = has_running_child(pid);
}

typedef struct library {
    const char *name;
    char path[PATH_MAX];
} library_t;

/* The loader writes names under a lock of its own, held here too, which ThreadSanitizer does not know. */
__attribute__((no_sanitize("thread"))) static void copy_name(char *to, size_t bytes, const char *from)
{
    size_t i = 0;
    for (; from != NULL && i + 1 < bytes && from[i] != '\0'; i++)
        to[i] = from[i];
    to[i] = '\0';
}

static int is_library(struct dl_phdr_info *info, size_t bytes, void *context)
{
    library_t *library = context;
    char name[PATH_MAX];
    copy_name(name, sizeof(name), info->dlpi_name);
    const char *file = strrchr(name, '/');
    (void)bytes;
    if (file == NULL || strncmp(file + 1, library->name, strlen(library->name)) != 0)
        return 0;
    if (realpath(name, library->path) == NULL)
        snprintf(library->path, sizeof(library->path), "%s", name);
    return 1;
}

void epx_system_library(const char *name, char *path, size_t bytes)
{
    library_t library = {.name = name};
    dl_iterate_phdr(is_library, &library);
    snprintf(path, bytes, "%.*s", (int)bytes - 1, library.path);
}
