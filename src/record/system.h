/* What the system says of threads and processes. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_RECORD_SYSTEM_H
#define EPX_RECORD_SYSTEM_H

#include <stddef.h>
#include <stdint.h>

/* The calling thread's number, asked for once per thread. */
int32_t epx_system_thread(void);

/* Which pids mean what: equal for processes that see the same pids of the same running kernel. 0: not known.
 */
uint64_t epx_system_pid_space(void);
uint64_t epx_system_boot(void);

/* Makes every folder of a path; returns an errno, 0: it is there. */
int epx_system_make_folder(const char *path);

/* One thread of a process, as /proc tells. */
typedef struct epx_system_thread_info {
    char state;       /* 'R', 'S', 'D', 'T', 'Z'; 0: there is no such process or thread */
    uint64_t cpu_ns;  /* used so far */
    uint64_t naps;    /* times that it gave the processor up by itself */
    uint64_t works;   /* grows while it takes memory pages or reads and writes files */
    int32_t children; /* 1: the process has a child that runs */
} epx_system_thread_info_t;
void epx_system_look(int32_t pid, int32_t thread, epx_system_thread_info_t *info_p);

/* The file of a shared library that this process has loaded, links resolved ("/usr/lib/libnccl.so.2.28.3"),
 * by the beginning of its name ("libnccl.so"); "" where it has not. */
void epx_system_library(const char *name, char *path, size_t bytes);

#endif
